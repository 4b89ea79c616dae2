"""What a step of one run costs: its time, its work and its budget, over all compared ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from fp8verify.analysis.timeline import step_statistics
from fp8verify.report.model.comparison import BudgetRow
from fp8verify.report.model.parts import KernelRow, StepStatistics
from fp8verify.report.model.report import RankReport, Report
from fp8verify.report.tables import layer_share
from fp8verify.terms import Leg
from fp8verify.text import join_windows

GEMM, CASTS, ATTENTION = "GEMM", "casts and scales", "attention"
NETWORK, REST, IDLE = "exposed communication", "other kernels", "GPU idle or copying"
# Steps of a log that the profiler or its warm-up may have slowed down stand this near to a window.
_NEAR = 3
_LEAST = 3


class Measured(NamedTuple):
    """The compared ranks of a run; times in µs of a mean step and rank.

    Attributes:
        ranks: the ranks that are compared.
        times: of the steps.
        measured: source of the times: outside (wall time of steps without the profiler), log
            (the training's own), gpu, cpu, or window if no step was recorded.
        work: FLOPs of the forward GEMMs, which every linear layer runs once; None if unknown.
        step_flops: FLOPs of all GEMMs of the median step; None if unknown.
        gemms: GEMM kernels per step.
        budget: by kind of work; adds up to the mean step.
    """

    ranks: tuple[RankReport, ...]
    times: StepStatistics
    measured: str
    work: float | None
    step_flops: float | None
    gemms: float
    budget: dict[str, float]

    @property
    def busy(self) -> float:
        """Time in which kernels ran."""
        return sum(time_us for name, time_us in self.budget.items() if name != IDLE)

    @property
    def fp8_share(self) -> float:
        """FP8 share of the GEMM time of all compared ranks."""
        return fmean(layer_share(rank) or 0.0 for rank in self.ranks)


def measure_runs(
    baseline: Report,
    candidate: Report,
    logged: tuple[Mapping[int, float], Mapping[int, float]] = ({}, {}),
) -> tuple[Measured, Measured] | str:
    """Measure the ranks that both runs have, else the first of each; or return why not possible.

    Args:
        baseline: the report on the run to compare with.
        candidate: the report on the run in question.
        logged: step times in µs by step number, as either training logged them.
    """
    ours, theirs = (
        {rank.rank: rank for rank in report.ranks if is_known(rank)}
        for report in (baseline, candidate)
    )
    common = [number for number in ours if number in theirs]
    before = [ours[number] for number in common] or list(ours.values())[:1]
    after = [theirs[number] for number in common] or list(theirs.values())[:1]
    if not (before and after):
        return f"no GEMM ran in the {'candidate' if before else 'baseline'}"
    sources = [
        {
            "outside": _outside(ranks),
            "log": _logged(ranks, own),
            "gpu": _profiled(ranks, "gpu"),
            "cpu": _profiled(ranks, "cpu"),
            "window": _window(ranks),
        }
        for ranks, own in zip((before, after), logged, strict=True)
    ]
    # Where few steps were recorded: the best that both have.
    wanted = [(name, _LEAST) for name in ("outside", "log", "gpu", "cpu")]
    wanted += [(name, 1) for name in ("gpu", "cpu", "window")]
    for name, least in wanted:
        old, new = (side[name] for side in sources)
        if old and new and min(old.count, new.count) >= least:
            return _measure(before, name, old), _measure(after, name, new)
    return "no rank to compare"


def profiled_step_us(rank: RankReport) -> float | None:
    """Return the mean step of a rank under the profiler in µs, None if no time is known."""
    times = _profiled([rank], "gpu") or _profiled([rank], "cpu") or _window([rank])
    return round(times.mean_us, 3) if times else None


def _measure(ranks: Sequence[RankReport], source: str, times: StepStatistics) -> Measured:
    """Measure ranks of one run by these step times."""
    budgets = [_budget(rank, times.mean_us) for rank in ranks]
    work = [_work(rank) for rank in ranks]
    known = [flops for flops in work if flops]
    steps = [step for rank in ranks for step in rank.steps if step.trains]
    flops = [sum(step.gemm.flops.values()) for step in steps if step.gemm.flops]
    return Measured(
        ranks=tuple(ranks),
        times=times,
        measured=source,
        work=fmean(known) if len(known) == len(work) else None,
        step_flops=median(flops) if flops and len(flops) == len(steps) else None,
        gemms=fmean(sum(rank.gemm.kernels.values()) / steps_of(rank) for rank in ranks),
        budget={name: fmean(one[name] for one in budgets) for name in budgets[0]},
    )


def steps_of(rank: RankReport) -> int:
    """Return the number of recorded steps; a window without any counts as one."""
    return len(rank.steps) or 1


def is_known(rank: RankReport) -> bool:
    """Whether GEMMs and GPU time of a rank are known."""
    return rank.payoff is not None and any(rank.gemm.kernels.values())


def _outside(ranks: Sequence[RankReport]) -> StepStatistics | None:
    """Return the steps that no profiler slowed down: of the slowest rank, for which others wait."""
    known = [rank.steps_outside for rank in ranks]
    if None in known:
        return None
    return max(filter(None, known), key=lambda times: times.mean_us, default=None)


def _logged(ranks: Sequence[RankReport], logged: Mapping[int, float]) -> StepStatistics | None:
    near = {step.step + by for step in ranks[0].steps for by in range(-_NEAR, _NEAR + 1)}
    known = [(step, time) for step, time in sorted(logged.items()) if 0 < time < math.inf]
    times = [time for step, time in known if step not in near]
    # What only grows is the time since the start.
    if len(times) <= _LEAST or all(later > time for time, later in pairwise(times)):
        return None
    return step_statistics([times[1:]])


def _profiled(ranks: Sequence[RankReport], clock: str) -> StepStatistics | None:
    """Return the recorded steps, each the mean of the ranks.

    The first step of a window is left out where enough others remain: it begins with its first
    kernel, and with a GPU that has nothing to do.
    """
    times: dict[int, list[float]] = {}
    for rank in ranks:
        for step in rank.steps:
            own = step.gpu_us if clock == "gpu" else step.duration_us
            if own and step.trains:
                times.setdefault(step.step, []).append(own)
    means = {step: fmean(own) for step, own in times.items() if len(own) == len(ranks)}
    windows = join_windows((step, step) for step in sorted(means))
    whole = [[means[step] for step in range(first, last + 1)] for first, last in windows]
    later = [window[1:] for window in whole if window[1:]]
    return step_statistics(later if sum(map(len, later)) >= _LEAST else whole)


def _window(ranks: Sequence[RankReport]) -> StepStatistics | None:
    """Return the window as one step."""
    payoff = ranks[0].payoff
    if payoff is None or payoff.idle_share >= 1:
        return None
    whole = payoff.gpu_busy_us / (1 - payoff.idle_share) / steps_of(ranks[0])
    return step_statistics([[whole]] if whole else [])


def _budget(rank: RankReport, mean_us: float) -> dict[str, float]:
    steps = steps_of(rank)
    busy = rank.payoff.gpu_busy_us / steps if rank.payoff else 0.0
    parts = {
        GEMM: sum(rank.gemm.time_us.values()) / steps,
        CASTS: rank.tax.time_us / steps if rank.tax else 0.0,
        ATTENTION: rank.gpu_time_us["attention"] / steps,
        NETWORK: rank.communication.exposed_us / steps if rank.communication else 0.0,
    }
    # Overlapping kernels make the parts add up to more than the whole: the rest is less by that.
    return {**parts, REST: busy - sum(parts.values()), IDLE: max(0.0, mean_us - busy)}


def _work(rank: RankReport) -> float | None:
    forward = [row for row in products(rank) if row.leg is Leg.FPROP]
    flops = sum(2 * math.prod(row.shape or ()) * row.kernels for row in forward)
    return flops / steps_of(rank) if flops else None


def products(rank: RankReport) -> list[KernelRow]:
    """Return the GEMMs with a known shape, without the reductions of split-K ones."""
    return [row for row in rank.kernels if row.role.is_gemm and row.shape and row.tflops]


def budget_rows(baseline: Measured, candidate: Measured) -> tuple[BudgetRow, ...]:
    """Return both budgets side by side; kinds that neither has are left out."""
    return tuple(
        BudgetRow(
            name=name,
            baseline_us=round(before, 3),
            candidate_us=round(candidate.budget[name], 3),
            change_us=round(candidate.budget[name] - before, 3),
        )
        for name, before in baseline.budget.items()
        if before or candidate.budget[name]
    )
