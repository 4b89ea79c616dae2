"""Findings on a loss and on gradients that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import (
    gradients_of,
    kept_scales,
    loss_scales_of,
    measured_rows,
    steps_of,
)
from fp8verify.analysis.promises import Promises
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model import Finding
from fp8verify.text import listed
from fp8verify.verdict.findings_table import finding


def loss_not_finite(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Look at the log and at the gradients of the first rank that is there."""
    for facts in ranks[:1]:
        message = _broken_loss(facts.rank.losses) or _broken_gradients(facts)
        if message is not None:
            yield _not_finite(message, facts)


def _broken_loss(losses: LossSeries | None) -> str | None:
    """Tell of the first loss in the log that is not finite."""
    points = losses.points if losses is not None else {}
    bad = next((step for step in sorted(points) if not math.isfinite(points[step])), None)
    if losses is None or bad is None:
        return None
    where = f"{'logged value' if losses.counted else 'step'} {bad}"
    return f"the loss in the log is {points[bad]:g} at {where}"


def _broken_gradients(facts: RankFacts) -> str | None:
    """Tell of the steps whose gradients were seen, if none of them were finite.

    A GradScaler goes on after some such steps, and so may one that is not torch's after one.
    """
    found = gradients_of(facts.rank)
    broken = [str(norm.step) for norm in found if not norm.finite]
    if len(broken) < 2 or len(broken) < len(found) or loss_scales_of(facts.rank.numerics):
        return None
    return f"the gradients of steps {listed(broken)} are not finite"


def _not_finite(message: str, facts: RankFacts) -> Finding:
    """A loss in the log, or gradients in the run, that are not finite."""
    steps = steps_of(facts.rank.numerics)
    named = any(not row.finite for step in steps for row in step.rows)
    first = (
        "Begin with the tensor that the other finding names"
        if named
        else "`run --numerics` with a window just before it names the first layer"
    )
    return finding(
        "nan-or-inf",
        "loss",
        what=message,
        remedy=f"{first}; try gradient clipping, a lower learning rate{_remedies(facts)}.",
    )


def _remedies(facts: RankFacts) -> str:
    """Add what else may help, as far as the recipe has it."""
    margin = ", a larger margin" if kept_scales(facts.rank.numerics) else ""
    gradients = [row for row in measured_rows(facts.rank.numerics) if row.tensor == "grad_output"]
    formats = {row.format for row in gradients if row.scaling != "mxfp8"}
    return f"{margin}, E5M2 for gradients" if "e4m3" in formats else margin
