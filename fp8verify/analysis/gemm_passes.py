"""Which pass each GEMM of a linear layer computes: fprop, dgrad, wgrad or a recomputed fprop.

For a linear layer of M tokens, K inputs and N outputs, fprop multiplies (M, K) by (K, N), dgrad
(M, N) by (N, K) and wgrad (N, M) by (M, K) or its transpose. Evidence is used in this order:
the enclosing operators (autograd runs backward under a `*Backward` node), the shapes compared with
those of the forward pass, the operand layout of kernels that have several (BLAS computes
a row-major linear layer as TN, NN and NT), and last the order of launch: PyTorch's derivative
formulas, torchao 0.17 and Transformer Engine 2.20 all launch dgrad before wgrad. If none of these
decides, the pass is `backward`.

GEMMs of a backward pass may run outside autograd's nodes: zero-bubble schedules delay wgrad, and
compiled autograd and joint graphs have no nodes at all. There the shapes decide: for a forward GEMM
of (tokens, k) by (k, n), wgrad contracts over the tokens, (n, tokens) by (tokens, k).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final, TypeAlias

from fp8verify.analysis.kinds import Gemm, GemmShape, Kind, Kinds
from fp8verify.analysis.layer_functions import deal
from fp8verify.analysis.purpose import has_gradient
from fp8verify.kernels.operators import COUNTED, OPERATORS, Part, find, function_of
from fp8verify.terms import Leg
from fp8verify.trace import Trace

# TN is that of a forward pass, and of dgrad where the weight is stored transposed.
_LAYOUT_LEGS = {"NN": Leg.DGRAD, "NT": Leg.WGRAD}
_COMPILED = "CompiledFunction"
_LAYOUT = re.compile(r"_([NT][NT])[NT]?(?:$|_)|_(nn|nt|tn)_(?:n_tile|align)", re.ASCII)
_LINEAR = frozenset(name for name, row in OPERATORS.items() if row.linear)
_GRADIENTS: Final = (Leg.DGRAD, Leg.WGRAD)
_BACKWARD: Final = (*_GRADIENTS, Leg.BACKWARD)
_Size: TypeAlias = "tuple[int, int, int]"


def place_gemms(gemms: Sequence[Gemm]) -> None:
    """Give launches of one trace, in order, the pass and the shape that each computes."""
    calls = Counter(gemm.number for gemm in gemms)
    kinds = {gemm.number: gemm.kind for gemm in gemms}
    shapes = {gemm.number: gemm.shape for gemm in gemms}
    # Custom autograd functions: X where a node XBackward encloses a GEMM.
    nodes = {name for kind in kinds.values() for name in kind.around}
    functions = _LINEAR.union(filter(None, map(function_of, nodes)))
    settled = {number: _from_context(kind, functions) for number, kind in kinds.items()}
    products = Counter({n: count for n, count in calls.items() if kinds[n].multiplies})
    forward: Counter[_Size] = Counter()
    for number, count in products.items():
        shape = shapes[number]
        if settled[number] is Leg.FPROP and shape is not None:
            forward[shape[1:]] += count
    for number, leg in settled.items():
        if leg is None:
            settled[number] = _from_shape(kinds[number], shapes[number], forward)
    alternating = _settle_by_count(products, settled, shapes, forward)
    undecided: Counter[GemmShape | None] = Counter()
    groups = {n: shape if shape in alternating else None for n, shape in shapes.items()}
    for number, leg in settled.items():
        if leg is None:
            undecided[groups[number]] += products[number]
    deal(gemms)
    turn: Counter[GemmShape | None] = Counter()
    for gemm in gemms:
        leg = settled[gemm.number] if gemm.leg is Leg.UNKNOWN else gemm.leg
        group = groups[gemm.number]
        if leg is None and (group is None or undecided[group] % 2):
            leg = Leg.BACKWARD
        elif leg is None:  # the undecided ones of a group take turns, dgrad first
            turn[group] += gemm.kind.multiplies
            leg = Leg.DGRAD if turn[group] % 2 else Leg.WGRAD
        gemm.leg = leg


def _expected(forward: Counter[_Size], shape: GemmShape, leg: Leg) -> int:
    """Return how many GEMMs of this shape the forward pass makes us expect for a pass."""
    m, n, k = shape.m, shape.n, shape.k
    if leg is Leg.DGRAD:
        return forward[m, k, n]
    return forward[k, m, n] if leg is Leg.WGRAD else forward[m, n, k]


def _from_context(kind: Kind, functions: frozenset[str]) -> Leg | None:
    """Decide by the enclosing operators; None for an unknown GEMM of the backward pass."""
    op = kind.op
    if op is None or op.name.startswith(COUNTED):
        return Leg.BACKWARD if has_gradient(kind) else Leg.UNKNOWN
    if not op.backward:
        # A replayed CUDA graph of a backward pass is launched by the node, not run inside it.
        return Leg.BACKWARD if has_gradient(kind) and not op.types else Leg.FPROP
    for name in op.around:
        if function_of(name) is not None:
            return None
        if name in functions:
            return Leg.RECOMPUTE
    return None


def _from_shape(kind: Kind, shape: GemmShape | None, forward: Counter[_Size]) -> Leg | None:
    """Decide by the shapes of the forward pass, else by the layout of the operands.

    wgrad is transposed only if nothing else fits. Only a compiled backward pass recomputes
    without an enclosing operator of the forward pass; E5M2 operands are always gradients. FP8 on
    Hopper has no choice of layout.
    """
    if shape is not None:
        recomputes = _COMPILED in map(function_of, kind.around) and not has_gradient(kind)
        possible = (*_GRADIENTS, Leg.RECOMPUTE) if recomputes else _GRADIENTS
        legs = [leg for leg in possible if _expected(forward, shape, leg)]
        if len(legs) == 1:
            return legs[0]
        if not legs and forward[shape.k, shape.n, shape.m]:
            return Leg.WGRAD
    return None if kind.classification.precision.is_low else layout_leg(kind.name)


def layout_leg(kernel: str) -> Leg | None:
    """Return the pass by the operand layout of a BLAS kernel: NN is dgrad, NT is wgrad."""
    match = _LAYOUT.search(kernel)
    return None if match is None else _LAYOUT_LEGS.get((match[1] or match[2]).upper())


def _settle_by_count(
    products: Counter[int],
    settled: dict[int, Leg | None],
    shapes: Mapping[int, GemmShape | None],
    forward: Counter[_Size],
) -> frozenset[GemmShape]:
    """Settle shapes that lack only one pass; return shapes that lack two equally."""
    taken: Counter[tuple[GemmShape, Leg]] = Counter()
    undecided: dict[GemmShape, list[int]] = defaultdict(list)
    for number, leg in settled.items():
        shape = shapes[number]
        if shape is not None and leg is not None:
            taken[shape, leg] += products[number]
        elif shape is not None:
            undecided[shape].append(number)
    alternating: set[GemmShape] = set()
    for shape, members in undecided.items():
        total = sum(products[number] for number in members)
        dgrad, wgrad = (_expected(forward, shape, leg) - taken[shape, leg] for leg in _GRADIENTS)
        if dgrad == wgrad and total == dgrad + wgrad:
            alternating.add(shape)
        elif min(dgrad, wgrad) <= 0 < total <= max(dgrad, wgrad):
            for number in members:
                settled[number] = Leg.DGRAD if dgrad > 0 else Leg.WGRAD
    return frozenset(alternating)


def doubt(gemms: Sequence[Gemm]) -> None:
    """Take back what the log of a BLAS library, which knows no operators, does not show."""
    for gemm in gemms:
        if gemm.leg is Leg.FPROP and has_gradient(gemm.kind):
            gemm.leg = Leg.BACKWARD
    if not any(gemm.leg in _BACKWARD for gemm in gemms):
        for gemm in gemms:
            gemm.leg = Leg.UNKNOWN


def surely_forward(trace: Trace, kinds: Kinds) -> frozenset[int]:
    """Return the kinds under a function of the forward pass, by the numbers of `kinds`."""
    nodes = {name for op in trace.ops for name in op.around}
    forward = set(map(function_of, nodes))
    for name in nodes:
        row = find(name)
        if row.linear or row.layer or row.part is Part.LAYER:
            forward.add(name)
    return frozenset(
        number
        for number, kind in enumerate(kinds.kinds)
        if kind.op is not None and not kind.op.backward and not forward.isdisjoint(kind.around)
    )


def settle_by_shape(gemms: Sequence[Gemm], surely_forward: frozenset[int]) -> None:
    """Give GEMMs outside of autograd's nodes the pass that their shapes prove."""
    shaped = [(gemm, gemm.shape) for gemm in gemms if gemm.shape and gemm.leg is Leg.FPROP]
    sure = Counter(shape[1:] for gemm, shape in shaped if gemm.number in surely_forward)
    outside = Counter(
        _wgrad_of(shape, sure) for gemm, shape in shaped if gemm.number not in surely_forward
    )
    tokens = {m for m, _, _ in sure}
    dgrad: Counter[_Size] = Counter()
    wgrad: Counter[_Size] = Counter()
    in_backward = False
    for gemm, following in zip_longest(gemms, gemms[1:]):
        leg, shape = gemm.leg, gemm.shape
        if shape is None or shape.batch != 1:
            continue
        of_dgrad = (shape.m, shape.k, shape.n)
        if leg is Leg.FPROP and gemm.number not in surely_forward:
            is_dgrad = dgrad[of_dgrad] > 0
            # As many outputs as tokens make wgrad and a forward GEMM alike.
            is_alike = shape.k in (shape.m, shape.n) and shape.m in tokens
            if wgrad[_wgrad_of(shape, wgrad)] > 0 and (
                not is_alike or (in_backward and not is_dgrad)
            ):
                leg = Leg.WGRAD
            elif is_dgrad and (in_backward or _is_wgrad_of(following, shape, surely_forward)):
                leg = Leg.DGRAD
        elif leg is Leg.BACKWARD and sure[of_dgrad] and outside[of_dgrad] >= sure[of_dgrad]:
            leg = Leg.DGRAD  # wgrad of these layers runs outside
        if leg is Leg.FPROP:
            dgrad[shape[1:]] += 1
            wgrad[shape[1:]] += 1
            tokens.add(shape.m)
        elif leg is Leg.DGRAD:
            dgrad[of_dgrad] -= 1
        elif leg is Leg.WGRAD:
            wgrad[_wgrad_of(shape, wgrad)] -= 1
        in_backward = leg is not Leg.FPROP
        gemm.leg = leg


def _wgrad_of(shape: GemmShape, open_: Counter[_Size]) -> _Size:
    """Return (m, n, k) of the forward GEMM whose weight's gradient has this shape."""
    size = shape.k, shape.m, shape.n
    return size if open_[size] > 0 else (shape.k, shape.n, shape.m)


def _is_wgrad_of(gemm: Gemm | None, dgrad: GemmShape, sure: frozenset[int]) -> bool:
    """Whether the next GEMM is wgrad of the layer whose dgrad has this shape."""
    if gemm is None or gemm.shape is None or gemm.leg is not Leg.FPROP or gemm.number in sure:
        return False
    tokens, outputs, inputs = dgrad.m, dgrad.k, dgrad.n
    sides = {gemm.shape.m, gemm.shape.n}
    return gemm.shape.k == tokens and tokens not in sides and sides == {outputs, inputs}
