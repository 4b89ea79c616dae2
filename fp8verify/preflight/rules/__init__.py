"""All rules of the doctor: each reads the facts and says what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fp8verify.preflight.checks import Check
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.rules import asked, keys, machine, model, rows

RULES: tuple[Callable[[Facts], Iterator[Check]], ...] = (
    machine.gpus,
    machine.torch_of_the_run,
    machine.libraries,
    asked.asked,
    keys.unknown_keys,
    keys.unknown_values,
    rows.rows,
    model.small_sizes,
    asked.not_started,
    model.model,
)


# Of what a check says another one may tell more: one row a cause.
_TOLD_BY = {
    "fp8-not-asked": "stored-not-multiplied",
    "fp8-mentioned": "stored-not-multiplied",
}


def judge(facts: Facts) -> Iterator[Check]:
    """Yield what every rule finds, but for what another check tells of the same setting."""
    checks: list[Check] = []
    for rule in RULES:
        checks += rule(facts)
    told: set[tuple[str, str | None, int | None]] = set()
    for check in checks:
        # What is said of a file as a whole may be told of any line.
        told.add((check.code, check.file, None))
        told.add((check.code, check.file, check.line))
    for check in checks:
        better = _TOLD_BY.get(check.code, "")
        if (better, check.file, check.line) not in told:
            yield check
