"""Findings on NaN and infinity: in tensors, in the loss, in gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import gradients_of, kept_scales, loss_scales_of
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import TensorRecord
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model import Finding
from fp8verify.text import counted, listed
from fp8verify.verdict.findings.numerics.tensors import measured_rows
from fp8verify.verdict.findings_table import finding

_NOT_FINITE_HINTS = {
    "input": "Look at what feeds this layer: the batch, the layer before it, rows of padding that "
    "nothing has written (MoE), a norm of all-zero rows.",
    "weight": "The optimizer or the checkpoint put it there: look at the gradient norm and the "
    "steps before, at lr, and at gradient clipping.",
    "grad_output": "The forward pass is finite up to here: look at the loss, at what comes after "
    "this layer, and at the loss scale.",
}


def not_finite(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """The first tensor that holds a NaN or infinity, in the order of the step."""
    bad = [row for row in measured_rows(facts) if not row.finite]
    if bad:
        first = bad[0]
        count = first.rows_not_finite
        yield finding(
            "nan-or-inf",
            tensor=first.tensor,
            layer=first.layer,
            kind=_kind(first),
            rows=f" in {counted(count, 'row')}" if count else "",
            step=_step(facts),
            others=f", before {counted(bad[1:], 'other tensor')}" if len(bad) > 1 else "",
            remedy=_NOT_FINITE_HINTS[first.tensor],
            layers=(first.layer,),
        )


def _kind(row: TensorRecord) -> str:
    if row.nan and row.inf:
        return "NaN and infinity"
    return "NaN" if row.nan else "infinity" if row.inf else "values that are not finite"


def _step(facts: RankFacts) -> int:
    """Return the step in which tensors were measured."""
    numerics = facts.rank.numerics
    measured = numerics.record.measured if numerics is not None else None
    return measured.step if measured is not None else 0


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
    named = any(not row.finite for row in measured_rows(facts))
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
    gradients = [row for row in measured_rows(facts) if row.tensor == "grad_output"]
    formats = {row.format for row in gradients if row.scaling != "mxfp8"}
    return f"{margin}, E5M2 for gradients" if "e4m3" in formats else margin
