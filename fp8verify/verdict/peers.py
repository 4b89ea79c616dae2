"""What the same slot ran in other executions, and the same layer in those that made other calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

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


class Peers:
    """What ran in low precision at the most in the same slot of other executions.

    Stages of a pipeline may be of other layers: between ranks, that is a doubt.
    """

    def __init__(self, ledger: Ledger, statements: Statements) -> None:
        """Keep the most of each slot, of each rank and of all."""
        self._statements = statements
        self._most: dict[_Key, int] = defaultdict(int)
        self._irregular = _irregular(ledger)
        for program in ledger.programs:
            scopes = set()
            for place in program.places:
                if not statements.is_high(place):
                    scopes |= {place.rank, _ALL}
            for scope in scopes:
                self._keep(scope, program)

    def _keep(self, scope: int, program: Program) -> None:
        for entry in program.entries:
            ran = entry.ran
            key = (scope, entry.slot, entry.leg, ran.launches)
            most = self._most[key]
            self._most[key] = max(most, ran.low)
        for gradients in _gradients(program):
            slot = gradients[0].slot
            of_all = (scope, slot, None, launches_of(gradients))
            most = self._most[of_all]
            self._most[of_all] = max(most, low_of(gradients))

    def scope(self, rank: int) -> int:
        """Return what ranks have in common that are compared alike."""
        return _ALL if self._statements.alike else rank

    def of(self, program: Program, place: Place) -> Iterator[Said]:
        """Yield that a program runs as much in low precision as others did in the same slot."""
        surely = self.scope(place.rank)
        yield from self._compared(program, place, surely, is_sure=True)
        if surely != _ALL:
            yield from self._compared(program, place, _ALL, is_sure=False)

    def _compared(
        self,
        program: Program,
        place: Place,
        scope: int,
        *,
        is_sure: bool,
    ) -> Iterator[Said]:
        for entries in program.by_layer.values():
            if self._is_excused(entries[0], place):
                continue
            short = [entry for entry in entries if self._lacks(entry, scope)]
            # A chunk of a pipeline's stage may be the blocks that the log keeps.
            if len(short) <= self._statements.pinned(place.rank):
                continue
            for entry in short:
                most = entry.ran.low + self._lacks(entry, scope)
                is_regular = entry.slot.layer not in self._irregular
                yield said(
                    Witness.EXECUTIONS,
                    [entry],
                    float(most),
                    is_sure=is_sure and is_regular,
                )
        yield from self._compared_as_one(program, place, scope, is_sure=is_sure)

    def _compared_as_one(
        self,
        program: Program,
        place: Place,
        scope: int,
        *,
        is_sure: bool,
    ) -> Iterator[Said]:
        """Compare the gradients of calls, where it is not known which of them is dgrad."""
        short: dict[Layer, list[Said]] = defaultdict(list)
        for gradients in _gradients(program):
            if any(self._is_excused(entry, place) for entry in gradients):
                continue
            slot = gradients[0].slot
            key = (scope, slot, None, launches_of(gradients))
            most = self._most[key]
            by_leg = sum(self._lacks(entry, scope) for entry in gradients)
            lacks = most - low_of(gradients)
            if lacks <= by_leg:
                continue
            is_regular = slot.layer not in self._irregular
            stated = said(
                Witness.EXECUTIONS,
                gradients,
                float(most - by_leg),
                is_sure=is_sure and is_regular,
            )
            short[slot.layer].append(stated)
        for of_layer in short.values():
            if len(of_layer) > self._statements.pinned(place.rank):
                yield from of_layer

    def _is_excused(self, entry: Entry, place: Place) -> bool:
        """Whether the recipe keeps a leg high, or the call may be another module's."""
        statements = self._statements
        if statements.leaves_high(entry.leg):
            return True
        slot = entry.slot
        return statements.may_be_others(place.rank, slot.layer, entry.leg, slot.of)

    def _lacks(self, entry: Entry, scope: int) -> int:
        """Return how many launches of an entry ran in low precision in other executions alone."""
        ran = entry.ran
        key = (scope, entry.slot, entry.leg, ran.launches)
        most = self._most[key]
        return max(0, most - ran.low)


def _irregular(ledger: Ledger) -> set[Layer]:
    """Return the layers that executions call otherwise, as experts, where others are not.

    They call them in other numbers, or of as many calls others with the most tokens: the same slot
    is of other modules in each. Where all layers are called otherwise, a window may cut one
    execution, so the others are alike.
    """
    patterns: dict[Layer, Counter[_Pattern]] = defaultdict(Counter)
    for program in ledger.programs:
        for layer, pattern in _patterns(program).items():
            patterns[layer][pattern] += len(program.places)
    irregular = {layer for layer, found in patterns.items() if len(found) > 1}
    if len(irregular) < len(patterns):
        return irregular
    return {layer for layer in irregular if not _is_mostly_one(patterns[layer])}


def _patterns(program: Program) -> dict[Layer, _Pattern]:
    """Return by layer the work of its calls, as shares of that of the largest."""
    work: dict[Layer, list[float]] = defaultdict(list)
    for place in program.forward_calls:
        entry = program.by_call[place][0]
        work[entry.slot.layer].append(entry.ran.work)
    patterns = {}
    for layer, of_layer in work.items():
        most = max(of_layer) or 1.0
        patterns[layer] = tuple(one / most for one in of_layer)
    return patterns


def _is_mostly_one(found: Counter[_Pattern]) -> bool:
    """Whether more than half of the executions have one pattern."""
    return 2 * max(found.values()) > found.total()


def _gradients(program: Program) -> Iterator[list[Entry]]:
    """Yield the gradients of each call that has any.

    Those of all calls are one, where only the order of the launches says which call they are of.
    """
    loose: list[Entry] = []
    for entries in program.by_call.values():
        found = [entry for entry in entries if entry.leg in BACKWARD_LEGS]
        is_loose = entries[0].slot.layer is None and entries[0].tie is not Tie.NUMBER
        if is_loose:
            loose += found
        elif found:
            yield found
    if loose:
        yield loose


# ---- executions that made other calls


def by_others(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield half of the usual share of a layer, where executions made other calls of it."""
    layers: dict[tuple[Layer, Leg], list[Cell]] = defaultdict(list)
    for cell in ledger.cells:
        if statements.is_high(cell.place):
            continue
        if statements.leaves_high(cell.leg):
            continue
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
        if statements.may_be_others(cell.rank, cell.layer, cell.leg, calls):
            continue
        if whole.low and not whole.high and ran.unknown:
            # All that is known of the layer ran in low precision.
            yield _half(ledger, cell, ran.launches, is_sure=False)
        known_here = ran.launches - ran.unknown
        known_elsewhere = whole.launches - whole.unknown - known_here
        low_elsewhere = whole.low - ran.low
        if known_elsewhere <= 0:
            continue
        share = low_elsewhere / known_elsewhere
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
