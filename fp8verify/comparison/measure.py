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
from fp8verify.thresholds import LEAST_TIMES, NEAR_WINDOW

GEMM = "GEMM"
CASTS = "casts and scales"
ATTENTION = "attention"
NETWORK = "exposed communication"
REST = "other kernels"
IDLE = "GPU idle or copying"


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
    baseline_ranks = _known_ranks(baseline)
    candidate_ranks = _known_ranks(candidate)
    if not baseline_ranks:
        return "no GEMM ran in the baseline"
    if not candidate_ranks:
        return "no GEMM ran in the candidate"
    common = [number for number in baseline_ranks if number in candidate_ranks]
    if common:
        before = [baseline_ranks[number] for number in common]
        after = [candidate_ranks[number] for number in common]
    else:
        before = list(baseline_ranks.values())[:1]
        after = list(candidate_ranks.values())[:1]
    baseline_log, candidate_log = logged
    old_sources = _step_times(before, baseline_log)
    new_sources = _step_times(after, candidate_log)
    for name, least in _SOURCES:
        old = old_sources[name]
        new = new_sources[name]
        if old and new and min(old.count, new.count) >= least:
            return _measure(before, name, old), _measure(after, name, new)
    return "no rank to compare"


# Sources of step times by how good they are, and how many times of each are needed. Where few steps
# were recorded: the best that both have.
_SOURCES = (
    ("outside", LEAST_TIMES),
    ("log", LEAST_TIMES),
    ("gpu", LEAST_TIMES),
    ("cpu", LEAST_TIMES),
    ("gpu", 1),
    ("cpu", 1),
    ("window", 1),
)


def _known_ranks(report: Report) -> dict[int | None, RankReport]:
    """Return by their numbers the ranks whose GEMMs and GPU time are known."""
    return {rank.rank: rank for rank in report.ranks if is_known(rank)}


def _step_times(
    ranks: Sequence[RankReport],
    logged: Mapping[int, float],
) -> dict[str, StepStatistics | None]:
    """Return the step times of one run by their source, see `Measured.measured`."""
    return {
        "outside": _outside(ranks),
        "log": _logged(ranks, logged),
        "gpu": _profiled(ranks, "gpu"),
        "cpu": _profiled(ranks, "cpu"),
        "window": _window(ranks),
    }


def profiled_step_us(rank: RankReport) -> float | None:
    """Return the mean step of a rank under the profiler in µs, None if no time is known."""
    times = _profiled([rank], "gpu") or _profiled([rank], "cpu") or _window([rank])
    if times:
        return round(times.mean_us, 3)
    return None


def _measure(
    ranks: Sequence[RankReport],
    source: str,
    times: StepStatistics,
) -> Measured:
    """Measure ranks of one run by these step times."""
    budgets = [_budget(rank, times.mean_us) for rank in ranks]
    budget = {name: fmean(of_rank[name] for of_rank in budgets) for name in budgets[0]}
    gemms = [sum(rank.gemm.kernels.values()) / steps_of(rank) for rank in ranks]
    return Measured(
        ranks=tuple(ranks),
        times=times,
        measured=source,
        work=_mean_work(ranks),
        step_flops=_step_flops(ranks),
        gemms=fmean(gemms),
        budget=budget,
    )


def _mean_work(ranks: Sequence[RankReport]) -> float | None:
    """Return the work of a rank; None unless that of all is known."""
    known = []
    for rank in ranks:
        flops = _work(rank)
        if not flops:
            return None
        known.append(flops)
    return fmean(known)


def _step_flops(ranks: Sequence[RankReport]) -> float | None:
    """Return the FLOPs of the median step; None unless those of all are known."""
    known = []
    for rank in ranks:
        for step in rank.steps:
            if not step.trains:
                continue
            if not step.gemm.flops:
                return None
            known.append(sum(step.gemm.flops.values()))
    return median(known) if known else None


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
    ranks: Sequence[RankReport],
    logged: Mapping[int, float],
) -> StepStatistics | None:
    near: set[int] = set()
    for step in ranks[0].steps:
        near.update(range(step.step - NEAR_WINDOW, step.step + NEAR_WINDOW + 1))
    times = []
    for number, time in sorted(logged.items()):
        if 0 < time < math.inf and number not in near:
            times.append(time)
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
                time = step.gpu_us
            else:
                time = step.duration_us
            if time and step.trains:
                times.setdefault(step.step, []).append(time)
    means = {}
    for number, of_ranks in times.items():
        if len(of_ranks) == len(ranks):
            means[number] = fmean(of_ranks)
    windows = []
    for first, last in join_windows((step, step) for step in sorted(means)):
        windows.append([means[step] for step in range(first, last + 1)])
    without_first = [window[1:] for window in windows if window[1:]]
    if sum(map(len, without_first)) >= LEAST_TIMES:
        return step_statistics(without_first)
    return step_statistics(windows)


def _window(ranks: Sequence[RankReport]) -> StepStatistics | None:
    """Return the window as one step."""
    payoff = ranks[0].payoff
    if payoff is None or payoff.idle_share >= 1:
        return None
    whole = payoff.gpu_busy_us / (1 - payoff.idle_share) / steps_of(ranks[0])
    if whole:
        return step_statistics([[whole]])
    return step_statistics([])


def _budget(rank: RankReport, mean_us: float) -> dict[str, float]:
    busy = 0.0
    casts = 0.0
    network = 0.0
    if rank.payoff:
        busy = rank.payoff.gpu_busy_us
    if rank.tax:
        casts = rank.tax.time_us
    if rank.communication:
        network = rank.communication.exposed_us
    steps = steps_of(rank)
    busy_a_step = busy / steps
    parts = {
        GEMM: sum(rank.gemm.time_us.values()) / steps,
        CASTS: casts / steps,
        ATTENTION: rank.gpu_time_us["attention"] / steps,
        NETWORK: network / steps,
    }
    # Overlapping kernels make the parts add up to more than the whole: the rest is less by that.
    rest = busy_a_step - sum(parts.values())
    idle = max(0.0, mean_us - busy_a_step)
    return {**parts, REST: rest, IDLE: idle}


def _work(rank: RankReport) -> float | None:
    flops = 0
    for row in products(rank):
        if row.leg is Leg.FPROP:
            flops += 2 * math.prod(row.shape or ()) * row.kernels
    return flops / steps_of(rank) if flops else None


def products(rank: RankReport) -> list[KernelRow]:
    """Return the GEMMs with a known shape, without the reductions of split-K ones."""
    return [
        row for row in rank.kernels if row.role.is_gemm and row.shape and row.tflops
    ]


def budget_rows(baseline: Measured, candidate: Measured) -> tuple[BudgetRow, ...]:
    """Return both budgets side by side; kinds that neither has are left out."""
    rows = []
    for name, before in baseline.budget.items():
        after = candidate.budget[name]
        if before or after:
            rows.append(
                BudgetRow(
                    name=name,
                    baseline_us=round(before, 3),
                    candidate_us=round(after, 3),
                    change_us=round(after - before, 3),
                )
            )
    return tuple(rows)


# ---- pairs: GEMMs by layer size and leg, layers by name, ranks, memory

# Of the GEMMs of a leg of the layers with so many outputs and inputs.
_Key = tuple[Leg, int, int]


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
    found = set()
    for row in products(rank):
        if row.shape and row.leg is Leg.FPROP:
            found.add((row.shape[2], row.shape[3]))
    return found


def pair_gemms(baseline: Measured, candidate: Measured) -> tuple[GemmPair, ...]:
    """Pair the GEMMs that both runs have, the longest of the baseline first."""
    old = _gemms(baseline)
    new = _gemms(candidate)
    common = sorted(old.keys() & new.keys(), key=lambda key: (-old[key].time_us, key))
    return tuple(_pair_gemm(key, old[key], new[key]) for key in common)


def _pair_gemm(
    key: _Key,
    before: _Gemms,
    after: _Gemms,
) -> GemmPair:
    leg, n, k = key
    before_a_token = before.each_us / before.tokens
    after_a_token = after.each_us / after.tokens
    return GemmPair(
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
        speedup=round(before_a_token / after_a_token, 4),
    )


def _gemms(side: Measured) -> dict[_Key, _Gemms]:
    rows: dict[_Key, list[tuple[KernelRow, float]]] = defaultdict(list)
    for rank in side.ranks:
        known = _sizes(rank)
        share = steps_of(rank) * len(side.ranks)
        for row in rank.kernels:
            key = _layer(row, known)
            if key is not None:
                rows[key].append((row, share))
    gemms = {}
    for key, rows_of_key in rows.items():
        of_key = _gemms_of(key, rows_of_key)
        if of_key is not None:
            gemms[key] = of_key
    return gemms


def _gemms_of(key: _Key, rows: Sequence[tuple[KernelRow, float]]) -> _Gemms | None:
    """Add up rows of one key, each with the number of steps and ranks that it is of."""
    time_us: dict[str, float] = defaultdict(float)
    for row, _ in rows:
        time_us[row.precision.value] += row.time_us
    # A split-K reduction is part of a GEMM that is counted already.
    whole = [(row, share) for row, share in rows if row.tflops]
    calls = sum(row.kernels / share for row, share in whole)
    total = sum(row.time_us / share for row, share in rows)
    if not (calls and total):
        return None
    _, n, k = key
    return _Gemms(
        calls=calls,
        time_us=total,
        each_us=total / calls,
        tokens=max(prod(row.shape or ()) // (n * k) for row, _ in whole),
        precision=max(time_us, key=time_us.__getitem__),
    )


def _layer(row: KernelRow, known: set[tuple[int, int]]) -> _Key | None:
    """Return leg, outputs and inputs of the layer that a GEMM belongs to."""
    if not row.role.is_gemm or row.leg not in CERTAIN_LEGS or row.shape is None:
        return None
    for outputs, inputs in GemmShape(*row.shape).layer_sizes(row.leg):
        if (outputs, inputs) in known:
            return row.leg, outputs, inputs
    return None


def pair_legs(
    baseline: Measured,
    candidate: Measured,
    work: float,
) -> tuple[LegPair, ...]:
    """Pair the GEMM time a step of each leg that either run has."""
    before = _leg_times(baseline)
    after = _leg_times(candidate)
    pairs = []
    for leg in Leg:
        if leg in before or leg in after:
            pairs.append(
                LegPair(
                    leg=leg.value,
                    baseline_us=round(before.get(leg, 0.0), 3),
                    candidate_us=round(after.get(leg, 0.0), 3),
                    speedup=_ratio(before.get(leg), after.get(leg), work),
                )
            )
    return tuple(pairs)


def _leg_times(side: Measured) -> dict[Leg, float]:
    times: dict[Leg, float] = defaultdict(float)
    for rank in side.ranks:
        share = steps_of(rank) * len(side.ranks)
        for leg in rank.legs:
            times[leg.leg] += sum(leg.time_us.values()) / share
    return times


def pair_layers(baseline: Measured, candidate: Measured) -> tuple[LayerPair, ...]:
    """Pair the layers that both runs name, on the first compared rank; the longest first."""
    before = _layers(baseline)
    after = _layers(candidate)
    pairs = []
    for name in before.keys() & after:
        baseline_precision, baseline_us = before[name]
        candidate_precision, candidate_us = after[name]
        pair = LayerPair(
            layer=name,
            baseline_precision=baseline_precision,
            candidate_precision=candidate_precision,
            baseline_us=baseline_us,
            candidate_us=candidate_us,
            speedup=_ratio(baseline_us, candidate_us),
        )
        pairs.append(pair)
    pairs.sort(key=lambda pair: (-(pair.candidate_us or 0.0), pair.layer))
    return tuple(pairs)


def _layers(side: Measured) -> dict[str, tuple[str, float | None]]:
    """Return precisions and µs a step; an eager step of compiled code has not the run's times."""
    rank = side.ranks[0]
    named = rank.named_layers
    if named is None:
        return {}
    layers: dict[str, tuple[str, float | None]] = {}
    for row in named.rows:
        time_us = None
        if named.source == "window":
            time_us = round(layer_us(row) / steps_of(rank), 3)
        layers[row.layer] = (precisions(row), time_us)
    return layers


def pair_ranks(baseline: Measured, candidate: Measured) -> tuple[RankPair, ...]:
    """Pair the ranks that both runs have; nothing for a single rank."""
    if len(baseline.ranks) <= 1:
        return ()
    pairs = []
    for old, new in zip(baseline.ranks, candidate.ranks, strict=False):
        before = profiled_step_us(old)
        after = profiled_step_us(new)
        if old.rank is None or not (before and after):
            continue
        pair = RankPair(
            rank=old.rank,
            baseline_us=before,
            candidate_us=after,
            step_speedup=round(before / after, 4),
            baseline_fp8_share=old.layer_share,
            candidate_fp8_share=new.layer_share,
        )
        pairs.append(pair)
    return tuple(pairs)


def pair_memory(baseline: Report, candidate: Report) -> MemoryPair | None:
    """Pair the peaks of the fullest ranks, which run out of memory first."""
    before = _fullest(baseline)
    after = _fullest(candidate)
    if before is None or after is None:
        return None
    had, _ = before
    has, rank = after
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
    before: float | None,
    after: float | None,
    work: float = 1.0,
) -> float | None:
    if not before or not after:
        return None
    return round(before / after * work, 4)
