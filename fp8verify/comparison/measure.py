"""What a step of one run costs, over all compared ranks; and what both runs have, in pairs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from statistics import fmean, median
from typing import NamedTuple

from fp8verify.analysis.kinds import GemmShape
from fp8verify.analysis.timeline import step_statistics
from fp8verify.model.comparison import (
    BudgetRow,
    GemmPair,
    LayerPair,
    LegPair,
    MemoryPair,
    RankPair,
)
from fp8verify.model.costs import MemoryReport
from fp8verify.model.kernels import KernelRow
from fp8verify.model.report import RankReport, Report
from fp8verify.model.steps import StepStatistics
from fp8verify.report.tables import layer_us, precisions
from fp8verify.terms import CERTAIN_LEGS, Leg
from fp8verify.text import join_windows

GEMM = "GEMM"
CASTS = "casts and scales"
ATTENTION = "attention"
NETWORK = "exposed communication"
REST = "other kernels"
IDLE = "GPU idle or copying"
# Steps of a log that the profiler or its warm-up may have slowed down stand this near to a window.
_NEAR = 3
_LEAST = 3


class Measured(NamedTuple):
    """The compared ranks of a run; times in µs of a mean step and rank.

    Attributes:
        ranks: the ranks that are compared.
        times: of the steps.
        measured: source of the times: outside (wall time of steps without the profiler), log
            (the run's own), gpu, cpu, or window if no step was recorded.
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
        working = dict(self.budget)
        working.pop(IDLE, None)
        return sum(working.values())

    @property
    def fp8_share(self) -> float:
        """FP8 share of the GEMM time of all compared ranks."""
        return fmean(rank.layer_share or 0.0 for rank in self.ranks)


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
    if times:
        return round(times.mean_us, 3)
    return None


def _measure(
    ranks: Sequence[RankReport], source: str, times: StepStatistics
) -> Measured:
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


def _logged(
    ranks: Sequence[RankReport], logged: Mapping[int, float]
) -> StepStatistics | None:
    near = {
        step.step + by for step in ranks[0].steps for by in range(-_NEAR, _NEAR + 1)
    }
    known = [
        (step, time) for step, time in sorted(logged.items()) if 0 < time < math.inf
    ]
    times = [time for step, time in known if step not in near]
    # What only grows is the time since the start.
    if all(later > time for time, later in pairwise(times)):
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
            if clock == "gpu":
                own = step.gpu_us
            else:
                own = step.duration_us
            if own and step.trains:
                times.setdefault(step.step, []).append(own)
    means = {step: fmean(own) for step, own in times.items() if len(own) == len(ranks)}
    windows = join_windows((step, step) for step in sorted(means))
    whole = [
        [means[step] for step in range(first, last + 1)] for first, last in windows
    ]
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
    if flops:
        return flops / steps_of(rank)
    return None


def products(rank: RankReport) -> list[KernelRow]:
    """Return the GEMMs with a known shape, without the reductions of split-K ones."""
    return [
        row for row in rank.kernels if row.role.is_gemm and row.shape and row.tflops
    ]


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


# ---- pairs: GEMMs by layer size and leg, layers by name, ranks, memory

_Key = tuple[
    Leg, int, int
]  # of the GEMMs of a leg of the layers with so many outputs and inputs


class _Gemms(NamedTuple):
    """GEMMs of one kind in a step, as the mean of the ranks; `each_us` is the time of one."""

    calls: float
    time_us: float
    each_us: float
    tokens: int
    precision: str


def sizes(side: Measured) -> set[tuple[int, int]]:
    """Return the layers' (outputs, inputs), from the forward GEMMs of all ranks."""
    return set().union(*map(_sizes, side.ranks))


def _sizes(rank: RankReport) -> set[tuple[int, int]]:
    return {
        (row.shape[2], row.shape[3])
        for row in products(rank)
        if row.shape and row.leg is Leg.FPROP
    }


def pair_gemms(baseline: Measured, candidate: Measured) -> tuple[GemmPair, ...]:
    """Pair the GEMMs that both runs have, the longest of the baseline first."""
    old = _gemms(baseline)
    new = _gemms(candidate)
    common = sorted(old.keys() & new.keys(), key=lambda key: (-old[key].time_us, key))
    return tuple(
        GemmPair(
            leg=leg.value,
            n=n,
            k=k,
            baseline_tokens=before.tokens,
            candidate_tokens=after.tokens,
            baseline_precision=before.precision,
            candidate_precision=after.precision,
            baseline_us=round(before.each_us, 3),
            candidate_us=round(after.each_us, 3),
            baseline_calls=round(before.calls, 3),
            candidate_calls=round(after.calls, 3),
            speedup=round(
                before.each_us / before.tokens / (after.each_us / after.tokens), 4
            ),
        )
        for (leg, n, k), before, after in ((key, old[key], new[key]) for key in common)
    )


def _gemms(side: Measured) -> dict[_Key, _Gemms]:
    rows: dict[_Key, list[tuple[KernelRow, float]]] = defaultdict(list)
    for rank in side.ranks:
        known = _sizes(rank)
        share = steps_of(rank) * len(side.ranks)
        for row in rank.kernels:
            if key := _layer(row, known):
                rows[key].append((row, share))
    found = {}
    for key, of_key in rows.items():
        time_us: dict[str, float] = defaultdict(float)
        for row, _ in of_key:
            time_us[row.precision.value] += row.time_us
        # A split-K reduction is part of a GEMM that is counted already.
        whole = [(row, share) for row, share in of_key if row.tflops]
        calls = sum(row.kernels / share for row, share in whole)
        total = sum(row.time_us / share for row, share in of_key)
        if calls and total:
            tokens = max(prod(row.shape or ()) // (key[1] * key[2]) for row, _ in whole)
            precision = max(time_us, key=time_us.__getitem__)
            found[key] = _Gemms(
                calls=calls,
                time_us=total,
                each_us=total / calls,
                tokens=tokens,
                precision=precision,
            )
    return found


def _layer(row: KernelRow, known: set[tuple[int, int]]) -> _Key | None:
    """Return leg, outputs and inputs of the layer that a GEMM belongs to."""
    if not row.role.is_gemm or row.leg not in CERTAIN_LEGS or row.shape is None:
        return None
    ours = (
        size for size in GemmShape(*row.shape).layer_sizes(row.leg) if size in known
    )
    return next(((row.leg, *size) for size in ours), None)


def pair_legs(
    baseline: Measured, candidate: Measured, work: float
) -> tuple[LegPair, ...]:
    """Pair the GEMM time a step of each leg that either run has."""
    before = _leg_times(baseline)
    after = _leg_times(candidate)
    return tuple(
        LegPair(
            leg=leg.value,
            baseline_us=round(before[leg], 3),
            candidate_us=round(after[leg], 3),
            speedup=_ratio(before[leg], after[leg], work),
        )
        for leg in Leg
        if leg in {*before, *after}
    )


def _leg_times(side: Measured) -> defaultdict[Leg, float]:
    times: defaultdict[Leg, float] = defaultdict(float)
    for rank in side.ranks:
        for leg in rank.legs:
            times[leg.leg] += sum(leg.time_us.values()) / (
                steps_of(rank) * len(side.ranks)
            )
    return times


def pair_layers(baseline: Measured, candidate: Measured) -> tuple[LayerPair, ...]:
    """Pair the layers that both runs name, on the first compared rank; the longest first."""
    before = _layers(baseline)
    after = _layers(candidate)
    pairs = [
        LayerPair(
            layer=name,
            baseline_precision=before[name][0],
            candidate_precision=after[name][0],
            baseline_us=before[name][1],
            candidate_us=after[name][1],
            speedup=_ratio(before[name][1], after[name][1]),
        )
        for name in before.keys() & after
    ]
    return tuple(
        sorted(pairs, key=lambda pair: (-(pair.candidate_us or 0.0), pair.layer))
    )


def _layers(side: Measured) -> dict[str, tuple[str, float | None]]:
    """Return precisions and µs a step; an eager step of compiled code has not the run's times."""
    rank = side.ranks[0]
    named = side.ranks[0].named_layers
    if named is None:
        return {}
    steps = steps_of(rank) if named.source == "window" else None
    return {
        row.layer: (precisions(row), round(layer_us(row) / steps, 3) if steps else None)
        for row in named.rows
    }


def pair_ranks(baseline: Measured, candidate: Measured) -> tuple[RankPair, ...]:
    """Pair the ranks that both runs have; nothing for a single rank."""
    pairs = zip(baseline.ranks, candidate.ranks, strict=False)
    return tuple(
        RankPair(
            rank=old.rank,
            baseline_us=before,
            candidate_us=after,
            step_speedup=round(before / after, 4),
            baseline_fp8_share=old.layer_share,
            candidate_fp8_share=new.layer_share,
        )
        for old, new in pairs
        if len(baseline.ranks) > 1
        and old.rank is not None
        and (before := profiled_step_us(old))
        and (after := profiled_step_us(new))
    )


def pair_memory(baseline: Report, candidate: Report) -> MemoryPair | None:
    """Pair the peaks of the fullest ranks, which run out of memory first."""
    before = _fullest(baseline)
    after = _fullest(candidate)
    if before is None or after is None:
        return None
    (had, _), (has, rank) = before, after
    return MemoryPair(
        rank=rank.rank,
        baseline_allocated=had.allocated_peak,
        candidate_allocated=has.allocated_peak,
        baseline_reserved=had.reserved_peak,
        candidate_reserved=has.reserved_peak,
        total=has.total,
        why=has.why if has.why != had.why else (),
    )


def _fullest(report: Report) -> tuple[MemoryReport, RankReport] | None:
    known = [(rank.memory, rank) for rank in report.ranks if rank.memory is not None]
    return max(known, key=lambda pair: pair[0].reserved_peak, default=None)


def _ratio(
    before: float | None, after: float | None, work: float = 1.0
) -> float | None:
    if before and after:
        return round(before / after * work, 4)
    return None
