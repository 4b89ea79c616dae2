"""The evaluator of data/rules.toml: each row that holds for a configuration is a check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.conditions import MISSING, all_hold, holds, name_of, table, value_of
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks import framework_of
from fp8verify.doctor.installed import built_for, parsed
from fp8verify.doctor.launch_script import arguments
from fp8verify.doctor.rules.asked import fp8_share, named, sized
from fp8verify.doctor.training import Ask, Config, LayerSize, word

_STATUSES = ("fail", "warn", "ok")


class Rule(NamedTuple):
    """A row of a table of rules: its code, how grave it is, its message and all its fields."""

    code: str
    status: Status
    message: str
    fields: Mapping[str, Any]

    def check(self, message: str, read: str, file: str | None, line: int | None) -> Check:
        """Return the check that the row makes, with its message filled in."""
        return Check(
            code=self.code,
            status=self.status,
            message=message,
            hint=self.fields["remedy"],
            source=f"{self.fields['evidence']}; read {read}",
            file=file,
            line=line,
        )


class Subject(NamedTuple):
    """What rows are about: a configuration, what a script asks for, or the machine alone.

    `facts` has what `where` of a row tests, by name.
    """

    facts: Mapping[str, Any]
    ask: Ask | None
    config: Config | None = None


def rules_of(groups: Mapping[str, list[Any]]) -> list[Rule]:
    """Return the rows of a table of rules by code."""
    return [
        Rule(code, Status(status), row[status], row)
        for code, rows in groups.items()
        for row in map(_by_name, rows)
        for status in _STATUSES
        if status in row
    ]


def _by_name(row: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Return a row whose fields have names; those of a list are its columns."""
    if isinstance(row, dict):
        return row
    where, status, message, remedy, evidence = row
    return {"where": where, status: message, "remedy": remedy, "evidence": evidence}


@cache
def rules() -> dict[str, list[Rule]]:
    """Return the rows of data/rules.toml by group: a framework, a family, "any" or "machine"."""
    groups = {name: rows for name, rows in table("rules").items() if isinstance(rows, dict)}
    return {name: rules_of(rows) for name, rows in groups.items()}


def rows(facts: Facts) -> Iterator[Check]:
    """Yield what the rows of the table say."""
    machine = _facts_of_machine(facts)
    configs = [
        Subject(_facts_of_config(config, facts, machine), config.ask, config)
        for config in facts.configs
    ]
    asks: list[Ask | None] = [ask for script in facts.scripts for ask in script.asks]
    others = [Subject({**machine, **_facts_of_ask(ask)}, ask) for ask in [*asks, None]]
    for group, found in rules().items():
        subjects = [one for one in configs if group in ("any", *one.facts["framework"])]
        for rule in found:
            if group != "machine":
                yield from (_check(rule, one) for one in subjects if _holds(rule, one))
            elif any(_holds(rule, one) for one in [*configs, *others]):
                yield rule.check(rule.message, table("rules")["read"], None, None)
    yield from _variables(facts)


def _variables(facts: Facts) -> Iterator[Check]:
    te = any(ask.backend == "te" for ask, _ in facts.asks)
    for row in table("rules")["variable"]:
        for name, effect in row["names"].items():
            value = facts.environment.get(name, "")
            if holds(row["test"], value, {}) if "test" in row else value not in ("", "0", "none"):
                yield Check(
                    code=row["code"],
                    status=Status(row["status_te"] if te and "status_te" in row else row["status"]),
                    message=f"{name}={value[:40]}: {effect}",
                    hint=row["remedy"],
                    source=f"{row['evidence']}; read {table('rules')['read']}",
                )


def _facts_of_machine(facts: Facts) -> dict[str, Any]:
    versions = {**facts.versions, **built_for(facts.versions)}
    return {
        "versions": {name: parsed(text) or text for name, text in versions.items()},
        "environment": facts.environment,
        "command": arguments(facts.command),
        "capability": [gpu.capability for gpu in facts.gpus.found if gpu.capability] or MISSING,
        "gpu": [part for gpu in facts.gpus.found for part in re.split("[- ]", gpu.name)],
        "asks_outside": fp8_from_outside(facts) is not None,
        "trl": "trl" in facts.versions or any("trl" in text.lower() for text in facts.command),
    }


def _facts_of_ask(ask: Ask | None) -> dict[str, Any]:
    if ask is None:
        return {}
    return {"asks": ask.format, "recipe": ask.recipe or "", "backend": ask.backend or ""}


def _facts_of_config(config: Config, facts: Facts, machine: Mapping[str, Any]) -> dict[str, Any]:
    ask, layers = next(
        ((ask, found) for one, ask, found in sized(facts) if one is config), (config.ask, ())
    )
    # Whether these are the arguments of a training as a whole, not a part of them.
    trains = "train-iters" in config.given or "train-samples" in config.given
    return {
        **machine,
        **_facts_of_ask(ask),
        "framework": [config.framework, framework_of(config).get("family", "")],
        "kind": config.kind,
        "compile": {None: "?", True: "on", False: "off"}[config.compile],
        "checkpointing": config.checkpointing,
        "deepspeed": config.deepspeed,
        "tensor_parallel": config.tensor_parallel,
        "tokens": config.tokens,
        "sides": [side for layer in layers for side in (layer.n, layer.k)],
        "layers": layers,
        "trains": trains and not any("inference" in name for name in config.given),
    }


def _holds(rule: Rule, subject: Subject) -> bool:
    row, config = rule.fields, subject.config
    for name, test in row.get("where", {}).items():
        value = subject.facts.get(name, MISSING)
        if not (all_hold(test, value) if isinstance(test, dict) else holds(test, value, {})):
            return False
    if config is None or "when" not in row:
        return True
    value = value_of(next(iter(row["when"])), config.given)
    if "scalar" in row and isinstance(value, list) is row["scalar"]:
        return False
    return all_hold(row["when"], config.given)


def _check(rule: Rule, subject: Subject) -> Check:
    config, ask = subject.config, subject.ask
    assert config is not None  # noqa: S101 - other groups than "machine" are for configurations
    first = next(iter(rule.fields.get("when", {})), "") or (ask.key if ask else "")
    name = name_of(rule.fields.get("key", first), config.given) or ""
    line = config.lines.get(config.origins.get(name, name))
    message = _message(rule, config, subject.facts)
    return rule.check(message, table("rules")["read"], config.path, line)


_PART = re.compile(r"<(=|@|)([^<>]+)>")


def _message(rule: Rule, config: Config, facts: Mapping[str, Any]) -> str:
    """Fill in the keys as the file spells them, and their values."""

    def part(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "=":
            return str(value_of(name, config.given))[:60]
        return _derived(name, rule, config, facts) if kind == "@" else spelled(name, config)

    return _PART.sub(part, rule.message)


def _derived(name: str, rule: Rule, config: Config, facts: Mapping[str, Any]) -> str:
    if name == "tokens":
        return str(config.tokens)
    if name == "sides":
        test, layers = rule.fields["where"]["sides"], facts["layers"]
        return named([part for part in layers if _is_odd(part, test)])
    share = fp8_share(config)
    return "an unknown share" if share is None else f"{share:.0%}"


def _is_odd(layer: LayerSize, test: str) -> bool:
    return holds(test, [layer.n, layer.k], {})


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
        if config.framework == "accelerate" and config.ask:
            return config.path
    mixed = word(facts.environment.get("ACCELERATE_MIXED_PRECISION"))
    return "ACCELERATE_MIXED_PRECISION" if mixed == "fp8" else None
