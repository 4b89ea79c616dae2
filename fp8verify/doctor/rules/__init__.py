"""All rules of the doctor: each reads the facts and says what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fp8verify.doctor.checks import Check
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.rules import (
    combinations,
    environment,
    keys,
    known_bad,
    machine,
    megatron,
    scripts,
    sections,
    sizes,
    traps,
)
from fp8verify.doctor.rules.asked import asked

Rule = Callable[[Facts], Iterator[Check]]
RULES: tuple[Rule, ...] = (
    machine.gpus,
    machine.driver,
    machine.torch_of_the_training,
    machine.libraries,
    machine.torchao_too_old,
    known_bad.known_bad,
    asked,
    keys.unread_keys,
    keys.unknown_keys,
    keys.unknown_values,
    sections.inert_sections,
    sections.profiling_window,
    sections.bf16_overrides,
    sections.command_overrides,
    combinations.tensor_parallel,
    combinations.deepspeed,
    combinations.accelerate_overrides,
    traps.traps,
    megatron.megatron_traps,
    combinations.compile_off,
    combinations.delayed_under_compile,
    sizes.odd_sizes,
    sizes.small_sizes,
    scripts.autocast_to_float8,
    scripts.converter_arguments,
    scripts.torchao_recipe,
    scripts.filters,
    scripts.accelerate_filter,
    scripts.filter_of_a_file,
    scripts.eager_script,
    scripts.bf16_of_the_trainer,
    environment.te_variables,
    environment.unread_variables,
)


def judge(facts: Facts) -> Iterator[Check]:
    """Yield what every rule finds."""
    for rule in RULES:
        yield from rule(facts)
    if facts.model is not None:
        from fp8verify.doctor.rules import model  # what it needs takes as long as all the rest

        yield from model.model(facts)
        yield from model.appeared(facts)
