"""Findings on the steps of a window: in high precision, without GEMMs, without a whole step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.totals import gemm_totals
from fp8verify.report.model import Finding, Leg, Precision
from fp8verify.text import counted, listed
from fp8verify.verdict.findings.shares import HALF, Part, amounts_of
from fp8verify.verdict.findings_table import finding

_SHOWN = 8


class _StepShare(NamedTuple):
    """A step's GEMMs by what is known of them, and what is not."""

    number: int
    known: Part
    unknown: float


def steps_without_fp8(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Steps whose share of low precision is less than half of what the others show."""
    rank = facts.rank
    if not rank.ran_low:
        return
    steps = _step_shares(rank)
    short = [step for step in steps if _is_short(step, steps)]
    if short:
        yield _short_steps(short, steps)


def _step_shares(rank: RankEvidence) -> list[_StepShare]:
    """Return the steps that ran GEMMs of layers, by FLOPs where all are known, else by time."""
    weigh = amounts_of(rank.linear)
    by_step: Mapping[int, list[GemmRow]] = defaultdict(list)
    for row in rank.survey.linear:
        by_step[row.step].append(row)
    return [
        _StepShare(
            step.number,
            Part.of((row for row in by_step[i] if row.precision is not Precision.UNKNOWN), weigh),
            sum(weigh(row) for row in by_step[i] if row.precision is Precision.UNKNOWN),
        )
        for i, (step, _) in enumerate(rank.steps)
        if by_step[i]
    ]


def _is_short(step: _StepShare, steps: Sequence[_StepShare]) -> bool:
    whole = step.known.total + step.unknown
    others = Part.sum(other.known for other in steps if other is not step)
    # What is unknown may be low: only a shortfall that it cannot fill is one.
    best = (step.known.low + step.unknown) / whole if whole else 0.0
    return best < HALF * others.share


def _short_steps(short: Sequence[_StepShare], steps: Sequence[_StepShare]) -> Finding:
    numbers = _named([str(step.number) for step in short])
    if not any(step.known.low for step in short):
        return finding("step-without-fp8", steps=numbers)
    most = max(step.known.share for step in short)
    usual = Part.sum(step.known for step in steps if step not in short).share
    return finding("step-without-fp8", "less", steps=numbers, most=most, usual=usual)


def _named(numbers: Sequence[str]) -> str:
    return f"step{'' if len(numbers) == 1 else 's'} {listed(numbers, _SHOWN)}"


def steps_without_gemms(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Steps that launched no GEMM while others did: they train nothing."""
    rank = facts.rank
    without = [str(step.number) for step, gemm in rank.steps if not gemm.kernels.total()]
    if without and len(without) < len(rank.steps):
        yield finding(
            "step-without-gemms",
            steps=_named(without),
            others=counted(len(rank.steps) - len(without), "step"),
        )


def no_backward(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """A window of forward passes alone, as evaluation makes: two of three GEMMs are not seen.

    It decides nothing of a training that ran, or was to run, in FP8; evaluation may leave it.
    """
    rank = facts.rank
    if not rank.survey.linear or (
        rank.backward and (_multiplies_backward(rank) or not rank.ran_low)
    ):
        return
    hidden = rank.ran_low or (promises.any and rank.has_fp8_units)
    missing = (
        "no GEMM of a backward pass ran in the window, which ends before the first one"
        if rank.backward
        else "no backward pass ran in the window, which evaluates and does not train"
    )
    yield finding(
        "no-backward",
        "open" if hidden else "",
        missing=missing,
        share=rank.linear.low_precision_share_of_time or 0,
    )


def _multiplies_backward(rank: RankEvidence) -> bool:
    """Whether a GEMM of a layer was of a backward pass, or may have been."""
    return any(row.leg is not Leg.FPROP for row in rank.survey.linear)


def no_optimizer_step(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A window of forward and backward passes in which no optimizer was seen to step."""
    rank = facts.rank
    if rank.updates or not rank.backward or not gemm_totals(rank.survey.gemms).kernels.total():
        return
    yield finding("no-optimizer-step")
