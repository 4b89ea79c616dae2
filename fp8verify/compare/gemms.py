"""GEMMs of both runs paired by layer size and leg."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from fp8verify.compare.measure import Measured, products
from fp8verify.report.model import KernelRow, Leg, RankReport
from fp8verify.report.model.comparison import GemmPair, LegPair

_Key = tuple[str, int, int]


@dataclass(slots=True)
class _Total:
    calls: int = 0
    time_us: float = 0.0
    tokens: int = 0
    precisions: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def each(self) -> float:
        return self.time_us / self.calls

    @property
    def precision(self) -> str:
        return max(self.precisions, key=self.precisions.__getitem__)


def sizes(rank: RankReport) -> set[tuple[int, int]]:
    """The layers' (outputs, inputs), from the forward GEMMs."""
    return {
        (row.shape[2], row.shape[3]) for row in products(rank) if row.shape and row.leg is Leg.FPROP
    }


def pair_gemms(baseline: Measured, candidate: Measured) -> tuple[GemmPair, ...]:
    """Pair the GEMMs that both runs have, the longest of the baseline first."""
    before, after = _totals(baseline.rank), _totals(candidate.rank)
    common = [key for key in before if key in after]
    common.sort(key=lambda key: -before[key].time_us)
    steps = (baseline.times.steps, candidate.times.steps)
    return tuple(_pair(key, before[key], after[key], steps) for key in common)


def _pair(key: _Key, before: _Total, after: _Total, steps: tuple[int, int]) -> GemmPair:
    per_token = (before.each / before.tokens) / (after.each / after.tokens)
    return GemmPair(
        leg=key[0],
        n=key[1],
        k=key[2],
        baseline_tokens=before.tokens,
        candidate_tokens=after.tokens,
        baseline_precision=before.precision,
        candidate_precision=after.precision,
        baseline_us=round(before.each, 3),
        candidate_us=round(after.each, 3),
        baseline_calls=round(before.calls / steps[0], 3),
        candidate_calls=round(after.calls / steps[1], 3),
        speedup=round(per_token, 4),
    )


def _totals(rank: RankReport) -> dict[_Key, _Total]:
    known = sizes(rank)
    totals: dict[_Key, _Total] = defaultdict(_Total)
    for row in rank.kernels:
        found = _layer(row, known)
        if found is None:
            continue
        key, tokens = found
        total = totals[key]
        total.time_us += row.time_us
        total.precisions[row.precision.value] += row.time_us
        if row.tflops:  # a split-K reduction is part of a GEMM that is counted already
            total.calls += row.kernels
            total.tokens = max(total.tokens, tokens)
    return {key: total for key, total in totals.items() if total.calls and total.time_us}


def _layer(row: KernelRow, known: set[tuple[int, int]]) -> tuple[_Key, int] | None:
    """The leg, outputs and inputs of the layer that a GEMM belongs to, and its tokens."""
    if not row.role.is_gemm or row.leg is None or row.shape is None or row.shape[0] != 1:
        return None
    _, m, n, k = row.shape
    places = {
        Leg.FPROP: ((n, k, m),),
        Leg.RECOMPUTE: ((n, k, m),),
        Leg.DGRAD: ((k, n, m),),
        Leg.WGRAD: ((m, n, k), (n, m, k)),  # the weight's shape, or its transpose
    }.get(row.leg, ())
    for outputs, inputs, tokens in places:
        if (outputs, inputs) in known:
            return (row.leg.value, outputs, inputs), tokens
    return None


def pair_legs(baseline: Measured, candidate: Measured, work: float | None) -> tuple[LegPair, ...]:
    """Pair the GEMM time a step of each leg that either run has."""
    before, after = _leg_times(baseline), _leg_times(candidate)
    return tuple(
        LegPair(
            leg=leg.value,
            baseline_us=round(before.get(leg.value, 0.0), 3),
            candidate_us=round(after.get(leg.value, 0.0), 3),
            speedup=_speedup(before.get(leg.value), after.get(leg.value), work),
        )
        for leg in Leg
        if leg.value in before or leg.value in after
    )


def _leg_times(side: Measured) -> dict[str, float]:
    return {leg.leg.value: sum(leg.time_us.values()) / side.times.steps for leg in side.rank.legs}


def _speedup(before: float | None, after: float | None, work: float | None) -> float | None:
    return round(before / after * (work or 1.0), 4) if before and after else None
