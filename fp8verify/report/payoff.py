"""Whether FP8 pays, in a sentence: what it gains on a rank, and what holds it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from fp8verify.model.costs import PayoffReport
from fp8verify.model.report import RankReport, Report
from fp8verify.model.verdict import Finding
from fp8verify.report.page import FAIR, GOOD
from fp8verify.report.sentences import training_ranks, unknown_share
from fp8verify.report.tables import label_of_group
from fp8verify.terms import Severity, low_precision_count
from fp8verify.thresholds import EVEN, HALF, NEGLIGIBLE

# Share of the largest cause of a loss below which another one is not said beside it.
_MINOR = 0.05


class Payoff(NamedTuple):
    """What FP8 gains, as estimated for one rank.

    Attributes:
        tone: good, fair, or empty where FP8 did not run.
        speedup: of a step, or else of the GPU time, over BF16; None if no FP8 GEMM ran, the CPU
            decides, or it is not known.
        text: the answer in a line.
    """

    tone: str
    speedup: float | None
    text: str


def payoff(report: Report) -> Payoff | None:
    """Say whether FP8 pays on the rank that gains least; None if nothing can be said.

    Ranks that only generate do not count where others train. Every form of a report has its
    answer from here. A rank that gains nothing counts before those that are estimated: where
    ranks wait for each other, the slowest decides.
    """
    diverges = any(map(_is_not_finite, report.findings))
    estimated: list[tuple[float, RankReport]] = []
    answers: list[Payoff] = []
    for rank in training_ranks(report.ranks):
        answer = _payoff_of(rank, diverges=diverges)
        if answer is None:
            continue
        if answer.speedup is None and answer.tone:
            return answer
        answers.append(answer)
        if answer.speedup is not None:
            estimated.append((answer.speedup, rank))
    if not estimated:
        return answers[0] if answers else None
    _, least = min(estimated, key=itemgetter(0))
    wide = _ranks_in_high_precision(report)
    if wide:
        return _held_back(least, wide, diverges=diverges)
    ranks = [rank for _, rank in estimated]
    return _payoff_of(least, ranks, diverges=diverges)


def _ranks_in_high_precision(report: Report) -> list[RankReport]:
    """Return the ranks that train, and of whose GEMMs none is, or may be, in low precision."""
    ranks = []
    for rank in training_ranks(report.ranks):
        kernels = rank.gemm.kernels
        if not low_precision_count(kernels) and not kernels.get("unknown"):
            ranks.append(rank)
    return ranks


def _held_back(
    rank: RankReport, wide: Sequence[RankReport], *, diverges: bool
) -> Payoff | None:
    """Say what FP8 brings to a rank, and that others without it may hold it back."""
    gain = _payoff_of(rank, diverges=diverges)
    if gain is None:
        return None
    runs = "runs" if len(wide) == 1 else "run"
    speedup = gain.speedup or 0.0
    if speedup <= 1 + EVEN:
        who = f" for {rank.label}; {label_of_group(wide)} {runs} without FP8"
        return _payoff_of(rank, who=who, diverges=diverges)
    held = (
        f"no gain where ranks wait for {label_of_group(wide)}, which {runs} without FP8"
    )
    by_itself = gain.text.partition(": ")[2] or gain.text
    return Payoff(FAIR, gain.speedup, f"{held}; {rank.label} alone: {by_itself}")


def _is_not_finite(finding: Finding) -> bool:
    return finding.code == "nan-or-inf" and finding.severity is Severity.ERROR


def _payoff_of(
    rank: RankReport,
    ranks: Sequence[RankReport] = (),
    *,
    diverges: bool,
    who: str = "",
) -> Payoff | None:
    """Say whether FP8 pays on a rank.

    Args:
        rank: the rank.
        ranks: it and others, of which it gains least; empty for it alone.
        diverges: whether its losses or gradients are not finite.
        who: what the estimate says of the rank among others.
    """
    figures = rank.payoff
    if figures is None:
        return None
    if not low_precision_count(rank.gemm.kernels):
        return _possible(figures, rank.gemm.time_us)
    limit = _limit(figures)
    speedup = figures.step_speedup_estimate or figures.speedup_estimate
    if limit and speedup is None:
        return Payoff(FAIR, None, f"no gain: {limit}")
    if figures.no_estimate:
        return Payoff("", None, f"no estimate: {figures.no_estimate}")
    if speedup is None:
        return None
    what = "a step"
    if figures.step_speedup_estimate is None:
        what = "GPU kernels"
    gained = _span(speedup, _most_gained(rank, ranks))
    figure = f"{what} about {gained}{who})"
    if diverges:
        lost = "but steps that are not finite train nothing"
        return Payoff(FAIR, speedup, f"{figure}, {lost}")
    causes = _hindrances(ranks or [rank])
    said = f"{figure}{causes}"
    if figures.cpu_limits:  # what costs most comes first
        said = f"{limit}; {said}"
    elif limit:
        said = f"{said}; {limit}"
    text = f"{_word(speedup)}: {said}"
    return Payoff(GOOD if speedup > 1 + EVEN else FAIR, speedup, text)


def _span(least: float, most: float) -> str:
    """Return estimates of ranks as the begin of a sentence: "1.13x to 1.22x BF16 (estimate"."""
    if f"{least:.2f}" >= f"{most:.2f}":
        return f"{least:.2f}x BF16 (estimate"
    return f"{least:.2f}x to {most:.2f}x BF16 (estimate, by rank"


def _most_gained(rank: RankReport, ranks: Iterable[RankReport]) -> float:
    """Return the largest estimate of some ranks, of the kind that one of them has."""
    is_of_step = _has_step_estimate(rank)
    most = 0.0
    for other in ranks:
        figures = other.payoff
        if figures is not None and _has_step_estimate(other) is is_of_step:
            gained = figures.step_speedup_estimate or figures.speedup_estimate or 0.0
            most = max(most, gained)
    return most


def _has_step_estimate(rank: RankReport) -> bool:
    return rank.payoff is not None and rank.payoff.step_speedup_estimate is not None


def _hindrances(ranks: Sequence[RankReport]) -> str:
    """Say what keeps the gain of the kernels small, behind the estimate: what costs most first."""
    causes = sorted(_causes(ranks), reverse=True)
    said = []
    for cost_us, cause in causes:
        if cost_us >= _MINOR * causes[0][0]:
            said.append(cause)
    if len(said) > 1:
        said[0] = f"above all {said[0]}"
    return "".join(f"; {cause}" for cause in said)


def _causes(ranks: Iterable[RankReport]) -> Iterator[tuple[float, str]]:
    """Yield what the gain of the kernels is lost to: its cost in µs, and how it is said."""
    busy_us = 0.0
    casts_us = 0.0
    lost_us = 0.0
    for rank in ranks:
        if rank.payoff is not None and rank.tax is not None:
            busy_us += rank.payoff.gpu_busy_us
            casts_us += rank.tax.time_us
            lost_us += max(0.0, -rank.tax.saved_at_most_us)
    if casts_us:
        yield casts_us, f"casts take {casts_us / busy_us:.0%} of GPU time"
    if lost_us:
        yield lost_us, f"slow FP8 GEMMs lose {lost_us / busy_us:.0%} of GPU time"


def _limit(figures: PayoffReport) -> str:
    """Say why faster kernels shorten no step; nothing if they do, or it is not known."""
    if figures.waits and figures.step_us and figures.gpu_busy_in_step_us:
        busy = figures.gpu_busy_in_step_us / 1000
        whole = figures.step_us / 1000
        form = ".1f" if busy < 10 else ".0f"  # as many decimals as the smaller needs
        if figures.cpu_limits:
            times = f"GPU busy {busy:{form}} of {whole:{form}} ms per unprofiled step"
            return f"the CPU limits the step ({times})"
        idle = figures.idle_in_step_us / 1000
        return f"the GPU is idle for {idle:{form}} of {whole:{form}} ms per unprofiled step"
    if figures.waits is None and figures.idle_share >= HALF:  # as the finding says it
        return f"the GPU is idle for {figures.idle_share:.0%} of the window"
    return ""


def _possible(figures: PayoffReport, gemm_us: Mapping[str, float]) -> Payoff | None:
    """Say what FP8 could bring to a run without it; GEMMs that nobody knows may be in it already."""
    if figures.ceiling is None or figures.ceiling <= 1 + EVEN:
        return None
    if unknown_share(gemm_us) >= NEGLIGIBLE:
        return None
    most = f"FP8 could speed up GPU work by at most {figures.ceiling:.2f}x (estimate)"
    return Payoff("", None, most)


def _word(speedup: float) -> str:
    if abs(speedup - 1) <= EVEN:
        return "about even"
    if speedup > 1:
        return "probably faster"
    return "probably slower"
