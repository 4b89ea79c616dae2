"""Findings that show only when all ranks are looked at together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model import Finding, Severity, Verdict
from fp8verify.text import counted, listed
from fp8verify.verdict.undecided import undecidable

_SHARE_GAP = 0.1
_SLOWER = 1.1


def ranks_without_fp8(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks that surely ran GEMMs and none in FP8, while others ran FP8."""
    with_fp8 = [facts for facts in ranks if facts.rank.ran_low]
    without = [f.rank for f in ranks if not f.rank.ran_low and undecidable(f.rank) is None]
    if with_fp8 and without:
        main = without[0].main_precision().value.upper()
        yield Finding(
            code="rank-without-fp8",
            severity=Severity.ERROR,
            message=f"{listed([rank.label for rank in without])} ran no FP8 GEMM, "
            f"{counted(with_fp8, 'other rank')} did ({main} here)",
            hint="Compare the ranks' environment, GPU and pipeline stage: the conversion did "
            "not reach this one.",
            ranks=_numbers(without),
            verdict=Verdict.PARTIAL,
        )


def ranks_unreadable(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks of which a trace could not be read."""
    lost = [facts.rank for facts in ranks if facts.rank.unreadable is not None]
    if lost:
        reasons = [f"{rank.label} ({rank.unreadable})" for rank in lost]
        yield Finding(
            code="rank-unreadable",
            severity=Severity.WARNING,
            message=f"{len(lost)} of {len(ranks)} ranks cannot be read: "
            f"{listed(reasons, between='; ')}",
            hint="The figures leave these out. Export or copy their traces again: what a rank did "
            "that is not seen stays open.",
            ranks=_numbers(lost),
            verdict=Verdict.INCONCLUSIVE,
        )


def ranks_not_observed(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks of the training whose traces are not there."""
    world = max((facts.rank.world_size or 1 for facts in ranks), default=1)
    if world > len(ranks):
        yield Finding(
            code="ranks-not-observed",
            severity=Severity.INFO,
            message=f"{len(ranks)} of {world} ranks observed",
            hint="The verdict covers these ranks; pass the folder with every rank's trace.",
        )


def windows_differ(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Ranks that recorded other steps than the rest, as a window by time may make them."""
    recorded = [(facts.rank, _windows(facts.rank)) for facts in ranks]
    common = Counter(steps for _, steps in recorded if steps).most_common(1)
    other = [(rank, steps) for rank, steps in recorded if steps and steps != common[0][0]]
    if other:
        label, steps = other[0][0].label, other[0][1]
        labels = listed([rank.label for rank, _ in other])
        yield Finding(
            code="windows-differ",
            severity=Severity.INFO,
            message=f"{labels} recorded other steps than the rest: {steps} on {label}, "
            f"{common[0][0]} elsewhere",
            hint="Each verdict holds for its own steps; the ranks' times do not compare. --steps "
            "names the same ones everywhere.",
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
        yield Finding(
            code="ranks-differ",
            severity=Severity.INFO,
            message=f"FP8 took {_share(low):.1%} of GEMM time on {low.label} and "
            f"{_share(high):.1%} on {high.label}",
            hint="Pipeline stages with an output head differ by design; equal ranks do not.",
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
        yield Finding(
            code="rank-slower",
            severity=Severity.INFO,
            message=f"{slow.label} is the slowest, {slow_ns / 1e6:.1f} ms a step, {fast.label} the "
            f"fastest, {fast_ns / 1e6:.1f} ms",
            hint="Compare what these ranks compute, their GPU clocks and their input. Ranks that "
            "wait for another spend the time in communication.",
            ranks=_numbers([slow, fast]),
        )


def _time(timed: tuple[int, RankEvidence]) -> int:
    return timed[0]


def _median_step(rank: RankEvidence) -> int:
    times = sorted(step.end_ns - step.start_ns for step, _ in rank.steps)
    return times[len(times) // 2]


def _numbers(ranks: Iterable[RankEvidence]) -> tuple[int, ...]:
    return tuple(number for rank in ranks for number in rank.numbers)
