"""Rules on keys and values: not known, misspelled, or not what the framework takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.facts import Config, Facts, truth
from fp8verify.preflight.frameworks import framework_of, nearest_name
from fp8verify.preflight.tables import known_keys, schemas
from fp8verify.text import counted

_SHOWN = 6
_COMPARED = 200  # keys of a file that are compared with all that are known
_WORDS = ("fp8", "float8")
_FLAG = "flag"
_IGNORES = "ignores it"
# Values of which later versions may have more.
_GROWS = re.compile(r"recipe|format|quantization|converters|algo")


def unknown_keys(facts: Facts) -> Iterator[Check]:
    """Keys that the framework does not have: near to one that it has, or not known at all."""
    for config in facts.configs:
        row = framework_of(config)
        known = known_keys(row)
        unknown: list[str] = []
        compared = 0
        for key in config.values:
            section, _, name = key.rpartition(".")
            names = known.get(section, frozenset())
            # Else these are the keys on FP8 alone, among many others.
            is_whole = "schema" in row or section in row.get("closed", ())
            if "section_of_arguments" in row and config.kind in ("shell", "arguments"):
                names |= _launcher_names()
            if not _is_strange(key, name, names, config):
                continue
            compared += 1
            near = nearest_name(name, names) if compared <= _COMPARED else None
            if near is not None and (config.is_file_of_values or _speaks(near, row)):
                yield _misspelled(config, row, key, near)
            elif (config.is_file_of_values and is_whole) or _speaks(name, row):
                unknown.append(key)
        if unknown:
            grave = any(_is_grave(key, row) for key in unknown)
            more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
            message = (
                f"{counted(unknown, 'unknown key')}, not checked: "
                f"{', '.join(unknown[:_SHOWN])}{more}"
            )
            hint = "Check their spelling; they may belong to another version."
            yield Check(
                "config-key-unknown",
                Status.WARN if grave else Status.SKIPPED,
                message,
                hint,
                _source(row),
                config.path,
                config.lines.get(unknown[0]),
            )


def _is_grave(key: str, row: Mapping[str, Any]) -> bool:
    """Whether an unknown key ends the run, or is one of FP8's."""
    section = key.rpartition(".")[0]
    ends = _effect(section, row) != _IGNORES and section in row.get("closed", ())
    return ends or _speaks(key, row)


def _effect(section: str, row: Mapping[str, Any]) -> str:
    """Return what the framework does with an unknown key of a section."""
    raises = str(row.get("raises", _IGNORES))
    return raises if section in row.get("raises_in", (section,)) else _IGNORES


def _is_strange(key: str, name: str, names: frozenset[str], config: Config) -> bool:
    if key.startswith("ENV_VARS.") or name.startswith(("_", "x-")) or not names:
        return False
    plain = name.removeprefix("--").replace("-", "_")
    if {name, plain, plain.removeprefix("no_")} & names:
        return False
    if config.kind in ("shell", "arguments"):  # whose other programs have arguments, too
        return plain not in _launcher_names()
    return True


@cache
def _launcher_names() -> frozenset[str]:
    return known_keys({"schema": "accelerate launch"}).get("", frozenset())


def _speaks(name: str, row: Mapping[str, Any]) -> bool:
    plain = name.lower().replace("-", "_")
    return any(word.replace("-", "_") in plain for word in row.get("words", _WORDS))


def _misspelled(config: Config, row: Mapping[str, Any], key: str, near: str) -> Check:
    section, _, name = key.rpartition(".")
    effect = _effect(section, row)
    dashed = key.startswith("--") or "-" in name
    message = f"{_as_read(config, row)} has no key {name}, and {effect}"
    hint = f"Did you mean {near.replace('_', '-') if dashed else near}?"
    status = Status.FAIL if effect != _IGNORES else Status.WARN
    return Check(
        "config-key-unknown",
        status,
        message,
        hint,
        _source(row),
        config.path,
        config.lines.get(key),
    )


def _source(row: Mapping[str, Any]) -> str:
    return schemas().get(row.get("schema", ""), {}).get("source", "") or str(row["evidence"])


def _as_read(config: Config, row: Mapping[str, Any]) -> str:
    """Return a framework with its version of which the keys and values are known."""
    version = re.search(r" ([0-9a-f]{7,}|\d+(?:\.\d+)+)\b", _source(row))
    return f"{config.framework} {version[1]}" if version else config.framework


def unknown_values(facts: Facts) -> Iterator[Check]:
    """FP8 values that the framework does not accept, such as "FP8" instead of "fp8"."""
    for config in facts.configs:
        row = framework_of(config)
        exact = row.get("exact", False) or config.kind in ("shell", "arguments")
        values = row.get("values", {})
        if config.kind in ("shell", "arguments"):
            values = {**values, **row.get("values_of_arguments", {})}
        for name, known in values.items():
            key = config.origins.get(name, name)
            value = config.values.get(key)
            if value is None or _takes(known, value, exact=exact):
                continue
            words = ("true", "false") if known == _FLAG else known
            near = _nearest(str(value), words)
            tolerated = name in row.get("tolerates", ())
            effect = row.get("otherwise", "raises an error")
            message = (
                f"{key.rpartition('.')[2]} = {str(value)[:60]!r} is not one of "
                f"{', '.join(filter(None, words))}: {_as_read(config, row)} {effect}"
            )
            hint = f"Did you mean {near!r}?" if near else ""
            status = (
                Status.FAIL if (near or not _GROWS.search(name)) and not tolerated else Status.WARN
            )
            yield Check(
                "config-value-unknown",
                status,
                message,
                hint,
                str(row["evidence"]),
                config.path,
                config.lines.get(key),
            )


def _takes(known: Sequence[str] | str, value: Any, *, exact: bool) -> bool:
    if known == _FLAG:
        return truth(value) is not None or not isinstance(value, str)
    text = str(value)
    if text.startswith(("$", "<")) or isinstance(value, (dict, list)):
        return True  # a variable, which the launch resolves
    return text in known if exact else text.lower() in {word.lower() for word in known}


def _nearest(value: str, known: Sequence[str]) -> str | None:
    """Return the word that was meant: by another case, by FP8's other names, or by its letters."""
    lower = {word.lower(): word for word in known if word}
    plain = value.lower().replace("float8", "fp8").replace("_", "").replace("-", "")
    for name in (value.lower(), plain, _ALIASES.get(plain, "")):
        if name in lower:
            return lower[name]
    close = get_close_matches(value.lower(), list(lower), n=1)
    return lower[close[0]] if close else None


_ALIASES = {
    "torchao": "ao", "transformerengine": "te", "fp8": "transformer-engine", "fp8e4m3": "fp8",
    "fp8e4m3fn": "fp8", "fp8hybrid": "fp8", "tensorwisescaling": "tensorwise",
}  # fmt: skip
