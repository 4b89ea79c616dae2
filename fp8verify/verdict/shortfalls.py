"""What a run lacks: one comparison, and one measure of what counts.

An entry lacks surely if what ran in low precision at most is less than what is expected at least,
and perhaps if only what surely ran is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fp8verify.thresholds import NEARLY_ALL, NEGLIGIBLE
from fp8verify.verdict.coordinates import by_value
from fp8verify.verdict.expectation import Expected, Witness
from fp8verify.verdict.ledger import Cell, Ledger
from fp8verify.verdict.statements import Statements
from fp8verify.verdict.witnesses import expectations

_ROUNDING: Final = 1e-9


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
        surely = _Lacking()
        perhaps = _Lacking()
        for one in expectations(ledger, statements):
            self._note(one)
            surely.add(one, self._parts(one, one.lacks))
            perhaps.add(one, self._parts(one, one.may_lack))
        self.lacks = surely.joined()
        self.may_lack = perhaps.joined()
        self.expected: dict[Cell, float] = {}
        for cell in ledger.cells:
            expected = self._expected(cell)
            if expected and not statements.is_high(cell.place):
                self.expected[cell] = expected

    def _note(self, one: Expected) -> None:
        """Keep what is expected of a cell, for reports."""
        if len(one.cells) != 1:
            return
        cell = one.cells[0]
        if one.by <= self.by.get(cell, one.by):
            self.by[cell] = one.by
        self.least[cell] = max(self.least.get(cell, 0.0), one.least)

    def _parts(self, one: Expected, amount: float) -> dict[Cell, float]:
        """Divide what launches lack among their cells, by what ran in high precision there.

        Less than a launch is nothing, but where a share is all that is expected.
        """
        is_little = amount < 1 - _ROUNDING and one.by is not Witness.OTHERS
        if is_little or not amount:
            return {}
        high: dict[Cell, float] = {}
        of_mixed: dict[Cell, float] = {}
        for cell in one.cells:
            ran = self.ledger.cells[cell]
            high[cell] = ran.launches - ran.low
            if ran.low:
                of_mixed[cell] = high[cell]
        if sum(of_mixed.values()) >= amount:
            high = of_mixed
        whole = sum(high.values()) or 1.0
        return {cell: amount * part / whole for cell, part in high.items() if part}

    def work(self, cell: Cell, lacks: Mapping[Cell, Lack]) -> float:
        """Return the work that a cell lacks, as a fraction of the rank's."""
        ran = self.ledger.cells[cell]
        return lacks[cell].launches * ran.work / ran.launches

    def lacking(self, cell: Cell) -> float:
        """Return how many launches of a cell surely lack: no more than did not run low.

        A witness that says the same by two ways is added up in `lacks`.
        """
        if cell not in self.lacks:
            return 0.0
        ran = self.ledger.cells[cell]
        return min(self.lacks[cell].launches, ran.launches - ran.low)

    def _expected(self, cell: Cell) -> float:
        """Return the work that is expected of a cell in low precision."""
        low = self.ledger.cells[cell].low_work
        if cell in self.lacks:
            return low + self.work(cell, self.lacks)
        return low

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
            if _total(lacks, cells) > NEGLIGIBLE:
                counting.update(cells)
        steps = by_value(self.expected, ["rank", "step"])
        for value, cells in by_value(lacks, ["rank", "step"]).items():
            wanted = self.wanted(steps.get(value, ()))
            if _total(lacks, cells) > NEARLY_ALL * wanted:
                counting.update(cells)
        stated = [cell for cell in lacks if self.lacks[cell].is_stated]
        for cells in by_value(stated, ["rank", "layer"]).values():
            if self._are_in_most_executions(cells):
                counting.update(cells)
        return {cell: lack for cell, lack in lacks.items() if cell in counting}

    def _are_in_most_executions(self, cells: Sequence[Cell]) -> bool:
        """Whether cells of one rank are of more than half of its executions."""
        executions = {cell.place for cell in self.ledger.of_rank(cells[0].rank)}
        return 2 * len({cell.place for cell in cells}) > len(executions)


class _Lacking:
    """What cells lack, by witness, and which modules each names."""

    def __init__(self) -> None:
        self._amounts: dict[Cell, dict[Witness, float]]
        self._amounts = defaultdict(lambda: defaultdict(float))
        self._names: dict[Cell, dict[Witness, dict[str, None]]]
        self._names = defaultdict(lambda: defaultdict(dict))

    def add(self, one: Expected, parts: Mapping[Cell, float]) -> None:
        """Add what one witness finds lacking of each cell."""
        for cell, part in parts.items():
            self._amounts[cell][one.by] += part
            self._names[cell][one.by].update(dict.fromkeys(one.names))

    def joined(self) -> dict[Cell, Lack]:
        """Join what the witnesses find lacking of each cell: the most counts.

        The strongest witness that knows names says which modules lack.
        """
        joined = {}
        for cell, by in self._amounts.items():
            most = max(by.values())
            if most <= _ROUNDING:
                continue
            names: tuple[str, ...] = ()
            for _, known in sorted(self._names[cell].items(), reverse=True):
                names = tuple(known) or names
            joined[cell] = Lack(most, frozenset(by), names)
        return joined


def _total(lacks: Mapping[Cell, float], cells: Iterable[Cell]) -> float:
    return sum(map(lacks.__getitem__, cells))
