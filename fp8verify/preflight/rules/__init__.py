"""All rules of the doctor: each reads the facts and says what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fp8verify.preflight.checks import Check
from fp8verify.preflight.facts import Facts
from fp8verify.preflight.rules import asked, keys, machine, rows, sizes

Rule = Callable[[Facts], Iterator[Check]]
RULES: tuple[Rule, ...] = (
    machine.gpus, machine.torch_of_the_training, machine.libraries, asked.asked, keys.unknown_keys,
    keys.unknown_values, rows.rows, sizes.small_sizes, sizes.expected_share, asked.not_started,
)  # fmt: skip


def judge(facts: Facts) -> Iterator[Check]:
    """Yield what every rule finds."""
    for rule in RULES:
        yield from rule(facts)
    if facts.model is not None:
        from fp8verify.preflight.rules import model  # what it needs takes as long as all the rest

        yield from model.model(facts)
