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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import Final, TypeAlias

from fp8verify.analysis.kinds import (
    Gemm,
    GemmShape,
    Kind,
    Kinds,
    Node,
    Size,
    gemm_shape,
)
from fp8verify.analysis.purpose import has_gradient, is_of_layers, optimizer_products
from fp8verify.kernels.operators import OPERATORS, find, function_of
from fp8verify.terms import BACKWARD_LEGS, COUNTED, GRADIENT_LEGS, Leg, OpContext, Role
from fp8verify.trace import Trace

# TN is that of a forward pass, and of dgrad where the weight is stored transposed.
_LAYOUT_LEGS = {"NN": Leg.DGRAD, "NT": Leg.WGRAD}
_COMPILED = "CompiledFunction"
_LAYOUT = re.compile(r"_([NT][NT])[NT]?(?:$|_)|_(nn|nt|tn)_(?:n_tile|align)", re.ASCII)
_LINEAR = frozenset(name for name, row in OPERATORS.items() if row.linear)
_Sides: TypeAlias = "frozenset[int]"  # outputs and inputs


def place_gemms(gemms: Sequence[Gemm]) -> None:
    """Give launches of one trace, in order, the leg and the shape that each computes."""
    of_kind = {gemm.kind_id: gemm for gemm in gemms}
    # Custom autograd functions: X where a node XBackward encloses a GEMM.
    nodes = {name for gemm in of_kind.values() for name in gemm.kind.op.around}
    functions = _LINEAR.union(filter(None, map(function_of, nodes)))
    settled = {
        number: _from_context(g.kind, functions) for number, g in of_kind.items()
    }
    shaped = (
        (gemm.kind_id, gemm.shape)
        for gemm in gemms
        if gemm.shape and gemm.kind.multiplies
    )
    forward = Counter(
        shape[1:] for number, shape in shaped if settled[number] is Leg.FPROP
    )
    for number, gemm in of_kind.items():
        if settled[number] is None:
            settled[number] = _from_shape(gemm.kind, gemm.shape, forward)
    lacking = _lacking(gemms, settled, forward)
    turn: Counter[GemmShape] = Counter()
    for gemm in gemms:
        leg = settled[gemm.kind_id]
        shape = gemm.shape
        if leg is None and shape in lacking:
            turn[shape] += gemm.kind.multiplies
            leg = lacking[shape][(turn[shape] - 1) % len(lacking[shape])]
        gemm.leg = leg or Leg.BACKWARD


def _from_context(kind: Kind, functions: frozenset[str]) -> Leg | None:
    """Decide by the enclosing operators; None for an unknown GEMM of the backward pass."""
    op = kind.op
    if not op.name or op.name.startswith(COUNTED):
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


def _from_shape(
    kind: Kind, shape: GemmShape | None, forward: Counter[Size]
) -> Leg | None:
    """Decide by the shapes of the forward pass, else by the layout of the operands.

    wgrad is transposed only if nothing else fits. Only a compiled backward pass recomputes
    without an enclosing operator of the forward pass; E5M2 operands are always gradients. FP8 on
    Hopper has no choice of layout.
    """
    if shape is not None:
        recomputes = _COMPILED in map(function_of, kind.op.around) and not has_gradient(
            kind
        )
        possible = (*GRADIENT_LEGS, Leg.RECOMPUTE) if recomputes else GRADIENT_LEGS
        legs = [leg for leg in possible if forward[shape.forward_sizes(leg)[0]]]
        if len(legs) == 1:
            return legs[0]
        if not legs and forward[shape.k, shape.n, shape.m]:
            return Leg.WGRAD
    if kind.classification.precision.is_low:
        return None
    return layout_leg(kind.name)


def layout_leg(kernel: str) -> Leg | None:
    """Return the leg by the operand layout of a BLAS kernel: NN is dgrad, NT is wgrad."""
    match = _LAYOUT.search(kernel)
    if match is None:
        return None
    return _LAYOUT_LEGS.get((match[1] or match[2]).upper())


def _lacking(
    gemms: Sequence[Gemm], settled: Mapping[int, Leg | None], forward: Counter[Size]
) -> dict[GemmShape, tuple[Leg, ...]]:
    """Return the shapes that lack only one leg, and those that lack two equally, in turn."""
    taken: Counter[tuple[GemmShape, Leg | None]] = Counter()
    for gemm in gemms:
        if gemm.shape is not None:
            taken[gemm.shape, settled[gemm.kind_id]] += gemm.kind.multiplies
    lacking: dict[GemmShape, tuple[Leg, ...]] = {}
    for shape in [shape for shape, leg in taken if leg is None]:
        total = taken[shape, None]
        expected = {leg: forward[shape.forward_sizes(leg)[0]] for leg in GRADIENT_LEGS}
        dgrad, wgrad = (count - taken[shape, leg] for leg, count in expected.items())
        if dgrad == wgrad and total == dgrad + wgrad:
            lacking[shape] = GRADIENT_LEGS
        elif min(dgrad, wgrad) <= 0 < total <= max(dgrad, wgrad):
            lacking[shape] = (Leg.DGRAD if dgrad > 0 else Leg.WGRAD,)
    return lacking


def doubt(gemms: Sequence[Gemm]) -> None:
    """Take back what the log of a BLAS library, which knows no operators, does not show."""
    for gemm in gemms:
        if gemm.leg is Leg.FPROP and has_gradient(gemm.kind):
            gemm.leg = Leg.BACKWARD
    if not any(gemm.leg in BACKWARD_LEGS for gemm in gemms):
        for gemm in gemms:
            gemm.leg = Leg.UNKNOWN


def surely_forward(trace: Trace, kinds: Kinds) -> frozenset[int]:
    """Return the kinds under a function of the forward pass, by the numbers of `kinds`."""
    nodes = {name for op in trace.ops for name in op.around}
    forward = {*map(function_of, nodes), *filter(is_of_layers, nodes)}
    return frozenset(
        number
        for number, kind in enumerate(kinds.rows)
        if not kind.op.backward and not forward.isdisjoint(kind.op.around)
    )


# How much of a dgrad and of a wgrad a GEMM is.
_PARTS: Final = {Leg.DGRAD: (1, 0), Leg.WGRAD: (0, 1), Leg.BACKWARD: (1 / 2, 1 / 2)}


def settle_by_shape(
    gemms: Sequence[Gemm], nodes: Mapping[int, Node], surely_forward: frozenset[int]
) -> None:
    """Give GEMMs outside of autograd's nodes the leg that their shapes prove."""
    shaped = [
        (gemm, gemm.shape) for gemm in gemms if gemm.shape and gemm.leg is Leg.FPROP
    ]
    sure = Counter(
        shape[1:] for gemm, shape in shaped if gemm.kind_id in surely_forward
    )
    delayed = _delayed(
        (shape, gemm.kind_id in surely_forward) for gemm, shape in shaped
    )
    layers = {frozenset(size[1:]) for size in sure}
    # Where autograd numbers calls, one without a node has no gradient: an optimizer's product. One
    # that is no node's last call only has the number of the next node; a joint graph has no nodes.
    trains = {node.forward[0].call for node in nodes.values() if node.gradients}
    numbered = {gemm.call for gemm in gemms if gemm.makes >= 0}
    makers = {node.forward[0].call for node in nodes.values()} if trains else numbered
    dgrad: dict[Size, float] = defaultdict(float)
    wgrad: dict[_Sides, float] = defaultdict(float)  # work: it may run in parts
    turned: set[int] = set()
    after_gradient = False
    for gemm, following in zip_longest(gemms, gemms[1:]):
        leg = gemm.leg
        shape = gemm.shape
        if shape is None or shape.batch != 1:
            continue
        of_dgrad = (shape.m, shape.k, shape.n)
        of_wgrad = frozenset((shape.m, shape.n))
        sides = frozenset(
            (shape.n, shape.k)
        )  # of its layer, if it is a forward GEMM or dgrad
        if (
            leg is Leg.FPROP
            and gemm.kind_id not in surely_forward
            and gemm.call not in trains
        ):
            is_dgrad = dgrad[of_dgrad] > 0
            in_backward = after_gradient and gemm.step in turned
            # As many outputs as tokens make wgrad and a forward GEMM alike.
            if wgrad[of_wgrad] > 0 and (
                sides not in layers or (in_backward and not is_dgrad)
            ):
                leg = Leg.WGRAD
            elif (
                is_dgrad
                and not trains
                and (in_backward or _is_wgrad_of(following, shape, surely_forward))
            ):
                leg = Leg.DGRAD
        elif leg is Leg.BACKWARD and sure[of_dgrad] and sides in delayed:
            leg = Leg.DGRAD
        if leg is Leg.FPROP and (gemm.call in makers or not makers):
            dgrad[shape[1:]] += 1
            wgrad[sides] += prod(shape)
            layers.add(sides)
        fits = dgrad[of_dgrad] > 0, wgrad[of_wgrad] > 0
        parts: tuple[float, float]
        if leg is Leg.BACKWARD and not all(fits):
            parts = fits
        else:
            parts = _PARTS.get(leg, (0, 0))
        dgrad[of_dgrad] -= parts[0]
        wgrad[of_wgrad] -= parts[1] * prod(shape)
        after_gradient = leg is not Leg.FPROP
        if after_gradient:
            turned.add(gemm.step)
        gemm.leg = leg


def _delayed(shaped: Iterable[tuple[GemmShape, bool]]) -> set[_Sides]:
    """Return the sides of layers as much of whose wgrad may run outside of nodes as is expected."""
    work: defaultdict[_Sides, list[int]] = defaultdict(lambda: [0, 0])
    for shape, is_forward in shaped:
        work[frozenset(shape[2:] if is_forward else shape[1:3])][is_forward] += prod(
            shape
        )
    return {sides for sides, (outside, forward) in work.items() if outside >= forward}


def _is_wgrad_of(gemm: Gemm | None, dgrad: GemmShape, sure: frozenset[int]) -> bool:
    """Whether the next GEMM is wgrad of the layer whose dgrad has this shape."""
    if (
        gemm is None
        or gemm.shape is None
        or gemm.leg is not Leg.FPROP
        or gemm.kind_id in sure
    ):
        return False
    tokens = dgrad.m
    outputs = dgrad.k
    inputs = dgrad.n
    sides = {gemm.shape.m, gemm.shape.n}
    return gemm.shape.k == tokens and tokens not in sides and sides == {outputs, inputs}


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


def owners_of(trace: Trace, kinds: Kinds) -> dict[int, Leg]:
    """Return ATTENTION or OPTIMIZER by number of kind, for GEMMs that are not a layer's."""
    found = dict.fromkeys(optimizer_products(trace.ops, kinds.rows), Leg.OPTIMIZER)
    gemms = {
        n: kind for n, kind in enumerate(kinds.rows) if kind.is_gemm and n not in found
    }
    batched = {number: kind for number, kind in gemms.items() if _is_batched(kind)}
    inside = {number for number, kind in batched.items() if _under_attention(kind.op)}
    if batched:
        inside |= _between_softmaxes(trace, kinds, batched)
    return found | dict.fromkeys(_with_gradients(batched, inside), Leg.ATTENTION)


def _is_batched(kind: Kind) -> bool:
    """Whether a kernel multiplies batches of matrices, as no linear layer does except experts."""
    known = kind.op.name in _BATCHED or _under_attention(kind.op)
    from fp8verify.kernels.symbol import (
        split,
    )  # as the grammars, not for a run without a trace

    return known or "bmm" in split(kind.name[:200])


def _under_attention(op: OpContext) -> bool:
    return any(find(name).encloses is Role.ATTENTION for name in op.parents)


def _between_softmaxes(
    trace: Trace, kinds: Kinds, batched: Mapping[int, Kind]
) -> set[int]:
    """Return the pairs of GEMMs around a softmax whose sizes fit, in the forward pass."""
    found: set[int] = set()
    before: dict[int, tuple[int | None, bool]] = defaultdict(lambda: (None, False))
    for place in kinds.started(lambda kind: kind.is_gemm or _is_softmax(kind)):
        stream = trace.kernels.stream[place]
        number = kinds.ids[place]
        (first, softmax), kind = before[stream], kinds.rows[number]
        if not kind.is_gemm:
            before[stream] = (first, True)
            continue
        is_batched = number in batched and not kind.op.backward
        if is_batched and softmax and first is not None and _fit(batched[first], kind):
            found |= {first, number}
        before[stream] = (number if is_batched else None, False)
    return found


def _is_softmax(kind: Kind) -> bool:
    text = kind.name[:400].lower()
    named = "softmax" in text and "log_softmax" not in text and "logsoftmax" not in text
    return named or not _SOFTMAX.isdisjoint(kind.op.around)


def _fit(first: Kind, second: Kind) -> bool:
    """Whether the second product can take what the first gave; unknown shapes can."""
    scores = gemm_shape(first.op)
    values = gemm_shape(second.op)
    if scores is None or values is None:
        return scores is values
    return scores[:3] == (values.batch, values.m, values.k)


def _with_gradients(batched: Mapping[int, Kind], inside: set[int]) -> Iterator[int]:
    """Yield the products of attention and all that have their sizes, as their gradients have."""
    sizes = {number: _sizes(kind) for number, kind in batched.items()}
    of_attention = {sizes[number] for number in inside}
    forward = {
        n for n, kind in batched.items() if kind.op.name and not kind.op.backward
    }
    for number, size in sizes.items():
        alike = size in of_attention
        if size is None:  # gradients are attention's if every forward product is
            alike = bool(inside) and forward <= inside and number not in forward
        if number in inside or alike:
            yield number


def _sizes(kind: Kind) -> tuple[int, ...] | None:
    """Return batch, and M, N and K by size: what a product and its gradients have in common."""
    shape = gemm_shape(kind.op)
    return None if shape is None else (shape.batch, *sorted(shape[1:]))
