"""Findings on FP8 that runs and does not pay, each with its figure and its remedy."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gpus import SMALL_SIDE
from fp8verify.analysis.payoff import Payoff
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding, Scaling
from fp8verify.verdict.findings_table import finding, findings_table

MOSTLY = 0.5
_WAITS = 0.2
_MANY_SMALL = 0.25


def payoff_remedy(case: str) -> str:
    """Return what helps against a cause of FP8 that does not pay, as the table of findings says."""
    return findings_table()["fp8-not-paying"][case].hint


def fp8_not_paying(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """FP8 that costs more than it can save, by the ratio of the GPU's peaks."""
    found = facts.fp8_payoff
    if found is None:
        return
    tax = found.tax
    if found.kernels is not None and found.cost > found.saved:
        cause, case = _cause(found, facts)
        yield finding(
            "fp8-not-paying",
            case,
            cause=cause,
            up_to="up to " if tax.unfused_ns < tax.time_ns else "",
            cast_ms=tax.time_ns / 1e6,
            saved_ms=found.saved / 1e6,
        )
    elif found.waits and found.step and found.busy_in_step:
        yield finding(
            "fp8-not-paying",
            "cpu-bound",
            step_ms=found.step / 1e6,
            busy_ms=found.busy_in_step / 1e6,
        )
    elif found.waits is None and found.idle >= MOSTLY and _times_are_whole(facts):
        yield finding("fp8-not-paying", "launch-bound", idle=found.idle)


def gpu_waits(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A GPU that is idle for a good part of an FP8 window, not yet most of it."""
    found = facts.fp8_payoff
    if found is None or found.waits is not None:
        return  # steps outside the window tell, without the profiler's waiting
    if _WAITS <= found.idle < MOSTLY and _times_are_whole(facts):
        yield finding("gpu-idle", idle=found.idle)


def small_gemms(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """FP8 GEMMs many of which are too small to gain, while the whole may still pay."""
    found = facts.fp8_payoff
    if found is None or found.small is None or found.small < _MANY_SMALL:
        return
    if found.cost <= found.saved:
        yield finding("small-gemms", share=found.small, side=SMALL_SIDE)


def _times_are_whole(facts: RankFacts) -> bool:
    """Whether pauses in the trace are pauses of the GPU, not lost kernels or broken clocks."""
    health = facts.rank.health
    return health.complete and not health.bad_durations


def _cause(found: Payoff, facts: RankFacts) -> tuple[str, str]:
    """Return what costs most, and the case with a remedy that is not in force already."""
    if found.tax.unfused_ns >= MOSTLY * found.tax.time_ns:
        compiled = any(row.fused for row in found.tax.rows)
        return "unfused eager casts", "graph-breaks" if compiled else ""
    if found.small is not None and found.small >= MOSTLY:
        return f"small GEMMs (a side below {SMALL_SIDE})", "small"
    scalings = {row.scaling for row in facts.rank.survey.gemms if row.scaling is not None}
    return "costly casts", "cheap-casts" if scalings <= {Scaling.TENSORWISE} else "casts"
