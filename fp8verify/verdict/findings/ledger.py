"""Findings on what the ledger lacks, by the coordinate that explains the most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from msgspec.structs import replace

from fp8verify import thresholds as limits
from fp8verify.analysis.calls import Execution, Tie, of_rows
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.layers import Layers, sizes_of
from fp8verify.analysis.purpose import is_node_of_gemms
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.verdict import CountedGemms, ExpectedReport, Finding
from fp8verify.terms import (
    BACKWARD_LEGS,
    GRADIENT_LEGS,
    LEGS,
    VAGUE_LEGS,
    Leg,
    low_precision_name,
)
from fp8verify.text import (
    abridged,
    counted,
    enumerated,
    in_sentences,
    listed,
    of_flops,
    patterns,
)
from fp8verify.verdict.advice import facts_of
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.expected import CONVERTED, Promises
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.ledger import Cell, Layer, Ledger
from fp8verify.verdict.reasons import main_high
from fp8verify.verdict.shortfalls import (
    VALUE_OF,
    Lack,
    Shortfall,
    Shortfalls,
    by_value,
)
from fp8verify.verdict.statements import Statements, legs_of

# No weight has as many values; a module list may say anything.
_NO_WEIGHT = 1 << 48


class Shares(NamedTuple):
    """The share of a rank's work that ran in low precision at least, and what may have too."""

    least: float | None
    open: float


class LedgerFindings:
    """What the ledger of a run says of its parts.

    Attributes:
        ledger: what ran.
        statements: what is stated of it.
        lacking: what it lacks.
        shortfalls: what explains the cells that are short.
        accused: the places of the ranks that fall short.
        alone: those of ranks that lack FP8 as ranks, whatever their steps and legs.
    """

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        promises: Promises,
        executions: Sequence[Sequence[Execution]],
        seen: str = "",
    ) -> None:
        """Explain what cells lack, of ranks that lack more than little and of whole steps.

        Args:
            ranks: all.
            promises: what the log and the model promised.
            executions: of each rank, those that can be compared with those of the others.
            seen: where the GEMMs ran, if that is not the window.
        """
        self._ranks = ranks
        self._promises = promises
        self._seen = seen
        self.statements = Statements(ranks, promises)
        self.ledger = Ledger(executions)
        self.lacking = Shortfalls(self.ledger, self.statements)
        counting = self.lacking.counting()
        self._few = [cell for cell in self.lacking.lacks if cell not in counting]
        found = self.lacking.explain(counting)
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

    def _is_doubt(self, short: Shortfall) -> bool:
        """Whether parts may be of other layers: chunks of another tower, or stages of a pipeline.

        What a list, the log or a call states is none.
        """
        lacks = (self.lacking.lacks[cell] for cell in short.cells)
        if all(lack.is_certain for lack in lacks):
            return False
        if short.coordinates[0] == "rank" and all(
            self._ranks[x].ran_low for x in _places(short)
        ):
            return self._may_be_stages()
        return "micro-batch" in short.coordinates and any(
            x.layer is None for x in short.cells
        )

    def _may_be_stages(self) -> bool:
        """Whether ranks did not run all layers equally often, and nothing says why."""
        counts: dict[tuple[Layer, Leg], Counter[int]] = defaultdict(Counter)
        for cell, ran in self.ledger.cells.items():
            counts[cell.layer, cell.leg][cell.rank] += round(ran.launches)
        ranks = len({cell.rank for cell in self.ledger.cells})
        alike = (
            len(of_rank) == ranks and len(set(of_rank.values())) == 1
            for of_rank in counts.values()
        )
        return self.statements.alike and not all(alike)

    def findings(self, place: int) -> Iterator[Finding]:
        """Yield what is short of a rank, then what is open."""
        yield from (found for found, places in self._findings if place in places)
        rank = self._ranks[place]
        if not rank.ran_low:
            return
        doubts = self._open(place) if place not in self.accused else ()
        few = (*self._too_few(place), *self._of_no_module(place))
        for found in (*self._by_recipe(place), *few, *doubts):
            yield replace(found, ranks=rank.numbers, per_rank=True)

    def _too_few(self, place: int) -> Iterator[Finding]:
        """Yield what surely lacks, and is too little of the rank's work to count."""
        cells = [
            cell
            for cell in self._few
            if cell.rank == place and self._is_of_a_layer(cell)
        ]
        lacks = round(sum(self._lack(cell).launches for cell in cells))
        if not lacks:
            return
        where: dict[str, None] = {}
        for cell in cells:
            leg, layer, step = (
                name_value(self._ranks, cell, name) for name in ("leg", "layer", "step")
            )
            where[f"{leg} of {layer} in {step}"] = None
        yield finding(
            "layer-not-fp8",
            "few",
            count=counted(lacks, "GEMM"),
            format=self._promises.name,
            precision=self.ledger.main_high(cells),
            where=abridged(list(where), limits.SHOWN),
            layers=dict.fromkeys(n for cell in cells for n in self._lack(cell).names),
        )

    def _is_of_a_layer(self, cell: Cell) -> bool:
        """Whether what lacks is a layer's: without a size, launches of a leg may be attention's."""
        strongest = min(self._lack(cell).by)
        if cell.layer is None and strongest is Witness.CALL:
            entries = self.ledger.entries(cell)
            return any(e.tie is Tie.NUMBER and not e.is_low for e in entries)
        return strongest < Witness.OTHERS

    def _of_no_module(self, place: int) -> Iterator[Finding]:
        """Yield what ran in high precision without a size, where the list keeps no module there."""
        statements = self.statements
        modules = statements.modules_of(place, None)
        if place in self.accused or not modules:
            return
        cells = [
            cell
            for cell in self.ledger.of_rank(place)
            if cell.layer is None
            and cell not in self.lacking.lacks
            and self.ledger.cells[cell].high
            and not statements.is_high(cell.place)
            and not statements.may_be_high(modules, cell.leg)
        ]
        high = round(self.ledger.total(cells).high)
        if high:
            yield finding(
                "layer-not-fp8",
                "of-no-module",
                count=counted(high, "GEMM"),
                precision=self.ledger.main_high(cells),
            )

    def _by_names(self, rank: RankEvidence) -> list[Finding]:
        """Return what the eager step shows that names the layers of compiled code."""
        naming = rank.trace.naming
        if naming is None or rank.trace.named is not naming:
            return []
        seen = f" (seen in step {naming.step}, which ran without torch.compile)"
        named = LedgerFindings([rank], self._promises, [[of_rows(naming.rows)]], seen)
        return [found for found, _ in named._findings]

    def _by_recipe(self, place: int) -> Iterator[Finding]:
        """Yield the legs that the recipe keeps in high precision, and that ran there."""
        for leg in LEGS:
            cells = self.ledger.of_rank(place, leg)
            share = self.ledger.total(cells).share
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
        statements = self.statements
        modules = [m for m in rank.modules if m.kind in ("linear", "experts")]
        known = promises.any and all(m.state != "unknown" for m in modules)
        if not modules or not known or not self.ledger.in_flops[place]:
            return None
        share = 0.0
        stated = 0.0
        measured = 0.0
        for cell in self.ledger.of_rank(place):
            ran = self.ledger.cells[cell]
            measured += ran.low_work
            of_cell = self.stated_share(cell)
            if of_cell is not None:
                stated += ran.work
                share += of_cell * ran.work
        if stated < 1 - limits.NEGLIGIBLE:
            return None
        left = [
            m for m in modules if not any(statements.is_low(m, leg) for leg in LEGS)
        ]
        high = any(
            promises.is_high(rank, step) for step in range(len(rank.trace.steps))
        )
        return ExpectedReport(
            share_of_flops=round(share, 6),
            measured_share_of_flops=round(measured, 6),
            left_out=tuple(patterns(module.fqn for module in left)),
            stated=high
            or (bool(left) and all(promises.pin(module.fqn) for module in left)),
        )

    def counted(self, place: int) -> CountedGemms | None:
        """Return how many GEMMs should have run in low precision, and how many of them did not.

        None where that is stated of only some of those that did, or where some perhaps lack.
        """
        expected = 0.0
        lacking = 0.0
        for cell in self.ledger.of_rank(place):
            ran = self.ledger.cells[cell]
            lack = self.lacking.lacks.get(cell)
            by = self.lacking.by.get(cell)
            is_stated = by is not None and by <= Witness.COUNT
            if cell in self.lacking.may_lack and lack is None:
                return None
            if not is_stated and (ran.low or lack is not None):
                return None
            lacks = lack.launches if lack is not None else 0.0
            expected += ran.low + lacks
            lacking += lacks
        if not expected:
            return None
        return CountedGemms(expected=round(expected), lacking=round(lacking))

    def stated_share(self, cell: Cell) -> float | None:
        """Return the share of a cell that is to run in low precision, None if nothing states it."""
        statements = self.statements
        ran = self.ledger.cells[cell]
        if statements.is_high(cell.place):
            return 0.0
        if statements.leaves_high(cell.leg):
            # Of launches that may be dgrad or wgrad, what ran counts.
            return ran.low / ran.launches if cell.leg is Leg.BACKWARD else 0.0
        modules = statements.modules_of(cell.rank, cell.layer)
        if not modules or any(statements.is_open(m) for m in modules):
            return None
        low = statements.low_legs(modules, cell.leg)
        each = len(modules) * len(legs_of(cell.leg))
        if cell.layer == EXPERTS and 0 < low < each:
            return None
        if low in (0, each) or not ran.launches % len(modules):
            return low / each
        least = self.lacking.least.get(cell, 0.0)
        return max(least, ran.low) / ran.launches

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
        if self._is_counted(short):
            return self._said_of_count(short)
        if names[0] == "layer":
            return finding("layer-not-fp8", "less" if less else "", **facts)
        if {cell.leg for cell in short.cells} == {Leg.RECOMPUTE}:
            return finding("recompute-not-fp8", "kernels", **facts)
        rank = self._ranks[next(iter(short.cells)).rank]
        return finding("leg-not-fp8", **facts, holds=facts_of(rank))

    def _is_counted(self, short: Shortfall) -> bool:
        """Whether only a count of the log shows it, so nobody knows which layers it is."""
        by = {witness for cell in short.cells for witness in self._lack(cell).by}
        return by == {Witness.COUNT}

    def _lacking(self, short: Shortfall) -> int:
        """Return how many GEMMs lack; of what only other calls of a layer show, all in high."""
        lacks = 0.0
        for cell in short.cells:
            lack = self._lack(cell)
            if lack.by == {Witness.OTHERS}:
                lacks += self.ledger.cells[cell].high
            else:
                lacks += lack.launches
        return round(lacks)

    def _said_of_count(self, short: Shortfall) -> Finding:
        lacks = round(sum(self._lack(cell).launches for cell in short.cells))
        claim = self.statements.counts[0]
        return finding(
            "layer-not-fp8",
            "counted",
            ranks=[n for place in _places(short) for n in self._ranks[place].numbers],
            count=counted(lacks, "GEMM"),
            format=self._promises.name,
            which=f"log {claim.place} says that {claim.converted} of {claim.total} layers were",
        )

    def _facts(self, short: Shortfall, names: Sequence[str]) -> dict[str, Any]:
        """Return what the sentences of all codes name."""
        found = {name: self._named(short, name) for name in short.coordinates}
        fqns = self._names_of(short)
        places = sorted(_places(short))
        legs = {cell.leg for cell in short.cells}
        layers = {cell.layer for cell in short.cells}
        of_layers = "layer" in names
        alike = (c for c in self.ledger.cells if c.layer in layers or not of_layers)
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
            "lacks": counted(self._lacking(short), "GEMM"),
            "others": counted(sum(rank.ran_low for rank in self._ranks), "other rank"),
            "where": self._micro_batches(short),
            "ran": f"{self._ran((c for c in alike if c.leg in legs), of)}{self._seen}{after}",
            "count": counted(fqns or list(short.values), "converted layer"),
            "names": named,
            "format": self._promises.name,
            "formats": low_precision_name(
                self._ranks[short.cells[0].rank].linear.kernels
            ),
            "share": f"{self._seen}{of_flops(self.ledger.total(short.cells).work / len(places))}",
            "most": short.ran.share or 0.0,
            "usual": short.usual,
            "precision": self.ledger.main_high(short.cells),
        }

    def _micro_batches(self, short: Shortfall) -> str:
        """Say which micro-batches are short: by number where those of every step are."""
        lacking = {cell.place for cell in short.cells}
        every = {cell.place for cell in self.ledger.cells}
        numbers = {place.micro_batch for place in lacking}
        alike = {place for place in every if place.micro_batch in numbers}
        counts = f"{len(lacking)} of {len(every)}"
        has_steps = all(place.step >= 0 for place in every)
        if lacking != alike or len(numbers) > limits.SHOWN_NUMBERS or not has_steps:
            return f"{counts} micro-batches"
        named = self._named(short, "micro-batch")
        steps = {place[:2] for place in every}
        return f"{named} of each step ({counts})" if len(steps) > 1 else named

    def _named(self, short: Shortfall, name: str) -> str:
        """Name the values of a coordinate, as a sentence does."""
        cells = sorted(short.cells, key=lambda cell: str(VALUE_OF[name](cell)).zfill(9))
        values = list(
            dict.fromkeys(name_value(self._ranks, cell, name) for cell in cells)
        )
        if name == "layer":
            shown = patterns(self._names_of(short)) or values
            return abridged(in_sentences(shown), limits.SHOWN_NUMBERS)
        plural = {
            "step": "steps",
            "micro-batch": "micro-batches",
            "rank": "ranks",
        }.get(name)
        are_numbered = all(value.rpartition(" ")[2].isdecimal() for value in values)
        if plural is None or len(values) == 1 or not are_numbered:
            return listed(values)
        numbers = [value.rpartition(" ")[2] for value in values]
        return f"{plural} {listed(numbers, limits.SHOWN_NUMBERS)}"

    def _names_of(self, short: Shortfall) -> tuple[str, ...]:
        """Return the names of the converted modules that layers of a shortfall are."""
        layers = dict.fromkeys((cell.rank, cell.layer) for cell in short.cells)
        names = [layer for _, layer in layers if isinstance(layer, str)]
        by_order = self._named_by_order(short)
        of_layers = "layer" in short.coordinates
        if by_order and (of_layers or {layer for _, layer in layers} == {None}):
            return by_order
        if not of_layers and len(names) < len(layers):
            return ()
        named = [name for cell in short.cells for name in self._lack(cell).names]
        if named and not names:
            return tuple(dict.fromkeys(named))
        modules = (m for layer in layers for m in self.statements.modules_of(*layer))
        converted = [m.fqn for m in modules if m.state in CONVERTED or m.fqn in names]
        return tuple(dict.fromkeys(converted or names))

    def _named_by_order(self, short: Shortfall) -> tuple[str, ...]:
        """Return the modules that the order of calls names, none unless it names all that lack.

        Gradients need not be in order, so a layer is named by those of its cells that are.
        """
        named: dict[str, None] = {}
        layers = set()
        for cell in short.cells:
            lack = self._lack(cell)
            if Witness.NAMES in lack.by and not isinstance(cell.layer, str):
                named.update(dict.fromkeys(lack.names))
                layers.add(cell.layer)
        return tuple(named) if layers == {cell.layer for cell in short.cells} else ()

    def _lack(self, cell: Cell) -> Lack:
        return self.lacking.lacks[cell]

    def _ran(self, cells: Iterable[Cell], of: str = "") -> str:
        """Say how many GEMMs of some legs ran in high precision, of both where they are mixed."""
        ledger = self.ledger
        cells = list(cells)
        gradients = [
            cell._replace(leg=leg)
            for cell in cells
            for leg in BACKWARD_LEGS
            if cell.leg in GRADIENT_LEGS
        ]
        gradients = [cell for cell in gradients if cell in ledger.cells]
        if any(cell.leg is Leg.BACKWARD for cell in gradients):
            cells = list(dict.fromkeys([*cells, *gradients]))
        ran = ledger.total(cells)
        measure = self._ranks[0].measure
        legs = {cell.leg for cell in cells}
        name = enumerated([leg.value for leg in Leg if leg in legs], len(Leg))
        if legs == {Leg.RECOMPUTE}:
            name = "recomputed forward"
        elif Leg.BACKWARD in legs and len(legs) > 1 and legs <= {*BACKWARD_LEGS}:
            name = "gradient"
        elif Leg.UNKNOWN in legs:
            name = "linear-layer"
        main = ledger.main_high(cells)
        time_ns, high_ns = ledger.times(cells)
        if not ran.low and not ran.unknown:
            return f"every {name} GEMM{of} ran in {main} ({measure.amount(high_ns)})"
        took = measure.amount(high_ns, time_ns)
        high = round(ran.launches - ran.low)
        return (
            f"{high} of {round(ran.launches)} {name} GEMMs{of} ran in {main} ({took})"
        )

    # ---- what is open

    def _open(self, place: int) -> Iterator[Finding]:
        """Yield the doubt about a rank, if what may be missing is more than little."""
        rank = self._ranks[place]
        outside = [row for row in rank.trace.unexplained if not row.precision.is_low]
        high = sum(row.time_ns for row in outside)
        total = rank.linear.total_ns
        if high > limits.NEGLIGIBLE * (high + total):
            took = rank.measure.amount(high, high + total)
            yield finding(
                "leg-unknown", "outside", took=took, precision=main_high(outside)
            )
            return
        named = self._by_names(rank)
        yield from named
        expected = self.expected(place)
        if not rank.trace.backward or (
            expected is None and (self.shares(place).least or 0) < limits.USUAL_SHARE
        ):
            return  # the share decides, or that nothing trained
        unseen = next((leg for leg in LEGS if self._is_unseen(place, leg)), None)
        if unseen is not None:
            yield finding("leg-unknown", "unseen", leg=unseen.value)
            return
        doubt = self._doubt(place)
        if doubt is not None:
            yield doubt
            return
        opaque = rank.opaque_ns / (rank.linear.total_ns or 1)
        for what, work in self._missing(place) if opaque > limits.NEGLIGIBLE else ():
            if work > limits.NEGLIGIBLE and opaque > limits.HALF * work:
                yield finding(
                    "opaque-kernels", "hidden", ms=rank.opaque_ns / 1e6, what=what
                )

    def may_stay_high(self, cell: Cell) -> bool:
        """Whether a list or the log keeps a cell in high precision."""
        ran = self.ledger.cells[cell]
        pinned = self.statements.pinned(cell.rank)
        return self.stated_share(cell) == 0 or ran.launches <= pinned

    def shares(self, place: int) -> Shares:
        """Return the least share of a rank's work in low precision, and what is not known.

        Without sizes launches count, or time where that is more: few of them may be most of the
        work, but the less where what has no known precision may be most of it. One grouped GEMM is
        of many experts, so beside these time alone does.
        """
        cells = self.ledger.of_rank(place)
        ran = self.ledger.total(cells)
        if not ran.launches:
            return Shares(None, 0.0)
        low = ran.low_work
        unknown = ran.work * ran.unknown / ran.launches
        if not self.ledger.in_flops[place]:
            share = self._ranks[place].share
            experts = self.ledger.total(c for c in cells if c.layer == EXPERTS)
            if experts.high:
                low = share
            elif ran.unknown:
                low = min(low, share)
            else:
                low = max(low, share)
            unknown = max(unknown, self._ranks[place].linear.unknown_share_of_time)
        return Shares(round(low, 6), round(unknown, 6))

    def _doubt(self, place: int) -> Finding | None:
        """Return what perhaps lacks: of unknown precision, or of other layers."""
        cells = self.ledger.of_rank(place)
        lacking = self.lacking
        precision = main_high(self._ranks[place].trace.trained)
        doubted = [cell for cell in self._doubts if cell.rank == place]
        perhaps = [c for c in cells if c in lacking.may_lack and c not in doubted]
        work = sum(lacking.work(c, lacking.may_lack) for c in [*perhaps, *doubted])
        if work > limits.NEGLIGIBLE and perhaps:
            ran = self.ledger.total(perhaps)
            legs = {cell.leg for cell in perhaps}
            return finding(
                "leg-unknown",
                leg=listed([leg.value for leg in Leg if leg in legs], len(Leg)),
                format=self._promises.name,
                count=round(ran.unknown or ran.launches - ran.low),
                total=round(ran.launches),
                what="are of unknown precision"
                if ran.unknown
                else f"ran in {precision}",
            )
        if doubted:
            return finding("leg-unknown", "others", ran=self._ran(doubted))
        if self._is_elsewhere(cells):
            return finding("leg-unknown", "elsewhere", precision=precision)
        return None

    def _is_unseen(self, place: int, leg: Leg) -> bool:
        """Whether a leg that training runs has no GEMM, and nothing says why."""
        rank = self._ranks[place]
        ledger = self.ledger
        vague = VAGUE_LEGS if leg is not Leg.FPROP else (Leg.UNKNOWN,)
        if ledger.of_rank(place, leg, *vague) or self._promises.leaves_high(leg):
            return False
        frozen = rank.linears and all(module.frozen for module in rank.linears)
        if leg is Leg.WGRAD and frozen:
            return False
        forward = ledger.of_rank(place, Leg.FPROP)
        calls = ledger.total(forward).launches
        return leg is not Leg.DGRAD or calls > len({cell[:3] for cell in forward})

    def _missing(self, place: int) -> Iterator[tuple[str, float]]:
        """Yield what of a rank lacks GEMMs, and how much work, as a fraction of the rank's."""
        rank = self._ranks[place]
        cells = self.ledger.of_rank(place)
        of_steps = by_value(cells, ["step"])
        steps = rank.trace.steps
        total = self.ledger.total
        calls = [total(of_steps[n,]).launches for n in range(len(steps))]
        usual = median(calls or [0])
        few = [count for count in calls if count < usual / 2]
        if few:
            pairs = zip(steps, calls, strict=True)
            numbers = [str(step.number) for step, count in pairs if count < usual / 2]
            what = f"steps {listed(numbers, limits.SHOWN_NUMBERS)} lack GEMMs"
            yield what, sum(usual - count for count in few) / (sum(calls) or 1)
        kinds = [total.kind for total in rank.unrecognized]
        # What nobody knows inside a layer's own node is rather its gradient.
        inside = any(
            is_node_of_gemms(name) for kind in kinds for name in kind.op.around
        )
        missing = self._missing_gradients(cells, 0 if inside else limits.FIRST_LAYERS)
        yield "backward GEMMs were not recognized", missing
        gemms, flops = _not_seen(rank.layers, len(steps))
        what = f"{gemms} forward GEMMs of converted layers were not recognized"
        yield what, flops / (rank.layers.flops or flops or 1)

    def _is_elsewhere(self, cells: Sequence[Cell]) -> bool:
        """Whether gradients that layers lack may be GEMMs of no known leg and no known layer."""
        forward = {cell.layer for cell in cells if cell.leg is Leg.FPROP}
        loose = (c for c in cells if c.leg in VAGUE_LEGS and c.layer not in forward)
        missing = self._missing_gradients(cells)
        ran = self.ledger.total(loose)
        high = ran.work * ran.high / (ran.launches or 1)
        return missing > limits.NEGLIGIBLE and high > limits.HALF * missing

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
            ran = self.ledger.total(of_layer)
            legs = (*LEGS, Leg.BACKWARD)
            calls = {leg: self.ledger.total(by_leg[leg,]).launches for leg in legs}
            whole = max(calls[leg] for leg in LEGS)
            dgrad = max(0, whole - calls[Leg.DGRAD] - parts * first_layers)
            gone = dgrad + whole - calls[Leg.WGRAD] - calls[Leg.BACKWARD]
            missing += max(0, gone) * ran.work / ran.launches if ran.low else 0.0
        return missing


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
