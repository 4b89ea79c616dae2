"""The finding on scales of one tensor that differ between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import Kept, kept_scales
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding
from fp8verify.text import counted, listed
from fp8verify.verdict.findings_table import finding


class Shared(NamedTuple):
    """A scale that is to be the same in a group of ranks after a step."""

    group: tuple[int, ...]
    layer: str
    tensor: str
    gemm: int
    step: int


# The ranks that have each value of a scale, as its record spells it.
Holders = dict[str, list[int]]


def scales_differ(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Scales of one tensor that differ between ranks which should share its amax."""
    differ = {key: held for key, held in _held(ranks).items() if len(held) > 1}
    if differ:
        first, held = next(iter(differ.items()))
        apart = {rank for one in differ.values() for those in one.values() for rank in those}
        shown = [f"{float(scale):.4g} on {_ranks(those)}" for scale, those in held.items()]
        yield finding(
            "scales-differ-between-ranks",
            count=f"{counted(differ, 'scale')} differ{'s' if len(differ) == 1 else ''}",
            them="it" if len(differ) == 1 else "them",
            tensor=first.tensor,
            layer=first.layer,
            values=listed(shown, between=" and "),
            ranks=sorted(apart),
            layers=[key.layer for key in differ],
        )


def _held(ranks: Sequence[RankFacts]) -> dict[Shared, Holders]:
    """Return which ranks have which value of each scale that ranks are to share."""
    held: dict[Shared, Holders] = defaultdict(lambda: defaultdict(list))
    for facts in ranks:
        for rank in facts.rank.numbers:
            for kept in kept_scales(facts.rank.numerics):
                for shared in _shared(kept, rank) if kept.used else ():
                    held[shared][kept.slot.scale].append(rank)
    return held


def _shared(kept: Kept, rank: int) -> Iterator[Shared]:
    slot, step = kept.slot, kept.window.last_step
    for group in _sharing(kept, rank):
        yield Shared(group, slot.layer, slot.tensor, slot.gemm, step)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {listed(list(map(str, numbers)))}"


def _sharing(kept: Kept, rank: int) -> Iterator[tuple[int, ...]]:
    """Yield the groups of ranks in which a scale is to be the same."""
    groups, slot = kept.window.groups, kept.slot
    wanted = [slot.group] if kept.recipe.reduces_amax else []
    if slot.tensor == "input":  # ranks that share a layer see parts of one input
        wanted.append(slot.tensor_parallel)
    for place in wanted:
        if 0 <= place < len(groups) and rank in groups[place] and len(groups[place]) > 1:
            yield groups[place]
