"""Which call is a product of: with which other launches did its layer multiply one time?

Autograd's numbers say which launches belong to one, without any size. Where nothing is numbered, a
gradient belongs to the forward product of its size that it was paired with. What belongs to no
call, as in a replayed graph, is a call of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.placing.known import Known
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.terms import BACKWARD_LEGS, Leg, Role

# (outputs, inputs) of a layer, `EXPERTS`, or None where no size is recorded.
LayerSize: TypeAlias = "tuple[int, ...] | None"


class Tie(IntEnum):
    """What ties the launches of a call to each other."""

    NUMBER = 0
    """Autograd's number of the node of one layer."""
    GRAPH = 1
    """That of a graph of several layers: among these the sizes, and the order among equal ones."""
    SIZE = 2
    """The sizes, and the order among equal ones."""
    NOTHING = 3
    """It is a launch alone."""
    DELAYED = 4
    """That nodes lack as much work as ran outside of any, in other sizes."""


class InCall(NamedTuple):
    """The call of a product.

    Attributes:
        first: the position of the launch that began it.
        size: of the layer of this product.
        tie: what ties its launches to each other.
    """

    first: int
    size: LayerSize
    tie: Tie


def calls_of(
    products: Iterable[Gemm],
    known: Known,
    forward_of: Mapping[int, Gemm],
) -> dict[int, InCall]:
    """Return by position the calls of products of layers that train, in order.

    Args:
        products: the products.
        known: what is known of them.
        forward_of: the forward products of gradients, by the positions of these.
    """
    in_order = list(products)
    sizes = _layer_sizes(in_order, known)
    first_of: dict[int, int] = {}
    ties: dict[int, Tie] = {}
    by_key: dict[object, int] = {}
    for gemm in in_order:
        position = gemm.position
        leg = known.leg(gemm)
        node = known.node(gemm)
        size = sizes[position]
        forward = forward_of.get(position)
        key, tie = _key_of(gemm, leg, size)
        first = by_key.get(key)
        if leg in BACKWARD_LEGS:
            of_forward = first_of.get(forward.position) if forward else None
            of_node = by_key.get((node,), of_forward)
            first = by_key.get((node, size), of_node)
        if first is None:
            first = position
            by_key[key] = first
            ties[first] = tie
        if tie is Tie.NUMBER:
            by_key.setdefault((gemm.makes,), first)
        is_delayed = node != gemm.node
        if is_delayed and not _fits(forward, size):
            ties[first] = Tie.DELAYED
        first_of[position] = first
    found = {}
    for position, first in first_of.items():
        found[position] = InCall(first, sizes[position], ties[first])
    return found


def _key_of(
    gemm: Gemm,
    leg: Leg,
    size: LayerSize,
) -> tuple[object, Tie]:
    """Return what the launches of one call have in common, and what ties its gradients to it."""
    if leg not in (Leg.FPROP, Leg.RECOMPUTE):
        tie = Tie.NOTHING
    elif gemm.makes < 0:
        tie = Tie.SIZE
    elif gemm.of_graph:
        tie = Tie.GRAPH
    else:
        return (gemm.makes, size), Tie.NUMBER
    return (gemm.position, "alone"), tie


def _fits(forward: Gemm | None, size: LayerSize) -> bool:
    """Whether a delayed gradient has the size of the layer that it was counted to."""
    if forward is None or forward.shape is None or size is None:
        return True
    _, n, k = forward.size
    return set(size) == {n, k}


def _layer_sizes(products: Iterable[Gemm], known: Known) -> dict[int, LayerSize]:
    """Return the sizes of layers, by the positions of their products."""
    forward: set[tuple[int, int]] = set()
    has_experts = False
    for gemm in products:
        shape = known.shapes[gemm.position]
        has_experts |= gemm.kind.role is Role.GROUPED_GEMM
        if shape is not None and known.leg(gemm) is Leg.FPROP:
            sizes = shape.layer_sizes(Leg.FPROP)
            forward.update(sizes)
    found = {}
    for gemm in products:
        size = _layer_size(gemm, known, forward)
        if size is None and has_experts and gemm.kind.classification.hidden:
            size = EXPERTS  # what is only a possible product may be of these
        found[gemm.position] = size
    return found


def _layer_size(
    gemm: Gemm,
    known: Known,
    forward: Set[tuple[int, int]],
) -> LayerSize:
    """Return the size of the layer of a product; of several possible ones that of the forward pass."""
    if gemm.kind.role is Role.GROUPED_GEMM:
        return EXPERTS
    shape = known.shapes[gemm.position]
    if shape is None:
        return None
    sizes = shape.layer_sizes(known.leg(gemm))
    for size in sizes:
        if size in forward:
            return size
    return sizes[0] if sizes else None
