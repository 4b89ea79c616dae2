"""What a run lacks: one comparison, and one measure of what counts.

An entry lacks surely if what ran in low precision at most is less than what is expected at least,
and perhaps if only what surely ran is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fp8verify.thresholds import NEARLY_ALL, NEGLIGIBLE
from fp8verify.verdict.coordinates import by_value
from fp8verify.verdict.expectation import Expected, Witness
from fp8verify.verdict.ledger import Cell, Ledger
from fp8verify.verdict.statements import Statements
from fp8verify.verdict.witnesses import expectations

# The names are the keys: a set that keeps their order.
_Names: TypeAlias = "dict[Witness, dict[str, None]]"


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
        strongest = min(self.by)
        return strongest <= Witness.COUNT

    @property
    def is_certain(self) -> bool:
        """Whether that, or the other legs of the same call show it."""
        return self.is_stated or Witness.CALL in self.by


NO_LACK: Final = Lack(0.0, frozenset(), ())


class Shortfalls:
    """What the ledger of a run lacks.

    Attributes:
        ledger: what ran.
        lacks: of the cells that surely lack, what.
        may_lack: of those that perhaps do, what.
        least: by cell, the launches that are expected in low precision.
        by: by cell, the strongest witness of that.
    """

    def __init__(
        self,
        ledger: Ledger,
        statements: Statements,
    ) -> None:
        """Compare what is expected with what ran."""
        self.ledger = ledger
        self.least: dict[Cell, float] = {}
        self.by: dict[Cell, Witness] = {}
        surely = _Lacking()
        perhaps = _Lacking()
        for one in expectations(ledger, statements):
            self._note(one)
            if one.may_lack:
                lacks = self._parts(one, one.lacks)
                surely.add(one, lacks)
                may_lack = self._parts(one, one.may_lack)
                perhaps.add(one, may_lack)
        self.lacks = surely.joined()
        self.may_lack = perhaps.joined()
        self.expected: dict[Cell, float] = {}
        for cell in ledger.cells:
            expected = self._expected(cell)
            if expected:
                self.expected[cell] = expected

    def _note(self, one: Expected) -> None:
        """Keep what is expected of a cell, for reports."""
        if len(one.cells) != 1:
            return
        cell = one.cells[0]
        strongest = self.by.get(cell, one.by)
        self.by[cell] = min(strongest, one.by)
        known = self.least.get(cell, 0.0)
        self.least[cell] = max(known, one.least)

    def _parts(
        self,
        one: Expected,
        amount: float,
    ) -> dict[Cell, float]:
        """Divide what launches lack among their cells, by what ran in high precision there."""
        if not amount:
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
        whole = sum(high.values())
        parts = {}
        for cell, launches in high.items():
            if launches:
                parts[cell] = amount * launches / whole
        return parts

    def launches(self, cell: Cell, *, perhaps: bool = False) -> float:
        """Return how many launches of a cell lack, surely or perhaps."""
        lacks = self.may_lack if perhaps else self.lacks
        return lacks.get(cell, NO_LACK).launches

    def work(self, cell: Cell, *, perhaps: bool = False) -> float:
        """Return the work that a cell lacks, surely or perhaps, as a fraction of the rank's."""
        ran = self.ledger.cells[cell]
        lacks = self.launches(cell, perhaps=perhaps)
        return lacks * ran.work / ran.launches

    def _expected(self, cell: Cell) -> float:
        """Return the work that is expected of a cell in low precision."""
        ran = self.ledger.cells[cell]
        return ran.low_work + self.work(cell)

    def wanted(self, cells: Iterable[Cell]) -> float:
        """Return the work that is expected of some cells in low precision."""
        wanted = 0.0
        for cell in cells:
            wanted += self.expected.get(cell, 0.0)
        return wanted

    def counting(self) -> dict[Cell, float]:
        """Return what counts: of ranks that lack more than little, and whole steps and layers.

        A step, a rank, or a layer that something states counts however small it is.
        """
        lacks = {}
        stated = []
        for cell, lack in self.lacks.items():
            lacks[cell] = self.work(cell)
            if lack.is_stated:
                stated.append(cell)
        counting: set[Cell] = set()
        ranks = by_value(lacks, ["rank"])
        for cells in ranks.values():
            if _total(lacks, cells) > NEGLIGIBLE:
                counting.update(cells)
        steps = by_value(lacks, ["rank", "step"])
        whole_steps = by_value(self.expected, ["rank", "step"])
        for value, cells in steps.items():
            whole_step = whole_steps.get(value, ())
            nearly_all = NEARLY_ALL * self.wanted(whole_step)
            if _total(lacks, cells) > nearly_all:
                counting.update(cells)
        layers = by_value(stated, ["rank", "layer"])
        for cells in layers.values():
            if self._are_in_most_executions(cells):
                counting.update(cells)
        return {cell: lack for cell, lack in lacks.items() if cell in counting}

    def _are_in_most_executions(self, cells: Sequence[Cell]) -> bool:
        """Whether cells of one rank are of more than half of its executions."""
        rank = cells[0].rank
        of_rank = self.ledger.of_rank(rank)
        executions = {cell.place for cell in of_rank}
        found = {cell.place for cell in cells}
        return 2 * len(found) > len(executions)


# Stands for all calls of a cell.
_EVERY_CALL: Final = frozenset({-1})


class _Piece(NamedTuple):
    """Calls of a cell, and the launches that they lack together."""

    calls: frozenset[int]
    launches: float


class _Amount:
    """What the calls of a cell lack by one witness, which may speak of some of them twice."""

    def __init__(self) -> None:
        self._piece_of: dict[int, _Piece] = {}

    def add(self, calls: frozenset[int], launches: float) -> None:
        """Add what calls lack: of those of which something is known, the more counts."""
        known = {self._piece_of[call] for call in calls if call in self._piece_of}
        before = 0.0
        for piece in known:
            calls |= piece.calls
            before += piece.launches
        joined = _Piece(calls, max(before, launches))
        self._piece_of.update(dict.fromkeys(calls, joined))

    @property
    def launches(self) -> float:
        """What all of them lack."""
        pieces = set(self._piece_of.values())
        return sum(piece.launches for piece in pieces)


class _Lacking:
    """What cells lack, by witness, and which modules each names."""

    def __init__(self) -> None:
        self._amounts: dict[Cell, dict[Witness, _Amount]]
        self._amounts = defaultdict(lambda: defaultdict(_Amount))
        self._names: dict[Cell, _Names]
        self._names = defaultdict(lambda: defaultdict(dict))

    def add(
        self,
        one: Expected,
        parts: Mapping[Cell, float],
    ) -> None:
        """Add what one witness finds lacking of each cell."""
        names = dict.fromkeys(one.names)
        for cell, part in parts.items():
            amount = self._amounts[cell][one.by]
            amount.add(one.calls or _EVERY_CALL, part)
            self._names[cell][one.by].update(names)

    def joined(self) -> dict[Cell, Lack]:
        """Join what the witnesses find lacking of each cell: the most counts.

        The strongest witness says which modules lack.
        """
        joined = {}
        for cell, amounts in self._amounts.items():
            launches = [amount.launches for amount in amounts.values()]
            strongest = min(amounts)
            names = self._names[cell][strongest]
            joined[cell] = Lack(
                launches=max(launches),
                by=frozenset(amounts),
                names=tuple(names),
            )
        return joined


def _total(
    lacks: Mapping[Cell, float],
    cells: Iterable[Cell],
) -> float:
    return sum(lacks[cell] for cell in cells)
