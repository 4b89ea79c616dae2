"""What a run lacks: one comparison, one measure of what counts, and what explains it.

An entry lacks surely if what ran in low precision at most is less than what is expected at least,
and perhaps if only what surely ran is. The coordinate whose values explain the most of what cells
lack says what is wrong with a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.kinds import grouped
from fp8verify.thresholds import NEARLY_ALL, NEGLIGIBLE
from fp8verify.verdict.expectation import Expected, Witness
from fp8verify.verdict.ledger import Cell, Ledger, Tally
from fp8verify.verdict.statements import Statements
from fp8verify.verdict.witnesses import expectations

COORDINATES: Final = ("step", "rank", "leg", "layer", "micro-batch")
VALUE_OF: Final = {
    name: itemgetter(Cell._fields.index(name.replace("-", "_"))) for name in COORDINATES
}
_Names: TypeAlias = "tuple[str, ...]"
_Value: TypeAlias = "tuple[Hashable, ...]"
_ROUNDING: Final = 1e-9
# Of these a sentence says that the others differ.
_OF_PARTS: Final = frozenset({"rank", "step", "micro-batch"})


def by_value(
    cells: Iterable[Cell], names: Sequence[str]
) -> defaultdict[_Value, list[Cell]]:
    """Return the cells at each value of some coordinates."""
    return grouped(cells, lambda cell: tuple(VALUE_OF[name](cell) for name in names))


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
    values: tuple[_Value, ...]
    cells: tuple[Cell, ...]
    ran: Tally
    usual: float


class Lack(NamedTuple):
    """What a cell lacks.

    Attributes:
        launches: that are expected in low precision and did not run there.
        by: the witnesses.
        names: the modules that lack, or some of them, where they are known.
    """

    launches: float
    by: frozenset[Witness]
    names: tuple[str, ...]

    @property
    def is_stated(self) -> bool:
        """Whether a list, a name or the log states it."""
        return min(self.by) <= Witness.COUNT

    @property
    def is_certain(self) -> bool:
        """Whether that, or the other legs of the same call show it."""
        return self.is_stated or Witness.CALL in self.by


class Shortfalls:
    """What the ledger of a run lacks.

    Attributes:
        ledger: what ran.
        lacks: of the cells that surely lack, what.
        may_lack: of those that perhaps do, what.
        least: by cell, the launches that are expected in low precision.
        by: by cell, the strongest witness of that.
    """

    def __init__(self, ledger: Ledger, statements: Statements) -> None:
        """Compare what is expected with what ran."""
        self.ledger = ledger
        self.least: dict[Cell, float] = {}
        self.by: dict[Cell, Witness] = {}
        surely: dict[Cell, dict[Witness, float]]
        surely = defaultdict(lambda: defaultdict(float))
        perhaps: dict[Cell, dict[Witness, float]]
        perhaps = defaultdict(lambda: defaultdict(float))
        names: dict[Cell, dict[Witness, dict[str, None]]]
        names = defaultdict(lambda: defaultdict(dict))
        for one in expectations(ledger, statements):
            self._note(one)
            for lacking, amount in ((surely, one.lacks), (perhaps, one.may_lack)):
                if amount < 1 - _ROUNDING and one.by is not Witness.OTHERS:
                    continue
                for cell, part in self._parts(one, amount).items():
                    lacking[cell][one.by] += part
                    names[cell][one.by].update(dict.fromkeys(one.names))
        self.lacks = _joined(surely, names)
        self.may_lack = _joined(perhaps, names)
        self.expected = {
            cell: self._expected(cell)
            for cell in ledger.cells
            if not statements.is_high(cell.place) and self._expected(cell)
        }

    def _note(self, one: Expected) -> None:
        """Keep what is expected of a cell, for reports."""
        for cell in one.cells[:1] if len(one.cells) == 1 else ():
            if one.by <= self.by.get(cell, one.by):
                self.by[cell] = one.by
            self.least[cell] = max(self.least.get(cell, 0.0), one.least)

    def _parts(self, one: Expected, amount: float) -> dict[Cell, float]:
        """Divide what launches lack among their cells, by what ran in high precision there."""
        if not amount:
            return {}
        cells = self.ledger.cells
        mixed = [cell for cell in one.cells if cells[cell].low]
        some = sum(cells[cell].launches - cells[cell].low for cell in mixed)
        where = mixed if some >= amount else list(one.cells)
        high = {cell: cells[cell].launches - cells[cell].low for cell in where}
        whole = sum(high.values()) or 1.0
        return {cell: amount * part / whole for cell, part in high.items() if part}

    def work(self, cell: Cell, lacks: Mapping[Cell, Lack]) -> float:
        """Return the work that a cell lacks, as a fraction of the rank's."""
        ran = self.ledger.cells[cell]
        return lacks[cell].launches * ran.work / ran.launches

    def _expected(self, cell: Cell) -> float:
        """Return the work that is expected of a cell in low precision."""
        ran = self.ledger.cells[cell]
        low = ran.low_work
        return low + (self.work(cell, self.lacks) if cell in self.lacks else 0.0)

    def wanted(self, cells: Iterable[Cell]) -> float:
        """Return the work that is expected of some cells in low precision."""
        return sum(self.expected.get(cell, 0.0) for cell in cells)

    def counting(self) -> dict[Cell, float]:
        """Return what counts: of ranks that lack more than little, and whole steps and layers.

        A step, a rank, or a layer that something states counts however small it is.
        """
        lacks = {cell: self.work(cell, self.lacks) for cell in self.lacks}
        counting: set[Cell] = set()
        for cells in by_value(lacks, ["rank"]).values():
            if sum(map(lacks.__getitem__, cells)) > NEGLIGIBLE:
                counting.update(cells)
        steps = by_value(self.expected, ["rank", "step"])
        for value, cells in by_value(lacks, ["rank", "step"]).items():
            wanted = self.wanted(steps.get(value, ()))
            if sum(map(lacks.__getitem__, cells)) > NEARLY_ALL * wanted:
                counting.update(cells)
        for value, cells in by_value(
            (cell for cell in lacks if self.lacks[cell].is_stated), ["rank", "layer"]
        ).items():
            rank, _ = value
            places = {c.place for c in self.ledger.cells if c.rank == rank}
            if 2 * len({cell.place for cell in cells}) > len(places):
                counting.update(cells)
        return {cell: lack for cell, lack in lacks.items() if cell in counting}

    # ---- what explains it

    def explain(self, lacks: Mapping[Cell, float]) -> list[Shortfall]:
        """Return the values that explain what cells lack, those that explain the most first."""
        least = min(NEGLIGIBLE, (1 - NEARLY_ALL) * sum(lacks.values()))
        rest = dict(lacks)
        explained = defaultdict[_Names, dict[_Value, list[Cell]]](dict)
        for size in (1, 2) if lacks else ():
            candidates = self._candidates(lacks, size)
            while sum(rest.values()) > least and candidates:
                best = max(
                    candidates,
                    key=lambda key: sum(rest.get(c, 0) for c in candidates[key]),
                )
                cells = [cell for cell in candidates.pop(best) if cell in rest]
                if not cells:
                    break
                names, value = best
                explained[names][value] = cells
                for cell in cells:
                    del rest[cell]
        if sum(rest.values()) > least:
            name = self._narrowest(rest)
            for cell in rest:
                explained[name,].setdefault((VALUE_OF[name](cell),), []).append(cell)
        return [
            self._shortfall(names, cells_at) for names, cells_at in explained.items()
        ]

    def _narrowest(self, cells: Iterable[Cell]) -> str:
        """Return the coordinate of which some cells have the fewest values, if it has several."""
        counts = {name: len(set(map(VALUE_OF[name], cells))) for name in COORDINATES}
        telling = []
        for name in COORDINATES:
            values = len(set(map(VALUE_OF[name], self.expected)))
            if values > (counts[name] if name in _OF_PARTS else 1):
                telling.append(name)
        return min(telling, key=counts.__getitem__, default="leg")

    def _candidates(
        self,
        lacks: Mapping[Cell, float],
        size: int,
    ) -> dict[tuple[_Names, _Value], list[Cell]]:
        """Return the short cells of the values at which nearly all cells are short."""
        candidates = {}
        layers = {cell.layer for cell in self.expected}
        for names in combinations(COORDINATES, size):
            if "layer" in names and None in layers:
                continue  # some of a layer's launches have no size
            groups = by_value(self.expected, names)
            if any(len({value[n] for value in groups}) == 1 for n in range(size)):
                continue  # what is everywhere explains nothing
            found = {}
            for value, cells in groups.items():
                short = [cell for cell in cells if cell in lacks]
                least = NEARLY_ALL * self.wanted(cells) * (1 - _ROUNDING)
                if short and self.wanted(short) >= least:
                    found[names, value] = short
            if len(found) == len(groups) and not _OF_PARTS.isdisjoint(names):
                continue  # nor does what is no different elsewhere
            candidates.update(found)
        return candidates

    def _shortfall(
        self,
        names: _Names,
        cells_at: Mapping[_Value, Sequence[Cell]],
    ) -> Shortfall:
        """Return the values of the same coordinates as one."""
        cells = tuple(cell for short in cells_at.values() for cell in short)
        layers = {cell.layer for cell in cells}
        at_value = by_value(self.expected, names).items()
        ran = (cell for value, here in at_value if value in cells_at for cell in here)
        usual = (c for c in self.expected if c.layer in layers and c not in self.lacks)
        share = self.ledger.total(usual).share or 0.0
        return Shortfall(names, tuple(cells_at), cells, self.ledger.total(ran), share)


def _joined(
    amounts: Mapping[Cell, Mapping[Witness, float]],
    names: Mapping[Cell, Mapping[Witness, Mapping[str, None]]],
) -> dict[Cell, Lack]:
    """Join what the witnesses find lacking of each cell: the most counts.

    The strongest witness that knows names says which modules lack.
    """
    joined = {}
    for cell, by in amounts.items():
        most = max(by.values())
        if most <= _ROUNDING:
            continue
        known = {witness: found for witness, found in names[cell].items() if found}
        strongest = min(known, default=None)
        of_strongest = () if strongest is None else tuple(known[strongest])
        joined[cell] = Lack(most, frozenset(by), of_strongest)
    return joined
