"""Findings on parts of a run: what the grid lacks, by the coordinate that explains the most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from msgspec.structs import replace

from fp8verify import thresholds as limits
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.layers import Layers, sizes_of
from fp8verify.analysis.purpose import is_node_of_gemms
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model.parts import Finding
from fp8verify.terms import LEGS, VAGUE_LEGS, Leg, low_precision_name
from fp8verify.text import abridged, counted, in_sentences, listed, of_flops, patterns
from fp8verify.verdict.expected import CONVERTED, Promises, Stated
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.grid import VALUE_OF, Cell, Grid, Layer, Shortfall, Tally, add_up

# No weight has as many values; a module list may say anything.
_NO_WEIGHT = 1 << 48
_VAGUE = {Leg.UNKNOWN: "a GEMM pass", Leg.BACKWARD: "the backward pass"}


class PartFinding(NamedTuple):
    """A finding, and the places of the ranks that it is about."""

    finding: Finding
    places: frozenset[int]


class Parts:
    """What the grid of a run says of its parts.

    Attributes:
        shortfalls: what explains the cells that are short.
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
        self._ranks, self._promises, self._seen = ranks, promises, seen
        self.stated = Stated(ranks, promises)
        pairs = zip(ranks, rows, strict=True)
        self.grid = grid = Grid(
            [_in_micro_batches(*pair) for pair in pairs],
            self.stated,
            alike=self.stated.alike,
            spared=self.stated.spared,
        )
        found = grid.explain(self._counting())
        self.shortfalls = [short for short in found if not _is_doubt(short)]
        self._doubts = [cell for short in found if _is_doubt(short) for cell in short.cells]

    def _counting(self) -> dict[Cell, float]:
        """Return the short cells that count: of ranks that lack more than little, or whole steps.

        A step or a rank without FP8 counts however many there are.
        """
        grid = self.grid
        by_rank: dict[int, float] = defaultdict(float)
        by_step: dict[tuple[int, int], float] = defaultdict(float)
        of_step: dict[tuple[int, int], float] = defaultdict(float)
        for cell, lacks in grid.lacks.items():
            by_rank[cell.rank] += lacks
            by_step[cell[:2]] += lacks
        for cell, share in grid.expected.items():
            of_step[cell[:2]] += share * grid.cells[cell].total
        return {
            cell: lacks
            for cell, lacks in grid.lacks.items()
            if by_rank[cell.rank] > limits.NEGLIGIBLE
            or by_step[cell[:2]] > limits.NEARLY_ALL * of_step[cell[:2]]
        }

    def findings(self) -> Iterator[PartFinding]:
        """Yield what is short, then what is open."""
        for short in self.shortfalls:
            places = frozenset(cell.rank for cell in short.cells)
            numbers = tuple(n for place in sorted(places) for n in self._ranks[place].numbers)
            yield PartFinding(replace(self._said(short), ranks=numbers), places)
        for place, rank in enumerate(self._ranks):
            doubts = self._open(place, rank) if place not in self.accused else ()
            said = (*self._by_recipe(place), *doubts)
            for found in said if rank.ran_low else ():
                about = replace(found, ranks=rank.numbers, per_rank=True)
                yield PartFinding(about, frozenset({place}))

    def unexplained(self, place: int, findings: Sequence[Finding]) -> list[Finding]:
        """Return what is found on a rank, without that a claim is not met if it lacks FP8 alone."""
        if place not in self._lacking_alone:
            return list(findings)
        return [one for one in findings if one.code != "claimed-not-active"]

    @cached_property
    def _lacking_alone(self) -> frozenset[int]:
        """The places of ranks that lack FP8 as ranks, whatever their steps and legs."""
        of_rank = (("rank",), ("rank", "layer"))
        alone = (short for short in self.shortfalls if short.coordinates in of_rank)
        return frozenset(cell.rank for short in alone for cell in short.cells)

    @property
    def accused(self) -> frozenset[int]:
        """The places of the ranks that fall short."""
        return frozenset(cell.rank for short in self.shortfalls for cell in short.cells)

    def _by_names(self, rank: RankEvidence) -> Iterator[Finding]:
        """Yield what the eager step shows that names the layers of compiled code."""
        naming = rank.trace.naming
        if naming is not None:
            seen = f" (seen in step {naming.step}, which ran without torch.compile)"
            rows = [row._replace(step=-1, micro_batch=0) for row in naming.rows if row.layer]
            parts = Parts([rank], self._promises, [rows], seen)
            yield from (parts._said(short) for short in parts.shortfalls)

    def _by_recipe(self, place: int) -> Iterator[Finding]:
        """Yield the legs that the recipe keeps in high precision, and that ran there."""
        for leg in LEGS if self._promises.formats or self._promises.recipes else ():
            cells = [c for c in self.grid.cells if c.rank == place and c.leg is leg]
            share = add_up(self.grid.cells[cell] for cell in cells).share
            if self._promises.leaves_high(leg.value) and share is not None and share < limits.HALF:
                yield finding("leg-not-fp8", "by-recipe", ran=self._ran(cells))

    # ---- what is short

    def _said(self, short: Shortfall) -> Finding:
        names, legs = short.coordinates, {cell.leg for cell in short.cells}
        if len(names) == 2 and "rank" in names and "layer" not in names:
            names = tuple(name for name in names if name != "rank")  # the finding names its ranks
        facts, part, less = self._facts(short, names, legs), len(names) > 1, bool(short.ran.low)
        if names[0] == "rank":
            return finding("rank-without-fp8", "part" if part else "less" if less else "", **facts)
        if "micro-batch" in names and names[0] not in ("rank", "leg"):
            part = names not in (("micro-batch",), ("step", "micro-batch"))
            return finding("pass-without-fp8", "part" if part else "less" if less else "", **facts)
        if names[0] == "step":
            return finding("step-without-fp8", "part" if part else "less" if less else "", **facts)
        if names[0] == "layer":
            return finding("layer-not-fp8", "less" if less else "", **facts)
        if legs == {Leg.RECOMPUTE}:
            return finding("recompute-not-fp8", "kernels", **facts)
        return finding("leg-not-fp8", **facts)

    def _facts(self, short: Shortfall, names: Sequence[str], legs: set[Leg]) -> dict[str, Any]:
        """Return what the sentences of all codes name."""
        found = {name: self._named(short, name) for name in short.coordinates}
        fqns = self._names_of(short)
        cells = [cell for cell in self.grid.rows if cell.leg in legs]
        if "layer" in names:
            layers = {cell.layer for cell in short.cells}
            cells = [cell for cell in cells if cell.layer in layers]
        share = sum(self.grid.cells[cell].total for cell in short.cells)
        named = found.get("layer", "") or abridged(patterns(fqns), limits.SHOWN_NUMBERS)
        of = f" of {named}" if "layer" in names else ""
        after = f": {named}" if named and not of else ""
        return {
            "layers": fqns,
            "parts": " in ".join(found[name] for name in reversed(names)),
            "steps": found.get("step", ""),
            "labels": found.get("rank", ""),
            "others": counted(sum(rank.ran_low for rank in self._ranks), "other rank"),
            "micro_batches": len({cell[:3] for cell in short.cells}),
            "total": len({cell[:3] for cell in self.grid.cells}),
            "ran": f"{self._ran(cells, of)}{self._seen}{after}",
            "count": counted(fqns or list(short.values), "converted layer"),
            "names": named,
            "format": self._promises.name,
            "formats": low_precision_name(self._ranks[short.cells[0].rank].linear.kernels),
            "share": f"{self._seen}{of_flops(share / len({cell.rank for cell in short.cells}))}",
            "most": short.ran.share or 0.0,
            "usual": short.usual,
            "precision": _main(self._rows(short.cells)),
        }

    def _named(self, short: Shortfall, name: str) -> str:
        """Name the values of a coordinate, as a sentence does."""
        fqns = self._names_of(short) if name == "layer" else ()
        cells = sorted(short.cells, key=lambda cell: str(VALUE_OF[name](cell)).zfill(9))
        values = dict.fromkeys(name_value(self._ranks, cell, name) for cell in cells)
        if name == "layer":
            shown = patterns(fqns) if fqns else values
            return abridged(in_sentences(shown), limits.SHOWN_NUMBERS)
        numbers = [value.rpartition(" ")[2] for value in values]
        if name in ("step", "micro-batch") and len(numbers) > 1:
            plural = "es" if name == "micro-batch" else "s"
            return f"{name}{plural} {listed(numbers, limits.SHOWN_NUMBERS)}"
        return listed(list(values))

    def _names_of(self, short: Shortfall) -> tuple[str, ...]:
        """Return the names of the converted modules that layers of a shortfall are."""
        layers = {(cell.rank, cell.layer) for cell in short.cells}
        if "layer" not in short.coordinates and not all(isinstance(x, str) for _, x in layers):
            return ()
        names: dict[str, None] = {}
        for place in sorted({place for place, _ in layers}):
            for module in self._ranks[place].modules:
                sizes = {(place, (size.n, size.k)) for size in sizes_of(module)}
                by_size = module.state in CONVERTED and not layers.isdisjoint(sizes)
                if by_size or (place, module.fqn) in layers:
                    names[module.fqn] = None
        return tuple(names) or tuple(x for _, x in sorted(layers, key=str) if isinstance(x, str))

    def _rows(self, cells: Iterable[Cell]) -> list[GemmRow]:
        return [row for cell in cells for row in self.grid.rows.get(cell, ())]

    def _ran(self, cells: Iterable[Cell], of: str = "") -> str:
        """Say how many GEMMs of some legs ran in high precision."""
        rows, measure = self._rows(cells), self._ranks[0].measure
        high, legs = [row for row in rows if not row.precision.is_low], {row.leg for row in rows}
        main, high_ns = _main(high), sum(row.time_ns for row in high)
        name = listed([leg.value for leg in Leg if leg in legs], len(Leg))
        name = "recomputed forward" if legs == {Leg.RECOMPUTE} else name
        if len(high) == len(rows):
            return f"every {name} GEMM{of} ran in {main} ({measure.amount(high_ns)})"
        count, every = sum(row.calls for row in high), sum(row.calls for row in rows)
        took = measure.amount(high_ns, sum(row.time_ns for row in rows))
        return f"{count} of {every} {name} GEMMs{of} ran in {main} ({took})"

    # ---- what is open

    def _open(self, place: int, rank: RankEvidence) -> Iterator[Finding]:
        """Yield the doubt about a rank, if what may be missing is more than little."""
        grid = self.grid
        expected = self.stated.report(grid, place)
        named = list(self._by_names(rank) if rank.trace.named is rank.trace.naming else ())
        yield from named
        if expected is not None and not expected.is_met and not named:
            yield self._counted(place, rank)
        elif not rank.trace.backward or (rank.share < limits.USUAL_SHARE and expected is None):
            return  # the share decides, or that nothing trained
        missing = {cell: lacks for cell, lacks in grid.open.items() if cell.rank == place}
        missing |= {cell: grid.lacks[cell] for cell in self._doubts if cell.rank == place}
        short = sum(lacks for cell, lacks in grid.lacks.items() if cell.rank == place)
        precision = rank.main_high.value.upper()
        unseen = next(filter(None, (self._unseen(place, rank, leg) for leg in LEGS)), None)
        if unseen is not None:
            yield finding("leg-unknown", "unseen", leg=unseen.value)
        elif missing and sum(missing.values()) + short > limits.NEGLIGIBLE:
            leg = max(missing, key=missing.__getitem__).leg
            yield finding("leg-unknown", leg=_VAGUE.get(leg, leg.value), precision=precision)
        elif self._is_elsewhere(place):
            yield finding("leg-unknown", leg=Leg.WGRAD.value, precision=precision)
        else:
            yield from self._hidden(place, rank)

    def _counted(self, place: int, rank: RankEvidence) -> Finding:
        """Return that fewer layers of a size ran in FP8 than the module list has converted."""
        grid = self.grid
        cells = [cell for cell in grid.stated if cell.rank == place and cell.leg is Leg.FPROP]
        layers = {c.layer for c in cells if grid.stated[c] > (grid.cells[c].share or 0)}
        wanted = round(sum(grid.stated[cell] * grid.cells[cell].calls for cell in cells))
        names = [m.fqn for m in rank.modules for s in sizes_of(m) if (s.n, s.k) in layers]
        return finding(
            "layer-not-fp8",
            "counted",
            missing=wanted - round(sum(grid.cells[cell].low_calls for cell in cells)),
            wanted=wanted,
            format=self._promises.name,
            which=f"some of {abridged(patterns(names), limits.SHOWN_NUMBERS)}",
        )

    def _unseen(self, place: int, rank: RankEvidence, leg: Leg) -> Leg | None:
        """Return a leg without any GEMM that training runs, of which nothing says why."""
        there = {cell.leg for cell in self.grid.cells if cell.rank == place}
        vague = VAGUE_LEGS if leg is not Leg.FPROP else (Leg.UNKNOWN,)
        if leg in there or not there.isdisjoint(vague) or self._promises.leaves_high(leg.value):
            return None
        if leg is Leg.WGRAD and rank.linears and all(module.frozen for module in rank.linears):
            return None
        parts = {cell[:3] for cell in self.grid.cells if cell.rank == place}
        calls = sum(row.calls for row in rank.trace.trained if row.leg is Leg.FPROP)
        return None if leg is Leg.DGRAD and calls <= len(parts) else leg

    def _hidden(self, place: int, rank: RankEvidence) -> Iterator[Finding]:
        """Yield what GEMMs are missing that unknown kernels took long enough to be."""
        time_ns = sum(total.time_ns for total in rank.unrecognized)
        share = time_ns / (rank.linear.total_ns or 1)
        for what, work in self._missing(place, rank) if share > limits.NEGLIGIBLE else ():
            if work > limits.NEGLIGIBLE and share > limits.HALF * work:
                yield finding("opaque-kernels", "hidden", ms=time_ns / 1e6, what=what)

    def _missing(self, place: int, rank: RankEvidence) -> Iterator[tuple[str, float]]:
        """Yield what of a rank lacks GEMMs, and how much work, as a fraction of the rank's."""
        cells = {cell: ran for cell, ran in self.grid.cells.items() if cell.rank == place}
        by_step: dict[int, float] = defaultdict(float)
        for cell, ran in cells.items():
            by_step[cell.step] += ran.calls
        calls = [by_step[step] for step in range(len(rank.trace.steps))]
        usual = median(calls or [0])
        lacking = [step for step, count in enumerate(calls) if count < usual / 2]
        if lacking:
            numbers = [str(rank.trace.steps[step].number) for step in lacking]
            steps = listed(numbers, limits.SHOWN_NUMBERS)
            gone = sum(usual - calls[step] for step in lacking)
            yield f"steps {steps} lack GEMMs", gone / (sum(calls) or 1)
        kinds = [total.kind for total in rank.unrecognized]
        # What nobody knows inside a layer's own node is rather its gradient.
        inside = any(is_node_of_gemms(name) for kind in kinds for name in kind.op.around)
        missing = self._missing_gradients(cells, 0 if inside else limits.FIRST_LAYERS)
        yield "backward GEMMs were not recognized", missing
        gemms, flops = _not_seen(rank.layers, len(rank.trace.steps))
        what = f"{gemms} forward GEMMs of converted layers were not recognized"
        yield what, flops / (rank.layers.flops or flops or 1)

    def _is_elsewhere(self, place: int) -> bool:
        """Whether gradients that layers lack may be GEMMs of no known leg and no known layer."""
        cells = {cell: ran for cell, ran in self.grid.cells.items() if cell.rank == place}
        forward = {cell.layer for cell in cells if cell.leg is Leg.FPROP}
        loose = [c for c in cells if c.leg in VAGUE_LEGS and c.layer not in forward]
        missing = self._missing_gradients(cells)
        high = sum(cells[cell].high for cell in loose)
        return missing > limits.NEGLIGIBLE and high > limits.HALF * missing

    def _missing_gradients(
        self, cells: Mapping[Cell, Tally], first_layers: int = limits.FIRST_LAYERS
    ) -> float:
        """Return the work of gradients that layers in low precision have fewer of than others.

        The first layers of a model have no dgrad.
        """
        by_layer: dict[Layer, dict[Leg, Tally]] = defaultdict(dict)
        for cell, ran in cells.items():
            known = by_layer[cell.layer].get(cell.leg, Tally())
            by_layer[cell.layer][cell.leg] = add_up([known, ran])
        parts = len({cell[:3] for cell in cells})
        missing = 0.0
        for legs in by_layer.values():
            calls = {leg: ran.calls for leg, ran in legs.items()}
            whole, low = max(calls.get(leg, 0) for leg in LEGS), any(x.low for x in legs.values())
            each = add_up(legs.values()).total / sum(calls.values())
            dgrad = max(0, whole - calls.get(Leg.DGRAD, 0) - parts * first_layers)
            gone = dgrad + whole - calls.get(Leg.WGRAD, 0) - calls.get(Leg.BACKWARD, 0)
            missing += max(0, gone) * each if low else 0.0
        return missing


def _in_micro_batches(rank: RankEvidence, rows: Sequence[GemmRow]) -> Sequence[GemmRow]:
    """Return the rows without micro-batches, if there are more of these than each module ran."""
    modules = sum(len(sizes_of(module)) for module in rank.modules)
    steps = Counter({row.step: 0 for row in rows})
    for row in rows:
        steps[row.step] += row.calls if row.leg is Leg.FPROP else 0
    parts = len({(row.step, row.micro_batch) for row in rows})
    if not modules or parts <= sum(-(-calls // modules) for calls in steps.values()):
        return rows
    return [row._replace(micro_batch=0) for row in rows]


def _is_doubt(short: Shortfall) -> bool:
    """Whether micro-batches may be of other layers: chunks of another tower."""
    return "micro-batch" in short.coordinates and any(cell.layer is None for cell in short.cells)


def _main(rows: Iterable[GemmRow]) -> str:
    times = Counter[str]()
    for row in rows:
        if not row.precision.is_low:
            times[row.precision.value.upper()] += row.time_ns
    return times.most_common(1)[0][0] if times else "high precision"


def name_value(ranks: Sequence[RankEvidence], cell: Cell, name: str) -> str:
    """Name the value of one coordinate of a cell."""
    if name == "rank":
        return ranks[cell.rank].label
    if name == "step":
        step = ranks[cell.rank].trace.steps[cell.step].number if cell.step >= 0 else "unknown"
        return f"step {step}"
    if name == "micro-batch":
        return f"micro-batch {cell.micro_batch + 1}"
    if name == "leg":
        return cell.leg.value
    if isinstance(cell.layer, tuple) and cell.layer != EXPERTS:
        return "x".join(map(str, cell.layer))
    if isinstance(cell.layer, str):
        return cell.layer
    return "experts" if cell.layer == EXPERTS else "layers of unknown size"


def _not_seen(layers: Layers, steps: int) -> tuple[int, float]:
    """Return how many forward GEMMs the converted layers lack in some step, and FLOPs of these.

    The FLOPs are those of all three legs.
    """
    gemms, flops, tokens = 0, 0.0, 0.0
    for layer in layers.classes:
        row, calls = layer.row, sum(layer.row.observed.values())
        ran = row.observed.get("fprop", 0)
        lacking = max(0, steps * len(layer.converted) - ran) if ran else 0
        tokens = max(tokens, layer.flops / (2 * row.n * row.k * calls))
        gemms, flops = gemms + lacking, flops + lacking * layer.flops / (ran or 1)
    apart = [size for m in layers.apart if m.state in CONVERTED for size in sizes_of(m)]
    sizes = [size for size in apart if 0 < size.n * size.k < _NO_WEIGHT]
    work = sum(2 * size.n * size.k * tokens for size in sizes)
    return gemms + steps * len(sizes), flops + len(LEGS) * steps * work
