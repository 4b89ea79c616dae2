"""The tables of data/, the rules in them, and their conditions.

A condition is a test for each key, all of which must hold. Tests: `true` (given and on), `false`
(absent or off), a word or glob in any case ("*" is any given value), "!" before a test (also holds
where the key is absent), "% 16" (not a multiple), "~regex", for a version or a number a specifier
of PEP 440 ("> 1"), and a list of tests of which one must hold. A list as value holds where one of
its items does. A key may be a glob, or "a|b": it means the first name that has a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from fp8verify.files import parse_toml
from fp8verify.preflight.checks import Check, Status

Values = Mapping[str, Any]
Test = bool | str | list[str]
MISSING = object()
_TRUTHS = {
    **dict.fromkeys(("true", "yes", "1", "on"), True),
    **dict.fromkeys(("false", "no", "0", "off", "none"), False),
}


def value_of(key: str, values: Values) -> Any:
    """Return the value of a key, else `MISSING`."""
    name = name_of(key, values)
    if name is None:
        return MISSING
    return values[name]


def name_of(key: str, values: Values) -> str | None:
    """Return the name among values that a key means: the first of its names that has a value.

    If none has one, a key without "|" means the first that is given, empty as it is.
    """
    parts = key.split("|")
    names: list[str] = []
    for part in parts:
        names += _names_like(part, values)
    for name in names:
        if values[name] not in ("", None):
            return name
    if names and len(parts) == 1:
        return names[0]
    return None


def _names_like(part: str, values: Values) -> list[str]:
    """Return the names among values that a name or a glob matches, in their order."""
    if part in values:
        return [part]
    is_glob = "*" in part or "[" in part
    if not is_glob:
        return []
    return [name for name in values if name and fnmatchcase(name, part)]


def all_hold(tests: Mapping[str, Test], values: Values) -> bool:
    """Return whether the tests of all keys hold."""
    for key, test in tests.items():
        value = value_of(key, values)
        if not holds(test, value):
            return False
    return True


def holds(test: Test, value: Any) -> bool:
    """Return whether a test holds for a value."""
    if isinstance(test, bool):
        return is_on(value) is test
    if isinstance(test, list):
        return any(holds(alternative, value) for alternative in test)
    if test.startswith("!"):
        return not holds(test[1:], value)
    if value is MISSING:
        return False
    if isinstance(value, (list, tuple)):
        return any(_item_holds(test, item) for item in value)
    return _item_holds(test, value)


def _item_holds(test: str, value: Any) -> bool:
    if test.startswith("%"):
        number = whole(value)
        return number is not None and number % int(test[1:]) != 0
    text = ""
    if value is not None:
        text = str(value).strip()
    if test.startswith(("<", ">", "=")):
        version = parsed(text)
        if version is None:
            return False
        # Nightlies count as their version.
        return SpecifierSet(test).contains(version, prereleases=True)
    if test.startswith("~"):
        return re.search(test[1:], text) is not None
    return fnmatchcase(text.lower(), test.lower())


def parsed(text: str | None) -> Version | None:
    """Return a version, None for what is none."""
    if not text:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def is_on(value: Any) -> bool:
    """Return whether a key is given and not switched off."""
    if value is MISSING or value is None:
        return False
    if value in ("", "auto", "null") or value == {}:
        return False
    return truth(value) is not False


def truth(value: Any) -> bool | None:
    """Return whether a value means yes, as YAML, TOML and command lines write it."""
    if isinstance(value, str):
        return _TRUTHS.get(value.lower())
    if isinstance(value, int):
        return bool(value)
    return None


def whole(value: Any) -> int | None:
    """Return a positive whole number, also from a string; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 12:
        value = int(value)
    if isinstance(value, int) and value > 0:
        return value
    return None


def _data(name: str) -> str:
    file = resources.files("fp8verify.preflight") / "data" / name
    return file.read_text(encoding="utf-8")


@cache
def table(name: str) -> dict[str, Any]:
    """Return a table of data/ as TOML reads it."""
    return parse_toml(_data(f"{name}.toml"))


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Return the keys of each framework by section, as scripts/doctor_schemas.py wrote them."""
    return dict(json.loads(_data("schemas.json")))


@cache
def keys_of(schema: str) -> dict[str, frozenset[str]]:
    """Return the keys of a schema by section; none for a schema that is not there."""
    sections = schemas().get(schema, {}).get("sections", {})
    return {section: frozenset(names) for section, names in sections.items()}


class Rule(NamedTuple):
    """A row of rules.toml, by its columns."""

    code: str
    where: Mapping[str, Any]
    when: Mapping[str, Any] | list[Mapping[str, Any]]
    status: str
    message: str
    remedy: str
    evidence: str

    def check(
        self,
        message: str,
        file: str | None,
        line: int | None,
    ) -> Check:
        """Return the check that the row makes, with its message filled in."""
        source = f"{self.evidence}; read {table('rules')['read']}"
        return Check(
            code=self.code,
            status=Status(self.status),
            message=message,
            hint=self.remedy,
            source=source,
            file=file,
            line=line,
        )


@cache
def rules() -> dict[str, list[Rule]]:
    """Return the rules by what they are of: "configurations", "sources" and "machine"."""
    of_groups = {}
    for group in ("configurations", "sources", "machine"):
        of_groups[group] = [Rule(*row) for row in table("rules")[group]]
    return of_groups


def said(
    key: str,
    file: str | None = None,
    line: int | None = None,
    /,
    status: Status | None = None,
    **values: Any,
) -> Check:
    """Return a check with the texts that rules.toml has for it, filled in.

    Args:
        key: its code, and after a slash which of its facts it is.
        file: the file that it is about.
        line: the line in it.
        status: if it is not that of the table.
        values: the words in its texts.
    """
    row, message, hint, source = table("rules")["said"][key]
    code = key.partition("/")[0]
    return Check(
        code=code,
        status=status or Status(row),
        message=message.format_map(values),
        hint=hint.format_map(values),
        source=source.format_map(values),
        file=file,
        line=line,
    )


@cache
def codes() -> dict[str, tuple[str, str]]:
    """Return by code what it means, and why it matters: the sections of codes.md."""
    pages = {}
    for section in _data("codes.md").removeprefix("## ").split("\n## "):
        code, means, why = section.strip().split("\n\n")
        pages[code] = (means, why)
    return pages


def code_page(code: str) -> str:
    """Return what `explain` says of a code: its meaning, and the fix and source of its rules.

    Raises:
        KeyError: no check has this code.
    """
    fixes = []
    evidence: dict[str, None] = {}
    for rule in chain.from_iterable(rules().values()):
        if rule.code == code:
            fixes.append(f"- {plain(rule)}\n  → {rule.remedy}")
            evidence[f"- {rule.evidence}"] = None
    means, why = codes()[code]
    sections = {
        "What it means": means,
        "Why it matters": why,
        "Fix": "\n".join(fixes),
        "Evidence": "\n".join(evidence),
    }
    shown = []
    for head, text in sections.items():
        if text:
            shown.append(f"## {head}\n\n{text}")
    return "\n\n".join(shown)


_KEY = re.compile(r"<[=@]?\*?([^<>|]+)[^<>]*>")  # in a message: the first of its names


def plain(rule: Rule) -> str:
    """Return a rule's message with the first names of keys, and without values."""
    conditions = rule.when if isinstance(rule.when, list) else [rule.when]
    first_keys = []
    for condition in conditions:
        first_keys.append(f"<{next(iter(condition), '')}>")
    keys = " or ".join(first_keys)
    message = re.sub("(: )?<@sides>", "", rule.message.replace("<@key>", keys))
    return _KEY.sub(_underscored, message)


def _underscored(key: re.Match[str]) -> str:
    return key[1].replace("[-_]", "_")
