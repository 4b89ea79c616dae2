"""Which products outside of autograd's nodes are gradients by their sizes, and which surely not?

Compiled autograd and joint graphs have no nodes at all, and zero-bubble schedules delay wgrad.
There the shapes decide: for a forward GEMM of (tokens, k) by (k, n), wgrad contracts over the
tokens, (n, tokens) by (tokens, k).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import prod
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.kinds import GemmShape, Size
from fp8verify.analysis.placing.known import (
    ANY,
    FORWARD,
    GRADIENTS,
    ONLY,
    OUTSIDE,
    Known,
)
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.analysis.placing.nodes import Nodes
from fp8verify.analysis.purpose import has_gradient
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg

_Sides: TypeAlias = "frozenset[int]"  # outputs and inputs
_AS_EVIDENCE: Final = {leg: ONLY[leg] for leg in GRADIENT_LEGS}


def legs_by_sizes(
    products: Sequence[Gemm],
    known: Known,
    nodes: Nodes,
) -> Known:
    """Settle what the sizes of products in order prove.

    Args:
        products: those of layers, before the last updates.
        known: what is known of them.
        nodes: of autograd.
    """
    if not _are_any_open(products, known):
        return known
    forward, seemingly = _forward_shapes(products, known)
    sure = {shape[1:] for shape in forward}
    delayed = _delayed(forward, seemingly)
    missing = _Missing(nodes)
    missing.layers.update(map(_sides_of_layer, forward))
    turned: set[int] = set()
    after_gradient = False
    found = {}
    for gemm, following in zip_longest(products, products[1:]):
        shape = known.shapes[gemm.position]
        if shape is None or shape.batch != 1:
            continue
        leg = known.leg(gemm)
        if known.legs[gemm.position] == OUTSIDE:
            leg = missing.leg_outside_nodes(
                shape,
                in_backward=after_gradient and gemm.step in turned,
                wgrad_follows=_is_wgrad_of(following, shape, known),
            )
        elif leg is Leg.BACKWARD and _of_dgrad(shape) in sure:
            wgrad_is_delayed = _sides_of_layer(shape) in delayed
            leg = Leg.DGRAD if wgrad_is_delayed else leg
        missing.count(gemm, shape, leg)
        after_gradient = leg is not Leg.FPROP
        if after_gradient:
            turned.add(gemm.step)
        found[gemm.position] = _AS_EVIDENCE.get(leg, ANY)
    return known.narrowed(found)


def _are_any_open(products: Iterable[Gemm], known: Known) -> bool:
    """Whether any product may be of several legs, so that its size can tell which."""
    for gemm in products:
        is_outside = known.legs[gemm.position] == OUTSIDE
        if is_outside or known.leg(gemm) is Leg.BACKWARD:
            return True
    return False


def legs_in_log(products: Sequence[Gemm], known: Known) -> Known:
    """Take back what the log of a BLAS library, which knows no operators, does not show.

    Its products of gradients are none of a forward pass; and where no gradient is known, none of
    the others is.
    """
    gradients = {}
    for gemm in products:
        if has_gradient(gemm.kind):
            gradients[gemm.position] = GRADIENTS
    known = known.narrowed(gradients)
    if any(known.leg(gemm) in BACKWARD_LEGS for gemm in products):
        return known
    legs = list(known.legs)
    for gemm in products:
        legs[gemm.position] = ANY
    return known._replace(legs=legs)


def _forward_shapes(
    products: Iterable[Gemm],
    known: Known,
) -> tuple[list[GemmShape], list[GemmShape]]:
    """Return the shapes of forward products, and those of what only looks like forward products."""
    forward = []
    seemingly = []
    for gemm in products:
        shape = known.shapes[gemm.position]
        if shape is None or known.leg(gemm) is not Leg.FPROP:
            continue
        if known.legs[gemm.position] == FORWARD:
            forward.append(shape)
        else:
            seemingly.append(shape)
    return forward, seemingly


def _delayed(
    forward: Iterable[GemmShape],
    seemingly: Iterable[GemmShape],
) -> set[_Sides]:
    """Return the sides of layers as much of whose wgrad may run outside of nodes as is expected.

    Args:
        forward: the shapes of forward products.
        seemingly: those of what only looks like forward products.
    """
    expected = Counter[_Sides]()
    outside = Counter[_Sides]()
    for shape in forward:
        expected[_sides_of_layer(shape)] += prod(shape)
    for shape in seemingly:
        outside[_of_wgrad(shape)] += prod(shape)
    every = expected.keys() | outside.keys()
    return {sides for sides in every if outside[sides] >= expected[sides]}


class _Parts(NamedTuple):
    """How much of a dgrad and of a wgrad a product is."""

    of_dgrad: float
    of_wgrad: float


_NO_GRADIENT: Final = _Parts(0, 0)
_PARTS: Final = {
    Leg.DGRAD: _Parts(1, 0),
    Leg.WGRAD: _Parts(0, 1),
    Leg.BACKWARD: _Parts(1 / 2, 1 / 2),
}


def _numbered_products(nodes: Nodes) -> set[int]:
    """Return the positions of the products whose calls made nodes of autograd's.

    Where it numbers calls, one without a node has no gradient: an optimizer's product. One that is
    no node's last call only has the number of the next node; a joint graph has no nodes.
    """
    found = set()
    for node in nodes.values():
        for gemm in node.forward:
            if gemm.is_numbered:
                found.add(gemm.position)
    return found


class _Missing:
    """The gradients that the forward products so far still lack, by their sizes.

    wgrad counts by its work and the sides of its layer, as it may run in parts.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.layers: set[_Sides] = set()
        self._any_ran = any(node.gradients for node in nodes.values())
        self._of_nodes = _numbered_products(nodes)
        self._dgrad: dict[Size, float] = defaultdict(float)
        self._wgrad: dict[_Sides, float] = defaultdict(float)

    def leg_outside_nodes(
        self,
        shape: GemmShape,
        *,
        in_backward: bool,
        wgrad_follows: bool,
    ) -> Leg:
        """Return the leg of what looks like a forward product, and need not be one.

        Args:
            shape: that of the product.
            in_backward: whether the launch before it is a gradient.
            wgrad_follows: whether the next one is wgrad of the layer whose dgrad it would be.
        """
        is_dgrad = self._lacks_dgrad(shape)
        if self._lacks_wgrad(shape):
            # As many outputs as tokens make wgrad and a forward product alike.
            is_layers = _sides_of_layer(shape) in self.layers
            if not is_layers or (in_backward and not is_dgrad):
                return Leg.WGRAD
        if not is_dgrad or self._any_ran:
            return Leg.FPROP
        return Leg.DGRAD if in_backward or wgrad_follows else Leg.FPROP

    def _lacks_dgrad(self, shape: GemmShape) -> bool:
        """Whether a product of this shape can be dgrad of a forward product before it."""
        return self._dgrad[_of_dgrad(shape)] > 0

    def _lacks_wgrad(self, shape: GemmShape) -> bool:
        """Whether a product of this shape can be wgrad of a forward product before it."""
        return self._wgrad[_of_wgrad(shape)] > 0

    def count(
        self,
        gemm: Gemm,
        shape: GemmShape,
        leg: Leg,
    ) -> None:
        """Expect the gradients of a forward product, and none that ran."""
        if leg is Leg.FPROP:
            self._add(gemm, shape)
        self._remove(shape, leg)

    def _add(self, gemm: Gemm, shape: GemmShape) -> None:
        """Expect the gradients of a forward product, if its call may have any."""
        if not self._of_nodes or gemm.position in self._of_nodes:
            sides = _sides_of_layer(shape)
            self._dgrad[shape[1:]] += 1
            self._wgrad[sides] += prod(shape)
            self.layers.add(sides)

    def _remove(self, shape: GemmShape, leg: Leg) -> None:
        """Count a product as the gradient that its leg says, in parts if it may be either."""
        parts = _PARTS.get(leg, _NO_GRADIENT)
        of_dgrad = parts.of_dgrad
        of_wgrad = parts.of_wgrad
        lacks_dgrad = self._lacks_dgrad(shape)
        lacks_wgrad = self._lacks_wgrad(shape)
        may_be_either = lacks_dgrad and lacks_wgrad
        if leg is Leg.BACKWARD and not may_be_either:
            of_dgrad = float(lacks_dgrad)
            of_wgrad = float(lacks_wgrad)
        self._dgrad[_of_dgrad(shape)] -= of_dgrad
        self._wgrad[_of_wgrad(shape)] -= of_wgrad * prod(shape)


def _of_dgrad(shape: GemmShape) -> Size:
    """Return the size of the forward product whose dgrad has this shape."""
    return (shape.m, shape.k, shape.n)


def _of_wgrad(shape: GemmShape) -> _Sides:
    """Return the sides of the layer whose wgrad has this shape."""
    return frozenset((shape.m, shape.n))


def _sides_of_layer(shape: GemmShape) -> _Sides:
    """Return the sides of the layer whose forward product, or dgrad, has this shape."""
    return frozenset((shape.n, shape.k))


def _is_wgrad_of(
    gemm: Gemm | None,
    dgrad: GemmShape,
    known: Known,
) -> bool:
    """Whether the next product may be wgrad of the layer whose dgrad has this shape."""
    if gemm is None or known.legs[gemm.position] != OUTSIDE:
        return False
    shape = known.shapes[gemm.position]
    if shape is None:
        return False
    tokens = dgrad.m
    outputs = dgrad.k
    inputs = dgrad.n
    sides = {shape.m, shape.n}
    if shape.k != tokens or tokens in sides:
        return False
    return sides == {outputs, inputs}
