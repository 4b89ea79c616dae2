"""Rules on keys and values: not known, misspelled, or not what the framework takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.frameworks import Config, Row, nearest_name
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.tables import keys_of, truth
from fp8verify.text import counted, listed

_SHOWN = 6
_COMPARED = 200  # keys of a file that are compared with all that are known
_WORDS = ("fp8", "float8")
_FLAG = "flag"
_NO_SIGNS = str.maketrans("", "", "_-")
# Values of which later versions may have more.
_GROWS = re.compile(r"recipe|format|quantization|converters|algo")


def unknown_keys(facts: Facts) -> Iterator[Check]:
    """Keys that the framework does not have: near to one that it has, or not known at all."""
    for config in facts.configs:
        row = config.row
        is_file = not config.document.is_launch
        unknown: list[str] = []
        compared = 0
        for key in config.document.values:
            names = _lacks(key, config)
            if not names:
                continue
            section, _, name = key.rpartition(".")
            near = None
            if compared < _COMPARED:
                near = nearest_name(name, names)
            compared += 1
            # Else these are the keys on FP8 alone, among many others.
            is_whole = row["has_schema"] or section in row.get("closed", ())
            if near is not None and (is_file or _speaks(near, row)):
                yield _misspelled(config, key, near)
            elif (is_file and is_whole) or _speaks(name, row):
                unknown.append(key)
        if unknown:
            yield _unknown(config, unknown)


def _unknown(config: Config, keys: Sequence[str]) -> Check:
    status = Status.SKIPPED
    if any(_is_grave(key, config.row) for key in keys):
        status = Status.WARN
    count = counted(keys, "unknown key")
    return Check(
        code="config-key-unknown",
        status=status,
        message=f"{count}, not checked: {listed(keys, _SHOWN)}",
        hint="Check their spelling; they may belong to another version.",
        source=config.row["source"],
        file=config.path,
        line=config.document.lines.get(keys[0]),
    )


def _lacks(key: str, config: Config) -> frozenset[str]:
    """Return the keys that a section has, if this one is not among them, else none."""
    section, _, name = key.rpartition(".")
    names: frozenset[str] = config.row["keys"].get(section, frozenset())
    if key.startswith("ENV_VARS.") or name.startswith(("_", "x-")):
        return frozenset()
    plain = name.removeprefix("--").replace("-", "_")
    if config.document.is_launch:  # whose other programs have arguments, too
        launcher = keys_of("accelerate launch")[""]
        if plain in launcher:
            return frozenset()
        if schema := config.row.get("schema_of_arguments"):
            names |= keys_of(schema)[""]
    if {name, plain, plain.removeprefix("no_")} & names:
        return frozenset()
    return names


def _is_grave(key: str, row: Row) -> bool:
    """Whether an unknown key ends the run, or is one of FP8's."""
    section = key.rpartition(".")[0]
    is_closed = section in row.get("closed", ())
    ends_run = is_closed and _error(section, row) is not None
    return ends_run or _speaks(key, row)


def _error(section: str, row: Row) -> str | None:
    """Return how an unknown key of a section ends a run; None if it is ignored."""
    if section in row.get("raises_in", (section,)):
        return row.get("raises")
    return None


def _speaks(name: str, row: Row) -> bool:
    plain = name.lower().replace("-", "_")
    words = [word.replace("-", "_") for word in row.get("words", _WORDS)]
    return any(word in plain for word in words)


def _misspelled(
    config: Config,
    key: str,
    near: str,
) -> Check:
    section, _, name = key.rpartition(".")
    error = _error(section, config.row)
    if "-" in name:
        near = near.replace("_", "-")
    return Check(
        code="config-key-unknown",
        status=Status.FAIL if error else Status.WARN,
        message=f"{_as_read(config)} has no key {name}, and {error or 'ignores it'}",
        hint=f"Did you mean {near}?",
        source=config.row["source"],
        file=config.path,
        line=config.document.lines.get(key),
    )


def _as_read(config: Config) -> str:
    """Return a framework with its version of which the keys and values are known."""
    version = re.search(r" ([0-9a-f]{7,}|\d+(?:\.\d+)+)\b", config.row["source"])
    if version:
        return f"{config.framework} {version[1]}"
    return config.framework


def unknown_values(facts: Facts) -> Iterator[Check]:
    """FP8 values that the framework does not accept, such as "FP8" instead of "fp8"."""
    for config in facts.configs:
        row = config.row
        document = config.document
        exact = row.get("exact", False) or document.is_launch
        values = dict(row.get("values", {}))
        if document.is_launch:
            values |= row.get("values_of_arguments", {})
        for name, known in values.items():
            key = config.origins.get(name, name)
            value = document.values.get(key)
            if value is None:
                continue
            if not _takes(known, value, exact=exact):
                yield _unknown_value(config, name, str(value), known)


def _unknown_value(
    config: Config,
    name: str,
    value: str,
    known: Sequence[str] | str,
) -> Check:
    words = ("true", "false") if known == _FLAG else known
    row = config.row
    key = config.origins.get(name, name)
    message = (
        f"{key.rpartition('.')[2]} = {value[:60]!r} is not one of "
        f"{', '.join(filter(None, words))}: {_as_read(config)} "
        f"{row.get('otherwise', 'raises an error')}"
    )
    status = Status.FAIL
    hint = ""
    near = _nearest(value, words)
    if near:
        hint = f"Did you mean {near!r}?"
    elif _GROWS.search(name):
        status = Status.WARN
    if name in row.get("tolerates", ()):
        status = Status.WARN
    return Check(
        code="config-value-unknown",
        status=status,
        message=message,
        hint=hint,
        source=str(row["evidence"]),
        file=config.path,
        line=config.document.lines.get(key),
    )


def _takes(
    known: Sequence[str] | str,
    value: Any,
    *,
    exact: bool,
) -> bool:
    if known == _FLAG:
        return truth(value) is not None or not isinstance(value, str)
    text = str(value)
    is_variable = text.startswith(("$", "<"))
    if is_variable or isinstance(value, (dict, list)):
        return True  # the launch resolves it
    if exact:
        return text in known
    return text.lower() in {word.lower() for word in known}


def _nearest(value: str, known: Sequence[str]) -> str | None:
    """Return the word that was meant: by another case, by FP8's other names, or by its letters."""
    lower = {word.lower(): word for word in known if word}
    given = value.lower()
    plain = given.replace("float8", "fp8").translate(_NO_SIGNS)
    names = (given, plain, _ALIASES.get(plain, ""))
    meant = [name for name in names if name in lower]
    meant += get_close_matches(given, list(lower), n=1)
    if meant:
        return lower[meant[0]]
    return None


_ALIASES = {
    "torchao": "ao", "transformerengine": "te", "fp8": "transformer-engine", "fp8e4m3": "fp8",
    "fp8e4m3fn": "fp8", "fp8hybrid": "fp8", "tensorwisescaling": "tensorwise",
}  # fmt: skip
