"""Findings on what casts lose: values they flush to zero, drown in noise or clip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import TensorRecord
from fp8verify.report.model import Finding
from fp8verify.verdict.findings.numerics.remedies import remedy, remedy_for_clipping
from fp8verify.verdict.findings.numerics.tensors import (
    DEAD,
    GRADIENT_FLUSHED,
    UNDERFLOW,
    and_more,
    and_others,
    flushed_gradients,
    flushed_share,
    is_clipped,
    is_flushed_gradient,
    is_noisy,
    layers_of,
    least_sqnr,
    sound_rows,
)
from fp8verify.verdict.findings_table import finding


def gradient_flushed(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Gradients of which the cast makes a good part zero."""
    found = flushed_gradients(facts)
    if found:
        first, after = _first_flushed(found)
        rows = [first, *found]
        layers = layers_of(rows)
        share = flushed_share(first)
        yield finding(
            "gradient-flushed",
            share=share,
            layer=first.layer,
            dead=": it is dead" if share > DEAD else "",
            others=and_others(rows, facts, after.format(len(layers) - 1)),
            threshold=GRADIENT_FLUSHED,
            remedy=remedy(first, facts),
            layers=layers,
        )


def _first_flushed(found: Sequence[TensorRecord]) -> tuple[TensorRecord, str]:
    """Return the gradient to accuse, and how a message goes on to the others.

    What is wrong with a gradient is wrong with those that are computed from it: the first one in
    the order of the backward pass is accused, if it is about as bad as the worst.
    """
    worst = max(found, key=flushed_share)
    if worst.source == "te-debug":  # a log of statistics is in no such order
        return worst, ", the worst, and so in {} more"
    first = next(row for row in found if flushed_share(row) >= flushed_share(worst) / 2)
    return first, ", and so in {} after it in the backward pass"


def underflow_high(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Tensors of which the cast makes more zero than sound runs do."""
    found = [row for row in sound_rows(facts) if flushed_share(row) >= UNDERFLOW]
    found = [row for row in found if not is_flushed_gradient(row)]
    if found:
        worst = max(found, key=flushed_share)
        yield finding(
            "underflow-high",
            share=flushed_share(worst),
            tensor=worst.tensor,
            layer=worst.layer,
            keeps=_keeps(worst),
            others=and_more(found, facts),
            threshold=UNDERFLOW,
            remedy=remedy(worst, facts),
            layers=layers_of(found),
        )


def _keeps(row: TensorRecord) -> str:
    """Say how little the cast keeps of a tensor that is accused of its zeros, if it is little."""
    return f" and keeps {row.sqnr_db:.1f} dB of it" if is_noisy(row) else ""


def sqnr_low(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Tensors that the cast leaves too little of, but for those accused of their zeros."""
    found = [row for row in sound_rows(facts) if is_noisy(row) and flushed_share(row) < UNDERFLOW]
    if found:
        worst = min(found, key=lambda row: row.sqnr_db or 0.0)
        yield finding(
            "sqnr-low",
            tensor=worst.tensor,
            layer=worst.layer,
            db=worst.sqnr_db,
            others=and_more(found, facts),
            threshold=least_sqnr(worst),
            remedy=remedy(worst, facts),
            layers=layers_of(found),
        )


def saturates(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Tensors that the cast clips, under scales of earlier steps or rounded-down MX scales."""
    found = [row for row in sound_rows(facts) if is_clipped(row)]
    if found:
        worst = max(found, key=lambda row: row.saturated or 0.0)
        yield finding(
            "saturates",
            share=worst.saturated,
            tensor=worst.tensor,
            layer=worst.layer,
            others=and_more(found, facts),
            remedy=remedy_for_clipping(worst),
            layers=layers_of(found),
        )
