"""Which legs do the operator, the sizes, the layout and the counts of a product allow?

For a linear layer of M tokens, K inputs and N outputs, fprop multiplies (M, K) by (K, N), dgrad
(M, N) by (N, K) and wgrad (N, M) by (M, K) or its transpose. Evidence in the order of its
authority:

1. the enclosing operators: autograd runs backward under a `*Backward` node;
2. the sizes, compared with those of the forward pass;
3. the operand layout of kernels that have several: BLAS computes a row-major linear layer as TN,
   NN and NT;
4. the counts: of products of one shape, how many gradients still lack; where it is as many of
   both, the order of launch, as PyTorch's derivative formulas, torchao 0.17 and Transformer
   Engine 2.20 all launch dgrad before wgrad.

Only what runs in a backward pass asks the last three.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, TypeAlias

from fp8verify.analysis.kinds import (
    GemmShape,
    Kind,
    Size,
    is_in_graph,
)
from fp8verify.analysis.placing.known import (
    ANY,
    FORWARD,
    GRADIENTS,
    IN_BACKWARD,
    LEG_OF,
    ONLY,
    OUTSIDE,
    RECOMPUTED,
    Legs,
    narrowed,
)
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.analysis.purpose import has_gradient, is_of_layers
from fp8verify.kernels.operators import OPERATORS, function_of
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import COUNTED, GRADIENT_LEGS, Leg, OpContext

# TN is that of a forward pass, and of dgrad where the weight is stored transposed.
_LAYOUT_LEGS: Final = {"NN": Leg.DGRAD, "NT": Leg.WGRAD}
_LAYOUT: Final = lazy_pattern(
    r"_([NT][NT])[NT]?(?:$|_)|_(nn|nt|tn)_(?:n_tile|align)", re.ASCII
)
_LINEAR: Final = frozenset(name for name, row in OPERATORS.items() if row.linear)
_OfKinds: TypeAlias = "dict[int, Legs]"  # by number
_InTurn: TypeAlias = "tuple[Leg, ...]"  # legs that products of one shape take in turn


def legs_of_launches(
    launches: Sequence[Gemm],
    ops: Iterable[OpContext],
) -> dict[int, Legs]:
    """Return the legs that launches of layers may be, by their positions.

    Args:
        launches: those of layers, in order.
        ops: all operators of the trace.
    """
    of_kind = {gemm.kind_id: gemm for gemm in launches}
    by_operators = _by_operators(of_kind, ops)
    forward = _forward_sizes(launches, by_operators)
    of_kinds: _OfKinds = {}
    for number, gemm in of_kind.items():
        legs = by_operators[number]
        if legs <= IN_BACKWARD:
            by_sizes = _by_sizes(gemm.shape, legs, forward)
            legs = narrowed(legs, by_sizes, _by_layout(gemm.kind))
        of_kinds[number] = legs
    by_counts = _by_counts(launches, of_kinds, forward)
    found = {}
    for gemm in launches:
        counted = by_counts.get(gemm.position, ANY)
        found[gemm.position] = narrowed(of_kinds[gemm.kind_id], counted)
    return found


# ---- the operators


def _by_operators(of_kind: Mapping[int, Gemm], ops: Iterable[OpContext]) -> _OfKinds:
    """Return the legs that the operators around the GEMMs of each kind allow."""
    inside = set(_LINEAR)
    for gemm in of_kind.values():
        functions = map(function_of, gemm.kind.op.around)
        inside.update(filter(None, functions))
    forward = _forward_functions(ops)
    return {
        number: _under_operators(gemm.kind, inside, forward)
        for number, gemm in of_kind.items()
    }


def _forward_functions(ops: Iterable[OpContext]) -> set[str]:
    """Return what only a forward pass runs: functions that have a node, and operators of layers."""
    around: set[str] = set()
    for op in ops:
        around.update(op.around)
    functions = map(function_of, around)
    forward = set(filter(None, functions))
    forward.update(filter(is_of_layers, around))
    return forward


def _under_operators(
    kind: Kind,
    inside: Set[str],
    forward: Set[str],
) -> Legs:
    """Return the legs that the operators around a GEMM allow.

    Args:
        kind: its kind.
        inside: operators and functions that recompute, if a node runs them.
        forward: those that only a forward pass runs.
    """
    op = kind.op
    is_gradient = has_gradient(kind)
    # A row of a table of operators joins their calls in all passes; a kernel that Inductor calls
    # has an operator of its name.
    is_sum = kind.name == op.name and "::" in op.name
    if not op.name or op.name.startswith(COUNTED) or is_sum:
        return GRADIENTS if is_gradient else ANY
    if op.backward:
        return _under_node(kind, inside)
    # A replayed CUDA graph of a backward pass is launched by the node, not run inside it.
    if is_gradient and not op.types:
        return GRADIENTS
    return OUTSIDE if forward.isdisjoint(op.around) else FORWARD


def _under_node(kind: Kind, inside: Set[str]) -> Legs:
    """Return the legs of a product that ran in the backward pass.

    Only a compiled backward pass recomputes without an enclosing operator of the forward pass.
    """
    for name in kind.op.around:
        if function_of(name) is not None:
            break
        if name in inside:
            return RECOMPUTED
    may_recompute = is_in_graph(kind.op) and not has_gradient(kind)
    return IN_BACKWARD if may_recompute else GRADIENTS


# ---- the sizes and the layout


def _forward_sizes(launches: Iterable[Gemm], by_operators: _OfKinds) -> Counter[Size]:
    """Count the products of the forward pass by their sizes."""
    forward = Counter[Size]()
    for gemm in launches:
        is_forward = LEG_OF[by_operators[gemm.kind_id]] is Leg.FPROP
        if is_forward and gemm.shape and gemm.multiplies:
            forward[gemm.shape[1:]] += 1
    return forward


def _by_sizes(
    shape: GemmShape | None,
    legs: Legs,
    forward: Counter[Size],
) -> Legs:
    """Return the legs whose forward product ran.

    wgrad is transposed only if nothing else fits.

    Args:
        shape: that of the product.
        legs: those that its operators allow.
        forward: how often each size ran in the forward pass.
    """
    if shape is None:
        return ANY
    fitting = []
    for leg in legs:
        first, *_ = shape.forward_sizes(leg)
        if forward[first]:
            fitting.append(leg)
    if fitting:
        return frozenset(fitting)
    is_transposed = forward[shape.k, shape.n, shape.m] > 0
    return ONLY[Leg.WGRAD] if is_transposed else ANY


def _by_layout(kind: Kind) -> Legs:
    """Return the leg that the layout of the operands shows; FP8 on Hopper has no choice of it."""
    leg = None if kind.is_low else layout_leg(kind.name)
    return ANY if leg is None else ONLY[leg]


def layout_leg(kernel: str) -> Leg | None:
    """Return the leg by the operand layout of a BLAS kernel: NN is dgrad, NT is wgrad."""
    match = _LAYOUT.search(kernel)
    if match is None:
        return None
    layout = match[1] or match[2]
    return _LAYOUT_LEGS.get(layout.upper())


# ---- the counts


def _by_counts(
    launches: Sequence[Gemm],
    of_kinds: _OfKinds,
    forward: Counter[Size],
) -> dict[int, Legs]:
    """Return by position the leg of what lacks only one, or two equally often, in turn."""
    if not any(map(_is_undecided, of_kinds.values())):
        return {}
    lacking = _lacking(launches, of_kinds, forward)
    turn: Counter[GemmShape] = Counter()
    found: dict[int, Legs] = {}
    for gemm in launches:
        legs = of_kinds[gemm.kind_id]
        shape = gemm.shape
        if LEG_OF[legs] is Leg.FPROP:
            turn.clear()  # equal passes count alike
        elif _is_undecided(legs) and shape in lacking:
            turn[shape] += gemm.multiplies
            in_turn = lacking[shape]
            before = turn[shape] - 1
            leg = in_turn[before % len(in_turn)]
            found[gemm.position] = ONLY[leg]
    return found


def _is_undecided(legs: Legs) -> bool:
    return LEG_OF[legs] is Leg.BACKWARD


def _lacking(
    launches: Sequence[Gemm],
    of_kinds: _OfKinds,
    forward: Counter[Size],
) -> dict[GemmShape, _InTurn]:
    """Return the shapes that lack only one leg, and those that lack two equally, in turn."""
    taken: Counter[tuple[GemmShape, Leg]] = Counter()
    repeats = _graphs_repeat(launches, of_kinds)
    for gemm in launches:
        legs = of_kinds[gemm.kind_id]
        if repeats and _is_undecided(legs) and gemm.in_graph:
            continue  # it may be a forward product that ran again
        if gemm.shape is not None:
            taken[gemm.shape, LEG_OF[legs]] += gemm.multiplies
    lacking: dict[GemmShape, _InTurn] = {}
    for shape, leg in taken:
        if leg is not Leg.BACKWARD:
            continue
        size_of_dgrad, *_ = shape.forward_sizes(Leg.DGRAD)
        size_of_wgrad, *_ = shape.forward_sizes(Leg.WGRAD)
        in_turn = _lacking_legs(
            undecided=taken[shape, Leg.BACKWARD],
            dgrad=forward[size_of_dgrad] - taken[shape, Leg.DGRAD],
            wgrad=forward[size_of_wgrad] - taken[shape, Leg.WGRAD],
        )
        if in_turn:
            lacking[shape] = in_turn
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


def _graphs_repeat(launches: Iterable[Gemm], of_kinds: _OfKinds) -> bool:
    """Whether the backward passes of graphs compute forward products again.

    The first one of a step has more products than two for each of the forward pass before it. What
    runs behind it, as an evaluation, does not count.
    """
    forward = Counter[int]()
    backward = Counter[int]()
    over: set[int] = set()
    for gemm in launches:
        step = gemm.step
        if step in over or not gemm.multiplies:
            continue
        if LEG_OF[of_kinds[gemm.kind_id]] is not Leg.FPROP:
            backward[step] += gemm.in_graph
        elif backward[step]:
            over.add(step)
        else:
            forward[step] += gemm.of_graph
    for step, count in backward.items():
        most = len(GRADIENT_LEGS) * forward[step]
        if count > most > 0:
            return True
    return False
