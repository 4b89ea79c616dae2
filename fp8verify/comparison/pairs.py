"""What both runs have: GEMMs by layer size and leg, layers by name, ranks, memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod

from fp8verify.analysis.kinds import layer_sizes
from fp8verify.comparison.measure import Measured, products, profiled_step_us, steps_of
from fp8verify.report.layers import layer_us, precisions
from fp8verify.report.model.comparison import GemmPair, LayerPair, LegPair, MemoryPair, RankPair
from fp8verify.report.model.numerics import MemoryReport
from fp8verify.report.model.parts import KernelRow
from fp8verify.report.model.report import RankReport, Report
from fp8verify.report.tables import layer_share
from fp8verify.terms import CERTAIN_LEGS, Leg

_Key = tuple[str, int, int]


@dataclass(slots=True)
class _Total:
    calls: float = 0.0
    time_us: float = 0.0
    tokens: int = 0
    precisions: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def each(self) -> float:
        return self.time_us / self.calls

    @property
    def precision(self) -> str:
        return max(self.precisions, key=self.precisions.__getitem__)


def sizes(side: Measured) -> set[tuple[int, int]]:
    """Return the layers' (outputs, inputs), from the forward GEMMs of all ranks."""
    return {size for rank in side.ranks for size in _sizes(rank)}


def _sizes(rank: RankReport) -> set[tuple[int, int]]:
    return {
        (row.shape[2], row.shape[3]) for row in products(rank) if row.shape and row.leg is Leg.FPROP
    }


def pair_gemms(baseline: Measured, candidate: Measured) -> tuple[GemmPair, ...]:
    """Pair the GEMMs that both runs have, the longest of the baseline first."""
    old, new = _totals(baseline), _totals(candidate)
    common = sorted(old.keys() & new.keys(), key=lambda key: (-old[key].time_us, key))
    return tuple(
        GemmPair(
            leg=leg,
            n=n,
            k=k,
            baseline_tokens=before.tokens,
            candidate_tokens=after.tokens,
            baseline_precision=before.precision,
            candidate_precision=after.precision,
            baseline_us=round(before.each, 3),
            candidate_us=round(after.each, 3),
            baseline_calls=round(before.calls, 3),
            candidate_calls=round(after.calls, 3),
            speedup=round((before.each / before.tokens) / (after.each / after.tokens), 4),
        )
        for (leg, n, k), before, after in ((key, old[key], new[key]) for key in common)
    )


def _totals(side: Measured) -> dict[_Key, _Total]:
    """Add up the GEMMs of a step by leg and layer size, as the mean of the ranks."""
    totals: dict[_Key, _Total] = defaultdict(_Total)
    for rank in side.ranks:
        known, share = _sizes(rank), steps_of(rank) * len(side.ranks)
        for row in rank.kernels:
            found = _layer(row, known)
            if found is None:
                continue
            key, tokens = found
            total = totals[key]
            total.time_us += row.time_us / share
            total.precisions[row.precision.value] += row.time_us
            if row.tflops:  # a split-K reduction is part of a GEMM that is counted already
                total.calls += row.kernels / share
                total.tokens = max(total.tokens, tokens)
    return {key: total for key, total in totals.items() if total.calls and total.time_us}


def _layer(row: KernelRow, known: set[tuple[int, int]]) -> tuple[_Key, int] | None:
    """Return leg, outputs and inputs of the layer that a GEMM belongs to, and its tokens."""
    if not row.role.is_gemm or row.leg is None or row.shape is None or row.shape[0] != 1:
        return None
    for outputs, inputs in layer_sizes(row.leg, row.shape) if row.leg in CERTAIN_LEGS else ():
        if (outputs, inputs) in known:
            return (row.leg.value, outputs, inputs), prod(row.shape) // (outputs * inputs)
    return None


def pair_legs(baseline: Measured, candidate: Measured, work: float) -> tuple[LegPair, ...]:
    """Pair the GEMM time a step of each leg that either run has."""
    before, after = _leg_times(baseline), _leg_times(candidate)
    return tuple(
        LegPair(
            leg=leg.value,
            baseline_us=round(before.get(leg.value, 0.0), 3),
            candidate_us=round(after.get(leg.value, 0.0), 3),
            speedup=_ratio(before.get(leg.value), after.get(leg.value), work),
        )
        for leg in Leg
        if leg.value in before or leg.value in after
    )


def _leg_times(side: Measured) -> dict[str, float]:
    times: dict[str, float] = defaultdict(float)
    for rank in side.ranks:
        for leg in rank.legs:
            share = steps_of(rank) * len(side.ranks)
            times[leg.leg.value] += sum(leg.time_us.values()) / share
    return dict(times)


def pair_layers(baseline: Measured, candidate: Measured) -> tuple[LayerPair, ...]:
    """Pair the layers that both runs name, on the first compared rank; the longest first."""
    before, after = _layers(baseline), _layers(candidate)
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
    return tuple(sorted(pairs, key=lambda pair: (-(pair.candidate_us or 0.0), pair.layer)))


def _layers(side: Measured) -> dict[str, tuple[str, float | None]]:
    """Return precisions and µs a step; an eager step of compiled code has not the run's times."""
    rank, named = side.ranks[0], side.ranks[0].named_layers
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
            baseline_fp8_share=layer_share(old),
            candidate_fp8_share=layer_share(new),
        )
        for old, new in pairs
        if len(baseline.ranks) > 1
        and old.rank is not None
        and (before := profiled_step_us(old))
        and (after := profiled_step_us(new))
    )


def pair_memory(baseline: Report, candidate: Report) -> MemoryPair | None:
    """Pair the peaks of the fullest ranks, which run out of memory first."""
    before, after = _fullest(baseline), _fullest(candidate)
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


def _ratio(before: float | None, after: float | None, work: float = 1.0) -> float | None:
    return round(before / after * work, 4) if before and after else None
