"""What explains what a run lacks: the values of coordinates at which nearly all cells are short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from fp8verify.thresholds import NEARLY_ALL, NEGLIGIBLE
from fp8verify.verdict.coordinates import COORDINATES, VALUE_OF, Value, by_value
from fp8verify.verdict.ledger import Cell, Tally
from fp8verify.verdict.shortfalls import Shortfalls

_Names: TypeAlias = "tuple[str, ...]"
_Key: TypeAlias = "tuple[_Names, Value]"
_ROUNDING: Final = 1e-9
# Of these a sentence says that the others differ.
_OF_PARTS: Final = frozenset({"rank", "step", "micro-batch"})


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

    def __init__(self, lacking: Shortfalls, lacks: Mapping[Cell, float]) -> None:
        """Find the values that explain the most, until nearly all is explained.

        Args:
            lacking: what the ledger lacks.
            lacks: the cells that count, and the work that each lacks.
        """
        self._lacking = lacking
        self._lacks = lacks
        self._rest = dict(lacks)
        # By the names of coordinates, the cells that each value explains.
        self._explained: dict[_Names, dict[Value, list[Cell]]] = defaultdict(dict)
        self._little = min(NEGLIGIBLE, (1 - NEARLY_ALL) * sum(lacks.values()))
        for size in (1, 2):
            if self._is_left():
                self._take(dict(self._candidates(size)))
        if self._is_left():
            self._take_rest()

    def shortfalls(self) -> list[Shortfall]:
        """Return the values that explain what cells lack, those that explain the most first."""
        found = self._explained.items()
        return [self._shortfall(names, cells_at) for names, cells_at in found]

    def _is_left(self) -> bool:
        return sum(self._rest.values()) > self._little

    def _take(self, candidates: dict[_Key, list[Cell]]) -> None:
        """Take the candidates that explain the most of what is left."""
        while self._is_left() and candidates:
            best = max(candidates, key=lambda key: self._explains(candidates[key]))
            cells = [cell for cell in candidates.pop(best) if cell in self._rest]
            if not cells:
                return
            names, value = best
            self._explained[names][value] = cells
            for cell in cells:
                del self._rest[cell]

    def _explains(self, cells: Iterable[Cell]) -> float:
        return sum(self._rest.get(cell, 0) for cell in cells)

    def _candidates(self, size: int) -> Iterator[tuple[_Key, list[Cell]]]:
        """Yield the short cells of values at which nearly all cells are short."""
        layers = {cell.layer for cell in self._lacking.expected}
        for names in combinations(COORDINATES, size):
            if "layer" in names and None in layers:
                continue  # some of a layer's launches have no size
            groups = by_value(self._lacking.expected, names)
            if any(len({value[n] for value in groups}) == 1 for n in range(size)):
                continue  # what is everywhere explains nothing
            found = {}
            for value, cells in groups.items():
                short = self._nearly_all_short(cells)
                if short:
                    found[names, value] = short
            is_everywhere = len(found) == len(groups)
            if not is_everywhere or _OF_PARTS.isdisjoint(names):
                yield from found.items()  # else it is no different elsewhere

    def _nearly_all_short(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the short ones of some cells, none unless nearly all of the work is theirs."""
        short = [cell for cell in cells if cell in self._lacks]
        least = NEARLY_ALL * self._lacking.wanted(cells) * (1 - _ROUNDING)
        return short if self._lacking.wanted(short) >= least else []

    def _take_rest(self) -> None:
        """Explain what is left by the coordinate that tells the most of it."""
        name = self._narrowest()
        value_of = VALUE_OF[name]
        for cell in self._rest:
            self._explained[name,].setdefault((value_of(cell),), []).append(cell)

    def _narrowest(self) -> str:
        """Return the coordinate of which what is left has the fewest values, if it has several."""
        counts = {}
        telling = []
        for name in COORDINATES:
            counts[name] = len(set(map(VALUE_OF[name], self._rest)))
            values = len(set(map(VALUE_OF[name], self._lacking.expected)))
            if values > (counts[name] if name in _OF_PARTS else 1):
                telling.append(name)
        return min(telling, key=counts.__getitem__, default="leg")

    def _shortfall(
        self, names: _Names, cells_at: Mapping[Value, Sequence[Cell]]
    ) -> Shortfall:
        """Return the values of the same coordinates as one."""
        lacking = self._lacking
        short: list[Cell] = []
        for cells in cells_at.values():
            short += cells
        ran: list[Cell] = []
        for value, cells in by_value(lacking.expected, names).items():
            if value in cells_at:
                ran += cells
        layers = {cell.layer for cell in short}
        alike = [cell for cell in lacking.expected if cell.layer in layers]
        usual = [cell for cell in alike if cell not in lacking.lacks]
        return Shortfall(
            coordinates=names,
            values=tuple(cells_at),
            cells=tuple(short),
            ran=lacking.ledger.total(ran),
            usual=lacking.ledger.total(usual).share or 0.0,
        )
