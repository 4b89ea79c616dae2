"""Which calls made autograd's nodes, which launches did these make, and what does that tell?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import GemmShape, Kinds
from fp8verify.analysis.placing.known import (
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


NO_NODE = Node((), ())
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
    """Settle legs by the number of gradients of a call: dgrad and wgrad, the last layer first.

    The first layer has no dgrad, if its input takes no gradient. Where single gradients are many,
    as beside adapters, these are of frozen weights too, and stay what they may be. Gradients
    without a shape have the one that the layer's forward product gives them.
    """
    ran = [node for node in nodes.values() if node.gradients]
    whole = 0
    lacking_one = 0
    for node in ran:
        expected = 2 * len(node.forward)
        found = len(node.gradients)
        whole += found == expected
        lacking_one += found == expected - 1
    is_first_rare = lacking_one < HALF * whole
    evidence: dict[int, Legs] = {}
    shapes = list(known.shapes)
    for node in ran:
        for gemm, leg, forward in _in_turn(node, is_first_rare=is_first_rare):
            position = gemm.position
            evidence[position] = ONLY[leg]
            if shapes[position] is None and forward is not None:
                legs = narrowed(known.legs[position], ONLY[leg])
                shapes[position] = forward.gradient(LEG_OF[legs])
    return known._replace(shapes=shapes).narrowed(evidence)


_Work: TypeAlias = "list[tuple[Gemm, Leg, GemmShape | None]]"


def _in_turn(node: Node, *, is_first_rare: bool) -> _Work:
    """Return a node's gradients with their legs, and the shapes of their forward products.

    Nothing where it has not as many as its layers need.

    Args:
        node: the node.
        is_first_rare: whether what lacks one gradient can only be a model's first layer.
    """
    inputs = node.forward[0].kind.layer_inputs
    gradients = node.gradients
    layers: list[Sequence[Gemm]] = [(gemm,) for gemm in node.forward]
    if inputs is not None:
        gradients = [gemm for gemm in gradients if gemm.kind.layer_inputs is inputs]
        if inputs.grouped:
            layers = [node.forward]
    work = _work_of_backward(layers)
    if len(gradients) == len(work) - 1 and is_first_rare:
        del work[-2]
    if len(gradients) != len(work) or len(layers) > 2:
        return []
    in_turn = []
    for gemm, (leg, shape) in zip(gradients, work, strict=True):
        in_turn.append((gemm, leg, shape))
    return in_turn


def _work_of_backward(
    layers: Sequence[Sequence[Gemm]],
) -> list[tuple[Leg, GemmShape | None]]:
    """Return the legs that layers need, the last layer first, with the shapes of their fprops."""
    work = []
    for layer in reversed(layers):
        for leg in GRADIENT_LEGS:
            for forward in layer:
                work.append((leg, forward.shape))
    return work
