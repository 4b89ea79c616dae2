"""What log, configuration and module list state of the cells of the grid, as a share of low GEMMs.

The first that applies: a phase of the log, a pass that the recipe keeps in high precision, a pin,
the module list. Modules of one size share the GEMMs of that size; where these did not all run
equally often, as under LayerDrop, what is expected is a range, and what ran counts within it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from fp8verify.analysis.gemms import known_flops
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.layers import sizes_of
from fp8verify.analysis.promises import CONVERTED, HIGH_PRECISION, Promises, is_set_low
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.report.model.diagnosis import ExpectedReport
from fp8verify.terms import LEGS, Leg, Role
from fp8verify.text import patterns
from fp8verify.thresholds import NEGLIGIBLE
from fp8verify.verdict.grid import Cell, Grid, Tally

# The GEMMs decide about classes that nobody knows, and about an autocast that is on at times.
_OPEN_STATES = frozenset({"unknown", "fp8_module_off"})


class Stated:
    """What is stated of each cell of a run."""

    def __init__(self, ranks: Sequence[RankEvidence], promises: Promises) -> None:
        """Sort the modules of each rank by name and by size."""
        self._ranks, self._promises = ranks, promises
        by_rank: list[Sequence[ModuleRecord]] = [rank.modules for rank in ranks]
        if not any(_transfers(rank) for rank in ranks):
            by_rank = _with_conversions_of_any(by_rank)
        self._by_name = [{module.fqn: module for module in modules} for modules in by_rank]
        self._by_size = [_sizes(modules) for modules in by_rank]

    def __call__(self, cell: Cell, ran: Tally) -> float | None:
        """Return the share of a cell that is to run in low precision, None if nothing states it."""
        rank, promises = self._ranks[cell.rank], self._promises
        step = rank.trace.steps[cell.step].number if cell.step >= 0 else None
        if step is not None and promises.phase_of(step) == HIGH_PRECISION:
            return 0.0
        legs = {Leg.BACKWARD: (Leg.DGRAD, Leg.WGRAD), Leg.RECOMPUTE: (Leg.FPROP,)}
        if any(promises.leaves_high(leg.value) for leg in legs.get(cell.leg, (cell.leg,))):
            return 0.0
        if isinstance(cell.layer, str):
            module = self._by_name[cell.rank].get(cell.layer)
            modules = [] if module is None else [module]
        else:
            modules = self._by_size[cell.rank].get(cell.layer, [])
        if not modules:
            pinned = ran.calls <= self._pinned_blocks and not (rank.modules or ran.low_calls)
            return 0.0 if pinned else None
        # What a module that the log pins is to do is known, whatever its state was.
        open_ones = (m for m in modules if m.state in _OPEN_STATES)
        if any(promises.pin(module.fqn) is None for module in open_ones):
            return None
        low = sum(self.is_low(module, cell.leg) for module in modules)
        if cell.layer == EXPERTS:
            is_open = 0 < low < len(modules) or (not low and self._has_low_experts)
            return None if is_open else low / len(modules)
        return _share(ran, low, len(modules))

    def is_low(self, module: ModuleRecord, leg: Leg) -> bool:
        """Whether a module was to compute a GEMM in low precision, and the log does not pin it."""
        return is_set_low(module, leg, self._promises) and self._promises.pin(module.fqn) is None

    @cached_property
    def _has_low_experts(self) -> bool:
        """Whether experts ran in low precision: their weights do not show what multiplies them."""
        return any(
            row.precision.is_low and row.kind.classification.role is Role.GROUPED_GEMM
            for rank in self._ranks
            for row in rank.trace.trained
        )

    @cached_property
    def _pinned_blocks(self) -> int:
        """How many blocks the log keeps in high precision, of those that no module list names."""
        pins = (pin for pin in self._promises.layers if pin.is_pin and pin.match == "blocks")
        return sum(len(pin.names) for pin in pins)

    def report(self, grid: Grid, place: int) -> ExpectedReport | None:
        """Return what was to run in low precision on a rank; None if the cells do not show it."""
        rank, promises = self._ranks[place], self._promises
        cells = [cell for cell in grid.cells if cell.rank == place]
        known = [cell for cell in cells if cell in grid.stated]
        modules = [m for m in rank.modules if m.kind in ("linear", "experts")]
        if not modules or not promises.any or any(m.state == "unknown" for m in modules):
            return None
        if (
            known_flops(rank.linear) is None
            or sum(grid.cells[c].total for c in known) < 1 - NEGLIGIBLE
        ):
            return None
        left = [m for m in modules if not any(self.is_low(m, leg) for leg in LEGS)]
        high = any(promises.phase_of(step.number) == HIGH_PRECISION for step in rank.trace.steps)
        return ExpectedReport(
            share_of_flops=round(sum(grid.stated[c] * grid.cells[c].total for c in known), 6),
            measured_share_of_flops=round(sum(grid.cells[cell].low for cell in cells), 6),
            left_out=tuple(patterns(module.fqn for module in left)),
            stated=high or (bool(left) and all(promises.pin(module.fqn) for module in left)),
        )


def _transfers(rank: RankEvidence) -> bool:
    """Whether a rank is a stage of a pipeline, whose module names are its own."""
    return any("sendrecv" in total.name.lower() for total in rank.trace.collectives)


def _with_conversions_of_any(
    by_rank: Sequence[Sequence[ModuleRecord]],
) -> list[Sequence[ModuleRecord]]:
    """Return the modules of ranks that have the same names as converted where any rank did."""
    names = {frozenset(module.fqn for module in modules) for modules in by_rank if modules}
    if len(names) != 1:
        return list(by_rank)
    known = {m.fqn: m for modules in by_rank for m in modules if m.state in CONVERTED}
    return [[known.get(module.fqn, module) for module in modules] for modules in by_rank]


def _sizes(modules: Sequence[ModuleRecord]) -> dict[object, list[ModuleRecord]]:
    found: dict[object, list[ModuleRecord]] = defaultdict(list)
    for module in modules:
        if module.kind == "experts":
            found[EXPERTS].append(module)
        for size in sizes_of(module):
            found[size.n, size.k].append(module)
    return found


def _share(ran: Tally, low: int, count: int) -> float:
    """Return the share of some modules of all of a size; within a range what ran counts."""
    if not ran.calls % count or low in (0, count):
        return low / count
    repeats = -(-ran.calls // count)
    least = max(0, ran.calls - repeats * (count - low))
    return max(least, min(ran.low_calls, repeats * low)) / ran.calls
