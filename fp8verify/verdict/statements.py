"""What is stated of the entries of a ledger: by log, configuration and module list."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.layers import sizes_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.logs.statements import HIGH_PRECISION, LayerClaim
from fp8verify.model.claims import Claim
from fp8verify.terms import GRADIENT_LEGS, LEGS, Leg, Role
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.expected import CONVERTED, Promises
from fp8verify.verdict.ledger import Layer, Place, Program

_LEGS_OF: Final = {
    Leg.BACKWARD: GRADIENT_LEGS,
    Leg.RECOMPUTE: (Leg.FPROP,),
    Leg.UNKNOWN: LEGS,
}
# The GEMMs decide about classes that nobody knows, and about an autocast that is on at times.
_OPEN_STATES: Final = frozenset({"unknown", "fp8_module_off"})
# In Mixtral, DeepSeek and Qwen of Hugging Face: "mlp.experts.3.up_proj".
_EXPERT: Final = re.compile(r"experts?\.\d+(?:\.|$)")
# The path of a layer within a block: "layers.0.attention.wo".
_IN_BLOCK: Final = re.compile(r"\.\d+\.\w")
# Between stages of a pipeline: torch's names of the calls, and NCCL's of the kernel.
_TRANSFER: Final = re.compile(r"send|recv", re.IGNORECASE)
# Names of output heads in Hugging Face, torchtitan, Megatron-LM and nanoGPT.
HEAD: Final = re.compile(
    r"(?:^|\.)(?:lm_head|head|output|output_layer|embed_out|classifier)$"
)


def legs_of(leg: Leg) -> tuple[Leg, ...]:
    """Return the legs of a call that a launch may be; a recomputed product is one of fprop."""
    return _LEGS_OF.get(leg, (leg,))


class Part(NamedTuple):
    """Launches of a replay that follow one another, each of a module and a leg of it."""

    legs: tuple[tuple[ModuleRecord, Leg], ...]


class Blocks(NamedTuple):
    """The blocks of a model, by the log: how many, and the numbers of those in high precision."""

    total: int
    pinned: frozenset[int]


class Statements:
    """What is stated of a run.

    Attributes:
        alike: whether all ranks may run the same layers: none is a stage of a pipeline.
        blocks: what the log says of blocks, where no module list names them; else None.
    """

    def __init__(self, ranks: Sequence[RankEvidence], promises: Promises) -> None:
        """Sort the modules of each rank by name and by size."""
        self._ranks = ranks
        self._promises = promises
        self._leaves_high = {
            leg: any(map(promises.leaves_high, legs_of(leg))) for leg in Leg
        }
        # Launches of no known leg are mostly of others.
        self._leaves_high[Leg.UNKNOWN] = False
        collectives = (total for rank in ranks for total in rank.trace.collectives)
        self.alike = not any(_TRANSFER.search(total.name) for total in collectives)
        by_rank: list[Sequence[ModuleRecord]] = [rank.modules for rank in ranks]
        if self.alike:
            by_rank = _with_conversions_of_any(by_rank)
        lists: list[Sequence[ModuleRecord]] = []
        self._context: list[int] = []
        for modules in by_rank:
            if modules not in lists:
                lists.append(modules)
            self._context.append(lists.index(modules))
        self._lists = lists
        self._by_layer = list(map(_by_layer, lists))
        self._pinned = self._find_pinned()
        self.blocks = self._find_blocks()
        low = (row for r in ranks for row in r.trace.trained if row.precision.is_low)
        self._has_low_experts = any(
            row.kind.classification.role is Role.GROUPED_GEMM for row in low
        )
        self._high: dict[tuple[int, int], bool] = {}

    def is_high(self, place: Place) -> bool:
        """Whether the log states that a step does not run in low precision."""
        key = place.rank, place.step
        if key not in self._high:
            rank = self._ranks[place.rank]
            is_high = place.step >= 0 and self._promises.is_high(rank, place.step)
            self._high[key] = is_high
        return self._high[key]

    def leaves_high(self, leg: Leg) -> bool:
        """Whether the recipe keeps a leg in high precision, or one that it may be."""
        return self._leaves_high[leg]

    def context(self, rank: int) -> int:
        """Return the number of a rank's module list: equal lists have one."""
        return self._context[rank]

    def modules_of(self, rank: int, layer: Layer) -> Sequence[ModuleRecord]:
        """Return the modules that a layer may be, all of those that have a size for None."""
        return self._by_layer[self._context[rank]].get(layer, ())

    def may_be_high(
        self,
        modules: Sequence[ModuleRecord],
        leg: Leg,
    ) -> list[ModuleRecord]:
        """Return the modules of which nothing states that a leg runs in low precision."""
        return [module for module in modules if not self.is_low(module, leg)]

    def is_low(self, module: ModuleRecord, leg: Leg) -> bool:
        """Whether a module was to compute a leg in low precision, and the log does not pin it."""
        promises = self._promises
        if module.state not in CONVERTED or promises.pin(module.fqn) is not None:
            return False
        # Weights of experts do not show what multiplies them.
        legs = legs_of(leg)
        formats = {module.format_of(each.value) for each in legs}
        by_recipe = any(self._leaves_high[each] for each in legs)
        return HIGH_PRECISION not in formats and not by_recipe

    def low_legs(self, modules: Iterable[ModuleRecord], leg: Leg) -> int:
        """Return how many launches of a leg, or of those that it may be, run low in one pass."""
        low = 0
        for module in modules:
            low += sum(self.is_low(module, each) for each in legs_of(leg))
        return low

    def tells_apart(self, module: ModuleRecord, leg: Leg) -> bool:
        """Whether a module runs its forward product in low precision, and a leg of it not."""
        return self.is_low(module, Leg.FPROP) and not self.is_low(module, leg)

    def may_be_others(self, rank: int, layer: Layer, leg: Leg, calls: int) -> bool:
        """Whether executions may have called other modules of a size, of which some stay high.

        So do models that take turns, as in a GAN, and layers under LayerDrop.
        """
        modules = self.modules_of(rank, layer)
        high = len(self.may_be_high(modules, leg))
        return 0 < high < len(modules) and calls % len(modules) > 0

    def is_open(self, module: ModuleRecord) -> bool:
        """Whether what a module is to do is not known: its class is not, or it is on at times."""
        return module.state in _OPEN_STATES and self._promises.pin(module.fqn) is None

    def in_order(
        self,
        program: Program,
        rank: int,
    ) -> list[tuple[list[int], list[ModuleRecord]]]:
        """Return the calls whose modules are known by order: places of calls, and their modules.

        That is where an execution calls as many layers as are listed, of these sizes in this order;
        without sizes, where none of them runs low that the list keeps in high precision. Neighbors
        of one size cannot be told apart.
        """
        calls = program.forward_calls
        listed = self._listed_sizes(rank)
        if not calls or not listed:
            return []
        sizes = [program.calls[call].size for call in calls]
        is_sized = any(size is not None for size in sizes)
        if not is_sized and self.has_experts(rank):
            return []
        if not is_sized and len(calls) % len(listed) == 0:
            listed = listed * (len(calls) // len(listed))
        elif sizes != [size for size, _ in listed]:
            return []
        found = []
        pairs = zip(calls, listed, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[1][0]):
            neighbors = list(group)
            places = [place for place, _ in neighbors]
            modules = [module for _, (_, module) in neighbors]
            found.append((places, modules))
        if is_sized or self._is_order_of(program, found):
            return found
        return []

    def has_experts(self, rank: int) -> bool:
        """Whether the list has layers of single experts, of which any number may run."""
        modules = self._lists[self._context[rank]]
        return any(_EXPERT.search(module.fqn) for module in modules)

    def _listed_sizes(self, rank: int) -> list[tuple[tuple[int, int], ModuleRecord]]:
        """Return the sizes that the modules of a rank have, in the order of the list."""
        found = []
        for module in self._lists[self._context[rank]]:
            found += [(size, module) for size in sizes_of(module)]
        return found

    def _is_order_of(
        self,
        program: Program,
        ordered: Iterable[tuple[Sequence[int], Sequence[ModuleRecord]]],
    ) -> bool:
        """Whether no more calls of neighbors run low than the list states of them."""
        for places, modules in ordered:
            stated = sum(self.is_low(module, Leg.FPROP) for module in modules)
            ran = [dict(program.calls[place].legs).get(Leg.FPROP) for place in places]
            if sum(one is not None and one.low == one.launches for one in ran) > stated:
                return False
        return True

    def order_of_replay(self, rank: int, launches: int) -> list[Part]:
        """Return what launches of a replay are, if they are passes through the list and back.

        The first modules may lack dgrad. Neighbors of one size are one part, and so are their
        gradients.
        """
        listed = self._listed_sizes(rank)
        if not listed or self.has_experts(rank):
            return []
        each = len(LEGS) * len(listed)
        passes = -(-launches // each)
        without_dgrad, rest = divmod(passes * each - launches, passes)
        if rest or without_dgrad > min(FIRST_LAYERS, len(listed)):
            return []
        forward: list[Part] = []
        backward: list[Part] = []
        numbered = enumerate(listed)
        for _, group in groupby(numbered, key=lambda pair: pair[1][0]):
            neighbors = [(number, module) for number, (_, module) in group]
            legs = [(module, Leg.FPROP) for _, module in neighbors]
            forward.append(Part(tuple(legs)))
            dgrad = [(m, Leg.DGRAD) for n, m in neighbors if n >= without_dgrad]
            wgrad = [(module, Leg.WGRAD) for _, module in neighbors]
            backward.append(Part((*dgrad, *wgrad)))
        return [*forward, *reversed(backward)] * passes

    def pinned(self, rank: int) -> int:
        """Return how many blocks the log keeps in high precision that no module list names.

        A rank may be a stage of a pipeline, and an execution a chunk of it, with these blocks.
        """
        return 0 if self._ranks[rank].modules else self._pinned

    @property
    def counts(self) -> list[Claim]:
        """The claims of the log that count how many of how many layers were converted."""
        return [
            claim for claim in self._promises.said if claim.converted and claim.total
        ]

    def left_out(self, rank: int) -> int | None:
        """Return how many layers are all that the log leaves out; None if it may be more."""
        pins = [pin for pin in self._promises.layers if pin.is_pin]
        if not pins or self._ranks[rank].modules:
            return None
        if not all(map(_names_single_layers, pins)):
            return None
        return len({name for pin in pins for name in pin.names})

    def _find_pinned(self) -> int:
        """Return how many blocks the log keeps in high precision: of a stage, those in a row."""
        pins = [p for p in self._promises.layers if p.is_pin and p.select == "blocks"]
        blocks = sorted({int(name) for pin in pins for name in pin.names})
        if self.alike:
            return len(blocks)
        gaps = [place for place, (a, b) in enumerate(pairwise(blocks), 1) if b - a > 1]
        ends = [*gaps, len(blocks)]
        return max(b - a for a, b in pairwise([0, *ends]))

    def _find_blocks(self) -> Blocks | None:
        """Return the blocks, if the log keeps the first and last ones in high precision."""
        pins = [pin for pin in self._promises.layers if pin.is_pin]
        if any(rank.modules for rank in self._ranks) or not self.alike:
            return None
        blocks = {
            int(name) for pin in pins if pin.select == "blocks" for name in pin.names
        }
        gaps = [b for a, b in pairwise(sorted(blocks)) if b - a > 1]
        if 0 not in blocks or len(gaps) != 1:
            return None
        return Blocks(max(blocks) + 1, frozenset(blocks))


def _names_single_layers(pin: LayerClaim) -> bool:
    """Whether each name of a pin is one layer's: a head's, or a whole path with its block."""
    if pin.select == "part":
        return all(map(HEAD.search, pin.names))
    of_blocks = filter(_IN_BLOCK.search, pin.names)
    heads = filter(HEAD.search, pin.names)
    return pin.select == "name" and {*of_blocks, *heads} == set(pin.names)


def _with_conversions_of_any(
    by_rank: Sequence[Sequence[ModuleRecord]],
) -> list[Sequence[ModuleRecord]]:
    """Return the modules of ranks that have the same names as converted where any rank did."""
    names = {
        frozenset(module.fqn for module in modules) for modules in by_rank if modules
    }
    if len(names) != 1:
        return list(by_rank)
    known = {m.fqn: m for modules in by_rank for m in modules if m.state in CONVERTED}
    return [
        [known.get(module.fqn, module) for module in modules] for modules in by_rank
    ]


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
