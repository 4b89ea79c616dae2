"""How much of a rank was to run in low precision, and how much did, whatever a policy asks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

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

# Kinds of modules whose GEMMs count.
_MULTIPLYING: Final = ("linear", "experts")


class Shares(NamedTuple):
    """The share of a rank's work that ran in low precision at least, and what may have too."""

    least: float | None
    open: float


class _Work(NamedTuple):
    """Work of which something is stated, what of it was to run in low precision, and what did."""

    stated: float = 0.0
    low: float = 0.0
    measured: float = 0.0


class _InFlops:
    """The work of GEMMs whose shapes are recorded: FLOPs."""

    def __init__(self, lacking: Shortfalls) -> None:
        self.ledger = lacking.ledger

    def work(self, cell: Cell) -> float:
        """Return the work of a cell."""
        return self.ledger.cells[cell].work

    def stated(self, cell: Cell, share: float) -> _Work:
        """Return the work of a cell, if so much of it was to run in low precision."""
        work = self.work(cell)
        ran = self.ledger.cells[cell]
        return _Work(
            stated=work,
            low=share * work,
            measured=ran.low_work,
        )

    def is_known(self, index: int) -> bool:
        """Whether the work of all GEMMs of a rank is known."""
        return self.ledger.in_flops[index]


class _ByList(_InFlops):
    """The work of other GEMMs: launches, each as much as the weights of a module that it may be of."""

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        statements: Statements,
        lacking: Shortfalls,
    ) -> None:
        super().__init__(lacking)
        self.lacking = lacking
        self._ranks = ranks
        self._statements = statements
        self._weights_of = cache(self._weights_of_layer)

    def work(self, cell: Cell) -> float:
        """Return the work of a cell."""
        weights = self._weights(cell)
        count = max(1, len(weights))
        mean = sum(weights) / count
        return super().work(cell) * mean

    def stated(self, cell: Cell, share: float) -> _Work:
        """Return the work of a cell, if so much of it was to run in low precision.

        What did is what was to, as far as nothing lacks.
        """
        work = self.work(cell)
        low = share * work
        ran = self.ledger.cells[cell]
        low_or_lacking = ran.low + self.lacking.launches(cell)
        if not low_or_lacking:
            return _Work(stated=work)
        return _Work(
            stated=work,
            low=low,
            measured=low * ran.low / low_or_lacking,
        )

    def is_known(self, index: int) -> bool:
        """Whether the list has the sizes of all modules that GEMMs of a rank may be of.

        What only its time shows to be a product, and what has no known precision, may be most.
        """
        cells = self.ledger.of_rank(index)
        weights = list(map(self._weights, cells))
        are_listed = all(weights)
        lacks_sizes = any(0 in of_cell for of_cell in weights)
        unknown = self.ledger.total(cells).unknown
        rank = self._ranks[index]
        is_open = bool(unknown) or _has_hidden_high(rank)
        return are_listed and not lacks_sizes and not is_open

    def _weights(self, cell: Cell) -> list[int]:
        """Return the weights of the modules that a cell may be of: equal lists have the same."""
        context = self._statements.context(cell.rank)
        return self._weights_of(context, cell.layer)

    def _weights_of_layer(self, rank: int, layer: Layer) -> list[int]:
        modules = self._statements.modules_of(rank, layer)
        return list(map(_weight, modules))


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
        in_flops = _InFlops(lacking)
        by_list = _ByList(ranks, statements, lacking)
        self._weighing: list[_InFlops] = []
        for are_in_flops in self._ledger.in_flops:
            weighing = in_flops if are_in_flops else by_list
            self._weighing.append(weighing)
        indices = range(len(ranks))
        self._expected = list(map(self._expected_of, indices))

    def expected(self, index: int) -> ExpectedReport | None:
        """Return what was to run in low precision on a rank; None if the cells do not show it."""
        return self._expected[index]

    def _expected_of(self, index: int) -> ExpectedReport | None:
        rank = self._ranks[index]
        modules = [one for one in rank.modules if one.kind in _MULTIPLYING]
        are_known = all(module.state != "unknown" for module in modules)
        is_requested = self._requested.any and are_known
        work = self._stated_work(index)
        if not modules or not is_requested or work is None:
            return None
        left_out = [module for module in modules if not self._is_ever_low(module)]
        names = [module.fqn for module in left_out]
        has_high_steps = bool(self._requested.high_steps(rank))
        return ExpectedReport(
            share_of_flops=round(work.low, 6),
            measured_share_of_flops=round(work.measured, 6),
            left_out=tuple(patterns(names)),
            stated=has_high_steps or self._are_pinned(left_out),
        )

    def _stated_work(self, index: int) -> _Work | None:
        """Return shares of a rank's work, None unless something is stated of nearly all of it."""
        cells = self._ledger.of_rank(index)
        weighing = self._weighing[index]
        whole = sum(map(weighing.work, cells))
        stated = 0.0
        low = 0.0
        measured = 0.0
        for cell in cells:
            of_cell = self._stated_in(cell)
            stated += of_cell.stated
            low += of_cell.low
            measured += of_cell.measured
        is_known = weighing.is_known(index)
        nearly_all = (1 - NEGLIGIBLE) * whole
        is_stated = whole > 0 and stated >= nearly_all
        if is_known and is_stated:
            return _Work(
                stated=stated / whole,
                low=low / whole,
                measured=measured / whole,
            )
        return None

    def _stated_in(self, cell: Cell) -> _Work:
        """Return what of a cell was to run in low precision, nothing if nothing states it."""
        share = self._stated_share(cell)
        if share is None:
            return _Work()
        weighing = self._weighing[cell.rank]
        return weighing.stated(cell, share)

    def _is_ever_low(self, module: ModuleRecord) -> bool:
        return any(self._statements.is_low(module, leg) for leg in LEGS)

    def _are_pinned(self, modules: Sequence[ModuleRecord]) -> bool:
        """Whether the log keeps all of some modules in high precision."""
        names = [module.fqn for module in modules]
        pins = list(map(self._requested.pin, names))
        return bool(pins) and all(pins)

    def counted(self, index: int) -> CountedGemms | None:
        """Return how many GEMMs should have run in low precision, and how many of them did not.

        None where that is stated of only some of those that did, or where some perhaps lack.
        """
        cells = self._ledger.of_rank(index)
        surely = self._lacking.lacks
        perhaps = self._lacking.may_lack
        low = [cell for cell in cells if self._ledger.cells[cell].low]
        lacks = [cell for cell in cells if cell in surely]
        may_lack = [cell for cell in cells if cell in perhaps]
        is_doubted = not surely.keys() >= set(may_lack)
        counting = [*low, *lacks]
        are_stated = all(map(self._is_stated, counting))
        lacking = sum(map(self._lacking.launches, lacks))
        ran_low = self._ledger.total(low).low
        expected = ran_low + lacking
        if is_doubted or not are_stated or not expected:
            return None
        return CountedGemms(
            expected=round(expected),
            lacking=round(lacking),
        )

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
        is_vague = cell.leg is Leg.BACKWARD
        if is_vague and statements.leaves_high(cell.leg):
            # Of launches that may be dgrad or wgrad, what ran counts.
            return ran.low / ran.launches
        modules = statements.modules_of(cell.rank, cell.layer)
        is_open = any(map(statements.is_open, modules))
        if is_open or not modules:
            return None
        share = self._share_of_list(modules, cell.leg)
        is_one = share in (0, 1)
        if cell.layer == EXPERTS and not is_one:
            return None  # how often each ran is not known
        ran_alike = ran.launches % len(modules) == 0
        if cell.layer is None or is_one or ran_alike:
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
            low_legs = self._statements.low_legs([module], leg)
            low += weight * low_legs
        return low / every

    def shares(self, index: int) -> Shares:
        """Return the least share of a rank's work in low precision, and what is not known."""
        cells = self._ledger.of_rank(index)
        ran = self._ledger.total(cells)
        if not ran.launches:
            return Shares(None, 0.0)
        low = ran.low_work
        unknown = ran.work * ran.unknown / ran.launches
        if not self._ledger.in_flops[index]:
            rank = self._ranks[index]
            low = self._low_without_flops(index, cells, ran)
            unknown = max(unknown, rank.linear.unknown_share_of_time)
        return Shares(
            least=round(low, 6),
            open=round(unknown, 6),
        )

    def _low_without_flops(
        self,
        index: int,
        cells: Sequence[Cell],
        ran: Tally,
    ) -> float:
        """Return the share by the list or that of launches, or else of time, whichever is more.

        Few launches may be most of the work, and the list does not say which of its modules they
        are of. But the less counts where what has no known precision may be most of it. One grouped
        GEMM is of many experts, and so may be one that only its time shows to be a product: where
        these ran in high precision, time alone does.
        """
        rank = self._ranks[index]
        expected = self.expected(index)
        if expected is not None:
            return max(ran.low_work, expected.measured_share_of_flops)
        of_experts = [cell for cell in cells if cell.layer == EXPERTS]
        experts = self._ledger.total(of_experts)
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
