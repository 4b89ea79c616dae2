"""What the rest of a run shows of what lacks: the same calls elsewhere, and its ranks' own lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from fp8verify.analysis.rank import RankEvidence
from fp8verify.terms import Leg
from fp8verify.verdict.coordinates import Value, by_value
from fp8verify.verdict.expected import CONVERTED
from fp8verify.verdict.ledger import Cell, Entry, Layer, Ledger, Slot
from fp8verify.verdict.selection import ranks_of

# What is compared, and what of it must be equal: steps of one rank, and ranks.
_COMPARED: Final = {"step": ("rank", "step"), "rank": ("rank",)}


def with_same_calls(
    ledger: Ledger,
    short: Iterable[Cell],
    name: str,
) -> list[Cell]:
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
    whole = {}
    for value, cells in values.items():
        if value not in lacking:
            whole[value] = cells
    found: dict[Cell, None] = {}
    for value in lacking:
        alike = _alike(ledger, value, values[value], whole)
        if not alike:
            return []
        found.update(dict.fromkeys(alike))
    return list(found)


def _alike(
    ledger: Ledger,
    value: Value,
    cells: Sequence[Cell],
    others: Mapping[Value, Sequence[Cell]],
) -> list[Cell]:
    """Return the cells of other ranks, or of other steps of a rank, with as many launches."""
    launches = _launches(ledger, cells)
    alike: list[Cell] = []
    for other, of_other in others.items():
        # All but the last must be equal: the rank of a step.
        may_be_compared = value[:-1] == other[:-1]
        if may_be_compared and _launches(ledger, of_other) == launches:
            alike += of_other
    return alike


def _launches(ledger: Ledger, cells: Iterable[Cell]) -> Counter[Layer]:
    """Return how many launches each layer has, whatever their legs."""
    launches: Counter[Layer] = Counter()
    for cell in cells:
        launches[cell.layer] += round(ledger.cells[cell].launches)
    return launches


# A call of a rank: its slot, and the leg.
_Call: TypeAlias = tuple[int, Slot, Leg]


def ran_low_elsewhere(ledger: Ledger, short: Iterable[Cell]) -> bool:
    """Whether each call that did not run low did so in another execution of its rank."""
    lacking: set[_Call] = set()
    for cell in short:
        for entry in ledger.entries(cell):
            if not entry.is_low:
                lacking.add((cell.rank, entry.slot, entry.leg))
    for program in ledger.programs:
        ranks = {place.rank for place in program.places}
        for entry in filter(_is_low, program.entries):
            for rank in ranks:
                lacking.discard((rank, entry.slot, entry.leg))
    return not lacking


def _is_low(entry: Entry) -> bool:
    return entry.is_low


def ranks_that_ran_low(
    ledger: Ledger,
    legs: Collection[Leg],
    among: Iterable[int],
) -> list[int]:
    """Return the ranks among some that ran some legs in low precision, by their indices."""
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
    are_converted = True
    for index in ranks_of(short):
        states = {module.fqn: module.state for module in ranks[index].modules}
        if not states.keys() >= set(names):
            return None
        of_names = {states[name] for name in names}
        are_converted = are_converted and of_names <= CONVERTED
    return are_converted
