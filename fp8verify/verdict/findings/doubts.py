"""Findings on what is open: what a rank may lack, and what hides whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from msgspec.structs import replace

from fp8verify import thresholds as limits
from fp8verify.analysis.layers import Layers, sizes_of
from fp8verify.analysis.purpose import is_node_of_gemms
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.model.verdict import Finding
from fp8verify.terms import LEGS, VAGUE_LEGS, Leg
from fp8verify.text import listed
from fp8verify.verdict.coordinates import by_value
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings.ledger import LedgerFindings
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.ledger import Cell
from fp8verify.verdict.measures import Measures
from fp8verify.verdict.reasons import main_high
from fp8verify.verdict.selection import (
    amount_of,
    converted_of,
    high_of,
    layers_of,
    legs_in,
    of_one_rank,
    places_of,
)

# No weight has as many values; a module list may say anything.
_NO_WEIGHT: Final = 1 << 48


class Doubts:
    """What of the ranks is not known."""

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        requested: Requested,
        parts: LedgerFindings,
        measures: Measures,
    ) -> None:
        """Keep what is known.

        Args:
            ranks: all.
            requested: what the log and the model request.
            parts: what the ledger surely lacks.
            measures: how much of a rank ran in low precision.
        """
        self._ranks = ranks
        self._requested = requested
        self._parts = parts
        self._measures = measures
        self._ledger = parts.ledger

    def findings(self, index: int) -> Iterator[Finding]:
        """Yield the doubt about a rank, unless it surely lacks something."""
        rank = self._ranks[index]
        is_accused = index in self._parts.accused
        if is_accused or not rank.ran_low:
            return
        for found in self._open(index):
            yield replace(found, ranks=rank.numbers, per_rank=True)

    def _open(self, index: int) -> Iterator[Finding]:
        rank = self._ranks[index]
        outside = _outside_of_operators(rank)
        if outside is not None:
            yield outside
            return
        yield from self._parts.by_names(index)
        if not self._is_judged(index):
            return
        doubt = self._unseen(index) or self._doubt(index)
        if doubt is not None:
            yield doubt
            return
        yield from self._few(index)
        yield from self._hidden(index)

    def _is_judged(self, index: int) -> bool:
        """Whether what lacks decides, not that nothing trained, nor the share."""
        if not self._ranks[index].trace.backward:
            return False
        shares = self._measures.shares(index)
        share = shares.least or 0.0
        is_expected = self._measures.expected(index) is not None
        return is_expected or share >= limits.USUAL_SHARE

    # ---- legs

    def _unseen(self, index: int) -> Finding | None:
        """Return that a leg which training runs has no GEMM."""
        for leg in LEGS:
            if self._is_unseen(index, leg):
                return finding("leg-unknown", "unseen", leg=leg.value)
        return None

    def _is_unseen(self, index: int, leg: Leg) -> bool:
        """Whether a leg that training runs has no GEMM, and nothing says why."""
        rank = self._ranks[index]
        ledger = self._ledger
        vague: tuple[Leg, ...] = tuple(VAGUE_LEGS)
        if leg is Leg.FPROP:
            vague = (Leg.UNKNOWN,)
        is_seen = ledger.of_rank(index, leg, *vague)
        if is_seen or self._requested.leaves_high(leg):
            return False
        if leg is Leg.DGRAD:
            # The first layer of a model has none.
            forward = ledger.of_rank(index, Leg.FPROP)
            ran = ledger.total(forward)
            executions = places_of(forward)
            return ran.launches > len(executions)
        are_frozen = all(map(_is_frozen, rank.linears))
        is_frozen = bool(rank.linears) and are_frozen
        return leg is not Leg.WGRAD or not is_frozen

    def _doubt(self, index: int) -> Finding | None:
        """Return what perhaps lacks: of unknown precision, or of other layers."""
        lacking = self._parts.lacking
        cells = self._ledger.of_rank(index)
        doubted = of_one_rank(self._parts.doubted, index)
        perhaps: list[Cell] = []
        for cell in filter(lacking.may_lack.__contains__, cells):
            if cell not in doubted:
                perhaps.append(cell)
        work = 0.0
        for cell in (*perhaps, *doubted):
            work += lacking.work(cell, perhaps=True)
        if perhaps and work > limits.NEGLIGIBLE:
            return self._perhaps(index, perhaps)
        if doubted:
            ran = self._parts.ran(doubted)
            return finding("leg-unknown", "others", ran=ran)
        if self._is_elsewhere(cells):
            trained = self._ranks[index].trace.trained
            precision = main_high(trained)
            return finding("leg-unknown", "elsewhere", precision=precision)
        return None

    def _few(self, index: int) -> Iterator[Finding]:
        """Yield what is stated and perhaps lacks, and is too little to leave the verdict open.

        What surely lacks is told as such.
        """
        lacking = self._parts.lacking
        told = self._parts.few(index)
        stated = []
        for cell in self._ledger.of_rank(index):
            may_lack = lacking.may_lack.get(cell)
            is_stated = may_lack is not None and may_lack.is_stated
            if is_stated and cell not in told:
                stated.append(cell)
        if stated:
            doubt = self._perhaps(index, stated)
            yield replace(doubt, verdict=None)

    def _perhaps(self, index: int, cells: Sequence[Cell]) -> Finding:
        """Say which legs perhaps lack, of GEMMs of unknown precision or of unknown layers."""
        ran = self._ledger.total(cells)
        legs = legs_in(cells)
        names = [leg.value for leg in Leg if leg in legs]
        if ran.unknown:
            what = "are of unknown precision"
            count = round(ran.unknown)
            total = round(ran.launches)
        else:
            trained = self._ranks[index].trace.trained
            what = f"ran in {main_high(trained)}"
            may_lack = self._parts.lacking.may_lack
            launches = 0.0
            for cell in cells:
                launches += may_lack[cell].launches
            count = max(1, round(launches))
            total = round(ran.low) + count
        return finding(
            "leg-unknown",
            leg=listed(names, len(Leg)),
            format=self._requested.name,
            count=count,
            total=total,
            what=what,
        )

    def _is_elsewhere(self, cells: Sequence[Cell]) -> bool:
        """Whether gradients that layers lack may be GEMMs of no known leg and no known layer."""
        forward = layers_of(filter(_is_forward, cells))
        loose = []
        for cell in cells:
            runs_forward = cell.layer in forward
            if cell.leg in VAGUE_LEGS and not runs_forward:
                loose.append(cell)
        missing = self._missing_gradients(cells, limits.FIRST_LAYERS)
        ran = self._ledger.total(loose)
        launches = ran.launches or 1
        high = ran.work * ran.high / launches
        is_much = missing > limits.NEGLIGIBLE
        return is_much and high > limits.HALF * missing

    # ---- unrecognized kernels

    def _hidden(self, index: int) -> Iterator[Finding]:
        """Yield that unrecognized kernels may be the GEMMs that a rank lacks."""
        rank = self._ranks[index]
        opaque = rank.opaque_ns / (rank.linear.total_ns or 1)
        if opaque <= limits.NEGLIGIBLE:
            return
        for what, work in self._missing(index):
            if limits.NEGLIGIBLE < work < opaque / limits.HALF:
                took = rank.measure.amount(rank.opaque_ns)
                yield finding("opaque-kernels", "hidden", took=took, what=what)

    def _missing(self, index: int) -> Iterator[tuple[str, float]]:
        """Yield what of a rank lacks GEMMs, and how much work, as a fraction of the rank's."""
        rank = self._ranks[index]
        yield from self._short_steps(index)
        # What nobody knows inside a layer's own node is rather its gradient.
        first = limits.FIRST_LAYERS
        if _has_unknown_gradients(rank):
            first = 0
        cells = self._ledger.of_rank(index)
        missing = self._missing_gradients(cells, first)
        yield "backward GEMMs were not recognized", missing
        steps = len(rank.trace.steps)
        gemms, flops = _not_seen(rank.layers, steps)
        what = f"{gemms} forward GEMMs of converted layers were not recognized"
        whole = rank.layers.flops or flops or 1
        yield what, flops / whole

    def _short_steps(self, index: int) -> Iterator[tuple[str, float]]:
        """Yield the steps that lack GEMMs, and the share of all GEMMs that is."""
        steps = self._ranks[index].trace.steps
        cells = self._ledger.of_rank(index)
        of_steps = by_value(cells, ["step"])
        calls: list[float] = []
        for number in range(len(steps)):
            ran = self._ledger.total(of_steps[number,])
            calls.append(ran.launches)
        usual = median(calls or [0])
        numbers = []
        lacking = 0.0
        for step, count in zip(steps, calls, strict=True):
            if count < usual / 2:
                numbers.append(str(step.number))
                lacking += usual - count
        if numbers:
            named = listed(numbers, limits.SHOWN_NUMBERS)
            every = sum(calls) or 1
            yield f"steps {named} lack GEMMs", lacking / every

    def _missing_gradients(self, cells: Sequence[Cell], first_layers: int) -> float:
        """Return the work of gradients that layers in low precision have fewer of than others.

        The first layers of a model have no dgrad.
        """
        executions = len(places_of(cells))
        missing = 0.0
        by_layer = by_value(cells, ["layer"])
        for of_layer in by_layer.values():
            ran = self._ledger.total(of_layer)
            if not ran.low:
                continue
            by_leg = by_value(of_layer, ["leg"])
            launches = {}
            for leg in (*LEGS, Leg.BACKWARD):
                of_leg = self._ledger.total(by_leg[leg,])
                launches[leg] = of_leg.launches
            whole = max(map(launches.__getitem__, LEGS))
            without = executions * first_layers
            dgrad = whole - launches[Leg.DGRAD] - without
            wgrad = whole - launches[Leg.WGRAD]
            gone = max(0, dgrad) + wgrad - launches[Leg.BACKWARD]
            missing += max(0, gone) * ran.work / ran.launches
        return missing


def _outside_of_operators(rank: RankEvidence) -> Finding | None:
    """Return that GEMMs in high precision ran outside of operators, and may train."""
    outside = high_of(rank.trace.unexplained)
    high = amount_of(outside)
    total = high + rank.linear.total_ns
    if high <= limits.NEGLIGIBLE * total:
        return None
    return finding(
        "leg-unknown",
        "outside",
        took=rank.measure.amount(high, total),
        precision=main_high(outside),
    )


def _is_forward(cell: Cell) -> bool:
    return cell.leg is Leg.FPROP


def _is_frozen(module: ModuleRecord) -> bool:
    return module.frozen


def _has_unknown_gradients(rank: RankEvidence) -> bool:
    """Whether unrecognized kernels ran in the nodes of layers."""
    names: set[str] = set()
    for total in rank.unrecognized:
        names.update(total.kind.op.around)
    return any(map(is_node_of_gemms, names))


def _not_seen(layers: Layers, steps: int) -> tuple[int, float]:
    """Return how many forward GEMMs the converted layers lack in some step, and FLOPs of these.

    The FLOPs are those of all three legs.
    """
    gemms = 0
    flops = 0.0
    tokens = 0.0
    for layer in layers.classes:
        row = layer.row
        calls = sum(row.observed.values())
        ran = row.observed.get("fprop", 0)
        lacking = 0
        if ran:
            wanted = steps * len(layer.converted)
            lacking = max(0, wanted - ran)
        of_token = 2 * row.n * row.k * calls
        tokens = max(tokens, layer.flops / of_token)
        gemms += lacking
        flops += lacking * layer.flops / (ran or 1)
    weights: list[int] = []
    for module in converted_of(layers.apart):
        for outputs, inputs in sizes_of(module):
            weight = outputs * inputs
            if 0 < weight < _NO_WEIGHT:
                weights.append(weight)
    work = 2 * tokens * sum(weights)
    gemms += steps * len(weights)
    flops += len(LEGS) * steps * work
    return gemms, flops
