"""What each GEMM computes: fprop, dgrad, wgrad or a recomputed fprop, or no layer's product.

For a linear layer of M tokens, K inputs and N outputs, fprop multiplies (M, K) by (K, N), dgrad
(M, N) by (N, K) and wgrad (N, M) by (M, K) or its transpose. Evidence is used in this order:
the enclosing operators (autograd runs backward under a `*Backward` node), the shapes compared with
those of the forward pass, the operand layout of kernels that have several (BLAS computes
a row-major linear layer as TN, NN and NT), and last the order of launch: PyTorch's derivative
formulas, torchao 0.17 and Transformer Engine 2.20 all launch dgrad before wgrad. If none of these
decides, the leg is `backward`.

GEMMs of a backward pass may run outside autograd's nodes: zero-bubble schedules delay wgrad, and
compiled autograd and joint graphs have no nodes at all. There the shapes decide: for a forward GEMM
of (tokens, k) by (k, n), wgrad contracts over the tokens, (n, tokens) by (tokens, k).

A trace has no module names, so the enclosing operators decide whose a GEMM is. Attention that a
script computes with GEMMs is known by order and shape: scores of (…, L, S), a softmax over S, and
their product with the values. Their gradients have the same three sizes in another order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import zip_longest
from math import prod
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.kinds import (
    GRAPH,
    Gemm,
    GemmShape,
    Kind,
    Kinds,
    Node,
    Size,
    gemm_shape,
    is_of_graph,
)
from fp8verify.analysis.purpose import has_gradient, is_of_layers, optimizer_products
from fp8verify.analysis.replays import is_softmax
from fp8verify.kernels.operators import OPERATORS, find, function_of
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import (
    BACKWARD_LEGS,
    COUNTED,
    GRADIENT_LEGS,
    Leg,
    OpContext,
    Role,
)
from fp8verify.trace import Trace

# TN is that of a forward pass, and of dgrad where the weight is stored transposed.
_LAYOUT_LEGS = {
    "NN": Leg.DGRAD,
    "NT": Leg.WGRAD,
}
_LAYOUT = lazy_pattern(
    r"_([NT][NT])[NT]?(?:$|_)|_(nn|nt|tn)_(?:n_tile|align)", re.ASCII
)
_LINEAR = frozenset(name for name, row in OPERATORS.items() if row.linear)
_Sides: TypeAlias = "frozenset[int]"  # outputs and inputs
_LegsOfKinds: TypeAlias = "dict[int, Leg | None]"  # by number; None if not known yet
_InTurn: TypeAlias = "tuple[Leg, ...]"  # legs that products of one shape take in turn


def place_gemms(gemms: Sequence[Gemm]) -> None:
    """Give launches of one trace, in order, the leg and the shape that each computes."""
    of_kind = {gemm.kind_id: gemm for gemm in gemms}
    functions = _functions_around(of_kind.values())
    settled: _LegsOfKinds = {}
    for number, gemm in of_kind.items():
        settled[number] = _from_context(gemm.kind, functions)
    forward = _forward_sizes(gemms, settled)
    for number, gemm in of_kind.items():
        if settled[number] is None:
            settled[number] = _from_shape(
                gemm.kind,
                gemm.shape,
                forward,
            )
    lacking = _lacking(gemms, settled, forward)
    turn: Counter[GemmShape] = Counter()
    for gemm in gemms:
        leg = settled[gemm.kind_id]
        shape = gemm.shape
        if leg is Leg.FPROP:
            turn.clear()  # equal passes count alike
        if leg is None and shape in lacking:
            turn[shape] += gemm.kind.multiplies
            in_turn = lacking[shape]
            before = turn[shape] - 1
            leg = in_turn[before % len(in_turn)]
        gemm.leg = leg or Leg.BACKWARD


def _functions_around(gemms: Iterable[Gemm]) -> set[str]:
    """Return linear operators and custom autograd functions: X if XBackward encloses a GEMM."""
    functions = set(_LINEAR)
    for gemm in gemms:
        for name in gemm.kind.op.around:
            function = function_of(name)
            if function:
                functions.add(function)
    return functions


def _forward_sizes(
    gemms: Iterable[Gemm],
    settled: _LegsOfKinds,
) -> Counter[Size]:
    """Count the products of the forward pass by their sizes."""
    forward = Counter[Size]()
    for gemm in gemms:
        is_forward = settled[gemm.kind_id] is Leg.FPROP
        if is_forward and gemm.shape and gemm.kind.multiplies:
            forward[gemm.shape[1:]] += 1
    return forward


def _from_context(kind: Kind, functions: Set[str]) -> Leg | None:
    """Decide by the enclosing operators; None for an unknown GEMM of the backward pass."""
    op = kind.op
    is_gradient = has_gradient(kind)
    # A row of a table of operators joins their calls in all passes; a kernel that Inductor calls
    # has an operator of its name.
    is_sum = kind.name == op.name and "::" in op.name
    if not op.name or op.name.startswith(COUNTED) or is_sum:
        return Leg.BACKWARD if is_gradient else Leg.UNKNOWN
    if not op.backward:
        # A replayed CUDA graph of a backward pass is launched by the node, not run inside it.
        is_replayed = is_gradient and not op.types
        return Leg.BACKWARD if is_replayed else Leg.FPROP
    for name in op.around:
        if function_of(name) is not None:
            return None
        if name in functions:
            return Leg.RECOMPUTE
    return None


def _from_shape(
    kind: Kind,
    shape: GemmShape | None,
    forward: Counter[Size],
) -> Leg | None:
    """Decide by the shapes of the forward pass, else by the layout of the operands.

    wgrad is transposed only if nothing else fits. Only a compiled backward pass recomputes
    without an enclosing operator of the forward pass; E5M2 operands are always gradients. FP8 on
    Hopper has no choice of layout.
    """
    fitting: list[Leg] = []
    if shape is not None:
        possible = [*GRADIENT_LEGS]
        if is_in_graph(kind) and not has_gradient(kind):
            possible.append(Leg.RECOMPUTE)
        for leg in possible:
            first, *_ = shape.forward_sizes(leg)
            if forward[first]:
                fitting.append(leg)
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and forward[shape.k, shape.n, shape.m]:
            return Leg.WGRAD
    if kind.is_low:
        return None
    by_layout = layout_leg(kind.name)
    if fitting and by_layout not in fitting:
        return None  # a stored transposed operand has another layout, but never another shape
    return by_layout


def is_in_graph(kind: Kind) -> bool:
    """Whether the node of a compiled graph launched a kernel."""
    return GRAPH in map(function_of, kind.op.around)


def _graphs_repeat(gemms: Iterable[Gemm], settled: _LegsOfKinds) -> bool:
    """Whether the backward passes of graphs compute forward products again.

    The first one of a step has more products than two for each of the forward pass before it. What
    runs behind it, as an evaluation, does not count.
    """
    forward = Counter[int]()
    backward = Counter[int]()
    over: set[int] = set()
    for gemm in gemms:
        step = gemm.step
        if step in over or not gemm.kind.multiplies:
            continue
        if settled[gemm.kind_id] is not Leg.FPROP:
            backward[step] += is_in_graph(gemm.kind)
        elif backward[step]:
            over.add(step)
        else:
            forward[step] += is_of_graph(gemm.kind.op)
    for step, count in backward.items():
        most = len(GRADIENT_LEGS) * forward[step]
        if count > most > 0:
            return True
    return False


def layout_leg(kernel: str) -> Leg | None:
    """Return the leg by the operand layout of a BLAS kernel: NN is dgrad, NT is wgrad."""
    match = _LAYOUT.search(kernel)
    if match is None:
        return None
    layout = match[1] or match[2]
    return _LAYOUT_LEGS.get(layout.upper())


def _lacking(
    gemms: Sequence[Gemm],
    settled: _LegsOfKinds,
    forward: Counter[Size],
) -> dict[GemmShape, _InTurn]:
    """Return the shapes that lack only one leg, and those that lack two equally, in turn."""
    taken: Counter[tuple[GemmShape, Leg | None]] = Counter()
    repeats = _graphs_repeat(gemms, settled)
    for gemm in gemms:
        leg = settled[gemm.kind_id]
        if leg is None and repeats and is_in_graph(gemm.kind):
            continue  # it may be a forward product that ran again
        if gemm.shape is not None:
            taken[gemm.shape, leg] += gemm.kind.multiplies
    lacking: dict[GemmShape, _InTurn] = {}
    for shape, leg in taken:
        if leg is not None:
            continue
        size_of_dgrad, *_ = shape.forward_sizes(Leg.DGRAD)
        size_of_wgrad, *_ = shape.forward_sizes(Leg.WGRAD)
        legs = _lacking_legs(
            undecided=taken[shape, None],
            dgrad=forward[size_of_dgrad] - taken[shape, Leg.DGRAD],
            wgrad=forward[size_of_wgrad] - taken[shape, Leg.WGRAD],
        )
        if legs:
            lacking[shape] = legs
    return lacking


def _lacking_legs(
    undecided: int,
    dgrad: int,
    wgrad: int,
) -> _InTurn:
    """Return the legs of undecided products, by how many dgrads and wgrads of their shape lack."""
    if dgrad == wgrad and undecided == dgrad + wgrad:
        return GRADIENT_LEGS
    lacks_one = min(dgrad, wgrad) <= 0
    if lacks_one and 0 < undecided <= max(dgrad, wgrad):
        return (Leg.DGRAD,) if dgrad > 0 else (Leg.WGRAD,)
    return ()


def doubt(gemms: Sequence[Gemm]) -> None:
    """Take back what the log of a BLAS library, which knows no operators, does not show."""
    for gemm in gemms:
        if gemm.leg is Leg.FPROP and has_gradient(gemm.kind):
            gemm.leg = Leg.BACKWARD
    if any(gemm.leg in BACKWARD_LEGS for gemm in gemms):
        return
    for gemm in gemms:
        gemm.leg = Leg.UNKNOWN


def surely_forward(trace: Trace, kinds: Kinds) -> frozenset[int]:
    """Return the kinds under a function of the forward pass, by the numbers of `kinds`."""
    around: set[str] = set()
    for op in trace.ops:
        around.update(op.around)
    forward: set[str] = set()
    for name in around:
        function = function_of(name)
        if function is not None:
            forward.add(function)
        if is_of_layers(name):
            forward.add(name)
    found = set()
    for number, kind in enumerate(kinds.rows):
        op = kind.op
        if not op.backward and not forward.isdisjoint(op.around):
            found.add(number)
    return frozenset(found)


class _Calls(NamedTuple):
    """Calls of forward products, by autograd's numbers.

    Attributes:
        trains: those whose nodes ran.
        makers: those that may have gradients; empty if nothing is numbered.
    """

    trains: Set[int]
    makers: Set[int]

    @classmethod
    def of(
        cls,
        gemms: Iterable[Gemm],
        nodes: Mapping[int, Node],
    ) -> _Calls:
        """Return the calls of launches of a trace.

        Where autograd numbers calls, one without a node has no gradient: an optimizer's product.
        One that is no node's last call only has the number of the next node; a joint graph has no
        nodes.
        """
        trains: set[int] = set()
        every: set[int] = set()
        for node in nodes.values():
            call = node.forward[0].call
            every.add(call)
            if node.gradients:
                trains.add(call)
        if trains:
            return cls(trains, every)
        numbered = {gemm.call for gemm in gemms if gemm.makes >= 0}
        return cls(trains, numbered)


class _Missing:
    """The gradients that the forward GEMMs so far still lack, by their sizes.

    wgrad counts by its work and the sides of its layer, as it may run in parts.
    """

    def __init__(self, surely_forward: Set[int], calls: _Calls) -> None:
        self.surely_forward = surely_forward
        self.calls = calls
        self.layers: set[_Sides] = set()
        self._dgrad: dict[Size, float] = defaultdict(float)
        self._wgrad: dict[_Sides, float] = defaultdict(float)

    def lacks_dgrad(self, shape: GemmShape) -> bool:
        """Whether a product of this shape can be dgrad of a forward GEMM before it."""
        return self._dgrad[_of_dgrad(shape)] > 0

    def lacks_wgrad(self, shape: GemmShape) -> bool:
        """Whether a product of this shape can be wgrad of a forward GEMM before it."""
        return self._wgrad[_of_wgrad(shape)] > 0

    def add(self, gemm: Gemm, shape: GemmShape) -> None:
        """Expect the gradients of a forward GEMM, if its call may have any."""
        makers = self.calls.makers
        if not makers or gemm.call in makers:
            sides = _sides_of_layer(shape)
            self._dgrad[shape[1:]] += 1
            self._wgrad[sides] += prod(shape)
            self.layers.add(sides)

    def remove(self, shape: GemmShape, leg: Leg) -> None:
        """Count a GEMM as the gradient that its leg says, in parts if it may be either."""
        parts = _PARTS.get(leg, _NO_GRADIENT)
        of_dgrad = parts.of_dgrad
        of_wgrad = parts.of_wgrad
        lacks_dgrad = self.lacks_dgrad(shape)
        lacks_wgrad = self.lacks_wgrad(shape)
        may_be_either = lacks_dgrad and lacks_wgrad
        if leg is Leg.BACKWARD and not may_be_either:
            of_dgrad = float(lacks_dgrad)
            of_wgrad = float(lacks_wgrad)
        self._dgrad[_of_dgrad(shape)] -= of_dgrad
        self._wgrad[_of_wgrad(shape)] -= of_wgrad * prod(shape)


def _of_dgrad(shape: GemmShape) -> Size:
    """Return the size of the forward GEMM whose dgrad has this shape."""
    return (shape.m, shape.k, shape.n)


def _of_wgrad(shape: GemmShape) -> _Sides:
    """Return the sides of the layer whose wgrad has this shape."""
    return frozenset((shape.m, shape.n))


def _sides_of_layer(shape: GemmShape) -> _Sides:
    """Return the sides of the layer whose forward GEMM, or dgrad, has this shape."""
    return frozenset((shape.n, shape.k))


class _Parts(NamedTuple):
    """How much of a dgrad and of a wgrad a GEMM is."""

    of_dgrad: float
    of_wgrad: float


_NO_GRADIENT: Final = _Parts(0, 0)
_PARTS: Final = {
    Leg.DGRAD: _Parts(1, 0),
    Leg.WGRAD: _Parts(0, 1),
    Leg.BACKWARD: _Parts(1 / 2, 1 / 2),
}


def settle_by_shape(
    gemms: Sequence[Gemm],
    nodes: Mapping[int, Node],
    surely_forward: frozenset[int],
) -> None:
    """Give GEMMs outside of autograd's nodes the leg that their shapes prove."""
    forward, seemingly = _forward_shapes(gemms, surely_forward)
    sure = Counter(shape[1:] for shape in forward)
    delayed = _delayed(forward, seemingly)
    calls = _Calls.of(gemms, nodes)
    missing = _Missing(surely_forward, calls)
    missing.layers.update(frozenset(size[1:]) for size in sure)
    turned: set[int] = set()
    after_gradient = False
    for gemm, following in zip_longest(gemms, gemms[1:]):
        shape = gemm.shape
        if shape is None or shape.batch != 1:
            continue
        if gemm.leg is Leg.FPROP:
            in_backward = after_gradient and gemm.step in turned
            gemm.leg = _leg_outside_nodes(gemm, following, missing, in_backward)
        elif gemm.leg is Leg.BACKWARD:
            wgrad_is_delayed = _sides_of_layer(shape) in delayed
            if wgrad_is_delayed and sure[_of_dgrad(shape)]:
                gemm.leg = Leg.DGRAD
        if gemm.leg is Leg.FPROP:
            missing.add(gemm, shape)
        missing.remove(shape, gemm.leg)
        after_gradient = gemm.leg is not Leg.FPROP
        if after_gradient:
            turned.add(gemm.step)


def _forward_shapes(
    gemms: Iterable[Gemm],
    surely_forward: Set[int],
) -> tuple[list[GemmShape], list[GemmShape]]:
    """Return the shapes of forward GEMMs, and those of what only looks like forward GEMMs."""
    forward = []
    seemingly = []
    for gemm in gemms:
        if gemm.shape is None or gemm.leg is not Leg.FPROP:
            continue
        if gemm.kind_id in surely_forward:
            forward.append(gemm.shape)
        else:
            seemingly.append(gemm.shape)
    return forward, seemingly


def _leg_outside_nodes(
    gemm: Gemm,
    following: Gemm | None,
    missing: _Missing,
    in_backward: bool,
) -> Leg:
    """Return the leg of what looks like a forward GEMM.

    Args:
        gemm: the launch.
        following: the next one.
        missing: the gradients that forward GEMMs before it lack.
        in_backward: whether the launch before it is a gradient.
    """
    shape = gemm.shape
    trains = missing.calls.trains
    if shape is None or gemm.call in trains:
        return Leg.FPROP
    if gemm.kind_id in missing.surely_forward:
        return Leg.FPROP
    is_dgrad = missing.lacks_dgrad(shape)
    if missing.lacks_wgrad(shape):
        # As many outputs as tokens make wgrad and a forward GEMM alike.
        is_layers = _sides_of_layer(shape) in missing.layers
        if not is_layers or (in_backward and not is_dgrad):
            return Leg.WGRAD
    if not is_dgrad or trains:
        return Leg.FPROP
    if in_backward or _is_wgrad_of(following, shape, missing.surely_forward):
        return Leg.DGRAD
    return Leg.FPROP


def _delayed(
    forward: Iterable[GemmShape],
    seemingly: Iterable[GemmShape],
) -> set[_Sides]:
    """Return the sides of layers as much of whose wgrad may run outside of nodes as is expected.

    Args:
        forward: the shapes of forward GEMMs.
        seemingly: those of what only looks like forward GEMMs.
    """
    expected = Counter[_Sides]()
    outside = Counter[_Sides]()
    for shape in forward:
        expected[_sides_of_layer(shape)] += prod(shape)
    for shape in seemingly:
        outside[_of_wgrad(shape)] += prod(shape)
    every = expected.keys() | outside.keys()
    return {sides for sides in every if outside[sides] >= expected[sides]}


def _is_wgrad_of(
    gemm: Gemm | None,
    dgrad: GemmShape,
    sure: Set[int],
) -> bool:
    """Whether the next GEMM is wgrad of the layer whose dgrad has this shape."""
    if gemm is None or gemm.shape is None:
        return False
    if gemm.leg is not Leg.FPROP or gemm.kind_id in sure:
        return False
    tokens = dgrad.m
    outputs = dgrad.k
    inputs = dgrad.n
    sides = {gemm.shape.m, gemm.shape.n}
    if gemm.shape.k != tokens or tokens in sides:
        return False
    return sides == {outputs, inputs}


# ---- the owner: a layer, attention, or the optimizer


_BATCHED: Final = frozenset(
    {"aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::addbmm"}
)
_SOFTMAX: Final = frozenset(
    {
        "aten::softmax",
        "aten::_softmax",
        "aten::_safe_softmax",
        "aten::_softmax_backward_data",
    }
)


_SortedSizes: TypeAlias = "tuple[int, ...]"


def owners_of(trace: Trace, kinds: Kinds) -> dict[int, Leg]:
    """Return ATTENTION or OPTIMIZER by number of kind, for GEMMs that are not a layer's."""
    of_optimizer = optimizer_products(trace.ops, kinds.rows)
    batched: dict[int, Kind] = {}
    inside: set[int] = set()
    for number, kind in enumerate(kinds.rows):
        if not kind.is_gemm or number in of_optimizer:
            continue
        if _is_batched(kind):
            batched[number] = kind
            if _under_attention(kind.op):
                inside.add(number)
    if batched:
        inside |= _between_softmaxes(trace, kinds, batched)
    of_attention = _with_gradients(batched, inside)
    owners = dict.fromkeys(of_optimizer, Leg.OPTIMIZER)
    owners.update(dict.fromkeys(of_attention, Leg.ATTENTION))
    return owners


def _is_batched(kind: Kind) -> bool:
    """Whether a kernel multiplies batches of matrices, as no linear layer does except experts."""
    from fp8verify.kernels.symbol import split  # as the grammars: not without a trace

    if kind.op.name in _BATCHED or _under_attention(kind.op):
        return True
    return "bmm" in split(kind.name[:200])


def _under_attention(op: OpContext) -> bool:
    return any(find(name).encloses is Role.ATTENTION for name in op.parents)


def _between_softmaxes(
    trace: Trace,
    kinds: Kinds,
    batched: Mapping[int, Kind],
) -> set[int]:
    """Return the pairs of GEMMs around a softmax whose sizes fit, in the forward pass."""
    found: set[int] = set()
    scores: dict[int, int | None] = {}  # by stream, the GEMM that ran last, if batched
    after_softmax: dict[int, bool] = {}
    for index in kinds.started(_multiplies_or_runs_softmax):
        stream = trace.kernels.stream[index]
        number = kinds.ids[index]
        kind = kinds.rows[number]
        if not kind.is_gemm:
            after_softmax[stream] = True
            continue
        is_batched = number in batched and not kind.op.backward
        first = scores.get(stream)
        is_second = is_batched and after_softmax.get(stream)
        if is_second and first is not None and _fit(batched[first], kind):
            found |= {first, number}
        scores[stream] = number if is_batched else None
        after_softmax[stream] = False
    return found


def _multiplies_or_runs_softmax(kind: Kind) -> bool:
    if kind.is_gemm or is_softmax(kind):
        return True
    return not _SOFTMAX.isdisjoint(kind.op.around)


def _fit(first: Kind, second: Kind) -> bool:
    """Whether the second product can take what the first gave; unknown shapes can."""
    scores = gemm_shape(first.op)
    values = gemm_shape(second.op)
    if scores is None or values is None:
        return scores is values
    taken = (values.batch, values.m, values.k)
    return taken == (scores.batch, scores.m, scores.n)


def _with_gradients(
    batched: Mapping[int, Kind],
    inside: set[int],
) -> Iterator[int]:
    """Yield the products of attention and all that have their sizes, as their gradients have."""
    sizes: dict[int, _SortedSizes | None] = {}
    forward: set[int] = set()
    for number, kind in batched.items():
        sizes[number] = _sorted_sizes(kind)
        if kind.op.name and not kind.op.backward:
            forward.add(number)
    of_attention = {sizes[number] for number in inside}
    # Without sizes, gradients are attention's if every forward product is.
    only_attention = bool(inside) and forward <= inside
    for number, size in sizes.items():
        if size is None:
            alike = only_attention and number not in forward
        else:
            alike = size in of_attention
        if number in inside or alike:
            yield number


def _sorted_sizes(kind: Kind) -> _SortedSizes | None:
    """Return batch, and M, N and K by size: what a product and its gradients have in common."""
    shape = gemm_shape(kind.op)
    if shape is None:
        return None
    sides = sorted(shape[1:])
    return (shape.batch, *sides)
