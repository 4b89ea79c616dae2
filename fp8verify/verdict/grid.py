"""The grid: the GEMMs of layers that train, by rank, step, micro-batch, layer and leg.

Each cell has an amount in low precision, in high precision and in an unknown one (FLOPs if those of
all GEMMs of the rank are known, else time) as a fraction of the rank's. Cells of one layer with as
many launches ran the same GEMMs, so one with fewer of them in low precision than another is short.
So is a cell whose low-precision share is below half of what is expected of it: by what the log
states, by the recipe, by the module list, else by the same layer in the other cells. Unknown
amounts count as low to accuse and as high to acquit; where the two readings differ a cell is open.

The coordinate that explains the most of what cells lack says what is wrong with a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from operator import itemgetter, sub
from statistics import mode
from typing import Final, NamedTuple, Protocol, TypeAlias

from fp8verify.analysis.gemms import GemmRow, gemm_totals, known_flops
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.terms import GRADIENT_LEGS, LEGS, Leg, Precision, Role
from fp8verify.thresholds import HALF, NEARLY_ALL, NEGLIGIBLE

# A layer: its name, (outputs, inputs), the experts of all layers, or None if it cannot be told.
Layer: TypeAlias = "str | tuple[int, ...] | None"


class Cell(NamedTuple):
    """The five coordinates; `rank` and `step` are places among those of the run and the rank."""

    rank: int
    step: int
    micro_batch: int
    layer: Layer
    leg: Leg


COORDINATES: Final = ("step", "rank", "leg", "layer", "micro-batch")
VALUE_OF: Final = {
    name: itemgetter(Cell._fields.index(name.replace("-", "_"))) for name in COORDINATES
}
_Names: TypeAlias = "tuple[str, ...]"
_Value: TypeAlias = "tuple[Hashable, ...]"


def by_value(cells: Iterable[Cell], names: Iterable[str]) -> defaultdict[_Value, list[Cell]]:
    """Return the cells at each value of some coordinates."""
    groups: defaultdict[_Value, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[tuple(VALUE_OF[name](cell) for name in names)].append(cell)
    return groups


class Tally(NamedTuple):
    """What ran in cells: fractions of all work of the rank, and launches, some shared by cells."""

    low: float = 0.0
    high: float = 0.0
    unknown: float = 0.0
    calls: float = 0.0
    low_calls: float = 0.0
    unknown_calls: float = 0.0

    @property
    def total(self) -> float:
        """All work."""
        return self.low + self.high + self.unknown

    @property
    def share(self) -> float | None:
        """The share of low precision in what is known, None of nothing."""
        known = self.low + self.high
        return self.low / known if known else None


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Add up cells."""
    columns = list(zip(*tallies, strict=True))
    return Tally(*map(sum, columns)) if columns else Tally()


_ROUNDING: Final = 1e-9


class Stated(Protocol):
    """What is stated of each cell: the share that is to run in low precision, None if nothing is.

    Attributes:
        alike: whether all ranks may run the same layers, as none is a stage of a pipeline.
        spared: by rank, how many launches of a cell may be of layers that are to run in high
            precision, of which nothing says where they are.
    """

    alike: bool
    spared: list[int]

    def __call__(self, cell: Cell, ran: Tally, /) -> float | None:
        """Return it of a cell, and of what ran in it."""


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


class Grid:
    """The cells of a run, and what each lacks.

    Attributes:
        cells: what ran in each.
        rows: the GEMMs of each.
        expected: the low-precision share that is expected of each cell, where it can be told.
        stated: the low-precision share that log, configuration and module list state of cells.
        lacks: of the short cells, the work that is missing in low precision.
        open: of cells that are short by one reading only, the same.
    """

    def __init__(self, ranks: Sequence[Sequence[GemmRow]], stated: Stated) -> None:
        """Sort the rows of all ranks into cells and judge these."""
        self._spared = stated.spared
        self.cells: dict[Cell, Tally] = {}
        self.rows: dict[Cell, list[GemmRow]] = defaultdict(list)
        for place, rows in enumerate(ranks):
            self._add(place, [row for row in rows if row.kind.multiplies])
        shares = ((cell, stated(cell, ran)) for cell, ran in self.cells.items())
        self.stated = {cell: share for cell, share in shares if share is not None}
        self._of_ranks = by_value(self.cells, ["rank"])
        open_ones = by_value((cell for cell in self.cells if cell not in self.stated), ["layer"])
        self._layers = {layer: self.total(cells) for (layer,), cells in open_ones.items()}
        self._usual_calls = self._counts()
        self._alike = self._run_alike(len(ranks)) if stated.alike else frozenset()
        self._twins = self._most_low()
        self.expected: dict[Cell, float] = {}
        self.lacks: dict[Cell, float] = {}
        self.open: dict[Cell, float] = {}
        for cell, ran in self.cells.items():
            self._judge(cell, ran)

    def _add(self, rank: int, rows: Sequence[GemmRow]) -> None:
        by_flops = known_flops(gemm_totals(rows)) is not None
        weights = [float(row.flops or 0) if by_flops else float(row.time_ns) for row in rows]
        whole = sum(weights) or 1.0
        sums: dict[Cell, list[float]] = defaultdict(lambda: [0.0] * len(Tally()))
        for row, layer, weight in zip(rows, _layers_of(rows, weights), weights, strict=True):
            cell = Cell(rank, row.step, row.micro_batch, layer, row.leg)
            self.rows[cell].append(row)
            amounts = sums[cell]
            is_low, is_unknown = row.precision.is_low, row.precision is Precision.UNKNOWN
            amounts[2 if is_unknown else int(not is_low)] += weight / whole
            amounts[3] += row.calls
            amounts[4] += row.calls * is_low
            amounts[5] += row.calls * is_unknown
        self.cells |= _settled({cell: Tally(*amounts) for cell, amounts in sums.items()})

    def _counts(self) -> dict[Hashable, float]:
        """Return by leg how many launches most cells have whose layers cannot be told.

        A leg with far fewer than the others is of some of the layers only.
        """
        by_leg = by_value((cell for cell in self.cells if cell.layer is None), ["leg"]).items()
        usual = {leg: mode(self.cells[cell].calls for cell in cells) for (leg,), cells in by_leg}
        most = max(usual.values(), default=0)
        return {leg: count for leg, count in usual.items() if count > HALF * most}

    def _run_alike(self, ranks: int) -> frozenset[Hashable]:
        """Return the layers and legs of which all ranks launched as many GEMMs."""
        found: dict[Hashable, list[float]] = defaultdict(lambda: [0.0] * ranks)
        for cell, ran in self.cells.items():
            found[cell.layer, cell.leg][cell.rank] += ran.calls
        return frozenset(key for key, counts in found.items() if len(set(counts)) == 1)

    def _most_low(self) -> dict[Hashable, float]:
        """Return the most launches in low precision of cells that ran the same GEMMs.

        Layers that do not run equally often, as under LayerDrop, are others in each cell.
        """
        most: dict[Hashable, float] = defaultdict(float)
        for cells in by_value(self.cells, ("rank", "layer", "leg")).values():
            counts = Counter(self.cells[cell].calls for cell in cells)
            for cell in cells:
                ran, same = self.cells[cell], self._same(cell)
                if counts[ran.calls] > HALF * len(cells):
                    most[same] = max(most[same], ran.low_calls)
        return most

    def _same(self, cell: Cell) -> Hashable:
        """Return what cells have in common that ran the same GEMMs."""
        rank = -1 if (cell.layer, cell.leg) in self._alike else cell.rank
        return rank, cell.layer, self.cells[cell].calls, self.stated.get(cell)

    def _judge(self, cell: Cell, ran: Tally) -> None:
        share = self.stated.get(cell)
        if share is None:
            share = Tally(*map(sub, self._layers[cell.layer], ran)).share  # of the other cells
        if share is None or share <= 0:
            return
        most = self._twins.get(self._same(cell), 0.0)
        wanted = min(most, ran.calls - self._spared[cell.rank])
        self.expected[cell] = max(share, wanted / ran.calls)
        if ran.low_calls + HALF <= wanted:  # vague legs may share a launch
            is_short = ran.low_calls + ran.unknown_calls + HALF <= wanted
            lacks = ran.total * (wanted - ran.low_calls) / ran.calls
            (self.lacks if is_short else self.open)[cell] = lacks
            return
        enough, lacks = HALF * share * ran.total, share * ran.total - ran.low
        # Without layers, cells of as many launches ran the same ones.
        is_alike = cell.layer is not None or ran.calls == self._usual_calls.get(cell.leg)
        if ran.low + ran.unknown < enough and is_alike:
            self.lacks[cell] = lacks
        elif ran.low < enough:
            self.open[cell] = lacks
        elif cell.leg is Leg.BACKWARD:
            # Half of it is dgrad and half wgrad: one of them may be what ran in high precision.
            leg = ran.total / 2
            if leg - ran.high - ran.unknown < HALF * share * leg and cell not in self.stated:
                self.open[cell] = share * leg

    def of_rank(self, rank: int, *legs: Leg) -> list[Cell]:
        """Return the cells of a rank, of some legs or else of all."""
        return [cell for cell in self._of_ranks[rank,] if not legs or cell.leg in legs]

    def total(self, cells: Iterable[Cell]) -> Tally:
        """Add up what ran in some cells."""
        return add_up(map(self.cells.__getitem__, cells))

    def wanted(self, cells: Iterable[Cell]) -> float:
        """Return the work that is expected of some cells in low precision."""
        return sum(self.expected[cell] * self.cells[cell].total for cell in cells)

    # ---- what explains it

    def explain(self, lacks: Mapping[Cell, float]) -> list[Shortfall]:
        """Return the values that explain what cells lack, those that explain the most first."""
        least = min(NEGLIGIBLE, (1 - NEARLY_ALL) * sum(lacks.values()))
        rest, explained = dict(lacks), defaultdict[_Names, dict[_Value, list[Cell]]](dict)
        for size in (1, 2) if lacks else ():
            candidates = self._candidates(lacks, size)
            while sum(rest.values()) > least and candidates:
                best = max(candidates, key=lambda key: sum(rest.get(c, 0) for c in candidates[key]))
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
        return [self._shortfall(names, cells_at) for names, cells_at in explained.items()]

    def _narrowest(self, cells: Iterable[Cell]) -> str:
        """Return the coordinate of which some cells have the fewest values, if it has several."""
        counts = {name: len(set(map(VALUE_OF[name], cells))) for name in COORDINATES}
        several = (n for n in COORDINATES if len(set(map(VALUE_OF[n], self.expected))) > 1)
        return min(several, key=counts.__getitem__, default="leg")

    def _candidates(
        self, lacks: Mapping[Cell, float], size: int
    ) -> dict[tuple[_Names, _Value], list[Cell]]:
        """Return the short cells of the values at which nearly all cells are short."""
        candidates = {}
        for names in combinations(COORDINATES, size):
            groups = by_value(self.expected, names)
            if any(len({value[n] for value in groups}) == 1 for n in range(size)):
                continue  # what is everywhere explains nothing
            for value, cells in groups.items():
                short = [cell for cell in cells if cell in lacks]
                least = NEARLY_ALL * self.wanted(cells) * (1 - _ROUNDING)
                if short and self.wanted(short) >= least:
                    candidates[names, value] = short
        return candidates

    def _shortfall(self, names: _Names, cells_at: Mapping[_Value, Sequence[Cell]]) -> Shortfall:
        """Return the values of the same coordinates as one."""
        cells = tuple(cell for short in cells_at.values() for cell in short)
        layers = {cell.layer for cell in cells}
        at_value = by_value(self.expected, names).items()
        ran = (cell for value, here in at_value if value in cells_at for cell in here)
        usual = (c for c in self.expected if c.layer in layers and c not in self.lacks)
        share = self.total(usual).share or 0.0
        return Shortfall(names, tuple(cells_at), cells, self.total(ran), share)


def _settled(cells: dict[Cell, Tally]) -> dict[Cell, Tally]:
    """Share what may be dgrad or wgrad between the two, by what each lacks, if one is known.

    Beside GEMMs that may be of any leg, those of gradients are no leg of their own.
    """
    settled = {cell: ran for cell, ran in cells.items() if cell.leg is not Leg.BACKWARD}
    for cell in [cell for cell in cells if cell.leg is Leg.BACKWARD]:
        any_leg = cell._replace(leg=Leg.UNKNOWN)
        forward, *both = (cells.get(cell._replace(leg=leg), Tally()) for leg in LEGS)
        lacking = [max(0, forward.calls - ran.calls) for ran in both]
        if any_leg in cells:
            settled[any_leg] = add_up([cells[any_leg], cells[cell]])
        elif not any(ran.calls for ran in both):
            settled[cell] = cells[cell]
        else:
            for leg, ran, lacks in zip(GRADIENT_LEGS, both, lacking, strict=True):
                part = lacks / sum(lacking) if any(lacking) else 0.5
                more = Tally(*(part * amount for amount in cells[cell]))
                settled[cell._replace(leg=leg)] = add_up([ran, more])
    return settled


def _layers_of(rows: Sequence[GemmRow], weights: Sequence[float]) -> list[Layer]:
    """Return the layer of each row; of sizes none counts where much of the work has none.

    Possible products may be of experts too, other GEMMs without a size are not.
    """
    forward = {size for row in rows if row.leg is Leg.FPROP for size in row.layer_sizes}
    layers = [_layer_of(row, forward) for row in rows]
    known = list(zip(rows, weights, layers, strict=True))
    much = NEGLIGIBLE * sum(weights)
    nameless = sum(weight for _, weight, layer in known if layer is None)
    hidden = sum(w for row, w, x in known if x is None and row.kind.classification.hidden)
    if nameless > much:
        kept = EXPERTS if hidden <= much else None
        layers = [None if isinstance(x, tuple) and x != kept else x for x in layers]
    return layers


def _layer_of(row: GemmRow, forward: set[tuple[int, int]]) -> Layer:
    if row.layer or row.kind.classification.role is Role.GROUPED_GEMM:
        return row.layer or EXPERTS
    sizes = row.layer_sizes
    return next((size for size in sizes if size in forward), sizes[0] if sizes else None)
