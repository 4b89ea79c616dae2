"""What explains what a run lacks: the values of coordinates at which nearly all cells are short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from fp8verify.thresholds import NEARLY_ALL, NEGLIGIBLE
from fp8verify.verdict.coordinates import (
    COORDINATES,
    HAVE_PARTS,
    VALUE_OF,
    Value,
    by_value,
)
from fp8verify.verdict.ledger import Cell, Tally
from fp8verify.verdict.shortfalls import Shortfalls

_Names: TypeAlias = "tuple[str, ...]"
_Key: TypeAlias = "tuple[_Names, Value]"
# By value of the coordinates, the short cells.
_CellsAt: TypeAlias = "dict[Value, list[Cell]]"
_ROUNDING: Final = 1e-9


class Shortfall(NamedTuple):
    """Values of one coordinate, or of several, at which nearly all cells are short.

    Attributes:
        coordinates: their names.
        values: by the coordinates.
        cells: the short cells that they explain.
        ran: what ran at the values.
        usual: the low-precision share of the same layers elsewhere.
    """

    coordinates: _Names
    values: tuple[Value, ...]
    cells: tuple[Cell, ...]
    ran: Tally
    usual: float


class Explanation:
    """Explains what cells lack, by as few values of coordinates as do."""

    def __init__(
        self,
        lacking: Shortfalls,
        lacks: Mapping[Cell, float],
    ) -> None:
        """Find the values that explain the most, until nearly all is explained.

        Args:
            lacking: what the ledger lacks.
            lacks: the cells that count, and the work that each lacks.
        """
        self._lacking = lacking
        self._lacks = lacks
        self._rest = dict(lacks)
        # By the names of coordinates, the cells that each value explains.
        self._explained: dict[_Names, _CellsAt] = defaultdict(dict)
        whole = sum(lacks.values())
        rest = (1 - NEARLY_ALL) * whole
        self._little = min(NEGLIGIBLE, rest)
        for size in (1, 2):
            if self._is_left():
                candidates = dict(self._candidates(size))
                self._take(candidates)
        if self._is_left():
            self._take_rest()

    def shortfalls(self) -> list[Shortfall]:
        """Return the values that explain what cells lack, those that explain the most first."""
        found = []
        for names, cells_at in self._explained.items():
            found.append(self._shortfall(names, cells_at))
        return found

    def _is_left(self) -> bool:
        return sum(self._rest.values()) > self._little

    def _take(self, candidates: dict[_Key, list[Cell]]) -> None:
        """Take the candidates that explain the most of what is left."""

        def explains(key: _Key) -> float:
            cells = candidates[key]
            return sum(self._rest.get(cell, 0) for cell in cells)

        while self._is_left() and candidates:
            best = max(candidates, key=explains)
            of_best = candidates.pop(best)
            cells = [cell for cell in of_best if cell in self._rest]
            if not cells:
                return
            names, value = best
            self._explained[names][value] = cells
            for cell in cells:
                del self._rest[cell]

    def _candidates(self, size: int) -> Iterator[tuple[_Key, list[Cell]]]:
        """Yield the short cells of values at which nearly all cells are short."""
        layers = {cell.layer for cell in self._lacking.expected}
        for names in combinations(COORDINATES, size):
            if "layer" in names and None in layers:
                continue  # some of a layer's launches have no size
            groups = by_value(self._lacking.expected, names)
            found = {}
            for value, cells in groups.items():
                short = self._nearly_all_short(cells)
                if short:
                    found[names, value] = short
            is_everywhere = len(found) == len(groups)
            says_others_differ = not HAVE_PARTS.isdisjoint(names)
            if is_everywhere and says_others_differ:
                continue
            yield from found.items()

    def _nearly_all_short(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the short ones of some cells, none unless nearly all of the work is theirs."""
        short = [cell for cell in cells if cell in self._lacks]
        wanted = self._lacking.wanted(cells)
        nearly_all = NEARLY_ALL * wanted * (1 - _ROUNDING)
        if self._lacking.wanted(short) < nearly_all:
            return []
        return short

    def _take_rest(self) -> None:
        """Explain what is left by the coordinate that tells the most of it."""
        name = self._narrowest()
        value_of = VALUE_OF[name]
        cells_at = self._explained[(name,)]
        for cell in self._rest:
            value = (value_of(cell),)
            cells_at.setdefault(value, []).append(cell)

    def _narrowest(self) -> str:
        """Return the coordinate of which what is left has the fewest values, but not all."""
        counts = {}
        telling = []
        for name in COORDINATES:
            value_of = VALUE_OF[name]
            of_rest = set(map(value_of, self._rest))
            of_all = set(map(value_of, self._lacking.expected))
            counts[name] = len(of_rest)
            if of_rest < of_all:
                telling.append(name)
        return min(telling, key=counts.__getitem__, default="leg")

    def _shortfall(
        self,
        names: _Names,
        cells_at: _CellsAt,
    ) -> Shortfall:
        """Return the values of the same coordinates as one."""
        lacking = self._lacking
        short: list[Cell] = []
        for cells in cells_at.values():
            short += cells
        ran: list[Cell] = []
        groups = by_value(lacking.expected, names)
        for value, cells in groups.items():
            if value in cells_at:
                ran += cells
        layers = {cell.layer for cell in short}
        usual = []
        for cell in lacking.expected:
            if cell.layer in layers and cell not in lacking.lacks:
                usual.append(cell)
        share = lacking.ledger.total(usual).share
        return Shortfall(
            coordinates=names,
            values=tuple(cells_at),
            cells=tuple(short),
            ran=lacking.ledger.total(ran),
            usual=share,
        )
