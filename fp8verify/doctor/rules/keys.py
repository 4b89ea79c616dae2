"""Rules on keys and values: what is not read, not known, or not what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks import framework_of
from fp8verify.doctor.frameworks.framework import FLAG, Framework, Key
from fp8verify.doctor.training import Config, truth

_ALIKE = 0.8
_SHOWN = 6


def unread_keys(facts: Facts) -> Iterator[Check]:
    """Keys that look right and that the framework never reads."""
    for config in facts.configs:
        for key, unread in framework_of(config).unread.items():
            if key in config.values:
                yield Check(
                    code="config-key-ignored",
                    status=Status.WARN,
                    message=f"{config.framework} never reads {_last(key)}; {unread.effect}",
                    hint=f"Write {unread.instead} instead.",
                    source=unread.source,
                    **place(config, key),
                )


def unknown_keys(facts: Facts) -> Iterator[Check]:
    """Keys on FP8 that are no key of the framework: near to one, or simply not known."""
    for config in facts.configs:
        framework = framework_of(config)
        strange = [key for key in config.values if _is_strange(key, config, framework)]
        meant = {key: _meant(key, framework.keys) for key in strange}
        yield from (_misspelt(config, framework, k, near) for k, near in meant.items() if near)
        unknown = [key for key, near in meant.items() if near is None]
        if unknown:
            more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
            yield Check(
                code="config-key-unknown",
                status=Status.SKIPPED,
                message=f"keys not known to this version of the doctor, not checked: "
                f"{', '.join(unknown[:_SHOWN])}{more}",
                source=framework.source,
                **place(config, unknown[0]),
            )


def _is_strange(key: str, config: Config, framework: Framework) -> bool:
    section, _, name = key.rpartition(".")
    known = key in framework.keys or key in framework.unread
    if known or section == "ENV_VARS" or config.values[key] == {}:
        return False
    speaks = any(word in name.lower() for word in framework.words) and not name.startswith("_")
    return speaks or section in framework.sections


def _meant(key: str, known: Mapping[str, Key]) -> str | None:
    section, _, name = key.rpartition(".")
    beside = [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == section]
    close = get_close_matches(name, beside, n=1, cutoff=_ALIKE)
    return close[0] if close else None


def _misspelt(config: Config, framework: Framework, key: str, near: str) -> Check:
    return Check(
        code="config-key-unknown",
        status=Status.WARN,
        message=f"{config.framework} has no key {_last(key)}",
        hint=f"Did you mean {near}?",
        source=framework.source,
        **place(config, key),
    )


def unknown_values(facts: Facts) -> Iterator[Check]:
    """Values on FP8 that the framework does not take, such as "FP8" where it wants "fp8"."""
    for config in facts.configs:
        framework = framework_of(config)
        for key, known in framework.keys.items():
            value = config.values.get(key)
            if value is None or not known.values or _takes(known, value):
                continue
            near = _nearest(str(value), known.values)
            yield Check(
                code="config-value-unknown",
                # What resembles no value that is known may be one of a later version.
                status=Status.FAIL if known.refuses and near else Status.WARN,
                message=f"{_last(key)} = {value!r} is none of "
                f"{', '.join(filter(None, known.values))}: {config.framework} {known.otherwise}",
                hint=f"Did you mean {near!r}?" if near else "",
                source=framework.source,
                **place(config, key),
            )


def _takes(known: Key, value: Any) -> bool:
    if known == FLAG:
        return truth(value) is not None or not isinstance(value, str)
    text = str(value)
    if text.startswith("$") or isinstance(value, (dict, list)):
        return True  # a variable, which the launch resolves
    if known.any_case:
        return text.lower() in {word.lower() for word in known.values}
    return text in known.values


def _nearest(value: str, known: tuple[str, ...]) -> str | None:
    """Return the word that was meant: by another case, by FP8's other names, or by its letters."""
    lower = {word.lower(): word for word in known if word}
    plain = value.lower().replace("float8", "fp8").replace("_", "").replace("-", "")
    for name in (value.lower(), plain, _ALIASES.get(plain, "")):
        if name in lower:
            return lower[name]
    close = get_close_matches(value.lower(), list(lower), n=1)
    return lower[close[0]] if close else None


_ALIASES = {
    "torchao": "ao",
    "transformerengine": "te",
    "fp8": "transformer-engine",
    "fp8e4m3": "fp8",
    "fp8e4m3fn": "fp8",
    "fp8hybrid": "fp8",
    "tensorwisescaling": "tensorwise",
}


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def place(config: Config, key: str) -> dict[str, Any]:
    """Return the file and line of a key as a check has them."""
    return {"file": config.path, "line": config.lines.get(key)}
