"""All rules of the doctor: each reads the facts and says what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fp8verify.preflight.checks import Check
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.rules import asked, keys, machine, model, rows

RULES: tuple[Callable[[Facts], Iterator[Check]], ...] = (
    machine.gpus, machine.torch_of_the_run, machine.libraries, asked.asked, keys.unknown_keys,
    keys.unknown_values, rows.rows, model.small_sizes, asked.not_started, model.model,
)  # fmt: skip


def judge(facts: Facts) -> Iterator[Check]:
    """Yield what every rule finds."""
    for rule in RULES:
        yield from rule(facts)
