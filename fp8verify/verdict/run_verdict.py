"""From the verdicts on all ranks to the verdict on the run: rules only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fp8verify.report.model import Precision, Verdict, low_precision_name
from fp8verify.text import listed
from fp8verify.verdict.verdict import WITHOUT_FP8, Opinion, RankJudgement, RankSummary


class _Judged(NamedTuple):
    """A rank and the judgement on it."""

    summary: RankSummary
    found: RankJudgement


def judge_run(summaries: Sequence[RankSummary], judged: Sequence[RankJudgement]) -> Opinion:
    """Join the judgements of all ranks into the verdict on the run."""
    if len(judged) == 1:
        return Opinion(judged[0].verdict, judged[0].reason)
    ranks = [_Judged(*pair) for pair in zip(summaries, judged, strict=True) if pair[0].judged]
    # Ranks that cannot be judged come after what no judgement of them could change.
    return _on_some(ranks) or _not_active(ranks) or _on_none(ranks) or _on_all(ranks)


def _on_some(ranks: Sequence[_Judged]) -> Opinion | None:
    """PARTIAL, if some ranks ran low precision and others are known not to."""
    with_low = _with_low(ranks)
    without = [rank.summary.label for rank in ranks if rank.found.verdict in WITHOUT_FP8]
    if not (with_low and without):
        return None
    return Opinion(
        Verdict.PARTIAL,
        f"{_formats(ranks)} GEMMs ran on {with_low} of {len(ranks)} ranks and not on "
        f"{listed(without)}",
    )


def _not_active(ranks: Sequence[_Judged]) -> Opinion | None:
    """Return the verdict of the first rank that is PARTIAL, or else of one that is open."""
    for verdict in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        for summary, found in ranks:
            if found.verdict is verdict:
                return Opinion(verdict, f"{summary.label}: {found.reason}")
    return None


def _on_none(ranks: Sequence[_Judged]) -> Opinion | None:
    """Return the gravest verdict, if no rank ran low precision."""
    if _with_low(ranks):
        return None
    gravest = min((rank.found for rank in ranks), key=lambda one: WITHOUT_FP8.index(one.verdict))
    return Opinion(gravest.verdict, f"on all {len(ranks)} ranks {gravest.reason}")


def _on_all(ranks: Sequence[_Judged]) -> Opinion:
    lowest = min(rank.summary.share for rank in ranks)
    apart = any(rank.summary.share_of_all is not None for rank in ranks)
    steps = " and in every step" if all(rank.summary.in_every_step for rank in ranks) else ""
    return Opinion(
        Verdict.ACTIVE,
        f"{_formats(ranks)} GEMMs ran on all {len(ranks)} ranks{steps}, at least {lowest:.1%} of "
        f"each rank's GEMM time{' in linear layers' if apart else ''}",
    )


def _with_low(ranks: Sequence[_Judged]) -> int:
    """Return how many ranks ran low precision."""
    return sum(rank.summary.low_kernels > 0 for rank in ranks)


def _formats(ranks: Sequence[_Judged]) -> str:
    return low_precision_name(_add_up(rank.summary.kernels for rank in ranks))


def _add_up(parts: Iterable[Mapping[Precision, int]]) -> dict[Precision, int]:
    total = dict.fromkeys(Precision, 0)
    for part in parts:
        for precision, count in part.items():
            total[precision] += count
    return total
