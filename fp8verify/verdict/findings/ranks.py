"""Findings that show only when all ranks are looked at together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fp8verify.analysis.populations import Populations, possible_products
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model.parts import Finding
from fp8verify.text import counted, listed
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.reasons import undecidable

# Ranks record the same steps within minutes of each other.
_ANOTHER_RUN_NS = 6 * 3600 * 10**9


def ranks_that_can_lack(ranks: Sequence[RankEvidence]) -> list[bool]:
    """Say of each rank whether it can lack FP8 where others ran it.

    A rank that trains no layer of a size that others run in FP8 cannot: a pipeline stage with the
    head or the embedding alone. Nor can one that runs no backward pass: a rollout. Kernels that may
    be GEMMs of layers may be of any size.
    """
    tables = [Populations(rank.survey) for rank in ranks]
    low = {key for table in tables for key in table.low_layers}
    train = any(rank.backward and rank.ran_low for rank in ranks)
    return [
        rank.ran_low
        or not low
        or undecidable(rank) is not None
        or ((rank.backward or not train) and (None in low or not {None, *low}.isdisjoint(own.keys)))
        or bool(possible_products(rank.survey, rank.gpu))
        for rank, own in zip(ranks, tables, strict=True)
    ]


def other_runs(ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks whose files are of another run than the rest, by world size and date."""
    known = [rank for rank in ranks if rank.began_ns is not None or rank.world_size is not None]
    latest = max((rank.began_ns or 0 for rank in known), default=0)
    current = [rank for rank in known if latest - (rank.began_ns or 0) <= _ANOTHER_RUN_NS]
    worlds = Counter(rank.world_size for rank in current)
    usual = max(worlds, key=worlds.__getitem__, default=None)
    return [rank for rank in known if rank not in current or rank.world_size != usual]


def ranks_of_other_runs(ranks: Sequence[RankEvidence], _: Promises) -> Iterator[Finding]:
    """Files of another run among those of this one: a folder that was used again."""
    others = other_runs(ranks)
    if others:
        yield finding(
            "rank-of-another-run",
            labels=listed([rank.label for rank in others]),
            world=" or ".join(sorted({str(rank.world_size or "unknown") for rank in others})),
            ranks=_numbers(others),
        )


def ranks_without_fp8(ranks: Sequence[RankEvidence], _: Promises) -> Iterator[Finding]:
    """Ranks that surely ran GEMMs and none in FP8, while others ran FP8."""
    others = other_runs(ranks)
    with_fp8 = [rank for rank in ranks if rank.ran_low]
    without = [
        rank
        for rank, can in zip(ranks, ranks_that_can_lack(ranks), strict=True)
        if can and not rank.ran_low and undecidable(rank) is None and rank not in others
    ]
    if with_fp8 and without:
        yield finding(
            "rank-without-fp8",
            labels=listed([rank.label for rank in without]),
            others=counted(with_fp8, "other rank"),
            precision=without[0].main_precision().value.upper(),
            ranks=_numbers(without),
        )


def ranks_not_observed(ranks: Sequence[RankEvidence], _: Promises) -> Iterator[Finding]:
    """Ranks of the training whose traces are not there."""
    world = max((rank.world_size or 1 for rank in ranks), default=1)
    if world > len(ranks):
        yield finding("ranks-not-observed", observed=len(ranks), world=world)


def _numbers(ranks: Iterable[RankEvidence]) -> tuple[int, ...]:
    return tuple(number for rank in ranks for number in rank.numbers)
