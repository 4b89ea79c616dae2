"""The tables of data/, and the rules in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from fp8verify.files import parse_toml
from fp8verify.preflight.checks import Check, Status


@cache
def table(name: str) -> dict[str, Any]:
    """Return a table of data/ as TOML reads it."""
    file = resources.files("fp8verify.preflight") / "data" / f"{name}.toml"
    return parse_toml(file.read_text(encoding="utf-8"))


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Return the keys of each framework by section, as scripts/doctor_schemas.py wrote them."""
    file = resources.files("fp8verify.preflight") / "data" / "schemas.json"
    return dict(json.loads(file.read_text(encoding="utf-8")))


@cache
def _schema(name: str) -> dict[str, frozenset[str]]:
    sections = schemas().get(name, {}).get("sections", {})
    return {section: frozenset(names) for section, names in sections.items()}


def known_keys(row: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the keys of a framework by section, as far as they are known."""
    known = dict(_schema(row.get("schema", "")))
    under = row.get("under", "")
    if under:
        known = {f"{under}.{name}" if name else under: keys for name, keys in known.items()}
    for section, names in row.get("fields", {}).items():
        known[section] = known.get(section, frozenset()) | frozenset(names)
    return known


class Rule(NamedTuple):
    """A row of rules.toml, by its columns."""

    code: str
    where: Mapping[str, Any]
    when: Mapping[str, Any] | list[Mapping[str, Any]]
    status: str
    message: str
    remedy: str
    evidence: str

    def check(self, message: str, file: str | None, line: int | None) -> Check:
        """Return the check that the row makes, with its message filled in."""
        return Check(
            code=self.code,
            status=Status(self.status),
            message=message,
            hint=self.remedy,
            source=f"{self.evidence}; read {table('rules')['read']}",
            file=file,
            line=line,
        )


@cache
def rules() -> dict[str, list[Rule]]:
    """Return the rules by group: a framework, a family, "any", "text" or "machine"."""
    groups = table("rules").items()
    return {name: [Rule(*row) for row in rows] for name, rows in groups if name != "read"}


@cache
def codes() -> dict[str, tuple[str, str]]:
    """Return by code what it means, and why it matters: the sections of codes.md."""
    file = resources.files("fp8verify.preflight") / "data" / "codes.md"
    sections = file.read_text(encoding="utf-8").removeprefix("## ").split("\n## ")
    parts = (section.strip().split("\n\n") for section in sections)
    return {code: (means, why) for code, means, why in parts}


def code_page(code: str) -> str:
    """Return what `explain` says of a code: its meaning, and the fix and source of its rules.

    Raises:
        KeyError: no check has this code.
    """
    of_code = [rule for of_group in rules().values() for rule in of_group if rule.code == code]
    means, why = codes()[code]
    sections = {
        "What it means": means,
        "Why it matters": why,
        "Fix": "\n".join(f"- {plain(rule)}\n  → {rule.remedy}" for rule in of_code),
        "Evidence": "\n".join(f"- {one}" for one in dict.fromkeys(r.evidence for r in of_code)),
    }
    return "\n\n".join(f"## {head}\n\n{text}" for head, text in sections.items() if text)


def plain(rule: Rule) -> str:
    """Return a rule's message with the first names of keys, and without values."""
    whens = rule.when if isinstance(rule.when, list) else [rule.when]
    keys = " or ".join(f"<{next(iter(when), '')}>" for when in whens)
    message = re.sub("(: )?<@sides>", "", rule.message.replace("<@key>", keys))
    return re.sub(
        r"<[=@]?\*?([^<>|]+)[^<>]*>", lambda match: match[1].replace("[-_]", "_"), message
    )
