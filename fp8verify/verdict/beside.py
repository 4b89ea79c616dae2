"""What the rest of a run shows of what lacks: the same calls elsewhere, and its ranks' own lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from fp8verify.analysis.rank import RankEvidence
from fp8verify.terms import Leg
from fp8verify.verdict.coordinates import Value, by_value
from fp8verify.verdict.expected import CONVERTED
from fp8verify.verdict.ledger import Cell, Layer, Ledger, Slot
from fp8verify.verdict.selection import ranks_of

# What is compared, and what of it must be equal: steps of one rank, and ranks.
_COMPARED: Final = {"step": ("rank", "step"), "rank": ("rank",)}
_LIKE: Final = {"step": 1, "rank": 0}


def with_same_calls(ledger: Ledger, short: Iterable[Cell], name: str) -> list[Cell]:
    """Return the cells of steps or ranks that launched as much of each layer as those that lack.

    Args:
        ledger: what ran.
        short: the cells that lack.
        name: "step", where steps of one rank are compared, or "rank".

    Returns:
        Cells of values at which nothing lacks; none unless each value that lacks has one like it.
    """
    values = by_value(ledger.cells, _COMPARED[name])
    lacking = by_value(short, _COMPARED[name])
    found: list[Cell] = []
    for value in lacking:
        launches = _launches(ledger, values[value])
        alike: list[Cell] = []
        for other, cells in values.items():
            if other in lacking or not _may_be_compared(value, other, name):
                continue
            if _launches(ledger, cells) == launches:
                alike += cells
        if not alike:
            return []
        found += alike
    return list(dict.fromkeys(found))


def _may_be_compared(value: Value, other: Value, name: str) -> bool:
    return value[: _LIKE[name]] == other[: _LIKE[name]]


def _launches(ledger: Ledger, cells: Iterable[Cell]) -> Counter[Layer]:
    """Return how many launches each layer has, whatever their legs."""
    launches: Counter[Layer] = Counter()
    for cell in cells:
        launches[cell.layer] += round(ledger.cells[cell].launches)
    return launches


def ran_low_elsewhere(ledger: Ledger, short: Collection[Cell]) -> bool:
    """Whether each call that did not run low did so in another execution of its rank."""
    lacking: set[tuple[int, Slot, Leg]] = set()
    for cell in short:
        for entry in ledger.entries(cell):
            if not entry.is_low:
                lacking.add((cell.rank, entry.slot, entry.leg))
    for program in ledger.programs:
        ranks = {place.rank for place in program.places}
        for entry in program.entries:
            if entry.is_low:
                ran_low = {(rank, entry.slot, entry.leg) for rank in ranks}
                lacking -= ran_low
    return not lacking


def ranks_that_ran_low(
    ledger: Ledger,
    legs: Collection[Leg],
    among: Iterable[int],
) -> list[int]:
    """Return the ranks among some that ran some legs in low precision, by their places."""
    low = set()
    for cell, ran in ledger.cells.items():
        if cell.leg in legs and ran.low:
            low.add(cell.rank)
    return sorted(low.intersection(among))


def are_listed(
    ranks: Sequence[RankEvidence],
    names: Collection[str],
    short: Iterable[Cell],
) -> bool | None:
    """Whether the ranks' own lists have modules as converted.

    Returns:
        None where there are no names, or a list does not have all of them.
    """
    if not names:
        return None
    converted = True
    for place in ranks_of(short):
        states = {module.fqn: module.state for module in ranks[place].modules}
        if not states.keys() >= set(names):
            return None
        converted = converted and all(states[name] in CONVERTED for name in names)
    return converted
