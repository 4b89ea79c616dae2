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
# Values of which later versions may have more.
_GROWS = re.compile(r"recipe|format|quantization|converters|algo")


def unknown_keys(facts: Facts) -> Iterator[Check]:
    """Keys that the framework does not have: near to one that it has, or not known at all."""
    for config in facts.configs:
        row = config.row
        is_file = not config.document.is_launch
        unknown: list[str] = []
        strange = [
            (key, names)
            for key in config.document.values
            if (names := _lacks(key, config))
        ]
        for place, (key, names) in enumerate(strange):
            section, _, name = key.rpartition(".")
            near = None
            if place < _COMPARED:
                near = nearest_name(name, names)
            # Else these are the keys on FP8 alone, among many others.
            is_whole = row["has_schema"] or section in row.get("closed", ())
            if near is not None and (is_file or _speaks(near, row)):
                yield _misspelled(config, key, near)
            elif (is_file and is_whole) or _speaks(name, row):
                unknown.append(key)
        if unknown:
            grave = any(_is_grave(key, row) for key in unknown)
            status = Status.WARN if grave else Status.SKIPPED
            message = f"{counted(unknown, 'unknown key')}, not checked: {listed(unknown, _SHOWN)}"
            hint = "Check their spelling; they may belong to another version."
            line = config.document.lines.get(unknown[0])
            yield Check(
                code="config-key-unknown",
                status=status,
                message=message,
                hint=hint,
                source=row["source"],
                file=config.path,
                line=line,
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
    ends = _error(section, row) is not None and section in row.get("closed", ())
    return ends or _speaks(key, row)


def _error(section: str, row: Row) -> str | None:
    """Return how an unknown key of a section ends a run; None if it is ignored."""
    if section in row.get("raises_in", (section,)):
        return row.get("raises")
    return None


def _speaks(name: str, row: Row) -> bool:
    plain = name.lower().replace("-", "_")
    return any(word.replace("-", "_") in plain for word in row.get("words", _WORDS))


def _misspelled(config: Config, key: str, near: str) -> Check:
    section, _, name = key.rpartition(".")
    error = _error(section, config.row)
    message = f"{_as_read(config)} has no key {name}, and {error or 'ignores it'}"
    hint = f"Did you mean {near.replace('_', '-') if '-' in name else near}?"
    status = Status.FAIL if error else Status.WARN
    source = config.row["source"]
    line = config.document.lines.get(key)
    return Check(
        code="config-key-unknown",
        status=status,
        message=message,
        hint=hint,
        source=source,
        file=config.path,
        line=line,
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
        if document.is_launch:
            of_arguments = row.get("values_of_arguments", {})
        else:
            of_arguments = {}
        for name, known in {**row.get("values", {}), **of_arguments}.items():
            key = config.origins.get(name, name)
            value = document.values.get(key)
            if value is None or _takes(known, value, exact=exact):
                continue
            words = ("true", "false") if known == _FLAG else known
            near = _nearest(str(value), words)
            message = (
                f"{key.rpartition('.')[2]} = {str(value)[:60]!r} is not one of "
                f"{', '.join(filter(None, words))}: {_as_read(config)} "
                f"{row.get('otherwise', 'raises an error')}"
            )
            hint = f"Did you mean {near!r}?" if near else ""
            is_doubtful = (not near and _GROWS.search(name)) or name in row.get(
                "tolerates", ()
            )
            status = Status.WARN if is_doubtful else Status.FAIL
            source = str(row["evidence"])
            line = document.lines.get(key)
            yield Check(
                code="config-value-unknown",
                status=status,
                message=message,
                hint=hint,
                source=source,
                file=config.path,
                line=line,
            )


def _takes(known: Sequence[str] | str, value: Any, *, exact: bool) -> bool:
    if known == _FLAG:
        return truth(value) is not None or not isinstance(value, str)
    text = str(value)
    if text.startswith(("$", "<")) or isinstance(value, (dict, list)):
        return True  # a variable, which the launch resolves
    if exact:
        return text in known
    return text.lower() in {word.lower() for word in known}


def _nearest(value: str, known: Sequence[str]) -> str | None:
    """Return the word that was meant: by another case, by FP8's other names, or by its letters."""
    lower = {word.lower(): word for word in known if word}
    plain = value.lower().replace("float8", "fp8").replace("_", "").replace("-", "")
    meant = [
        name
        for name in (value.lower(), plain, _ALIASES.get(plain, ""))
        if name in lower
    ]
    meant += get_close_matches(value.lower(), list(lower), n=1)
    if meant:
        return lower[meant[0]]
    return None


_ALIASES = {
    "torchao": "ao", "transformerengine": "te", "fp8": "transformer-engine", "fp8e4m3": "fp8",
    "fp8e4m3fn": "fp8", "fp8hybrid": "fp8", "tensorwisescaling": "tensorwise",
}  # fmt: skip
