"""Findings on FP8 that runs and does not pay, each with its figure and its remedy."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gpus import SMALL_SIDE
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding, Scaling
from fp8verify.report.model.diagnosis import PayoffReport, TaxReport
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
    figures, overhead = found.report, found.overhead
    pays = figures.speedup_estimate is None or found.cost_us <= found.saved_us
    if overhead is not None and not pays:
        cause, case = _cause(found.report, overhead, facts)
        yield finding(
            "fp8-not-paying",
            case,
            cause=cause,
            up_to="up to " if overhead.unfused_us < overhead.time_us else "",
            cast_ms=overhead.time_us / 1e3,
            saved_ms=found.saved_us / 1e3,
        )
    elif figures.waits and figures.step_us and figures.gpu_busy_in_step_us:
        yield finding(
            "fp8-not-paying",
            "cpu-bound",
            step_ms=figures.step_us / 1e3,
            busy_ms=figures.gpu_busy_in_step_us / 1e3,
        )
    elif figures.waits is None and figures.idle_share >= MOSTLY and _times_are_whole(facts):
        yield finding("fp8-not-paying", "launch-bound", idle=figures.idle_share)


def gpu_waits(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A GPU that is idle for a good part of an FP8 window, not yet most of it."""
    found = facts.fp8_payoff
    if found is None or found.report.waits is not None:
        return  # steps outside the window tell, without the profiler's waiting
    idle = found.report.idle_share
    if _WAITS <= idle < MOSTLY and _times_are_whole(facts):
        yield finding("gpu-idle", idle=idle)


def small_gemms(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """FP8 GEMMs many of which are too small to gain, while the whole may still pay."""
    found = facts.fp8_payoff
    share = found.report.small_gemm_share if found is not None else None
    if found is None or share is None or share < _MANY_SMALL:
        return
    if found.cost_us <= found.saved_us:
        yield finding("small-gemms", share=share, side=SMALL_SIDE)


def _times_are_whole(facts: RankFacts) -> bool:
    """Whether pauses in the trace are pauses of the GPU, not lost kernels or broken clocks."""
    health = facts.rank.health
    return health.complete and not health.bad_durations


def _cause(found: PayoffReport, overhead: TaxReport, facts: RankFacts) -> tuple[str, str]:
    """Return what costs most, and the case with a remedy that is not in force already."""
    if overhead.unfused_us >= MOSTLY * overhead.time_us:
        compiled = any(row.fused for row in overhead.rows)
        return "unfused eager casts", "graph-breaks" if compiled else ""
    if (found.small_gemm_share or 0) >= MOSTLY:
        return f"small GEMMs (a side below {SMALL_SIDE})", "small"
    scalings = {row.scaling for row in facts.rank.survey.gemms if row.scaling is not None}
    return "costly casts", "cheap-casts" if scalings <= {Scaling.TENSORWISE} else "casts"
