"""Which products outside of autograd's nodes are gradients that a schedule delayed?

Zero-bubble schedules compute wgrad when its node is over, others in a hook of the optimizer's, a
part of the tokens at a time or those of all micro-batches at once. So the work tells, whoever
launched it: as much outside of nodes, behind the first gradient, as wgrad inside is missing;
without shapes, as many products that no optimizer launched. They are taken in the order of the
nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from math import prod
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import Kinds, grouped
from fp8verify.analysis.placing.known import FORWARD, ONLY, Known, Legs
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.analysis.placing.nodes import Node, Nodes
from fp8verify.analysis.placing.owners import Owner
from fp8verify.analysis.purpose import is_update
from fp8verify.terms import VAGUE_LEGS, Leg
from fp8verify.thresholds import FIRST_LAYERS, HALF
from fp8verify.trace import Trace

_Sides: TypeAlias = "frozenset[int]"  # outputs and inputs of a layer


class LastUpdates(NamedTuple):
    """When the last kernel of an optimizer's step started, by step, in ns.

    What a step launches behind that trains nothing, as an evaluation.
    """

    starts: Mapping[int, int]
    of_kernels: Sequence[int]

    def before_them(self, launches: Iterable[Gemm]) -> list[Gemm]:
        """Return the launches before the last update of their step: only these are gradients."""
        before = []
        for gemm in launches:
            update = self.starts.get(gemm.step)
            if update is None or self.of_kernels[gemm.index] <= update:
                before.append(gemm)
        return before


def last_updates(trace: Trace, kinds: Kinds) -> LastUpdates:
    """Return the last updates of the steps of a trace."""
    columns = trace.kernels
    starts: dict[int, int] = {}
    for index in kinds.started(is_update):
        step = columns.step[index]
        if step >= 0:
            starts[step] = columns.start_ns[index]
    return LastUpdates(starts, columns.start_ns)


class Delayed(NamedTuple):
    """What delayed gradients show.

    Attributes:
        forward: their forward products, by their positions.
        only_dgrad: the positions of single gradients of calls whose wgrad is delayed.
    """

    forward: Mapping[int, Gemm]
    only_dgrad: Sequence[int]

    def applied(self, known: Known) -> Known:
        """Return what is known with these: they are wgrads of the nodes of their calls."""
        nodes = list(known.nodes)
        legs: dict[int, Legs] = {}
        for position, forward in self.forward.items():
            legs[position] = ONLY[Leg.WGRAD]
            nodes[position] = forward.makes
        for position in self.only_dgrad:
            legs[position] = ONLY[Leg.DGRAD]
        return known.overruled(legs)._replace(nodes=nodes)

    def owners(self, owners: Sequence[Owner]) -> list[Owner]:
        """Return the owners of launches with these: they are layers'."""
        changed = list(owners)
        for position in self.forward:
            changed[position] = None
        return changed


def delayed_gradients(
    products: Iterable[Gemm],
    owners: Sequence[Owner],
    known: Known,
    nodes: Nodes,
) -> Delayed:
    """Return the delayed gradients among products in order, before the last updates."""
    forward: dict[int, Gemm] = {}
    only_dgrad: list[int] = []
    for step in _steps_of(products, known, nodes):
        layers = step.layers
        sides = set(map(_sides_of_layer, layers))
        delayed = []
        for gemm in step.outside:
            owner = owners[gemm.position]
            # The number of an optimizer's products tells nothing: a model may have as few layers.
            has_sides = step.is_schedule and gemm.shape is not None
            is_free = owner is None or (has_sides and owner is Leg.OPTIMIZER)
            if is_free and _may_be_wgrad(gemm, owner, known, sides):
                delayed.append(gemm)
        for match in _matches(delayed, layers, by_count=step.is_schedule):
            forward.update(match.pairs())
            only_dgrad += match.only_dgrad(nodes)
    return Delayed(forward, only_dgrad)


class _Step:
    """A step whose nodes lack wgrad.

    Attributes:
        missing: forward products that lack wgrad.
        may_be_first: those that lack wgrad or dgrad, as first layers do.
        outside: products outside of nodes, behind the first node that lacks wgrad.
        forward: how many forward products the nodes that ran have.
    """

    def __init__(self) -> None:
        self.missing: list[Gemm] = []
        self.may_be_first: list[Gemm] = []
        self.outside: list[Gemm] = []
        self.forward = 0

    @property
    def lacks_wgrad(self) -> bool:
        return bool(self.missing or self.may_be_first)

    @property
    def is_schedule(self) -> bool:
        """Whether most layers lack it; of few layers it is rather frozen weights, or first ones."""
        first = len(self.may_be_first)
        lacking = len(self.missing) + first
        are_more = bool(self.missing) or first > FIRST_LAYERS
        return are_more and lacking > HALF * self.forward

    @property
    def layers(self) -> list[Gemm]:
        """The forward products that lack wgrad."""
        if self.is_schedule:
            return self.missing + self.may_be_first
        return self.missing

    def add_node(self, node: Node, known: Known) -> None:
        """Add a node that ran."""
        self.forward += len(node.forward)
        if any(known.leg(gemm) is Leg.WGRAD for gemm in node.gradients):
            return
        expected = [*node.forward, *node.forward]
        found = len(node.gradients)
        lacks = self.may_be_first if _may_lack_dgrad(node) else self.missing
        lacks += expected[found:]


def _steps_of(
    products: Iterable[Gemm],
    known: Known,
    nodes: Nodes,
) -> Iterable[_Step]:
    """Return the steps of products in order."""
    steps: defaultdict[int, _Step] = defaultdict(_Step)
    for gemm in products:
        step = steps[gemm.step]
        node = nodes.get(gemm.node)
        if node is not None and gemm in node.gradients[:1]:
            step.add_node(node, known)
        elif step.lacks_wgrad and gemm.node < 0 and gemm.makes < 0:
            step.outside.append(gemm)
    return steps.values()


def _may_lack_dgrad(node: Node) -> bool:
    """Whether the one gradient of a call may be wgrad by its size, as of square layers.

    Such calls may be the first layers, which have no dgrad.
    """
    if not node.is_single:
        return False
    (gradient,) = node.gradients
    (forward,) = node.forward
    if gradient.shape is None:
        return False
    return forward.size in gradient.shape.forward_sizes(Leg.WGRAD)


def _may_be_wgrad(
    gemm: Gemm,
    owner: Owner,
    known: Known,
    sides: Set[_Sides],
) -> bool:
    """Whether a product outside of nodes may be wgrad of a layer of some (outputs, inputs).

    Without a size, none is that an operator of a forward pass launched.
    """
    if owner is None and known.leg(gemm) is not Leg.FPROP:
        return known.leg(gemm) in VAGUE_LEGS
    if gemm.shape is None:
        return known.legs[gemm.position] != FORWARD
    return _sides_of_wgrad(gemm) in sides


def _sides_of_layer(gemm: Gemm) -> _Sides:
    """Return the outputs and inputs of the layer of a forward product."""
    _, n, k = gemm.size
    return frozenset((n, k))


def _sides_of_wgrad(gemm: Gemm) -> _Sides:
    """Return the outputs and inputs of the layer that a product would be wgrad of."""
    m, n, _ = gemm.size
    return frozenset((m, n))


class _Match(NamedTuple):
    """Products that are as much work as the wgrads that some layers lack, or at least half of it.

    Attributes:
        delayed: the products, in order.
        layers: the forward products that lack wgrad, in the order of their nodes.
        is_whole: whether they are all the work.
    """

    delayed: Sequence[Gemm]
    layers: Sequence[Gemm]
    is_whole: bool

    def pairs(self) -> Iterator[tuple[int, Gemm]]:
        """Yield the position of each product and the forward product that it belongs to."""
        layers = len(self.layers)
        longer = max(layers, len(self.delayed))
        for number, gemm in enumerate(self.delayed):
            in_proportion = number * layers // longer
            yield gemm.position, self.layers[in_proportion]

    def only_dgrad(self, nodes: Nodes) -> Iterator[int]:
        """Yield the positions of the single gradients of calls whose wgrad these are."""
        if not self.is_whole:
            return
        for _, forward in self.pairs():
            node = nodes[forward.makes]
            if node.is_single:
                yield node.gradients[0].position


def _matches(
    delayed: Sequence[Gemm],
    layers: Sequence[Gemm],
    *,
    by_count: bool,
) -> Iterator[_Match]:
    """Yield products of a step with the layers that lack so much wgrad: by size, if all have one.

    Args:
        delayed: those that may be wgrad.
        layers: forward products that lack it.
        by_count: whether their number tells where sizes are missing.
    """
    every = [*delayed, *layers]
    if all(gemm.shape for gemm in every):
        layers_by_sides = grouped(layers, _sides_of_layer)
        delayed_by_sides = grouped(delayed, _sides_of_wgrad)
        for sides, same in delayed_by_sides.items():
            of_sides = layers_by_sides[sides]
            work = _work(same)
            yield from _match(same, of_sides, work, _work(of_sides))
    elif by_count:
        work = len(delayed)
        yield from _match(delayed, layers, work, len(layers))


def _match(
    delayed: Sequence[Gemm],
    layers: Sequence[Gemm],
    work: int,
    lacks: int,
) -> Iterator[_Match]:
    if HALF * lacks <= work <= lacks:
        is_whole = work == lacks
        yield _Match(delayed, layers, is_whole)


def _work(gemms: Iterable[Gemm]) -> int:
    """Return the multiplications of GEMMs whose shapes are known."""
    return sum(prod(gemm.size) for gemm in gemms)
