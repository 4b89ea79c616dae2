"""Which products outside of autograd's nodes are gradients that a schedule delayed?

Zero-bubble schedules compute wgrad when its node is over, others in a hook of the optimizer's, a
part of the tokens at a time or those of all micro-batches at once. So the work tells, whoever
launched it: as much outside of nodes, behind the first gradient, as wgrad inside is missing;
without shapes, as many products. They are taken in the order of the nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from math import prod
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import Kinds, grouped
from fp8verify.analysis.placing.known import ONLY, Known, Legs
from fp8verify.analysis.placing.launches import Gemm, size_of
from fp8verify.analysis.placing.nodes import NO_NODE, Node, Nodes
from fp8verify.analysis.placing.owners import Owner
from fp8verify.analysis.purpose import is_update
from fp8verify.terms import VAGUE_LEGS, Leg
from fp8verify.thresholds import HALF
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
        legs.update(dict.fromkeys(self.only_dgrad, ONLY[Leg.DGRAD]))
        return known.overruled(legs)._replace(nodes=nodes)


def delayed_gradients(
    products: Iterable[Gemm],
    owners: Sequence[Owner],
    known: Known,
    nodes: Nodes,
) -> Delayed:
    """Return the delayed gradients among products in order, before the last updates."""
    missing: dict[int, list[Gemm]] = defaultdict(list)  # forward products
    # Those that may lack dgrad instead.
    first: dict[int, list[Gemm]] = defaultdict(list)
    outside: dict[int, list[Gemm]] = defaultdict(list)
    forward: Counter[int] = Counter()  # of nodes that ran in a step
    for gemm in products:
        step = gemm.step
        node = nodes.get(gemm.node, NO_NODE)
        if node.gradients and node.gradients[0] is gemm:
            forward[step] += len(node.forward)
            if not _has_wgrad(node, known):
                lacks = first if _may_lack_dgrad(node) else missing
                expected = [*node.forward, *node.forward]
                lacks[step] += expected[len(node.gradients) :]
            continue
        lacks_wgrad = step in missing or step in first
        if lacks_wgrad and gemm.node < 0 and gemm.makes < 0:
            outside[step].append(gemm)
    found: dict[int, Gemm] = {}
    only_dgrad: list[int] = []
    for step, of_step in outside.items():
        layers = missing[step] + first[step]
        # Of few layers it is rather frozen weights that have no wgrad.
        is_schedule = len(layers) > HALF * forward[step]
        if not is_schedule:
            layers = missing[step]
        sides = {_sides_of_layer(gemm) for gemm in layers}
        delayed = []
        for gemm in of_step:
            owner = owners[gemm.position]
            is_free = is_schedule or owner is not Leg.OPTIMIZER
            if is_free and _may_be_wgrad(gemm, owner, known, sides):
                delayed.append(gemm)
        for match in _matches(delayed, layers, is_schedule=is_schedule):
            found.update(match.pairs())
            only_dgrad += match.only_dgrad(nodes)
    return Delayed(found, only_dgrad)


def _has_wgrad(node: Node, known: Known) -> bool:
    return any(known.leg(gradient) is Leg.WGRAD for gradient in node.gradients)


def _may_lack_dgrad(node: Node) -> bool:
    """Whether the one gradient of a call may be wgrad by its size, as of square layers.

    Such calls may be the first layers, which have no dgrad.
    """
    if len(node.gradients) != 1 or len(node.forward) != 1:
        return False
    (gradient,) = node.gradients
    (forward,) = node.forward
    if gradient.shape is None:
        return False
    sizes = gradient.shape.forward_sizes(Leg.WGRAD)
    return size_of(forward, forward.shape) in sizes


def _may_be_wgrad(
    gemm: Gemm,
    owner: Owner,
    known: Known,
    sides: Set[_Sides],
) -> bool:
    """Whether a product outside of nodes may be wgrad of a layer of some (outputs, inputs)."""
    if owner is Leg.ATTENTION:
        return False
    if owner is None and known.leg(gemm) is not Leg.FPROP:
        return known.leg(gemm) in VAGUE_LEGS
    return gemm.shape is None or _sides_of_wgrad(gemm) in sides


def _sides_of_layer(gemm: Gemm) -> _Sides:
    """Return the outputs and inputs of the layer of a forward product."""
    _, n, k = size_of(gemm, gemm.shape)
    return frozenset((n, k))


def _sides_of_wgrad(gemm: Gemm) -> _Sides:
    """Return the outputs and inputs of the layer that a product would be wgrad of."""
    m, n, _ = size_of(gemm, gemm.shape)
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
        longer = max(len(self.delayed), len(self.layers))
        for number, gemm in enumerate(self.delayed):
            in_proportion = number * len(self.layers) // longer
            yield gemm.position, self.layers[in_proportion]

    def only_dgrad(self, nodes: Nodes) -> Iterator[int]:
        """Yield the positions of the single gradients of calls whose wgrad these are."""
        if not self.is_whole:
            return
        for _, forward in self.pairs():
            node = nodes[forward.makes]
            if len(node.gradients) == len(node.forward) == 1:
                yield node.gradients[0].position


def _matches(
    delayed: Sequence[Gemm],
    layers: Sequence[Gemm],
    *,
    is_schedule: bool,
) -> Iterator[_Match]:
    """Yield products of a step with the layers that lack so much wgrad: by size, if all have one.

    Args:
        delayed: those that may be wgrad.
        layers: forward products that lack it.
        is_schedule: whether most layers of the step lack it. Fewer may be the first ones, which
            have no dgrad.
    """
    if all(gemm.shape for gemm in (*delayed, *layers)):
        layers_by_sides = grouped(layers, _sides_of_layer)
        for sides, same in grouped(delayed, _sides_of_wgrad).items():
            of_sides = layers_by_sides[sides]
            yield from _match(same, of_sides, _work(same), _work(of_sides))
    elif is_schedule:
        yield from _match(delayed, layers, len(delayed), len(layers))


def _match(
    delayed: Sequence[Gemm],
    layers: Sequence[Gemm],
    work: int,
    lacks: int,
) -> Iterator[_Match]:
    if HALF * lacks <= work <= lacks:
        yield _Match(delayed, layers, is_whole=work == lacks)


def _work(gemms: Iterable[Gemm]) -> int:
    """Return the multiplications of GEMMs whose shapes are known."""
    return sum(prod(size_of(gemm, gemm.shape)) for gemm in gemms)
