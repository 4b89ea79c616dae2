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
from statistics import median, mode
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow, gemm_totals, known_flops
from fp8verify.analysis.kinds import EXPERTS, grouped
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, LEGS, Leg, Precision, Role
from fp8verify.thresholds import HALF, NEARLY_ALL, NEGLIGIBLE, OTHER_LAYERS
from fp8verify.verdict.cells import Cell, Layer, Tally, add_up
from fp8verify.verdict.expected import Stated

COORDINATES: Final = ("step", "rank", "leg", "layer", "micro-batch")
VALUE_OF: Final = {
    name: itemgetter(Cell._fields.index(name.replace("-", "_"))) for name in COORDINATES
}
_Names: TypeAlias = "tuple[str, ...]"
_Value: TypeAlias = "tuple[Hashable, ...]"


def by_value(
    cells: Iterable[Cell], names: Sequence[str]
) -> defaultdict[_Value, list[Cell]]:
    """Return the cells at each value of some coordinates."""
    return grouped(cells, lambda cell: tuple(VALUE_OF[name](cell) for name in names))


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
        may_be_stages: whether ranks did not run all layers equally often, and nothing says why.
    """

    def __init__(self, ranks: Sequence[Sequence[GemmRow]], stated: Stated) -> None:
        """Sort the rows of all ranks into cells and judge these."""
        self.cells: dict[Cell, Tally] = {}
        self.rows: dict[Cell, list[GemmRow]] = defaultdict(list)
        self._in_flops: set[int] = set()
        for place, rows in enumerate(ranks):
            self._add(place, [row for row in rows if row.kind.multiplies])
        shares = ((cell, stated(cell, ran)) for cell, ran in self.cells.items())
        self.stated = {cell: share for cell, share in shares if share is not None}
        self._believe(stated)
        self._pinned = self._find_pinned(stated)
        for cell in self.cells:
            if cell not in self.stated and not self._unpinned(cell):
                self.stated[cell] = 0.0
        self._of_ranks = by_value(self.cells, ["rank"])
        rest = {
            cell: ran for cell, ran in self.cells.items() if cell not in self.stated
        }
        of_layers = by_value(rest, ["layer"]).items()
        self._layers = {layer: self.total(cells) for (layer,), cells in of_layers}
        self._listed = {
            c: stated.launches(c, ran) for c, ran in rest.items() if c.layer is None
        }
        self._usual = self._find_usual(stated)
        self._alike = self._run_alike(len(ranks)) if stated.alike else frozenset()
        alike = ((cell.layer, cell.leg) in self._alike for cell in self.cells)
        self.may_be_stages = stated.alike and not all(alike)
        self._high: defaultdict[Hashable, float] = defaultdict(float)
        for cell in self.cells:
            total, low = self._work(cell)
            self._high[cell.rank, cell.step, cell.layer, cell.leg] += total - low
        self._twins = self._most_low()
        self._wholly = self._find_wholly(alike=stated.alike)
        self.expected: dict[Cell, float] = {}
        self.lacks: dict[Cell, float] = {}
        self.open: dict[Cell, float] = {}
        for cell, ran in self.cells.items():
            self._judge(cell, ran)

    def _add(self, rank: int, rows: Sequence[GemmRow]) -> None:
        by_flops = known_flops(gemm_totals(rows)) is not None
        weights = [
            float(row.flops or 0) if by_flops else float(row.time_ns) for row in rows
        ]
        self._in_flops |= {rank} if by_flops else set()
        whole = sum(weights) or 1.0
        sums: dict[Cell, list[float]] = defaultdict(lambda: [0.0] * len(Tally()))
        for row, layer, weight in zip(
            rows, _layers_of(rows, weights), weights, strict=True
        ):
            cell = Cell(rank, row.step, row.micro_batch, layer, row.leg)
            self.rows[cell].append(row)
            amounts = sums[cell]
            is_low = row.precision.is_low
            is_unknown = row.precision is Precision.UNKNOWN
            amounts[2 if is_unknown else int(not is_low)] += weight / whole
            amounts[3] += row.calls
            amounts[4] += row.calls * is_low
            amounts[5] += row.calls * is_unknown
        self.cells |= _settled(
            {cell: Tally(*amounts) for cell, amounts in sums.items()}
        )

    def _find_usual(self, stated: Stated) -> dict[Hashable, tuple[float, float, float]]:
        """Return by leg the usual launches of cells whose layers cannot be told: all, low and high.

        A leg with far fewer than the others is of some of the layers only. Of stages of a pipeline
        none in low precision are usual.
        """
        usual: dict[Hashable, tuple[float, float, float]] = {}
        for (leg,), cells in by_value(
            (c for c in self.cells if c.layer is None), ["leg"]
        ).items():
            calls, low, _ = zip(*(self.cells[cell][3:] for cell in cells), strict=True)
            usual[leg] = (
                mode(calls),
                median(low) * stated.alike,
                median(map(sub, calls, low)),
            )
        most = max((calls for calls, *_ in usual.values()), default=0)
        return {leg: counts for leg, counts in usual.items() if counts[0] > HALF * most}

    def _run_alike(self, ranks: int) -> frozenset[Hashable]:
        """Return the layers and legs of which all ranks launched as many GEMMs."""
        found: dict[Hashable, list[float]] = defaultdict(lambda: [0.0] * ranks)
        for cell, ran in self.cells.items():
            found[cell.layer, cell.leg][cell.rank] += ran.calls
        return frozenset(key for key, counts in found.items() if len(set(counts)) == 1)

    def _believe(self, stated: Stated) -> None:
        """Take what ran of models that need not run equally often, as in a GAN, as stated.

        No step may have less in low precision than another one with as many launches.
        """
        of_models = filter(stated.of_models, self.stated)
        for cells in by_value(of_models, ("rank", "layer", "leg")).values():
            steps = by_value(cells, ["step"])
            totals = {value: self.total(steps[value]) for value in steps}
            for value, total in totals.items():
                most = max(
                    t.low_calls for t in totals.values() if t.calls == total.calls
                )
                if 0 < most <= total.low_calls:
                    ran = ((cell, self.cells[cell]) for cell in steps[value])
                    self.stated |= {
                        cell: tally.low_calls / tally.calls for cell, tally in ran
                    }

    def _find_pinned(self, stated: Stated) -> dict[_Value, float]:
        """Return by rank and layer how many forward launches of a cell are of pinned blocks.

        Such a block runs in high precision in all legs, steps and micro-batches, in one stage of a
        pipeline: those that need the fewest have them, first those at its ends.
        """
        needed: dict[tuple[int, Layer], float] = defaultdict(float)
        rest = [cell for cell in self.cells if cell not in self.stated]
        for cells in by_value(rest, ("rank", "layer", "micro-batch")).values():
            ran = [(self.cells[cell], _per_forward(cell)) for cell in cells]
            high = max(t.calls / n for t, n in ran) - max(
                t.low_calls / n for t, n in ran
            )
            key = cells[0].rank, cells[0].layer
            needed[key] = max(needed[key], min(high, stated.spared[cells[0].rank]))
        pinned: dict[_Value, float] = {}
        left: dict[Layer, float] = defaultdict(lambda: stated.spared_in_all)
        last = len(stated.spared) - 1
        for key in sorted(
            needed, key=lambda key: (needed[key], min(key[0], last - key[0]))
        ):
            _, layer = key
            pinned[key] = needed[key] if needed[key] <= left[layer] else 0
            left[layer] -= pinned[key]
        return pinned

    def _unpinned(self, cell: Cell) -> float:
        """Return how many launches of a cell cannot be of pinned blocks."""
        pinned = self._pinned.get((cell.rank, cell.layer), 0)
        return max(0.0, self.cells[cell].calls - _per_forward(cell) * pinned)

    def _most_low(self) -> dict[Hashable, float]:
        """Return how many launches cells that ran the same GEMMs have in low precision at most.

        Layers that do not run equally often, as under LayerDrop, are others in each cell.
        """
        most: dict[Hashable, float] = defaultdict(float)
        for cells in by_value(self.cells, ("rank", "layer", "leg")).values():
            counts = Counter(self.cells[cell].calls for cell in cells)
            for cell in cells:
                ran = self.cells[cell]
                same = self._same(cell)
                if counts[ran.calls] > HALF * len(cells):
                    most[same] = max(most[same], ran.low_calls)
        return most

    def _find_wholly(self, *, alike: bool) -> set[Cell]:
        """Return the cells of a layer and leg that ran wholly in low precision in most cells."""
        found: set[Cell] = set()
        rest = [cell for cell in self.cells if self.stated.get(cell, 1) == 1]
        for cells in by_value(
            rest, (*(() if alike else ("rank",)), "layer", "leg")
        ).values():
            wholly = sum(
                self.cells[cell].low_calls == self.cells[cell].calls for cell in cells
            )
            found.update(cells if wholly > HALF * len(cells) else ())
        return found

    def _same(self, cell: Cell) -> Hashable:
        """Return what cells have in common that ran the same GEMMs."""
        rank = -1 if (cell.layer, cell.leg) in self._alike else cell.rank
        return rank, cell.layer, self.cells[cell].calls, self.stated.get(cell)

    def _work(self, cell: Cell) -> tuple[float, float]:
        """Return all that ran in a cell, and what in low precision: FLOPs, else launches."""
        ran = self.cells[cell]
        if cell.rank in self._in_flops:
            return (ran.total, ran.low)
        return (ran.calls, ran.low_calls)

    def _as_forward(self, cell: Cell, ran: Tally) -> float:
        """Return how many launches belong to forward GEMMs that ran in low precision.

        Of parts of the tokens there are more, and a first layer has no dgrad. Without layers this
        is known only where all weights have a gradient. A step has to lack them as a whole: which
        micro-batch a gradient belongs to may be known by its size alone.
        """
        beside, wgrad = (cell._replace(leg=leg) for leg in (Leg.FPROP, Leg.WGRAD))
        if cell.leg not in (*BACKWARD_LEGS, Leg.RECOMPUTE) or beside not in self.cells:
            return 0
        whole, forward = (self.cells.get(c, ran).calls for c in (wgrad, beside))
        if cell.layer is None and whole < forward:
            return 0
        most = _per_forward(cell)
        one = self._work(cell)[0] / ran.calls or 1.0
        high, allowed = (
            self._high[c.rank, c.step, c.layer, c.leg] for c in (cell, beside)
        )
        if (
            self.stated.get(cell) != self.stated.get(beside)
            or high - most * allowed < HALF * one
        ):
            return 0
        (total, low), (of_forward, low_forward) = self._work(cell), self._work(beside)
        wanted = min(total - most * (of_forward - low_forward), most * low_forward)
        return ran.low_calls + (wanted - low) / one

    def _likely(self, cell: Cell, ran: Tally) -> float:
        """Return how many launches may be of layers that ran in low precision elsewhere.

        Without layers these are also those that a cell has more in high precision than others, and
        those of converted modules.
        """
        wholly = self._unpinned(cell) if cell in self._wholly else 0
        likely = max(self._as_forward(cell, ran), wholly, self._listed.get(cell, 0))
        calls, low, high = self._usual.get(cell.leg, (ran.calls, 0, 0))
        if cell.layer is not None or ran.calls == calls:
            return likely
        more = ran.calls - ran.low_calls - high
        if more >= OTHER_LAYERS * low > 0:
            return max(likely, ran.calls - high)
        return likely

    def _judge(self, cell: Cell, ran: Tally) -> None:
        share = self.stated.get(cell)
        unpinned = self._unpinned(cell)
        if share is None:
            share = Tally(
                *map(sub, self._layers[cell.layer], ran)
            ).share  # of the other cells
            share = share and share * unpinned / ran.calls
        if share is None or share <= 0:
            return
        wanted = min(self._twins.get(self._same(cell), 0.0), unpinned)
        likely = self._likely(cell, ran)
        if cell.layer is not None:
            wanted = max(wanted, likely)
        self.expected[cell] = max(share, wanted / ran.calls)
        if ran.low_calls + HALF <= wanted:  # vague legs may share a launch
            is_short = ran.low_calls + ran.unknown_calls + HALF <= wanted
            lacks = ran.total * (wanted - ran.low_calls) / ran.calls
            (self.lacks if is_short else self.open)[cell] = lacks
            return
        enough = HALF * share * ran.total
        lacks = share * ran.total - ran.low
        # Without layers, cells of as many launches ran the same ones.
        is_alike = (
            cell.layer is not None or ran.calls == self._usual.get(cell.leg, (0,))[0]
        )
        if ran.low + ran.unknown < enough and is_alike:
            self.lacks[cell] = lacks
        elif ran.low < enough:
            self.open[cell] = lacks
        elif ran.low_calls + HALF <= likely:
            self.open[cell] = ran.total * (likely - ran.low_calls) / ran.calls
        elif cell.leg is Leg.BACKWARD:
            # Half of it is dgrad and half wgrad: one of them may be what ran in high precision.
            leg = ran.total / 2
            if (
                leg - ran.high - ran.unknown < HALF * share * leg
                and cell not in self.stated
            ):
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
        several = (
            n for n in COORDINATES if len(set(map(VALUE_OF[n], self.expected))) > 1
        )
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

    def _shortfall(
        self, names: _Names, cells_at: Mapping[_Value, Sequence[Cell]]
    ) -> Shortfall:
        """Return the values of the same coordinates as one."""
        cells = tuple(cell for short in cells_at.values() for cell in short)
        layers = {cell.layer for cell in cells}
        at_value = by_value(self.expected, names).items()
        ran = (cell for value, here in at_value if value in cells_at for cell in here)
        usual = (c for c in self.expected if c.layer in layers and c not in self.lacks)
        share = self.total(usual).share or 0.0
        return Shortfall(names, tuple(cells_at), cells, self.total(ran), share)


def _per_forward(cell: Cell) -> int:
    """Return how many launches of a cell one forward GEMM has at most."""
    return 2 if cell.leg is Leg.BACKWARD else 1


def _settled(cells: dict[Cell, Tally]) -> dict[Cell, Tally]:
    """Share what may be dgrad or wgrad between the two, by what each lacks, if one is known.

    Beside GEMMs that may be of any leg, those of gradients are no leg of their own.
    """
    settled = {cell: ran for cell, ran in cells.items() if cell.leg is not Leg.BACKWARD}
    for cell in [cell for cell in cells if cell.leg is Leg.BACKWARD]:
        any_leg = cell._replace(leg=Leg.UNKNOWN)
        forward, *both = (cells.get(cell._replace(leg=leg), Tally()) for leg in LEGS)
        lacking = [max(0, forward.calls - ran.calls) for ran in both]
        if cells[cell].low_calls == cells[cell].calls:
            of_low = [max(0, forward.low_calls - ran.low_calls) for ran in both]
            fewer = list(map(min, lacking, of_low))
            lacking = of_low if sum(fewer) < cells[cell].calls <= sum(of_low) else fewer
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
    hidden = sum(
        w for row, w, x in known if x is None and row.kind.classification.hidden
    )
    if nameless > much:
        kept = EXPERTS if hidden <= much else None
        layers = [None if isinstance(x, tuple) and x != kept else x for x in layers]
    return layers


def _layer_of(row: GemmRow, forward: set[tuple[int, int]]) -> Layer:
    if row.layer or row.kind.classification.role is Role.GROUPED_GEMM:
        return row.layer or EXPERTS
    sizes = row.layer_sizes
    return next(
        (size for size in sizes if size in forward), sizes[0] if sizes else None
    )
