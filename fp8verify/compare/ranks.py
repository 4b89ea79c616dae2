"""Which rank of one run stands beside which rank of the other."""

from __future__ import annotations

from fp8verify.compare.measure import Measured, measure
from fp8verify.report.model import Report
from fp8verify.report.model.comparison import RankPair, StepTimes


def pick_ranks(baseline: Report, candidate: Report) -> tuple[Measured | None, Measured | None]:
    """Return the first rank that both runs have, else the first of each that ran a GEMM."""
    before, after = _by_rank(baseline), _by_rank(candidate)
    common = next((rank for rank in before if rank in after), None)
    if common in before and common in after:
        return before[common], after[common]
    return next(iter(before.values()), None), next(iter(after.values()), None)


def pair_ranks(baseline: Report, candidate: Report) -> tuple[RankPair, ...]:
    """Pair the ranks that both runs have; nothing where there is one alone."""
    before, after = _by_rank(baseline), _by_rank(candidate)
    common = sorted(rank for rank in before.keys() & after if rank is not None)
    if len(common) < 2:
        return ()
    pairs = ((rank, before[rank].times, after[rank].times) for rank in common)
    return tuple(
        _pair(rank, old, new) for rank, old, new in pairs if old.median_us and new.median_us
    )


def _by_rank(report: Report) -> dict[int | None, Measured]:
    return {rank.rank: found for rank in report.ranks if (found := measure(rank))}


def _pair(rank: int, before: StepTimes, after: StepTimes) -> RankPair:
    return RankPair(
        rank=rank,
        baseline_us=before.median_us,
        candidate_us=after.median_us,
        step_speedup=round(before.median_us / after.median_us, 4),
    )
