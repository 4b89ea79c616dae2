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
from fp8verify.analysis.kinds import grouped
from fp8verify.terms import GRADIENT_LEGS, LEGS, Leg, Precision
from fp8verify.thresholds import FIRST_LAYERS, WITHOUT_SHAPES

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


def first_layers(legs: Sequence[Leg]) -> int:
    """Return how many launches of some legs the first layers of a model lack at the most: dgrads."""
    return FIRST_LAYERS * legs.count(Leg.DGRAD)


def turned(layer: Layer) -> Layer:
    """Return the size of a layer with inputs and outputs exchanged, which its dgrad may have."""
    return layer[::-1] if isinstance(layer, tuple) else layer


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

    @property
    def products(self) -> list[int]:
        """The launches of each product: those of a leg that a number ties are parts of one.

        What the order alone gives to a call may be of several.
        """
        launches = self.ran.launches
        is_vague = len(legs_of(self.leg)) > 1
        are_parts = self.tie is Tie.NUMBER and not is_vague
        return [launches] if are_parts else [1] * launches


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
    def share(self) -> float:
        """The share of low precision in what is known, 0 of nothing."""
        known = self.launches - self.unknown
        return self.low / max(1, known)


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Add up."""
    columns = zip(Tally(), *tallies, strict=True)
    return Tally(*map(sum, columns))


_ByLayer: TypeAlias = "dict[tuple[Layer, Leg], list[Entry]]"


class Program:
    """Equal calls, and the executions that made them.

    Attributes:
        calls: in their order.
        entries: their legs.
        places: the executions, in their order.
        by_layer: the entries of each layer and leg.
        by_call: the entries of each call.
        forward_calls: the places of the calls of the forward pass.
    """

    def __init__(
        self,
        calls: tuple[Call, ...],
        places: Sequence[Place],
    ) -> None:
        self.calls = calls
        self.places = places
        self.entries = list(_entries(calls))
        self.by_layer: _ByLayer = defaultdict(list)
        self.by_call: dict[int, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            key = (entry.slot.layer, entry.leg)
            self.by_layer[key].append(entry)
            self.by_call[entry.call].append(entry)
        self.forward_calls = []
        for place, call in enumerate(calls):
            if sort_of(call) is Leg.FPROP:
                self.forward_calls.append(place)

    def of(self, layer: Layer, leg: Leg) -> Sequence[Entry]:
        """Return the entries of a leg of a layer."""
        return self.by_layer.get((layer, leg), ())


# A call is of the sort of the first of these that is among its legs.
_SORTS: Final = (Leg.FPROP, Leg.RECOMPUTE, *Leg)


def sort_of(call: Call) -> Leg:
    """Return whether a call is of the forward pass, recomputed, or a launch alone."""
    legs = [leg for leg, _ in call.legs]
    return min(legs, key=_SORTS.index)


def layer_of(call: Call) -> Layer:
    """Return the layer of a call: its name, else its size."""
    return call.layer or call.size


def _entries(calls: Sequence[Call]) -> Iterator[Entry]:
    keys = []
    for call in calls:
        key = (sort_of(call), layer_of(call))
        keys.append(key)
    counts = Counter(keys)
    seen: Counter[tuple[Leg, Layer]] = Counter()
    for place, call in enumerate(calls):
        key = keys[place]
        sort, layer = key
        slot = Slot(
            sort=sort,
            layer=layer,
            number=seen[key],
            of=counts[key],
        )
        seen[key] += 1
        legs = frozenset(leg for leg, _ in call.legs)
        for leg, ran in call.legs:
            yield Entry(
                slot=slot,
                leg=leg,
                ran=ran,
                call=place,
                tie=call.tie,
                beside=legs,
            )


def _rank_of(cell: Cell) -> int:
    return cell.rank


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
        self._times: dict[Cell, tuple[int, int]] = {}
        by_calls: dict[tuple[Call, ...], list[Place]] = defaultdict(list)
        for rank, executions in enumerate(ranks):
            for step, micro_batch, calls, times in executions:
                place = Place(rank, step, micro_batch)
                by_calls[calls].append(place)
                for layer, leg, all_ns, high_ns in times:
                    cell = Cell(*place, layer, leg)
                    self._times[cell] = (all_ns, high_ns)
        self.programs: list[Program] = []
        program_of: dict[Place, Program] = {}
        for calls, places in by_calls.items():
            program = Program(calls, places)
            self.programs.append(program)
            program_of.update(dict.fromkeys(places, program))
        in_order = sorted(program_of)
        self.program_of = {place: program_of[place] for place in in_order}
        self.cells: dict[Cell, Tally] = {}
        self.in_flops: list[bool] = []
        for rank in range(len(ranks)):
            self._add_up(rank)
        self._of_rank = grouped(self.cells, _rank_of)

    def _add_up(self, rank: int) -> None:
        """Sum up a rank: in FLOPs, if those of (nearly) all launches are known."""
        places = [place for place in self.program_of if place.rank == rank]
        executions = Counter(self.program_of[place] for place in places)
        launches = 0
        without_work = 0
        for program, times in executions.items():
            for entry in program.entries:
                launches += times * entry.ran.launches
                if not entry.ran.work:
                    without_work += times * entry.ran.launches
        allowed = launches * WITHOUT_SHAPES
        self.in_flops.append(without_work <= allowed)
        work = 0.0
        for program, times in executions.items():
            work += times * sum(self._work(rank, entry) for entry in program.entries)
        whole = work or 1.0
        sums = {program: self._sums(rank, program, whole) for program in executions}
        for place in places:
            program = self.program_of[place]
            for (layer, leg), tally in sums[program].items():
                cell = Cell(*place, layer, leg)
                self.cells[cell] = tally

    def _sums(
        self,
        rank: int,
        program: Program,
        whole: float,
    ) -> dict[tuple[Layer, Leg], Tally]:
        """Sum up an execution by layer and leg, its work as fractions of the rank's."""
        sums = {}
        for key, entries in program.by_layer.items():
            tallies = [self._tally(rank, entry, whole) for entry in entries]
            sums[key] = add_up(tallies)
        return sums

    def _tally(
        self,
        rank: int,
        entry: Entry,
        whole: float,
    ) -> Tally:
        ran = entry.ran
        work = self._work(rank, entry) / whole
        return Tally(
            launches=ran.launches,
            low=ran.low,
            unknown=ran.unknown,
            work=work,
            low_work=work * ran.low / ran.launches,
        )

    def _work(self, rank: int, entry: Entry) -> float:
        """Return FLOPs, else launches: of a call without gradients at most those of a layer.

        A fused loss computes all legs of the head in its forward call, in parts.
        """
        ran = entry.ran
        if self.in_flops[rank]:
            return ran.work
        has_no_gradients = entry.beside == {Leg.FPROP}
        launches = ran.launches
        if has_no_gradients:
            launches = min(launches, len(LEGS))
        return float(launches)

    def of_rank(self, rank: int, *legs: Leg) -> list[Cell]:
        """Return the cells of a rank, of some legs or else of all."""
        wanted = legs or tuple(Leg)
        cells = self._of_rank[rank]
        return [cell for cell in cells if cell.leg in wanted]

    def entries(self, cell: Cell) -> list[Entry]:
        """Return the entries of a cell."""
        program = self.program_of[cell.place]
        return program.by_layer[cell.layer, cell.leg]

    def total(self, cells: Iterable[Cell]) -> Tally:
        """Add up what ran in some cells."""
        tallies = [self.cells[cell] for cell in cells]
        return add_up(tallies)

    def times(self, cells: Iterable[Cell]) -> tuple[int, int]:
        """Return the ns of what ran in some cells, and of what did in no low precision."""
        all_ns = 0
        high_ns = 0
        for cell in cells:
            of_cell = self._times[cell]
            all_ns += of_cell[0]
            high_ns += of_cell[1]
        return all_ns, high_ns

    def flops(self, cells: Iterable[Cell]) -> float | None:
        """Return the FLOPs of what ran in some cells, None unless those of all are known."""
        flops = 0.0
        for cell in cells:
            for entry in self.entries(cell):
                if not entry.ran.work:
                    return None
                flops += entry.ran.work
        return flops

    def main_high(self, cells: Iterable[Cell]) -> str:
        """Name the class of high precision in which most launches of some cells ran."""
        counts: Counter[Precision] = Counter()
        for cell in cells:
            for entry in self.entries(cell):
                ran = entry.ran
                counts[ran.precision] += ran.launches
        for precision, _ in counts.most_common():
            is_known = precision is not Precision.UNKNOWN
            if is_known and not precision.is_low:
                return precision.value.upper()
        return "high precision"
