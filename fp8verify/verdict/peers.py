"""What the same slot ran in other executions, and the same layer in those that made other calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.calls import Tie
from fp8verify.terms import BACKWARD_LEGS, Leg
from fp8verify.thresholds import HALF
from fp8verify.verdict.expectation import (
    Expected,
    Said,
    Witness,
    launches_of,
    low_of,
    said,
)
from fp8verify.verdict.ledger import (
    Cell,
    Entry,
    Layer,
    Ledger,
    Place,
    Program,
    Slot,
)
from fp8verify.verdict.statements import Statements

# The scope of all ranks together.
_ALL: Final = -1
# Ranks, a call, its leg or None for its gradients together, and how many launches it has.
_Key: TypeAlias = "tuple[int, Slot, Leg | None, int]"
# Of the calls of a layer, in their order, the work as a share of that of the largest.
_Pattern: TypeAlias = "tuple[float, ...]"


class _Unit(NamedTuple):
    """Launches of a call that are compared as one.

    Attributes:
        leg: theirs, None for the gradients together: it is not always known which of them is dgrad.
        entries: the legs of the call that they are of.
        parts: the same launches leg by leg, where they are of several.
    """

    leg: Leg | None
    entries: tuple[Entry, ...]
    parts: tuple[_Unit, ...] = ()

    @property
    def slot(self) -> Slot:
        """The call, or the first of those that cannot be told apart."""
        return self.entries[0].slot

    @property
    def low(self) -> int:
        """Launches in low precision."""
        return low_of(self.entries)

    def key(self, scope: int) -> _Key:
        """Return what the same launches of other executions have in common with these."""
        launches = launches_of(self.entries)
        return (scope, self.slot, self.leg, launches)


class Peers:
    """What ran in low precision at the most in the same slot of other executions.

    Stages of a pipeline may be of other layers: between ranks, that is a doubt.
    """

    def __init__(self, ledger: Ledger, statements: Statements) -> None:
        """Keep the most of each slot, of each rank and of all."""
        self._statements = statements
        self._most: dict[_Key, int] = defaultdict(int)
        self._irregular = _irregular(ledger)
        self._units: dict[Program, list[_Unit]] = {}
        for program in ledger.programs:
            ranks = {place.rank for place in program.places}
            units = list(_units(program))
            self._units[program] = units
            for unit in units:
                for scope in (*ranks, _ALL):
                    key = unit.key(scope)
                    most = self._most[key]
                    self._most[key] = max(most, unit.low)

    def scope(self, rank: int) -> int:
        """Return what ranks have in common that are compared alike."""
        return _ALL if self._statements.alike else rank

    def of(self, program: Program, place: Place) -> Iterator[Said]:
        """Yield that a program runs as much in low precision as others did in the same slot."""
        is_sure_in = {_ALL: False}
        is_sure_in[self.scope(place.rank)] = True
        for scope, is_sure in is_sure_in.items():
            yield from self._compared(program, place, scope, is_sure=is_sure)

    def _compared(
        self,
        program: Program,
        place: Place,
        scope: int,
        *,
        is_sure: bool,
    ) -> Iterator[Said]:
        short: dict[tuple[Layer, Leg | None], list[Said]] = defaultdict(list)
        for unit in self._units[program]:
            lacks = self._lacks(unit, scope)
            layer = unit.slot.layer
            if lacks and not self._may_be_others(unit, place):
                stated = said(
                    Witness.EXECUTIONS,
                    unit.entries,
                    float(unit.low + lacks),
                    is_sure=is_sure and layer not in self._irregular,
                )
                short[layer, unit.leg].append(stated)
        # A chunk of a pipeline's stage may be the blocks that the log keeps.
        pinned = self._statements.pinned(place.rank)
        for of_layer in short.values():
            if len(of_layer) > pinned:
                yield from of_layer

    def _lacks(self, unit: _Unit, scope: int) -> int:
        """Return how many launches ran in low precision in other executions alone.

        What the legs of a call lack by themselves is not said again of its gradients.
        """
        by_leg = sum(self._lacks(part, scope) for part in unit.parts)
        most = self._most[unit.key(scope)]
        return max(0, most - unit.low - by_leg)

    def _may_be_others(self, unit: _Unit, place: Place) -> bool:
        """Whether the call may be another module's in each execution."""
        slot = unit.slot
        may_be_others = self._statements.may_be_others
        return any(
            may_be_others(place.rank, slot.layer, entry.leg, slot.of)
            for entry in unit.entries
        )


def _units(program: Program) -> Iterator[_Unit]:
    """Yield each leg of each call, layer by layer, and the gradients of each call together."""
    for entries in program.by_layer.values():
        for entry in entries:
            yield _Unit(entry.leg, (entry,))
    for gradients in _gradients(program):
        parts = [_Unit(entry.leg, (entry,)) for entry in gradients]
        yield _Unit(
            leg=None,
            entries=tuple(gradients),
            parts=tuple(parts),
        )


def _irregular(ledger: Ledger) -> set[Layer]:
    """Return the layers that executions call otherwise, as experts.

    They call them in other numbers, or of as many calls others with the most tokens: the same slot
    is of other modules in each, though by chance two executions call equally many. So without sizes
    are all layers where some are.
    """
    patterns: dict[Layer, set[_Pattern]] = defaultdict(set)
    for program in ledger.programs:
        for layer, pattern in _patterns(program).items():
            patterns[layer].add(pattern)
    return {layer for layer, found in patterns.items() if len(found) > 1}


def _patterns(program: Program) -> dict[Layer, _Pattern]:
    """Return by layer the work of its calls, as shares of that of the largest."""
    work: dict[Layer, list[float]] = defaultdict(list)
    for place in program.forward_calls:
        entry = program.by_call[place][0]
        layer = entry.slot.layer
        work[layer].append(entry.ran.work)
    patterns = {}
    for layer, of_layer in work.items():
        most = max(of_layer) or 1.0
        patterns[layer] = tuple(one / most for one in of_layer)
    return patterns


def _gradients(program: Program) -> list[list[Entry]]:
    """Return the gradients of each call that has any.

    Those of all calls of a layer are one, where only the order of the launches says which call they
    are of.
    """
    found: dict[int | Layer, list[Entry]] = defaultdict(list)
    for entry in program.entries:
        has_order_alone = entry.tie is not Tie.NUMBER
        if entry.leg in BACKWARD_LEGS:
            calls = entry.slot.layer if has_order_alone else entry.call
            found[calls].append(entry)
    return list(found.values())


# ---- executions that made other calls


def by_others(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield half of the usual share of a layer, where executions made other calls of it."""
    layers: dict[tuple[Layer, Leg], list[Cell]] = defaultdict(list)
    for cell in ledger.cells:
        if not statements.is_high(cell.place):
            layers[cell.layer, cell.leg].append(cell)
    for cells in layers.values():
        yield from _of_others(cells, ledger, statements)


def _of_others(
    cells: Sequence[Cell],
    ledger: Ledger,
    statements: Statements,
) -> Iterator[Expected]:
    whole = ledger.total(cells)
    for cell in cells:
        ran = ledger.cells[cell]
        calls = round(ran.launches)
        may_be_others = statements.may_be_others(
            cell.rank,
            cell.layer,
            cell.leg,
            calls,
        )
        if may_be_others:
            continue
        if whole.low and not whole.high and ran.unknown:
            # All that is known of the layer ran in low precision.
            yield _half(ledger, cell, ran.launches, is_sure=False)
        known_here = ran.launches - ran.unknown
        known_elsewhere = whole.launches - whole.unknown - known_here
        low_elsewhere = whole.low - ran.low
        share = low_elsewhere / max(1, known_elsewhere)
        if share < HALF:
            continue
        pinned = statements.pinned(cell.rank)
        free = max(0.0, ran.launches - pinned)
        yield _half(
            ledger,
            cell,
            HALF * share * free,
            # Without sizes, other launches may be of other layers.
            is_sure=cell.layer is not None,
        )


def _half(
    ledger: Ledger,
    cell: Cell,
    least: float,
    *,
    is_sure: bool,
) -> Expected:
    """Expect so many launches of a cell in low precision."""
    ran = ledger.cells[cell]
    return Expected(
        by=Witness.OTHERS,
        cells=(cell,),
        launches=ran.launches,
        low=ran.low,
        unknown=ran.unknown,
        least=least,
        is_sure=is_sure,
    )
