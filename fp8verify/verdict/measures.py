"""How much of a rank was to run in low precision, and how much did, whatever a policy asks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.layers import sizes_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.model.verdict import CountedGemms, ExpectedReport
from fp8verify.terms import LEGS, Leg
from fp8verify.text import patterns
from fp8verify.thresholds import NEGLIGIBLE
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.ledger import Cell, Layer, Tally, legs_of
from fp8verify.verdict.shortfalls import Shortfalls
from fp8verify.verdict.statements import Statements


class Shares(NamedTuple):
    """The share of a rank's work that ran in low precision at least, and what may have too."""

    least: float | None
    open: float


class _Work(NamedTuple):
    """Work of which something is stated, what of it was to run in low precision, and what did."""

    stated: float = 0.0
    low: float = 0.0
    measured: float = 0.0


class Measures:
    """What was to run in low precision on each rank, and what did."""

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        requested: Requested,
        statements: Statements,
        lacking: Shortfalls,
    ) -> None:
        """Keep what ran, what is stated of it, and what it lacks."""
        self._ranks = ranks
        self._requested = requested
        self._statements = statements
        self._lacking = lacking
        self._ledger = lacking.ledger
        self._weights_of = cache(self._weights_by_list)
        self._expected = list(map(self._expected_of, range(len(ranks))))

    def expected(self, place: int) -> ExpectedReport | None:
        """Return what was to run in low precision on a rank; None if the cells do not show it."""
        return self._expected[place]

    def _expected_of(self, place: int) -> ExpectedReport | None:
        rank = self._ranks[place]
        modules = [m for m in rank.modules if m.kind in ("linear", "experts")]
        are_known = all(module.state != "unknown" for module in modules)
        is_requested = self._requested.any and are_known
        work = self._stated_work(place)
        if not modules or not is_requested or work is None:
            return None
        left_out = [module for module in modules if not self._is_ever_low(module)]
        high_steps = self._requested.high_steps(rank)
        return ExpectedReport(
            share_of_flops=round(work.low, 6),
            measured_share_of_flops=round(work.measured, 6),
            left_out=tuple(patterns(module.fqn for module in left_out)),
            stated=bool(high_steps) or self._are_pinned(left_out),
        )

    def _stated_work(self, place: int) -> _Work | None:
        """Return what of a rank's work was to run in low precision, None if that is not stated."""
        cells = self._ledger.of_rank(place)
        whole = sum(map(self._work, cells))
        of_cells = map(self._stated_in, cells)
        stated, low, measured = map(sum, zip(_Work(), *of_cells, strict=True))
        is_known = self._ledger.in_flops[place] or self._are_weighed(place)
        is_stated = whole > 0 and (1 - NEGLIGIBLE) * whole <= stated
        if is_known and is_stated:
            return _Work(stated / whole, low / whole, measured / whole)
        return None

    def _stated_in(self, cell: Cell) -> _Work:
        """Return what of a cell was to run in low precision and what did, if something says it.

        Without shapes, what did is what was to, as far as nothing lacks.
        """
        ran = self._ledger.cells[cell]
        share = self._stated_share(cell)
        if share is None:
            return _Work()
        work = self._work(cell)
        low = share * work
        if self._ledger.in_flops[cell.rank]:
            return _Work(work, low, ran.low_work)
        low_or_lacking = ran.low + self._lacking.launches(cell)
        if not low_or_lacking:
            return _Work(work)
        return _Work(work, low, low * ran.low / low_or_lacking)

    def _are_weighed(self, place: int) -> bool:
        """Whether the sizes of the list say how much work all GEMMs of a rank are.

        What only its time shows to be a product, and what has no known precision, may be most.
        """
        cells = self._ledger.of_rank(place)
        weights = list(map(self._weights, cells))
        are_known = all(weights) and not any(0 in of_cell for of_cell in weights)
        unknown = self._ledger.total(cells).unknown
        return are_known and not unknown and not _has_hidden_high(self._ranks[place])

    def _work(self, cell: Cell) -> float:
        """Return the FLOPs of a cell; without shapes the weights of its layers, by the list."""
        work = self._ledger.cells[cell].work
        if self._ledger.in_flops[cell.rank]:
            return work
        weights = self._weights(cell)
        return work * sum(weights) / max(1, len(weights))

    def _weights(self, cell: Cell) -> list[int]:
        """Return the weights of the modules that a cell may be of: equal lists have the same."""
        context = self._statements.context(cell.rank)
        return self._weights_of(context, cell.layer)

    def _weights_by_list(self, rank: int, layer: Layer) -> list[int]:
        modules = self._statements.modules_of(rank, layer)
        return list(map(_weight, modules))

    def _is_ever_low(self, module: ModuleRecord) -> bool:
        return any(self._statements.is_low(module, leg) for leg in LEGS)

    def _are_pinned(self, modules: Sequence[ModuleRecord]) -> bool:
        """Whether the log keeps all of some modules in high precision."""
        pins = [self._requested.pin(module.fqn) for module in modules]
        return bool(pins) and all(pins)

    def counted(self, place: int) -> CountedGemms | None:
        """Return how many GEMMs should have run in low precision, and how many of them did not.

        None where that is stated of only some of those that did, or where some perhaps lack.
        """
        lacking = self._lacking
        cells = self._ledger.of_rank(place)
        low = [cell for cell in cells if self._ledger.cells[cell].low]
        lacks = [cell for cell in cells if cell in lacking.lacks]
        perhaps = [cell for cell in cells if cell in lacking.may_lack]
        is_doubted = not set(perhaps) <= set(lacks)
        are_stated = all(map(self._is_stated, (*low, *lacks)))
        launches = sum(map(lacking.launches, lacks))
        expected = launches + self._ledger.total(low).low
        if is_doubted or not are_stated or not expected:
            return None
        return CountedGemms(expected=round(expected), lacking=round(launches))

    def _is_stated(self, cell: Cell) -> bool:
        by = self._lacking.by.get(cell, Witness.OTHERS)
        return by <= Witness.COUNT

    def may_stay_high(self, cell: Cell) -> bool:
        """Whether a list or the log keeps a cell in high precision."""
        ran = self._ledger.cells[cell]
        pinned = self._statements.pinned(cell.rank)
        return self._stated_share(cell) == 0 or ran.launches <= pinned

    def _stated_share(self, cell: Cell) -> float | None:
        """Return the share of a cell that is to run in low precision, None if nothing states it."""
        statements = self._statements
        ran = self._ledger.cells[cell]
        if statements.is_high(cell.place):
            return 0.0
        if cell.leg is Leg.BACKWARD and statements.leaves_high(cell.leg):
            # Of launches that may be dgrad or wgrad, what ran counts.
            return ran.low / ran.launches
        modules = statements.modules_of(cell.rank, cell.layer)
        if not modules or any(map(statements.is_open, modules)):
            return None
        share = self._share_of_list(modules, cell.leg)
        is_one = share in (0, 1)
        if cell.layer == EXPERTS and not is_one:
            return None  # how often each ran is not known
        if cell.layer is None or is_one or ran.launches % len(modules) == 0:
            return share
        least = self._lacking.least.get(cell, 0.0)
        return max(least, ran.low) / ran.launches

    def _share_of_list(
        self,
        modules: Sequence[ModuleRecord],
        leg: Leg,
    ) -> float:
        """Return the share of the weights of modules that a leg multiplies in low precision."""
        each = len(legs_of(leg))
        low = 0
        every = 0
        for module in modules:
            weight = _weight(module) or 1
            every += weight * each
            low += weight * self._statements.low_legs([module], leg)
        return low / every

    def shares(self, place: int) -> Shares:
        """Return the least share of a rank's work in low precision, and what is not known."""
        cells = self._ledger.of_rank(place)
        ran = self._ledger.total(cells)
        if not ran.launches:
            return Shares(None, 0.0)
        low = ran.low_work
        unknown = ran.work * ran.unknown / ran.launches
        if not self._ledger.in_flops[place]:
            rank = self._ranks[place]
            low = self._low_without_flops(place, cells, ran)
            unknown = max(unknown, rank.linear.unknown_share_of_time)
        return Shares(round(low, 6), round(unknown, 6))

    def _low_without_flops(
        self,
        place: int,
        cells: Sequence[Cell],
        ran: Tally,
    ) -> float:
        """Return the share by the list or that of launches, or else of time, whichever is more.

        Few launches may be most of the work, and the list does not say which of its modules they
        are of. But the less counts where what has no known precision may be most of it. One grouped
        GEMM is of many experts, and so may be one that only its time shows to be a product: where
        these ran in high precision, time alone does.
        """
        rank = self._ranks[place]
        expected = self.expected(place)
        if expected is not None:
            return max(ran.low_work, expected.measured_share_of_flops)
        experts = self._ledger.total(cell for cell in cells if cell.layer == EXPERTS)
        if experts.high or _has_hidden_high(rank):
            return rank.share
        choose = min if ran.unknown else max
        return choose(ran.low_work, rank.share)


def _has_hidden_high(rank: RankEvidence) -> bool:
    """Whether a product that only its time shows to be one ran in high precision."""
    rows = rank.trace.trained
    hidden = [row for row in rows if row.kind.classification.hidden]
    return any(not row.precision.is_low for row in hidden)


def _weight(module: ModuleRecord) -> int:
    """Return outputs times inputs of a module: of several layers their mean, 0 if not known."""
    sizes = sizes_of(module)
    weights = [outputs * inputs for outputs, inputs in sizes]
    return sum(weights) // max(1, len(weights))
