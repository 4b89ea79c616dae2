"""Findings that show only when all ranks are looked at together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model import Finding
from fp8verify.text import counted, listed
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.undecided import undecidable

_SHARE_GAP = 0.1
_SLOWER = 1.1


def ranks_without_fp8(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks that surely ran GEMMs and none in FP8, while others ran FP8."""
    with_fp8 = [facts for facts in ranks if facts.rank.ran_low]
    without = [f.rank for f in ranks if not f.rank.ran_low and undecidable(f.rank) is None]
    if with_fp8 and without:
        yield finding(
            "rank-without-fp8",
            labels=listed([rank.label for rank in without]),
            others=counted(with_fp8, "other rank"),
            precision=without[0].main_precision().value.upper(),
            ranks=_numbers(without),
        )


def ranks_unreadable(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks of which a trace could not be read."""
    lost = [facts.rank for facts in ranks if facts.rank.unreadable is not None]
    if lost:
        reasons = [f"{rank.label} ({rank.unreadable})" for rank in lost]
        yield finding(
            "rank-unreadable",
            lost=len(lost),
            ranks_read=len(ranks),
            reasons=listed(reasons, between="; "),
            ranks=_numbers(lost),
        )


def ranks_not_observed(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks of the training whose traces are not there."""
    world = max((facts.rank.world_size or 1 for facts in ranks), default=1)
    if world > len(ranks):
        yield finding("ranks-not-observed", observed=len(ranks), world=world)


def windows_differ(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks that recorded other steps than the rest, as a window by time may make them."""
    recorded = [(facts.rank, _windows(facts.rank)) for facts in ranks]
    common = Counter(steps for _, steps in recorded if steps).most_common(1)
    other = [(rank, steps) for rank, steps in recorded if steps and steps != common[0][0]]
    if other:
        yield finding(
            "windows-differ",
            labels=listed([rank.label for rank, _ in other]),
            label=other[0][0].label,
            steps=other[0][1],
            common=common[0][0],
            ranks=_numbers(rank for rank, _ in other),
        )


def _windows(rank: RankEvidence) -> str:
    windows = rank.meta.windows if rank.meta else ()
    return ", ".join(f"{w.first}-{w.last}" for w in windows if w.state in ("complete", "cut"))


def shares_differ(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """FP8 shares of GEMM time that are far apart, among ranks that ran FP8."""
    with_fp8 = [facts.rank for facts in ranks if facts.rank.ran_low]
    if not with_fp8:
        return
    low, high = min(with_fp8, key=_share), max(with_fp8, key=_share)
    if _share(high) - _share(low) > _SHARE_GAP:
        yield finding(
            "ranks-differ",
            low=_share(low),
            low_rank=low.label,
            high=_share(high),
            high_rank=high.label,
            ranks=_numbers([low, high]),
        )


def _share(rank: RankEvidence) -> float:
    return rank.linear.low_precision_share_of_time or 0.0


def slower_rank(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """The slowest and the fastest rank, by the median CPU time of their steps."""
    timed = [(_median_step(facts.rank), facts.rank) for facts in ranks if facts.rank.steps]
    if len(timed) < 2:
        return
    (slow_ns, slow), (fast_ns, fast) = max(timed, key=_time), min(timed, key=_time)
    if slow_ns > _SLOWER * fast_ns:
        yield finding(
            "rank-slower",
            slow_rank=slow.label,
            slow_ms=slow_ns / 1e6,
            fast_rank=fast.label,
            fast_ms=fast_ns / 1e6,
            ranks=_numbers([slow, fast]),
        )


def _time(timed: tuple[int, RankEvidence]) -> int:
    return timed[0]


def _median_step(rank: RankEvidence) -> int:
    times = sorted(step.end_ns - step.start_ns for step, _ in rank.steps)
    return times[len(times) // 2]


def _numbers(ranks: Iterable[RankEvidence]) -> tuple[int, ...]:
    return tuple(number for rank in ranks for number in rank.numbers)
