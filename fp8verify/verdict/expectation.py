"""What one witness expects of launches: how many of them run in low precision at least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from fp8verify.terms import Leg
from fp8verify.verdict.ledger import Cell, Entry, Layer, Ledger, Place, Program
from fp8verify.verdict.statements import Statements


class Witness(IntEnum):
    """Who expects it, by authority; those up to `COUNT` state it."""

    NAMES = 0
    MODULES = 1
    LOG = 2
    COUNT = 3
    EXECUTIONS = 4
    CALL = 5
    OTHERS = 6


# What these expect has the recipe in it.
_WITH_RECIPE: Final = (Witness.NAMES, Witness.MODULES, Witness.EXECUTIONS)


class Expected(NamedTuple):
    """What one witness expects of launches.

    Attributes:
        by: the witness.
        cells: where the launches are.
        launches: how many there are.
        low: those that ran in low precision.
        unknown: those of unknown precision.
        least: how many are expected in low precision.
        names: the modules that it is about, if they are known.
        is_sure: whether the launches are surely those that it is about.
        perhaps: how many are expected if what is open is read strictly.
        calls: the indices of their calls in their programs; none stands for all of the cells.
    """

    by: Witness
    cells: tuple[Cell, ...]
    launches: float
    low: float
    unknown: float
    least: float
    names: tuple[str, ...] = ()
    is_sure: bool = True
    perhaps: float = 0.0
    calls: frozenset[int] = frozenset()

    def is_excused(self, statements: Statements) -> bool:
        """Whether a phase of the log, or the recipe, keeps some of it high.

        The recipe is in what a list says of each leg, and in what other executions ran.
        """
        if any(map(statements.is_high, self.cells)):
            return True
        if self.by in _WITH_RECIPE:
            return False
        return any(statements.leaves_high(cell.leg) for cell in self.cells)

    def in_step(self, rank: int, step: int) -> Expected:
        """Return what it says of an equal step."""
        cells = []
        for cell in self.cells:
            equal = Cell(
                rank=rank,
                step=step,
                micro_batch=cell.micro_batch,
                layer=cell.layer,
                leg=cell.leg,
            )
            cells.append(equal)
        return self._replace(cells=tuple(cells))

    @property
    def lacks(self) -> float:
        """Launches that lack, whatever those of unknown precision are."""
        if not self.is_sure:
            return 0.0
        return max(0.0, self.least - self.low - self.unknown)

    @property
    def may_lack(self) -> float:
        """Launches that lack, if those of unknown precision ran in high precision."""
        most = max(self.least, self.perhaps)
        return max(0.0, most - self.low)


class Said(NamedTuple):
    """What a witness says of a program: what it expects, and of which layers and legs."""

    expected: Expected
    where: tuple[tuple[Layer, Leg], ...]

    def at(self, place: Place) -> Expected:
        """Return what it says of one execution of the program."""
        cells = tuple(Cell(*place, layer, leg) for layer, leg in self.where)
        return self.expected._replace(cells=cells)


class Placed(NamedTuple):
    """An entry of an execution, and its cell."""

    cell: Cell
    entry: Entry


class EqualSteps(NamedTuple):
    """Steps of ranks with equal lists whose micro-batches ran equal programs.

    Attributes:
        entries: those of the first step.
        steps: the rank and the step of all.
    """

    entries: list[Placed]
    steps: list[tuple[int, int]]

    @property
    def rank(self) -> int:
        """The rank of the first step."""
        rank, _ = self.steps[0]
        return rank

    def all_say(self, stated: Iterable[Expected]) -> Iterator[Expected]:
        """Yield of all steps what is expected of the first."""
        for one in stated:
            for rank, step in self.steps:
                yield one.in_step(rank, step)


def equal_steps(ledger: Ledger, statements: Statements) -> Iterator[EqualSteps]:
    """Yield the steps of all ranks, equal ones together."""
    places_of: dict[tuple[int, int], list[Place]] = defaultdict(list)
    for place in ledger.program_of:
        places_of[place.rank, place.step].append(place)
    alike: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for (rank, step), places in places_of.items():
        context = statements.context(rank)
        ran = [(place.micro_batch, ledger.program_of[place]) for place in places]
        alike[context, tuple(ran)].append((rank, step))
    for steps in alike.values():
        entries: list[Placed] = []
        for place in places_of[steps[0]]:
            entries += _placed(place, ledger.program_of[place])
        yield EqualSteps(entries, steps)


def _placed(place: Place, program: Program) -> Iterator[Placed]:
    """Yield the entries of an execution."""
    for entry in program.entries:
        layer = entry.slot.layer
        cell = Cell(*place, layer, entry.leg)
        yield Placed(cell, entry)


def entries_of(found: Iterable[Placed]) -> list[Entry]:
    """Return the entries of executions."""
    return [one.entry for one in found]


def said(
    by: Witness,
    entries: Sequence[Entry],
    least: float,
    names: Sequence[str] = (),
    *,
    is_sure: bool = True,
    perhaps: float = 0.0,
) -> Said:
    """Return what a witness says of entries of a program."""
    expected = expected_of(
        by,
        entries,
        least,
        names,
        is_sure=is_sure,
        perhaps=perhaps,
    )
    where: dict[tuple[Layer, Leg], None] = {}
    for entry in entries:
        layer = entry.slot.layer
        where[layer, entry.leg] = None
    return Said(expected, tuple(where))


def expected_at(
    by: Witness,
    found: Sequence[Placed],
    least: float,
    names: Sequence[str] = (),
    *,
    is_sure: bool = True,
) -> Expected:
    """Return what a witness expects of entries of several executions."""
    entries = entries_of(found)
    expected = expected_of(by, entries, least, names, is_sure=is_sure)
    cells = dict.fromkeys(one.cell for one in found)
    return expected._replace(cells=tuple(cells))


def expected_of(
    by: Witness,
    entries: Sequence[Entry],
    least: float,
    names: Sequence[str],
    *,
    is_sure: bool,
    perhaps: float = 0.0,
) -> Expected:
    """Return what a witness expects of entries, wherever they are."""
    return Expected(
        by=by,
        cells=(),
        launches=launches_of(entries),
        low=low_of(entries),
        unknown=sum(entry.ran.unknown for entry in entries),
        least=least,
        names=tuple(names),
        is_sure=is_sure,
        perhaps=perhaps,
        calls=frozenset(entry.call for entry in entries),
    )


def products_of(entries: Iterable[Entry]) -> list[int]:
    """Return how many launches each product of entries has."""
    products: list[int] = []
    for entry in entries:
        products += entry.products
    return products


def all_but(entries: Iterable[Entry], high: int) -> float:
    """Return how many launches run low at least, if so many products may run in high precision."""
    longest_first = sorted(products_of(entries), reverse=True)
    return float(sum(longest_first[high:]))


def leg_of(entry: Entry) -> Leg:
    """Return the leg of an entry."""
    return entry.leg


def launches_of(entries: Iterable[Entry]) -> int:
    """Return how many launches entries have."""
    return sum(entry.ran.launches for entry in entries)


def low_of(entries: Iterable[Entry]) -> int:
    """Return how many launches of entries ran in low precision."""
    return sum(entry.ran.low for entry in entries)
