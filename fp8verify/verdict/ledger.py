"""The ledger of a run: one entry for each leg of each call of a layer.

An execution is one forward pass through the model, with its backward pass: a rank, a step and
a micro-batch. Executions with equal calls are one program. A slot says which call of an execution:
of the calls of a layer, or of a size, the how-manieth of how many, so only executions that made
equally many calls of it have it in common. Without sizes it is the how-manieth of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.calls import Call, Execution, Ran, Tie
from fp8verify.terms import GRADIENT_LEGS, LEGS, Leg, Precision
from fp8verify.thresholds import WITHOUT_SHAPES

_LEGS_OF: Final = {
    Leg.BACKWARD: GRADIENT_LEGS,
    Leg.RECOMPUTE: (Leg.FPROP,),
    Leg.UNKNOWN: LEGS,
}

# A layer: its name, (outputs, inputs), the experts of all layers, or None if it cannot be told.
Layer: TypeAlias = "str | tuple[int, ...] | None"


def legs_of(leg: Leg) -> tuple[Leg, ...]:
    """Return the legs of a call that a launch may be; a recomputed product is one of fprop."""
    return _LEGS_OF.get(leg, (leg,))


class Place(NamedTuple):
    """Where an execution stands: `rank` and `step` are places among those of the run."""

    rank: int
    step: int
    micro_batch: int


class Cell(NamedTuple):
    """The five coordinates by which what lacks is explained."""

    rank: int
    step: int
    micro_batch: int
    layer: Layer
    leg: Leg

    @property
    def place(self) -> Place:
        """Its execution."""
        return Place(self.rank, self.step, self.micro_batch)


class Slot(NamedTuple):
    """Which call of an execution.

    Attributes:
        sort: fprop for calls of the forward pass, recompute for those that were recomputed, else
            the leg of a launch that belongs to no call.
        layer: what its calls have in common.
        number: its place among those.
        of: how many there are.
    """

    sort: Leg
    layer: Layer
    number: int
    of: int


class Entry(NamedTuple):
    """What ran for a leg of a call.

    Attributes:
        slot: the call.
        leg: the leg.
        ran: what ran.
        call: the place of the call in its program.
        tie: what ties the legs of the call to each other.
        beside: the legs of the call.
    """

    slot: Slot
    leg: Leg
    ran: Ran
    call: int
    tie: Tie
    beside: frozenset[Leg]

    @property
    def is_low(self) -> bool:
        """Whether all of it ran in low precision."""
        return self.ran.low == self.ran.launches


class Tally(NamedTuple):
    """Sums of entries: launches, and work as a fraction of the rank's."""

    launches: float = 0
    low: float = 0
    unknown: float = 0
    work: float = 0.0
    low_work: float = 0.0

    @property
    def high(self) -> float:
        """Launches in high precision."""
        return self.launches - self.low - self.unknown

    @property
    def share(self) -> float | None:
        """The share of low precision in what is known, None of nothing."""
        known = self.launches - self.unknown
        return self.low / known if known else None


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Add up."""
    columns = list(zip(*tallies, strict=True))
    return Tally(*map(sum, columns)) if columns else Tally()


class Program:
    """Equal calls, and the executions that made them.

    Attributes:
        calls: in their order.
        entries: their legs.
        places: the executions.
        by_layer: the entries of each layer and leg.
        by_call: the entries of each call.
        forward_calls: the places of the calls of the forward pass.
    """

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self.calls = calls
        self.places: list[Place] = []
        self.entries = list(_entries(calls))
        self.by_layer: dict[tuple[Layer, Leg], list[Entry]] = defaultdict(list)
        self.by_call: dict[int, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            self.by_layer[entry.slot.layer, entry.leg].append(entry)
            self.by_call[entry.call].append(entry)
        self.forward_calls = [
            place for place, call in enumerate(calls) if sort_of(call) is Leg.FPROP
        ]


def sort_of(call: Call) -> Leg:
    """Return whether a call is of the forward pass, recomputed, or a launch alone."""
    legs = [leg for leg, _ in call.legs]
    if Leg.FPROP in legs:
        return Leg.FPROP
    return Leg.RECOMPUTE if Leg.RECOMPUTE in legs else legs[0]


def layer_of(call: Call) -> Layer:
    """Return the layer of a call: its name, else its size."""
    return call.layer or call.size


def _entries(calls: Sequence[Call]) -> Iterator[Entry]:
    counts: dict[tuple[Leg, Layer], int] = defaultdict(int)
    for call in calls:
        counts[sort_of(call), layer_of(call)] += 1
    seen: dict[tuple[Leg, Layer], int] = defaultdict(int)
    for place, call in enumerate(calls):
        key = sort_of(call), layer_of(call)
        slot = Slot(*key, seen[key], counts[key])
        seen[key] += 1
        legs = frozenset(leg for leg, _ in call.legs)
        for leg, ran in call.legs:
            yield Entry(slot, leg, ran, place, call.tie, legs)


class Ledger:
    """The entries of a run.

    Attributes:
        programs: equal executions of all ranks.
        program_of: the program of each execution.
        cells: what ran by execution, layer and leg.
        in_flops: by rank, whether work is in FLOPs; else it is in launches.
    """

    def __init__(self, ranks: Sequence[Sequence[Execution]]) -> None:
        """Sort the executions of all ranks into programs."""
        self.programs: list[Program] = []
        self.program_of: dict[Place, Program] = {}
        self.cells: dict[Cell, Tally] = {}
        self.in_flops: list[bool] = []
        self._times: dict[Cell, tuple[int, int]] = {}
        known: dict[tuple[Call, ...], Program] = {}
        for rank, executions in enumerate(ranks):
            for step, micro_batch, calls, times in executions:
                program = known.get(calls)
                if program is None:
                    program = Program(calls)
                    known[calls] = program
                    self.programs.append(program)
                place = Place(rank, step, micro_batch)
                program.places.append(place)
                self.program_of[place] = program
                for layer, leg, *spent in times:
                    self._times[Cell(*place, layer, leg)] = (spent[0], spent[1])
        for rank in range(len(ranks)):
            self._add_up(rank)

    def _add_up(self, rank: int) -> None:
        """Sum up a rank: in FLOPs, if those of (nearly) all launches are known."""
        places = [place for place in self.program_of if place.rank == rank]
        found: list[Entry] = []
        for place in places:
            found += self.program_of[place].entries
        launches = sum(entry.ran.launches for entry in found)
        without = sum(entry.ran.launches for entry in found if not entry.ran.work)
        self.in_flops.append(without <= launches * WITHOUT_SHAPES)
        whole = sum(self._work(rank, entry) for entry in found) or 1.0
        for place in places:
            for (layer, leg), entries in self.program_of[place].by_layer.items():
                tallies = [self._tally(rank, entry, whole) for entry in entries]
                self.cells[Cell(*place, layer, leg)] = add_up(tallies)

    def _tally(self, rank: int, entry: Entry, whole: float) -> Tally:
        ran = entry.ran
        work = self._work(rank, entry) / whole
        low = work * ran.low / ran.launches
        return Tally(ran.launches, ran.low, ran.unknown, work, low)

    def _work(self, rank: int, entry: Entry) -> float:
        """Return FLOPs, else launches: of a call without gradients at most those of a layer.

        A fused loss computes all legs of the head in its forward call, in parts.
        """
        ran = entry.ran
        if self.in_flops[rank]:
            return ran.work
        if entry.beside == {Leg.FPROP}:
            return float(min(ran.launches, len(LEGS)))
        return float(ran.launches)

    def of_rank(self, rank: int, *legs: Leg) -> list[Cell]:
        """Return the cells of a rank, of some legs or else of all."""
        cells = (cell for cell in self.cells if cell.rank == rank)
        return [cell for cell in cells if not legs or cell.leg in legs]

    def entries(self, cell: Cell) -> list[Entry]:
        """Return the entries of a cell."""
        return self.program_of[cell.place].by_layer[cell.layer, cell.leg]

    def total(self, cells: Iterable[Cell]) -> Tally:
        """Add up what ran in some cells."""
        return add_up(map(self.cells.__getitem__, cells))

    def times(self, cells: Iterable[Cell]) -> tuple[int, int]:
        """Return the ns of what ran in some cells, and of what did in no low precision."""
        times = [self._times[cell] for cell in cells]
        return sum(all_ns for all_ns, _ in times), sum(high for _, high in times)

    def flops(self, cells: Iterable[Cell]) -> float | None:
        """Return the FLOPs of what ran in some cells, None unless those of all are known."""
        ran = [entry.ran for cell in cells for entry in self.entries(cell)]
        return sum(one.work for one in ran) if all(one.work for one in ran) else None

    def main_high(self, cells: Iterable[Cell]) -> str:
        """Name the class of high precision in which most launches of some cells ran."""
        counts: Counter[Precision] = Counter()
        for cell in cells:
            for entry in self.entries(cell):
                counts[entry.ran.precision] += entry.ran.launches
        known = (
            precision
            for precision, _ in counts.most_common()
            if not precision.is_low and precision is not Precision.UNKNOWN
        )
        return next((name.value.upper() for name in known), "high precision")
