"""The evaluator of data/rules.toml: each row that holds for a configuration is a check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.conditions import MISSING, all_hold, holds, name_of, table, value_of
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks import frameworks
from fp8verify.doctor.launch_script import arguments
from fp8verify.doctor.rules.sizes import fp8_share, named, sized
from fp8verify.doctor.training import Ask, Config, word
from fp8verify.doctor.versions import built_for, within

Row = Mapping[str, Any]
# What only a configuration can answer: other rows hold for what a script asks for, too.
_OF_A_CONFIG = {
    *("framework", "when", "compile", "checkpointing", "deepspeed", "tensor_parallel", "tokens"),
    *("side", "kinds", "command", "trains"),
}


class Subject(NamedTuple):
    """What a row is held against: a configuration, what a script asks for, or the machine."""

    ask: Ask | None
    config: Config | None = None


def rows(facts: Facts) -> Iterator[Check]:
    """Yield what the rows of the table say."""
    configs = [Subject(config.training.ask, config) for config in facts.configs]
    others = [Subject(ask) for script in facts.scripts for ask in script.asks]
    for row in table("rules")["rule"]:
        subjects = configs if _OF_A_CONFIG.intersection(row) else [*configs, *others, Subject(None)]
        for subject in subjects:
            if _holds(row, subject, facts):
                yield _check(row, subject, facts)
                if not _OF_A_CONFIG.intersection(row):
                    break
    yield from _variables(facts)


def _variables(facts: Facts) -> Iterator[Check]:
    for row in table("rules")["variable"]:
        for name, effect in row["names"].items():
            value = facts.environment.get(name, "")
            if value not in ("", "0", "none"):
                yield Check(
                    code=row["code"],
                    status=Status(row["status"]),
                    message=f"{name}={value[:40]}: {effect}",
                    hint=row["remedy"],
                    source=row["evidence"],
                )


def _holds(row: Row, subject: Subject, facts: Facts) -> bool:
    return (
        _asked(row, subject.ask)
        and _machine(row, facts)
        and (subject.config is None or _configured(row, subject.config, facts))
    )


def _asked(row: Row, ask: Ask | None) -> bool:
    if "asks" in row:
        wanted = row["asks"]
        if isinstance(wanted, bool):
            if (ask is not None) is not wanted:
                return False
        elif ask is None or ask.format not in wanted:
            return False
    if ask is None:
        return "recipe" not in row and "backend" not in row
    return all(
        name not in row or holds(row[name], getattr(ask, name) or "", {})
        for name in ("recipe", "backend")
    )


def _machine(row: Row, facts: Facts) -> bool:
    versions = {**facts.versions, **built_for(facts.versions)}
    found = facts.gpus.found
    wanted = row.get("capability")
    if wanted == "?":
        fits = not any(gpu.capability for gpu in found)
    else:
        fits = wanted is None or any(
            (gpu.capability or "").startswith(tuple(wanted)) for gpu in found
        )
    return (
        fits
        and (
            "gpu" not in row
            or any(row["gpu"] in gpu.name.replace("-", " ").split() for gpu in found)
        )
        and all(_version(versions.get(n), w) for n, w in row.get("versions", {}).items())
        and all_hold(row.get("environment", {}), facts.environment)
    )


def _version(version: str | None, wanted: str) -> bool:
    if wanted in ("", "?"):
        return version is None
    return within(version, wanted)


def _configured(row: Row, config: Config, facts: Facts) -> bool:
    training, given = config.training, config.given
    tests = {
        "tensor_parallel": training.tensor_parallel,
        "tokens": training.tokens if training.tokens is not None else MISSING,
    }
    return (
        _framework(row, config)
        and ("kinds" not in row or config.kind in row["kinds"])
        and all(
            name not in row or _switch(row[name], getattr(training, name))
            for name in ("compile", "checkpointing", "deepspeed")
        )
        and all(name not in row or holds(row[name], value, {}) for name, value in tests.items())
        and all_hold(row.get("command", {}), arguments(list(facts.command)))
        and ("trains" not in row or _trains(given))
        and ("asks_outside" not in row or fp8_from_outside(facts) is not None)
        and ("trl" not in row or _is_trl(facts))
        and ("side" not in row or bool(_odd(row, config, facts)))
        and all_hold(row.get("when", {}), given)
        and ("scalar" not in row or isinstance(_first(row, given), list) is not row["scalar"])
    )


def _framework(row: Row, config: Config) -> bool:
    names = {config.framework, frameworks()[config.framework].get("family", "")}
    wanted = row.get("framework")
    if row.get("not_framework") in names:
        return False
    return wanted is None or bool(names & set([wanted] if isinstance(wanted, str) else wanted))


def _switch(wanted: bool | str, value: bool | None) -> bool:
    return value is None if wanted == "?" else value is not None and value is wanted


def _trains(given: Mapping[str, Any]) -> bool:
    """Whether these are the arguments of a training as a whole, not a part of them."""
    infers = any("inference" in name for name in given)
    return not infers and ("train-iters" in given or "train-samples" in given)


def _odd(row: Row, config: Config, facts: Facts) -> list[Any]:
    layers = [layer for one, _, found in sized(facts) if one is config for layer in found]
    return [part for part in layers if any(holds(row["side"], n, {}) for n in (part.n, part.k))]


def _first(row: Row, given: Mapping[str, Any]) -> Any:
    return value_of(next(iter(row["when"])), given)


def _check(row: Row, subject: Subject, facts: Facts) -> Check:
    config = subject.config
    status = row.get("status", "warn")
    if "status_te" in row:
        te = any(ask.backend == "te" for ask, _ in facts.asks)
        status = row["status_te"] if te else "ok"
    place: dict[str, Any] = {}
    if config is not None and _OF_A_CONFIG.intersection(row):
        key = row.get("key") or next(iter(row.get("when", {})), "") or _key(subject.ask)
        name = name_of(key, config.given)
        origin = config.origins.get(name or "", name or "")
        place = {"file": config.path, "line": config.lines.get(origin)}
    seen = "".join(f"; {name}: {row[name]}" for name in ("seen", "fixed") if name in row)
    return Check(
        code=row["code"],
        status=Status(status),
        message=_message(row, config, facts),
        hint=row["remedy"],
        source=f"{row['evidence']}{seen}; read {table('rules')['read']}",
        **place,
    )


def _key(ask: Ask | None) -> str:
    return ask.key if ask is not None else ""


_PART = re.compile(r"<(=|\$|@|)([^<>]+)>")


def _message(row: Row, config: Config | None, facts: Facts) -> str:
    """Fill in the keys as the file spells them, and their values."""

    def part(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "$":
            return str(facts.environment.get(name, ""))[:40]
        if config is None:
            return name
        if kind == "=":
            return str(value_of(name, config.given))[:60]
        if kind == "@":
            return _derived(name, row, config, facts)
        return spelled(name, config)

    return _PART.sub(part, row["message"])


def _derived(name: str, row: Row, config: Config, facts: Facts) -> str:
    if name == "tokens":
        return str(config.training.tokens)
    if name == "sides":
        return named(_odd(row, config, facts))
    share = fp8_share(config)
    return "an unknown share" if share is None else f"{share:.0%}"


def spelled(key: str, config: Config) -> str:
    """Return a key as the file spells it, or as its kind would."""
    name = name_of(key, config.given) or key
    if name in config.origins:
        name = config.origins[name].removeprefix("MODEL_ARGS.--")
    elif config.kind not in ("shell", "arguments") and "MODEL_ARGS" not in config.values:
        return name.replace("-", "_")
    dashed = config.framework in ("Megatron-LM", "ms-swift") and not name.startswith("--")
    return f"--{name}" if dashed else name


def fp8_from_outside(facts: Facts) -> str | None:
    """Return what asks accelerate for FP8 outside of the Trainer's own arguments."""
    for config in facts.configs:
        if config.framework == "accelerate" and config.training.ask:
            return config.path
    mixed = word(facts.environment.get("ACCELERATE_MIXED_PRECISION"))
    return "ACCELERATE_MIXED_PRECISION" if mixed == "fp8" else None


def _is_trl(facts: Facts) -> bool:
    return "trl" in facts.versions or any("trl" in text.lower() for text in facts.command)
