"""Which calls made autograd's nodes, which launches did these make, and what does that tell?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import GemmShape, Kinds
from fp8verify.analysis.placing.known import (
    FORWARD,
    LEG_OF,
    ONLY,
    Known,
    Legs,
    narrowed,
)
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.kernels.operators import function_of
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg
from fp8verify.thresholds import HALF
from fp8verify.trace import Trace


class Node(NamedTuple):
    """A node of autograd: the products of the call that made it, and those that it launched."""

    forward: Sequence[Gemm]
    gradients: Sequence[Gemm]

    @property
    def is_whole(self) -> bool:
        """Whether it ran dgrad and wgrad of each product."""
        return len(self.gradients) == 2 * len(self.forward)

    @property
    def is_single(self) -> bool:
        """Whether it ran one gradient of one product."""
        return len(self.gradients) == len(self.forward) == 1

    @property
    def is_of_graph(self) -> bool:
        """Whether it is of a compiled graph, which holds many layers."""
        return self.forward[0].of_graph


Nodes: TypeAlias = "Mapping[int, Node]"  # by their numbers
# The functions of the nodes that launched any kernel, by their numbers.
Ran: TypeAlias = "Mapping[int, Set[str]]"


def functions_of_nodes(trace: Trace, kinds: Kinds) -> dict[int, set[str]]:
    """Return the functions of autograd's nodes that launched a kernel, by their numbers."""
    functions_of_kinds = []
    for kind in kinds.rows:
        functions = map(function_of, kind.op.around)
        functions_of_kinds.append(frozenset(filter(None, functions)))
    nodes = [site.node for site in trace.sites]
    nodes_of_launches = map(nodes.__getitem__, trace.kernels.site)
    launches = set(zip(nodes_of_launches, kinds.ids, strict=True))
    names: dict[int, set[str]] = defaultdict(set)
    for node, kind_id in launches:
        if node >= 0:
            names[node] |= functions_of_kinds[kind_id]
    return names


def nodes_of(products: Iterable[Gemm], known: Known) -> Nodes:
    """Return the nodes whose calls are known, of products in order."""
    forward: dict[int, list[Gemm]] = {}
    gradients: dict[int, list[Gemm]] = defaultdict(list)
    for gemm in products:
        if gemm.node in forward and known.leg(gemm) in BACKWARD_LEGS:
            gradients[gemm.node].append(gemm)
        if gemm.makes < 0:
            continue
        of_call = forward.setdefault(gemm.makes, [])
        if of_call and of_call[0].call != gemm.call:
            # Frozen layers have the number of the next node, which the last call made.
            of_call.clear()
        of_call.append(gemm)
    nodes = {}
    for number, of_call in forward.items():
        of_node = gradients.get(number, ())
        nodes[number] = Node(tuple(of_call), tuple(of_node))
    return nodes


def legs_by_nodes(nodes: Nodes, known: Known) -> Known:
    """Settle legs by nodes that ran: what made one is a forward product.

    By the number of its gradients these are dgrad and wgrad, the last layer first.

    The first layer has no dgrad, if its input takes no gradient. Where single gradients are many,
    as beside adapters, these are of frozen weights too, and stay what they may be. Gradients
    without a shape have the one that the layer's forward product gives them.
    """
    ran = [node for node in nodes.values() if node.gradients]
    is_first_rare = _is_first_rare(ran)
    evidence: dict[int, Legs] = {}
    shapes = list(known.shapes)
    for node in ran:
        for gemm in node.forward:
            evidence[gemm.position] = FORWARD
        for gemm, work in _in_turn(node, is_first_rare=is_first_rare):
            position = gemm.position
            evidence[position] = ONLY[work.leg]
            if shapes[position] is None and work.forward is not None:
                legs = known.legs[position]
                leg = LEG_OF[narrowed(legs, ONLY[work.leg])]
                shapes[position] = work.forward.gradient(leg)
    return known._replace(shapes=shapes).narrowed(evidence)


def _is_first_rare(ran: Iterable[Node]) -> bool:
    """Whether what lacks one gradient can only be a model's first layer."""
    whole = 0
    lacking_one = 0
    for node in ran:
        whole += node.is_whole
        lacking_one += len(node.gradients) == 2 * len(node.forward) - 1
    return lacking_one < HALF * whole


class _Work(NamedTuple):
    """A gradient that a node launches: its leg, and the shape of its forward product."""

    leg: Leg
    forward: GemmShape | None


def _in_turn(
    node: Node,
    *,
    is_first_rare: bool,
) -> list[tuple[Gemm, _Work]]:
    """Return a node's gradients with what they are: nothing where they are not as many as needed.

    Args:
        node: the node.
        is_first_rare: whether what lacks one gradient can only be a model's first layer.
    """
    inputs = node.forward[0].kind.layer_inputs
    gradients = list(node.gradients)
    layers: list[Sequence[Gemm]] = [[gemm] for gemm in node.forward]
    if inputs is not None:
        own = (gemm for gemm in gradients if gemm.kind.layer_inputs is inputs)
        gradients = list(own)
        if inputs.grouped:
            layers = [node.forward]
    work = _work_of_backward(layers)
    lacks_one = len(gradients) == len(work) - 1
    if lacks_one and is_first_rare:
        del work[-2]
    if len(gradients) != len(work) or len(layers) > 2:
        return []
    return list(zip(gradients, work, strict=True))


def _work_of_backward(layers: Sequence[Sequence[Gemm]]) -> list[_Work]:
    """Return the gradients that layers need, the last layer first."""
    work = []
    for layer in reversed(layers):
        for leg in GRADIENT_LEGS:
            for forward in layer:
                work.append(_Work(leg, forward.shape))
    return work
