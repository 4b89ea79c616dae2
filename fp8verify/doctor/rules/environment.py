"""Rules on environment variables that reach the training."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.te_environment import UNREAD, VARIABLES


def te_variables(facts: Facts) -> Iterator[Check]:
    """Variables of Transformer Engine that change what runs."""
    uses_te = any(ask.backend == "te" for ask, _ in facts.asks)
    for row in VARIABLES:
        value = facts.environment.get(row.name, "")
        if value not in row.idle:
            yield Check(
                code="te-environment",
                status=Status.OK if row.keeps_fp8 or not uses_te else Status.WARN,
                message=f"{row.name}={value[:40]}: {row.effect}",
                hint="Unset it, unless that is what you want.",
                source=row.source,
            )


def unread_variables(facts: Facts) -> Iterator[Check]:
    """Variables that nobody reads."""
    for name, instead in UNREAD.items():
        if name in facts.environment:
            yield Check(
                code="config-key-ignored",
                status=Status.WARN,
                message=f"no one reads the variable {name}",
                hint=f"Set {instead}.",
                source="accelerate utils/dataclasses.py:424ff (accelerate 16cb6eb)",
            )
