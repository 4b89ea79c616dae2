"""The evaluator of data/rules.toml: each row that applies to a configuration is a check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fp8verify.preflight.checks import Check
from fp8verify.preflight.frameworks import Config, word
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.launch_script import arguments
from fp8verify.preflight.layers import named
from fp8verify.preflight.rules.model import layers_asked
from fp8verify.preflight.tables import (
    MISSING,
    Rule,
    all_hold,
    holds,
    name_of,
    rules,
    value_of,
)

Known = Mapping[str, Any]  # what `where` of a row tests, by name
_OF_REQUEST = frozenset({"asks", "recipe", "backend"})


def rows(facts: Facts) -> Iterator[Check]:
    """Yield what the rows of the table say."""
    machine = _known_of_machine(facts)
    known_of_configs = []
    for config in facts.configs:
        known_of_configs.append({**machine, **_known_of(config, facts)})
    for rule in rules()["configurations"]:
        for config, known in zip(facts.configs, known_of_configs, strict=True):
            yield from _of_config(rule, config, known, facts)
    for rule in rules()["sources"]:
        yield from _of_sources(rule, facts, machine)
    for rule in rules()["machine"]:
        is_about = partial(_is_about, rule)
        if any(map(is_about, [*known_of_configs, machine])):
            yield rule.check(rule.message + _here(rule, facts), None, None)


def _known_of_machine(facts: Facts) -> Known:
    capabilities = []
    parts_of_names = []
    for gpu in facts.gpus:
        parts_of_names += re.split("[- ]", gpu.name)
        if gpu.capability:
            capabilities.append(gpu.capability)
    calls_trl = "trl" in "\n".join(facts.command).lower()
    return {
        "versions": facts.versions,
        "environment": facts.environment,
        "command": arguments(facts.command),
        "capability": capabilities or MISSING,
        "gpu": parts_of_names,
        "asks_outside": _asks_outside(facts),
        "trl": calls_trl or "trl" in facts.versions,
    }


def _asks_outside(facts: Facts) -> bool:
    """Whether accelerate is asked for FP8 outside of the Trainer's own arguments."""
    if word(facts.environment.get("ACCELERATE_MIXED_PRECISION")) == "fp8":
        return True
    return any(map(_asks_accelerate, facts.configs))


def _asks_accelerate(config: Config) -> bool:
    return config.framework == "accelerate" and config.ask is not None


def _known_of(config: Config, facts: Facts) -> Known:
    ask, layers = layers_asked(config, facts)
    # Whether these are the arguments of a run as a whole, not a part of them.
    trains = "train-iters" in config.given or "train-samples" in config.given
    infers = "inference" in "\n".join(config.given)
    sides: list[int] = []
    for layer in layers:
        sides += (layer.n, layer.k)
    known = {
        **config._asdict(),
        "family": config.row.get("family", ""),
        "kind": config.document.kind,
        "sides": sides,
        "layers": layers,
        "trains": trains and not infers,
    }
    if ask is not None:
        known |= {
            "asks": ask.format,
            "recipe": ask.recipe or "",
            "backend": ask.backend or "",
        }
    return known


def _is_about(rule: Rule, known: Known) -> bool:
    for name, test in rule.where.items():
        if name == "key":
            continue
        if isinstance(test, dict):
            is_met = all_hold(test, known[name])
        else:
            is_met = holds(test, known.get(name, MISSING))
        if not is_met:
            return False
    return True


def _of_sources(
    rule: Rule,
    facts: Facts,
    machine: Known,
) -> Iterator[Check]:
    """Yield the checks of a row on Python sources: `has` and `lacks` are about their code."""
    row: Any = rule.when
    if not _is_about(rule, machine):
        return
    for source in facts.unread:
        if source.kind != "python":
            continue
        text = source.text
        first, *others = [re.search(pattern, text) for pattern in row["has"]]
        lacks = True
        if "lacks" in row:
            lacks = re.search(row["lacks"], text) is None
        if first is not None and all(others) and lacks:
            lines_before = text.count("\n", 0, first.end())
            seen = first[first.lastindex or 0]
            message = rule.message.replace("<0>", seen[:60])
            yield rule.check(message, source.path, lines_before + 1)


def _of_config(
    rule: Rule,
    config: Config,
    known: Known,
    facts: Facts,
) -> Iterator[Check]:
    if not _is_about(rule, known):
        return
    conditions = rule.when if isinstance(rule.when, list) else [rule.when]
    for when in conditions:
        if not all_hold(when, config.given):
            continue
        if not _is_known(rule, when, config):
            continue
        first = next(iter(when), "")
        if not first and config.ask:
            first = config.ask.key
        told_key = rule.where.get("key", first)
        name = name_of(told_key, config.given) or ""
        known_here = {**known, "key": spelled(first, config)}
        message = _message(rule, config, known_here)
        message += _here(rule, facts)
        yield rule.check(message, config.path, config.line_of(name))


def _here(rule: Rule, facts: Facts) -> str:
    """Return the versions that a row rests on, as they are here."""
    shown = []
    for name in rule.where.get("versions", ()):
        if name in facts.versions:
            shown.append(f"{name} {facts.versions[name]}")
    if shown:
        return f" (here: {', '.join(shown)})"
    return ""


def _is_known(
    rule: Rule,
    when: Mapping[str, Any],
    config: Config,
) -> bool:
    """Whether a row rests on what the file says.

    It does not on a key that may be set elsewhere, nor on two keys in different branches.
    """
    names = [name_of(key, config.given) for key in when if key]
    is_about_request = not _OF_REQUEST.isdisjoint(rule.where)
    if config.ask is not None and is_about_request:
        names.append(name_of(config.ask.key, config.given))
    if config.document.elsewhere and None in names:
        return False
    branches = {config.branch_of(name) for name in names if name}
    return len(branches - {None}) < 2


def _message(
    rule: Rule,
    config: Config,
    known: Known,
) -> str:
    """Fill in the keys as the file spells them, and their values."""

    def part(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "=":
            return str(value_of(name, config.given))[:60]
        if kind != "@":
            return spelled(name, config)
        if name != "sides":
            return str(known[name])
        meant = []
        for layer in known["layers"]:
            if holds(rule.where["sides"], [layer.n, layer.k]):
                meant.append(layer)
        return named(meant)

    return re.sub(r"<(=|@|)([^<>]+)>", part, rule.message)


def spelled(key: str, config: Config) -> str:
    """Return a key as the file spells it, or as its kind would."""
    name = name_of(key, config.given) or key
    document = config.document
    has_arguments = document.is_launch or "MODEL_ARGS" in document.values
    if name in config.origins:
        name = config.origins[name].removeprefix("MODEL_ARGS.--")
    elif not has_arguments:
        return name.replace("-", "_")
    has_dashes = config.framework in ("Megatron-LM", "ms-swift")
    if has_dashes and not name.startswith("--"):
        return f"--{name}"
    return name
