"""The evaluator of data/rules.toml: each row that applies to a configuration is a check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fp8verify.preflight.checks import Check
from fp8verify.preflight.facts import Ask, Config, Facts, LayerSize, word
from fp8verify.preflight.frameworks import framework_of
from fp8verify.preflight.launch_script import arguments
from fp8verify.preflight.machine import built_for, parsed
from fp8verify.preflight.mentions import code_lines
from fp8verify.preflight.rules.sizes import fp8_share, named, sized
from fp8verify.preflight.tables import MISSING, Rule, all_hold, holds, name_of, rules, value_of


class Subject(NamedTuple):
    """The subject of rows: a configuration, or only the machine.

    `facts` has what `where` of a row tests, by name.
    """

    facts: Mapping[str, Any]
    ask: Ask | None
    config: Config | None = None


def rows(facts: Facts) -> Iterator[Check]:
    """Yield what the rows of the table say."""
    machine = _facts_of_machine(facts)
    configs = [
        Subject(_facts_of_config(config, facts, machine), config.ask, config)
        for config in facts.configs
    ]
    for group, found in rules().items():
        subjects = [one for one in configs if group in ("any", *one.facts["framework"])]
        for rule in found:
            if group == "text":
                yield from _of_texts(rule, facts, machine)
            elif group != "machine":
                for subject in subjects:
                    yield from _checks(rule, subject, facts)
            elif any(_is_about(rule, one) for one in [*configs, Subject(machine, None)]):
                yield rule.check(rule.message + _here(rule, facts), None, None)


def _of_texts(rule: Rule, facts: Facts, machine: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks of a row on Python sources: `has` and `lacks` are about their code."""
    row: Any = rule.when
    for document in facts.unread if _is_about(rule, Subject(machine, None)) else ():
        code = "\n".join(code_lines(document.text)) if document.kind == "python" else ""
        has = [re.search(pattern, code) for pattern in row["has"]]
        if has[0] and all(has) and not ("lacks" in row and re.search(row["lacks"], code)):
            line = code.count("\n", 0, has[0].end()) + 1
            word = has[0][has[0].lastindex or 0]
            yield rule.check(rule.message.replace("<0>", word[:60]), document.path, line)


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
    # Whether these are the arguments of a run as a whole, not a part of them.
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


def _is_about(rule: Rule, subject: Subject) -> bool:
    for name, test in rule.where.items():
        if name == "key":
            continue
        value = subject.facts.get(name, MISSING)
        if not (all_hold(test, value) if isinstance(test, dict) else holds(test, value)):
            return False
    return True


def _checks(rule: Rule, subject: Subject, facts: Facts) -> Iterator[Check]:
    config, ask = subject.config, subject.ask
    if config is None or not _is_about(rule, subject):
        return
    for when in rule.when if isinstance(rule.when, list) else [rule.when]:
        if all_hold(when, config.given) and _is_known(rule, when, config):
            first = next(iter(when), "") or (ask.key if ask else "")
            name = name_of(rule.where.get("key", first), config.given) or ""
            line = config.lines.get(config.origins.get(name, name))
            message = _message(rule, config, {**subject.facts, "key": spelled(first, config)})
            yield rule.check(message + _here(rule, facts), config.path, line)


def _here(rule: Rule, facts: Facts) -> str:
    """Return the versions that a row rests on, as they are here."""
    versions = {**facts.versions, **built_for(facts.versions)}
    told = [
        f"{name} {versions[name]}" for name in rule.where.get("versions", ()) if name in versions
    ]
    return f" (here: {', '.join(told)})" if told else ""


def _is_known(rule: Rule, when: Mapping[str, Any], config: Config) -> bool:
    """Whether a row rests on what the file says.

    It does not on a key that may be set elsewhere, nor on two keys in different branches.
    """
    names = [name_of(key, config.given) for key in when if key]
    if config.ask is not None and {"asks", "recipe", "backend"} & {*rule.where}:
        names.append(name_of(config.ask.key, config.given))
    branches = {config.branches[name] for name in names if name and name in config.branches}
    return len(branches) < 2 and not (config.elsewhere and None in names)


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
    if name in ("tokens", "key"):
        return str(facts[name])
    if name == "sides":
        test, layers = rule.where["sides"], facts["layers"]
        return named([part for part in layers if _is_odd(part, test)])
    share = fp8_share(config)
    return "an unknown share" if share is None else f"{share:.0%}"


def _is_odd(layer: LayerSize, test: str) -> bool:
    return holds(test, [layer.n, layer.k])


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
