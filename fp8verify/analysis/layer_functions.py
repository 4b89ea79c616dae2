"""GEMMs of functions that compute whole layers: Transformer Engine's modules.

Such a function records the module's inputs in its forward pass, and only the gradient of its
output in its backward pass. Its GEMMs have a fixed order, so counting identifies
each launch, and a backward pass has the sizes of the latest forward pass that fits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import Gemm, GemmShape, Kind
from fp8verify.kernels import decode
from fp8verify.kernels.operators import LayerInputs, find, function_of
from fp8verify.terms import Leg, OpContext, Role, Shape

# What one launch computes; UNKNOWN in the forward pass, where other evidence decides.
_Work: TypeAlias = "tuple[Leg, GemmShape | None]"


class _Call(NamedTuple):
    """One call of a function: the GEMMs of its forward pass, None if sizes are not recorded.

    `each` is the number of launches that a GEMM is: one for each expert, or one of all of them.
    """

    gemms: tuple[GemmShape | None, ...]
    each: int = 1

    @property
    def forward(self) -> list[_Work]:
        """Its own GEMMs."""
        parts = (_part(shape, self.each) for shape in self.gemms)
        return [(Leg.UNKNOWN, part) for part in parts for _ in range(self.each)]

    @property
    def backward(self) -> list[_Work]:
        """The gradients, last layer first: of its input, then of its weight."""
        return [
            (leg, gradient(_part(shape, self.each), leg))
            for shape in reversed(self.gemms)
            for leg in (Leg.DGRAD, Leg.WGRAD)
            for _ in range(self.each)
        ]

    def fits(self, gradient: Shape | None) -> bool:
        """Whether a gradient has the size of its output."""
        last = self.gemms[-1]
        if gradient is None or last is None:
            return True
        return (prod(gradient[:-1]), gradient[-1]) == (last.m, last.n)


class _Function:
    """The calls of one function so far: calls without their backward pass, and open calls."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.open: dict[bool, list[_Work]] = {False: [], True: []}
        self.last: _Work | None = None

    def next(self, call: _Call, op: OpContext, *, backward: bool) -> _Work:
        rest = self.open[backward]
        if not rest and backward:
            gradient = op.dims[0] if op.dims and op.dims[0] else None
            latest_first = range(len(self.calls) - 1, -1, -1)
            place = next((n for n in latest_first if self.calls[n].fits(gradient)), None)
            rest.extend((call if place is None else self.calls.pop(place)).backward)
        elif not rest:
            self.calls.append(call)
            rest.extend(call.forward)
        self.last = rest.pop(0)
        return self.last


def deal(gemms: Sequence[Gemm]) -> None:
    """Assign shapes to launches of layer functions, in order, and legs to backward ones."""
    sites = {gemm.kind_id: _site(gemm.kind) for gemm in {g.kind_id: g for g in gemms}.values()}
    whole = _whole(gemms, sites)
    functions: defaultdict[str, _Function] = defaultdict(_Function)
    for gemm in gemms:
        site, op = sites[gemm.kind_id], gemm.kind.op
        if site is None or op is None or site.name not in whole:
            continue
        function = functions[site.name]
        if gemm.kind.multiplies:
            gemm.leg, gemm.shape = function.next(site.call, op, backward=site.backward)
        elif function.last is not None:
            gemm.leg, gemm.shape = function.last


class _Site(NamedTuple):
    """A layer function, whether its backward pass, and what a call of it computes."""

    name: str
    backward: bool
    call: _Call


def _site(kind: Kind) -> _Site | None:
    """Return the layer function that launched a kind of GEMM, None if none did."""
    if kind.op is None:
        return None
    function = function_of(kind.op.name)
    name = function or kind.op.name
    inputs = find(name).layer_inputs
    if inputs is None:
        return None
    dims = () if function else kind.op.dims
    inputs = _located(inputs, dims)
    grouped = inputs.grouped and decode(kind.name).role is not Role.GROUPED_GEMM
    call = _Call(_gemms(inputs, dims), _groups(inputs, dims) if grouped else 1)
    return _Site(name, function is not None, call)


def _whole(gemms: Iterable[Gemm], sites: Mapping[int, _Site | None]) -> frozenset[str]:
    """Return the functions whose every forward pass has two gradients in the window.

    Others cannot be found by counting: layers whose input takes no gradient, or whose weight's
    gradient is computed later. Recomputed forward passes do not count.
    """
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    for gemm in gemms:
        site, kind = sites[gemm.kind_id], gemm.kind
        if site is not None and kind.op is not None and kind.multiplies:
            backward[site.name] += site.backward
            forward[site.name] += not site.backward and not kind.op.backward
    return frozenset(name for name in forward if backward[name] in (0, 2 * forward[name]))


def _located(inputs: LayerInputs, dims: tuple[Shape, ...]) -> LayerInputs:
    """Find the weights of experts: the first matrix that the input can be multiplied with."""
    if not inputs.grouped or len(dims) <= inputs.input or not dims[inputs.input]:
        return inputs
    width = dims[inputs.input][-1]
    rest = range(inputs.input + 1, len(dims))
    place = next((p for p in rest if len(dims[p]) == 2 and dims[p][1] == width), None)
    return inputs if place is None else inputs._replace(weights=(place,))


def _gemms(inputs: LayerInputs, dims: tuple[Shape, ...]) -> tuple[GemmShape | None, ...]:
    """Return the GEMMs of a forward pass by the recorded sizes of input and weights."""
    unknown = (None,) * len(inputs.weights)
    if len(dims) <= max(inputs.input, *inputs.weights) or len(dims[inputs.input]) < 2:
        return unknown
    *leading, width = dims[inputs.input]
    rows, found = prod(leading), []
    for place in inputs.weights:
        weight = dims[place]
        # A gated activation halves what the first layer puts out.
        if len(weight) != 2 or weight[1] not in (width, width / 2):
            return unknown
        found.append(GemmShape(1, rows, weight[0], weight[1]))
        width = weight[0]
    return tuple(found)


def _part(shape: GemmShape | None, parts: int) -> GemmShape | None:
    """Return the mean share of an expert: how many tokens each had is not recorded."""
    if shape is None or shape.m % parts:
        return None
    return shape._replace(m=shape.m // parts)


def gradient(shape: GemmShape | None, leg: Leg) -> GemmShape | None:
    """Return the product of a gradient: (m, n) by (n, k) for dgrad, (n, m) by (m, k) for wgrad."""
    if shape is None:
        return None
    if leg is Leg.DGRAD:
        return shape._replace(n=shape.k, k=shape.n)
    return shape._replace(m=shape.n, n=shape.k, k=shape.m)


def _groups(inputs: LayerInputs, dims: tuple[Shape, ...]) -> int:
    """Count the experts of a grouped layer: equal weights in sequence."""
    place = inputs.weights[0]
    return max(1, sum(size == dims[place] for size in dims[place:])) if len(dims) > place else 1
