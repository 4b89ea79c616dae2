"""What is stated of the entries of a ledger: by log, configuration and module list."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final, TypeAlias

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.layers import sizes_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.logs.statements import HIGH_PRECISION
from fp8verify.model.claims import Claim
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Leg
from fp8verify.verdict.expected import CONVERTED, Requested
from fp8verify.verdict.ledger import Cell, Layer, Place, Program, legs_of
from fp8verify.verdict.order import (
    Listed,
    Named,
    Part,
    has_experts,
    in_order_of_sizes,
    in_order_without_sizes,
    order_of_replay,
)
from fp8verify.verdict.pins import NO_PINS, Pins

# The GEMMs decide about classes that nobody knows, and about an autocast that is on at times.
_OPEN_STATES: Final = frozenset({"unknown", "fp8_module_off"})
# Between stages of a pipeline: torch's names of the calls, and NCCL's of the kernel.
_TRANSFER: Final = lazy_pattern(r"send|recv", re.IGNORECASE)


class Statements:
    """What is stated of a run.

    Attributes:
        alike: whether all ranks may run the same layers: none is a stage of a pipeline.
        blocks: what the log says of blocks, where no module list names them; else None.
    """

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        requested: Requested,
    ) -> None:
        """Sort the modules of each rank by name and by size."""
        self._requested = requested
        self._pin_of = cache(requested.pin)
        self._leaves_high: dict[Leg, bool] = {}
        for leg in Leg:
            of_legs = map(requested.leaves_high, legs_of(leg))
            self._leaves_high[leg] = any(of_legs)
        # Launches of no known leg are mostly of others.
        self._leaves_high[Leg.UNKNOWN] = False
        self.alike = not any(map(_is_stage, ranks))
        recorded = [rank.modules for rank in ranks]
        lists = _with_conversions_of_any(recorded)
        self._lists = lists
        self._context = list(map(lists.index, lists))
        self._by_layer = {}
        for context in self._context:
            modules = lists[context]
            self._by_layer[context] = _by_layer(modules)
        pins = Pins(requested.layers)
        # What a list names is pinned by its name.
        self._pins = [NO_PINS if modules else pins for modules in lists]
        has_list = any(lists)
        is_known = self.alike and not has_list
        self.blocks = pins.first_and_last if is_known else None
        self._high_steps = list(map(requested.high_steps, ranks))

    def is_high(self, where: Place | Cell) -> bool:
        """Whether the log states that a step does not run in low precision."""
        return where.step in self._high_steps[where.rank]

    def leaves_high(self, leg: Leg) -> bool:
        """Whether the recipe keeps a leg in high precision, or one that it may be."""
        return self._leaves_high[leg]

    def context(self, rank: int) -> int:
        """Return the number of a rank's module list: equal lists have one."""
        return self._context[rank]

    def modules_of(self, rank: int, layer: Layer) -> Sequence[ModuleRecord]:
        """Return the modules that a layer may be, all of those that have a size for None."""
        by_layer = self._by_layer[self._context[rank]]
        return by_layer.get(layer, ())

    def sizes(self, rank: int) -> list[Layer]:
        """Return the sizes of a rank's modules."""
        sizes: list[Layer] = []
        by_layer = self._by_layer[self._context[rank]]
        for layer in by_layer:
            is_size = isinstance(layer, tuple)
            if is_size and layer != EXPERTS:
                sizes.append(layer)
        return sizes

    def may_be_high(
        self,
        modules: Sequence[ModuleRecord],
        leg: Leg,
    ) -> list[ModuleRecord]:
        """Return the modules of which nothing states that a leg runs in low precision."""
        return [module for module in modules if not self.is_low(module, leg)]

    def is_low(self, module: ModuleRecord, leg: Leg) -> bool:
        """Whether a module was to compute a leg in low precision, and the log does not pin it."""
        if module.state not in CONVERTED or self._is_pinned(module):
            return False
        legs = [each for each in legs_of(leg) if runs(module, each)]
        are_asked = all(self._is_asked_of(module, each) for each in legs)
        return bool(legs) and are_asked

    def _is_pinned(self, module: ModuleRecord) -> bool:
        return self._pin_of(module.fqn) is not None

    def _is_asked_of(self, module: ModuleRecord, leg: Leg) -> bool:
        """Whether neither the recipe nor a module's own configuration keeps a leg high.

        Weights of experts do not show what multiplies them.
        """
        requested = module.format_of(leg.value)
        is_left_high = self._leaves_high[leg]
        return not is_left_high and requested != HIGH_PRECISION

    def low_legs(
        self,
        modules: Iterable[ModuleRecord],
        leg: Leg,
    ) -> int:
        """Return how many launches of a leg, or of those that it may be, run low in one pass."""
        low = 0
        for module in modules:
            for each in legs_of(leg):
                low += self.is_low(module, each)
        return low

    def told_apart(
        self,
        modules: Iterable[ModuleRecord],
        leg: Leg,
    ) -> int:
        """Return how many modules run their forward product in low precision, and a leg of it not."""
        low = [module for module in modules if self.is_low(module, Leg.FPROP)]
        apart = self.may_be_high(low, leg)
        return len(apart)

    def may_be_others(
        self,
        rank: int,
        layer: Layer,
        leg: Leg,
        calls: int,
    ) -> bool:
        """Whether executions may have called other modules of a size, of which some stay high.

        So do models that take turns, as in a GAN, and layers under LayerDrop.
        """
        modules = self.modules_of(rank, layer)
        high = self.may_be_high(modules, leg)
        has_both = 0 < len(high) < len(modules)
        return has_both and calls % len(modules) > 0

    def is_open(self, module: ModuleRecord) -> bool:
        """Whether what a module is to do is not known: its class is not, or it is on at times."""
        return module.state in _OPEN_STATES and not self._is_pinned(module)

    def in_order(self, program: Program, rank: int) -> list[Named]:
        """Return the calls whose modules are known by order: indices of calls, and their modules.

        That is where an execution calls as many layers as are listed, of these sizes in this order;
        without sizes, where none of them runs low that the list keeps in high precision. Neighbors
        of one size cannot be told apart.
        """
        listed = self._listed_sizes(rank)
        by_size = in_order_of_sizes(program, listed)
        return by_size or in_order_without_sizes(program, listed, self.is_low)

    def order_of_replay(self, rank: int, launches: int) -> list[Part]:
        """Return what launches of a replay are, if they are passes through the list and back."""
        listed = self._listed_sizes(rank)
        return order_of_replay(listed, launches)

    def has_experts(self, rank: int) -> bool:
        """Whether the list has layers of single experts, of which any number may run."""
        return has_experts(self._lists[rank])

    def _listed_sizes(self, rank: int) -> Listed:
        """Return the sizes that the modules of a rank have, in the order of the list."""
        found: list[tuple[tuple[int, int], ModuleRecord]] = []
        for module in self._lists[rank]:
            for size in sizes_of(module):
                sized = (size, module)
                found.append(sized)
        return found

    def pinned(self, rank: int) -> int:
        """Return how many blocks in a row the log keeps in high precision that no list names.

        A rank may be a stage of a pipeline, and an execution a chunk of it, with these blocks.
        """
        return self._pins[rank].most_in_a_row

    def left_out(self, rank: int) -> int | None:
        """Return how many layers are all that the log leaves out; None if it may be more."""
        return self._pins[rank].layers

    @property
    def keeps_layers(self) -> bool:
        """Whether the log keeps layers or blocks in high precision."""
        return bool(self._requested.layers)

    @property
    def counts(self) -> list[Claim]:
        """The claims of the log that count converted layers, also if not of how many."""
        counts = []
        for claim in self._requested.said:
            if claim.converted:
                counts.append(claim)
        return counts


def _is_stage(rank: RankEvidence) -> bool:
    """Whether a rank sends to another: it is a stage of a pipeline."""
    names = [total.name for total in rank.trace.collectives]
    return any(map(_TRANSFER.search, names))


def runs(module: ModuleRecord, leg: Leg) -> bool:
    """Whether training runs a leg of a module: frozen weights have no wgrad."""
    return leg is not Leg.WGRAD or not module.frozen


_ByName: TypeAlias = "dict[str, ModuleRecord]"


def _with_conversions_of_any(
    by_rank: Sequence[Sequence[ModuleRecord]],
) -> list[list[ModuleRecord]]:
    """Return the modules of each rank, as converted where any rank with the same names has them."""
    known: dict[frozenset[str], _ByName] = defaultdict(dict)
    for modules in by_rank:
        names = _names_of(modules)
        for module in modules:
            if module.state in CONVERTED:
                known[names][module.fqn] = module
    lists = []
    for modules in by_rank:
        names = _names_of(modules)
        converted = known[names]
        of_rank = [converted.get(module.fqn, module) for module in modules]
        lists.append(of_rank)
    return lists


def _names_of(modules: Sequence[ModuleRecord]) -> frozenset[str]:
    return frozenset(module.fqn for module in modules)


def _by_layer(modules: Sequence[ModuleRecord]) -> dict[Layer, list[ModuleRecord]]:
    """Return the modules that each layer may be: those of its name, size or kind.

    What cannot be told may be any of them.
    """
    by_layer: dict[Layer, list[ModuleRecord]] = defaultdict(list)
    for module in modules:
        by_layer[module.fqn] = [module]
        if module.kind == "experts":
            by_layer[EXPERTS].append(module)
        for size in sizes_of(module):
            by_layer[size].append(module)
            by_layer[None].append(module)
    return by_layer
