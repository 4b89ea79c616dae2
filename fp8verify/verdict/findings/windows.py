"""Findings on the steps of a window: in high precision, without GEMMs, without a whole step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import gemm_totals
from fp8verify.analysis.populations import Populations, total_amount
from fp8verify.analysis.promises import HIGH_PRECISION, Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model import Finding, Leg
from fp8verify.text import counted, listed
from fp8verify.verdict.findings_table import finding

_SHOWN = 8


def steps_without_fp8(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Steps, and passes within one, whose layers ran far less in low precision than elsewhere."""
    rank = facts.rank
    if not rank.ran_low:
        return
    table = Populations(rank.survey)
    steps = {
        place: short
        for place, short in table.short_parts(lambda row: row.step).items()
        if place >= 0 and promises.phase_of(rank.steps[place][0].number) != HIGH_PRECISION
    }
    if steps:
        numbers = _named([str(rank.steps[place][0].number) for place in steps])
        most = max(short.part.share for short in steps.values())
        usual = total_amount(short.others for short in steps.values()).share
        yield finding(
            "step-without-fp8", "less" if most else "", steps=numbers, most=most, usual=usual
        )


def passes_without_fp8(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Forward and backward passes within a step, as of a micro-batch, that fall short of others."""
    rank, expected = facts.rank, facts.expected
    if not rank.ran_low or (expected is not None and expected.is_met):
        return  # layers that were to stay in high precision may be a pass of their own
    table = Populations(rank.survey)
    steps = table.short_parts(lambda row: row.step)
    passes = {
        place: short
        for place, short in table.short_parts(lambda row: (row.step, row.number)).items()
        if place[0] not in steps
    }
    if passes:
        yield finding(
            "pass-without-fp8",
            count=len(passes),
            total=len({(row.step, row.number) for row in table.rows}),
            most=max(short.part.share for short in passes.values()),
            usual=total_amount(short.others for short in passes.values()).share,
        )


def _named(numbers: Sequence[str]) -> str:
    return f"step{'' if len(numbers) == 1 else 's'} {listed(numbers, _SHOWN)}"


def fp8_forward_only(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """FP8 GEMMs of layers that only run forward, and none of layers that train."""
    rank = facts.rank
    count = sum(row.calls for row in rank.survey.untrained if row.precision.is_low)
    if count and not rank.ran_low:
        yield finding("fp8-forward-only", count=count)


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
    """A window with only forward passes, as of an evaluation: dgrad and wgrad are not seen.

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
