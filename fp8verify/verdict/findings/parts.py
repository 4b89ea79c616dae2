"""Findings on parts of a run: what the grid lacks, by the coordinate that explains the most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from msgspec.structs import replace

from fp8verify import thresholds as limits
from fp8verify.analysis.gemms import GemmRow, known_flops
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.layers import Layers, sizes_of
from fp8verify.analysis.purpose import is_node_of_gemms
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model.parts import ExpectedReport, Finding
from fp8verify.terms import (
    BACKWARD_LEGS,
    GRADIENT_LEGS,
    LEGS,
    VAGUE_LEGS,
    Leg,
    low_precision_name,
)
from fp8verify.text import abridged, counted, in_sentences, listed, of_flops, patterns
from fp8verify.verdict.advice import facts_of
from fp8verify.verdict.cells import Cell, Layer
from fp8verify.verdict.expected import CONVERTED, Promises, Stated
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.grid import VALUE_OF, Grid, Shortfall, by_value
from fp8verify.verdict.reasons import main_high

# No weight has as many values; a module list may say anything.
_NO_WEIGHT = 1 << 48
_VAGUE = {Leg.UNKNOWN: "a GEMM pass", Leg.BACKWARD: "the backward pass"}


class Parts:
    """What the grid of a run says of its parts.

    Attributes:
        shortfalls: what explains the cells that are short.
        accused: the places of the ranks that fall short.
        alone: those of ranks that lack FP8 as ranks, whatever their steps and legs.
    """

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        promises: Promises,
        rows: Sequence[Sequence[GemmRow]],
        seen: str = "",
    ) -> None:
        """Explain what cells lack, of ranks that lack more than little and of whole steps.

        Args:
            ranks: all.
            promises: what the log and the model promised.
            rows: of each rank, the GEMMs that can be compared with those of the others.
            seen: where the GEMMs ran, if that is not the window.
        """
        self._ranks = ranks
        self._promises = promises
        self._seen = seen
        self.stated = Stated(ranks, promises)
        self.grid = grid = Grid(list(map(_in_micro_batches, ranks, rows)), self.stated)
        found = grid.explain(self._counting())
        self.shortfalls = [short for short in found if not self._is_doubt(short)]
        self._doubts = [
            cell for short in found if self._is_doubt(short) for cell in short.cells
        ]
        self._findings = [
            (self._said(short), _places(short)) for short in self.shortfalls
        ]
        self.accused = frozenset[int]().union(*map(_places, self.shortfalls))
        of_ranks = (
            x
            for x in self.shortfalls
            if x.coordinates in (("rank",), ("rank", "layer"))
        )
        self.alone = frozenset[int]().union(*map(_places, of_ranks))

    def _counting(self) -> dict[Cell, float]:
        """Return the short cells that count: of ranks that lack more than little, or whole steps.

        A step or a rank without FP8 counts however many there are.
        """
        lacks = self.grid.lacks
        steps = by_value(self.grid.expected, ["rank", "step"])
        counting: set[Cell] = set()
        for names in (["rank"], ["rank", "step"]):
            for value, cells in by_value(lacks, names).items():
                nearly_all = limits.NEARLY_ALL * self.grid.wanted(steps.get(value, ()))
                least = nearly_all if "step" in names else limits.NEGLIGIBLE
                if sum(map(lacks.__getitem__, cells)) > least:
                    counting.update(cells)
        return {cell: lack for cell, lack in lacks.items() if cell in counting}

    def _is_doubt(self, short: Shortfall) -> bool:
        """Whether parts may be of other layers: chunks of another tower, or stages of a pipeline.

        Transfers that are no sends do not show that ranks are stages. Replicas run all layers
        equally often.
        """
        if short.coordinates[0] == "rank" and all(
            self._ranks[x].ran_low for x in _places(short)
        ):
            return self.grid.may_be_stages
        return "micro-batch" in short.coordinates and any(
            x.layer is None for x in short.cells
        )

    def findings(self, place: int) -> Iterator[Finding]:
        """Yield what is short of a rank, then what is open."""
        yield from (found for found, places in self._findings if place in places)
        rank = self._ranks[place]
        doubts = self._open(place) if place not in self.accused else ()
        for found in (*self._by_recipe(place), *doubts) if rank.ran_low else ():
            yield replace(found, ranks=rank.numbers, per_rank=True)

    def _by_names(self, rank: RankEvidence) -> list[Finding]:
        """Return what the eager step shows that names the layers of compiled code."""
        naming = rank.trace.naming
        if naming is None or rank.trace.named is not naming:
            return []
        seen = f" (seen in step {naming.step}, which ran without torch.compile)"
        rows = [
            row._replace(step=-1, micro_batch=0) for row in naming.rows if row.layer
        ]
        return [
            found for found, _ in Parts([rank], self._promises, [rows], seen)._findings
        ]

    def _by_recipe(self, place: int) -> Iterator[Finding]:
        """Yield the legs that the recipe keeps in high precision, and that ran there."""
        for leg in LEGS:
            cells = self.grid.of_rank(place, leg)
            share = self.grid.total(cells).share
            if (
                self._promises.leaves_high(leg)
                and share is not None
                and share < limits.HALF
            ):
                yield finding("leg-not-fp8", "by-recipe", ran=self._ran(cells))

    def expected(self, place: int) -> ExpectedReport | None:
        """Return what was to run in low precision on a rank; None if the cells do not show it."""
        rank = self._ranks[place]
        promises = self._promises
        grid = self.grid
        cells = grid.of_rank(place)
        known = [cell for cell in cells if cell in grid.stated]
        modules = [m for m in rank.modules if m.kind in ("linear", "experts")]
        if (
            not modules
            or not promises.any
            or any(m.state == "unknown" for m in modules)
        ):
            return None
        if (
            known_flops(rank.linear) is None
            or grid.total(known).total < 1 - limits.NEGLIGIBLE
        ):
            return None
        left = [
            m for m in modules if not any(self.stated.is_low(m, leg) for leg in LEGS)
        ]
        high = any(
            promises.is_high(rank, step) for step in range(len(rank.trace.steps))
        )
        return ExpectedReport(
            share_of_flops=round(
                sum(grid.stated[c] * grid.cells[c].total for c in known), 6
            ),
            measured_share_of_flops=round(grid.total(cells).low, 6),
            left_out=tuple(patterns(module.fqn for module in left)),
            stated=high
            or (bool(left) and all(promises.pin(module.fqn) for module in left)),
        )

    # ---- what is short

    def _said(self, short: Shortfall) -> Finding:
        names = short.coordinates
        if len(names) > 1 and "layer" not in names:  # the finding names its ranks
            names = tuple(name for name in names if name != "rank")
        facts = self._facts(short, names)
        part = len(names) > 1
        less = bool(short.ran.low)
        if names[0] == "rank":
            return finding(
                "rank-without-fp8", "part" if part else "less" if less else "", **facts
            )
        if "micro-batch" in names and names[0] != "leg":
            part = "layer" in names
            return finding(
                "pass-without-fp8", "part" if part else "less" if less else "", **facts
            )
        if names[0] == "step":
            return finding(
                "step-without-fp8", "part" if part else "less" if less else "", **facts
            )
        if names[0] == "layer":
            return finding("layer-not-fp8", "less" if less else "", **facts)
        if {cell.leg for cell in short.cells} == {Leg.RECOMPUTE}:
            return finding("recompute-not-fp8", "kernels", **facts)
        rank = self._ranks[next(iter(short.cells)).rank]
        return finding("leg-not-fp8", **facts, holds=facts_of(rank))

    def _facts(self, short: Shortfall, names: Sequence[str]) -> dict[str, Any]:
        """Return what the sentences of all codes name."""
        found = {name: self._named(short, name) for name in short.coordinates}
        fqns = self._names_of(short)
        places = sorted(_places(short))
        legs = {cell.leg for cell in short.cells}
        layers = {cell.layer for cell in short.cells}
        of_layers = "layer" in names
        alike = (c for c in self.grid.cells if c.layer in layers or not of_layers)
        named = found.get("layer", "") or abridged(patterns(fqns), limits.SHOWN_NUMBERS)
        of, after = (
            (f" of {named}", "") if of_layers else ("", f": {named}" if named else "")
        )
        return {
            **found,
            "ranks": [
                number for place in places for number in self._ranks[place].numbers
            ],
            "layers": fqns,
            "parts": " in ".join(found[name] for name in reversed(names)),
            "others": counted(sum(rank.ran_low for rank in self._ranks), "other rank"),
            "micro_batches": len({cell[:3] for cell in short.cells}),
            "total": len({cell[:3] for cell in self.grid.cells}),
            "ran": f"{self._ran((c for c in alike if c.leg in legs), of)}{self._seen}{after}",
            "count": counted(fqns or list(short.values), "converted layer"),
            "names": named,
            "format": self._promises.name,
            "formats": low_precision_name(
                self._ranks[short.cells[0].rank].linear.kernels
            ),
            "share": f"{self._seen}{of_flops(self.grid.total(short.cells).total / len(places))}",
            "most": short.ran.share or 0.0,
            "usual": short.usual,
            "precision": main_high(self._rows(short.cells)),
        }

    def _named(self, short: Shortfall, name: str) -> str:
        """Name the values of a coordinate, as a sentence does."""
        cells = sorted(short.cells, key=lambda cell: str(VALUE_OF[name](cell)).zfill(9))
        values = list(
            dict.fromkeys(name_value(self._ranks, cell, name) for cell in cells)
        )
        if name == "layer":
            shown = patterns(self._names_of(short)) or values
            return abridged(in_sentences(shown), limits.SHOWN_NUMBERS)
        plural = {"step": "steps", "micro-batch": "micro-batches"}.get(name)
        if plural is None or len(values) == 1:
            return listed(values)
        numbers = [value.rpartition(" ")[2] for value in values]
        return f"{plural} {listed(numbers, limits.SHOWN_NUMBERS)}"

    def _names_of(self, short: Shortfall) -> tuple[str, ...]:
        """Return the names of the converted modules that layers of a shortfall are."""
        layers = dict.fromkeys((cell.rank, cell.layer) for cell in short.cells)
        names = [layer for _, layer in layers if isinstance(layer, str)]
        if "layer" not in short.coordinates and len(names) < len(layers):
            return ()
        modules = (
            module for layer in layers for module in self.stated.modules_of(*layer)
        )
        converted = [m.fqn for m in modules if m.state in CONVERTED or m.fqn in names]
        return tuple(dict.fromkeys(converted or names))

    def _rows(self, cells: Iterable[Cell]) -> list[GemmRow]:
        return [row for cell in cells for row in self.grid.rows.get(cell, ())]

    def _ran(self, cells: Iterable[Cell], of: str = "") -> str:
        """Say how many GEMMs of some legs ran in high precision, of both where they are mixed."""
        cells = list(cells)
        measure = self._ranks[0].measure
        gradients = [
            c._replace(leg=x)
            for c in cells
            if c.leg in GRADIENT_LEGS
            for x in BACKWARD_LEGS
        ]
        vague = any(c.leg is Leg.BACKWARD and c in self.grid.rows for c in gradients)
        rows = self._rows(dict.fromkeys([*cells, *gradients]) if vague else cells)
        high = [row for row in rows if not row.precision.is_low]
        legs = {row.leg for row in rows}
        main = main_high(high)
        high_ns = sum(row.time_ns for row in high)
        name = listed([leg.value for leg in Leg if leg in legs], len(Leg))
        name = "recomputed forward" if legs == {Leg.RECOMPUTE} else name
        name = "gradient" if vague and legs <= {*BACKWARD_LEGS} else name
        if len(high) == len(rows):
            return f"every {name} GEMM{of} ran in {main} ({measure.amount(high_ns)})"
        count = sum(row.calls for row in high)
        every = sum(row.calls for row in rows)
        took = measure.amount(high_ns, sum(row.time_ns for row in rows))
        return f"{count} of {every} {name} GEMMs{of} ran in {main} ({took})"

    # ---- what is open

    def _open(self, place: int) -> Iterator[Finding]:
        """Yield the doubt about a rank, if what may be missing is more than little."""
        grid = self.grid
        rank = self._ranks[place]
        cells = self.grid.of_rank(place)
        outside = [row for row in rank.trace.unexplained if not row.precision.is_low]
        high = sum(row.time_ns for row in outside)
        total = rank.linear.total_ns
        if high > limits.NEGLIGIBLE * (high + total):
            took = rank.measure.amount(high, high + total)
            yield finding(
                "leg-unknown", "outside", took=took, precision=main_high(outside)
            )
            return
        expected = self.expected(place)
        named = self._by_names(rank)
        yield from named
        if expected is not None and not expected.is_met and not named:
            yield self._counted(place)
        elif not rank.trace.backward or (
            rank.share < limits.USUAL_SHARE and expected is None
        ):
            return  # the share decides, or that nothing trained
        missing = {cell: grid.open[cell] for cell in cells if cell in grid.open}
        missing |= {
            cell: grid.lacks[cell] for cell in self._doubts if cell.rank == place
        }
        short = sum(grid.lacks.get(cell, 0) for cell in cells)
        precision = main_high(rank.trace.trained)
        unseen = next((leg for leg in LEGS if self._is_unseen(place, leg)), None)
        if unseen is not None:
            yield finding("leg-unknown", "unseen", leg=unseen.value)
        elif missing and sum(missing.values()) + short > limits.NEGLIGIBLE:
            leg = max(missing, key=missing.__getitem__).leg
            yield finding(
                "leg-unknown", leg=_VAGUE.get(leg, leg.value), precision=precision
            )
        elif self._is_elsewhere(cells):
            yield finding("leg-unknown", leg=Leg.WGRAD.value, precision=precision)
        else:
            share = rank.opaque_ns / (rank.linear.total_ns or 1)
            for what, work in self._missing(place) if share > limits.NEGLIGIBLE else ():
                if work > limits.NEGLIGIBLE and share > limits.HALF * work:
                    yield finding(
                        "opaque-kernels", "hidden", ms=rank.opaque_ns / 1e6, what=what
                    )

    def _counted(self, place: int) -> Finding:
        """Return that fewer layers of a size ran in FP8 than the module list has converted."""
        grid = self.grid
        cells = [cell for cell in grid.of_rank(place, Leg.FPROP) if cell in grid.stated]
        short = (
            cell for cell in cells if grid.stated[cell] > (grid.cells[cell].share or 0)
        )
        layers = dict.fromkeys(cell.layer for cell in short)
        wanted = round(
            sum(grid.stated[cell] * grid.cells[cell].calls for cell in cells)
        )
        names = [
            m.fqn for layer in layers for m in self.stated.modules_of(place, layer)
        ]
        count = f"{wanted - round(grid.total(cells).low_calls)} of {wanted}"
        which = f"some of {abridged(patterns(names), limits.SHOWN_NUMBERS)}"
        return finding(
            "layer-not-fp8",
            "counted",
            count=count,
            format=self._promises.name,
            which=which,
        )

    def _is_unseen(self, place: int, leg: Leg) -> bool:
        """Whether a leg that training runs has no GEMM, and nothing says why."""
        rank = self._ranks[place]
        cells = self.grid.of_rank(place)
        vague = VAGUE_LEGS if leg is not Leg.FPROP else (Leg.UNKNOWN,)
        if self.grid.of_rank(place, leg, *vague) or self._promises.leaves_high(leg):
            return False
        if (
            leg is Leg.WGRAD
            and rank.linears
            and all(module.frozen for module in rank.linears)
        ):
            return False
        calls = sum(row.calls for row in rank.trace.trained if row.leg is Leg.FPROP)
        return leg is not Leg.DGRAD or calls > len({cell[:3] for cell in cells})

    def _missing(self, place: int) -> Iterator[tuple[str, float]]:
        """Yield what of a rank lacks GEMMs, and how much work, as a fraction of the rank's."""
        rank = self._ranks[place]
        cells = self.grid.of_rank(place)
        of_steps = by_value(cells, ["step"])
        calls = [
            self.grid.total(of_steps[n,]).calls for n in range(len(rank.trace.steps))
        ]
        usual = median(calls or [0])
        steps = [
            x
            for x, count in zip(rank.trace.steps, calls, strict=True)
            if count < usual / 2
        ]
        if steps:
            numbers = listed([str(step.number) for step in steps], limits.SHOWN_NUMBERS)
            gone = sum(usual - count for count in calls if count < usual / 2)
            yield f"steps {numbers} lack GEMMs", gone / (sum(calls) or 1)
        kinds = [total.kind for total in rank.unrecognized]
        # What nobody knows inside a layer's own node is rather its gradient.
        inside = any(
            is_node_of_gemms(name) for kind in kinds for name in kind.op.around
        )
        missing = self._missing_gradients(cells, 0 if inside else limits.FIRST_LAYERS)
        yield "backward GEMMs were not recognized", missing
        gemms, flops = _not_seen(rank.layers, len(rank.trace.steps))
        what = f"{gemms} forward GEMMs of converted layers were not recognized"
        yield what, flops / (rank.layers.flops or flops or 1)

    def _is_elsewhere(self, cells: Sequence[Cell]) -> bool:
        """Whether gradients that layers lack may be GEMMs of no known leg and no known layer."""
        forward = {cell.layer for cell in cells if cell.leg is Leg.FPROP}
        loose = (c for c in cells if c.leg in VAGUE_LEGS and c.layer not in forward)
        missing = self._missing_gradients(cells)
        return (
            missing > limits.NEGLIGIBLE
            and self.grid.total(loose).high > limits.HALF * missing
        )

    def _missing_gradients(
        self, cells: Sequence[Cell], first_layers: int = limits.FIRST_LAYERS
    ) -> float:
        """Return the work of gradients that layers in low precision have fewer of than others.

        The first layers of a model have no dgrad.
        """
        parts = len({cell[:3] for cell in cells})
        missing = 0.0
        for of_layer in by_value(cells, ["layer"]).values():
            by_leg = by_value(of_layer, ["leg"])
            ran = self.grid.total(of_layer)
            calls = {
                leg: self.grid.total(by_leg[leg,]).calls
                for leg in (*LEGS, Leg.BACKWARD)
            }
            whole = max(calls[leg] for leg in LEGS)
            dgrad = max(0, whole - calls[Leg.DGRAD] - parts * first_layers)
            gone = dgrad + whole - calls[Leg.WGRAD] - calls[Leg.BACKWARD]
            missing += max(0, gone) * ran.total / ran.calls if ran.low else 0.0
        return missing


def _in_micro_batches(rank: RankEvidence, rows: Sequence[GemmRow]) -> Sequence[GemmRow]:
    """Return the rows without micro-batches, if there are more of these than each module ran."""
    modules = sum(len(sizes_of(module)) for module in rank.modules)
    steps = Counter[int]()
    for row in rows:
        steps[row.step] += row.calls if row.leg is Leg.FPROP else 0
    parts = len({(row.step, row.micro_batch) for row in rows})
    if not modules or parts <= sum(-(-calls // modules) for calls in steps.values()):
        return rows
    return [row._replace(micro_batch=0) for row in rows]


def _places(short: Shortfall) -> frozenset[int]:
    """Return the places of the ranks that a shortfall is about."""
    return frozenset(cell.rank for cell in short.cells)


def name_value(ranks: Sequence[RankEvidence], cell: Cell, name: str) -> str:
    """Name the value of one coordinate of a cell."""
    if name == "rank":
        return ranks[cell.rank].label
    if name == "step":
        if cell.step < 0:
            return "step unknown"
        return f"step {ranks[cell.rank].trace.steps[cell.step].number}"
    if name == "micro-batch":
        return f"micro-batch {cell.micro_batch + 1}"
    if name == "leg":
        return cell.leg.value
    if isinstance(cell.layer, str):
        return cell.layer
    unnamed: dict[Layer, str] = {EXPERTS: "experts", None: "layers of unknown size"}
    return unnamed.get(cell.layer) or "x".join(map(str, cell.layer or ()))


def _not_seen(layers: Layers, steps: int) -> tuple[int, float]:
    """Return how many forward GEMMs the converted layers lack in some step, and FLOPs of these.

    The FLOPs are those of all three legs.
    """
    gemms = 0
    flops = 0.0
    tokens = 0.0
    for layer in layers.classes:
        row = layer.row
        calls = sum(layer.row.observed.values())
        ran = row.observed.get("fprop", 0)
        lacking = max(0, steps * len(layer.converted) - ran) if ran else 0
        tokens = max(tokens, layer.flops / (2 * row.n * row.k * calls))
        gemms = gemms + lacking
        flops = flops + lacking * layer.flops / (ran or 1)
    apart = [size for m in layers.apart if m.state in CONVERTED for size in sizes_of(m)]
    weights = [n * k for n, k in apart if 0 < n * k < _NO_WEIGHT]
    work = sum(2 * weight * tokens for weight in weights)
    return gemms + steps * len(weights), flops + len(LEGS) * steps * work
