"""Whose product is a GEMM: a layer's, attention's or the optimizer's?

A trace has no module names, so the enclosing operators decide. Attention that a script computes
with GEMMs is known by order and shape: scores of (…, L, S), a softmax over S, and their product
with the values. Their gradients have the same three sizes in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from fp8verify.analysis.kinds import Kind, Kinds, gemm_shape
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.analysis.purpose import optimizer_products
from fp8verify.analysis.replays import attention_without_operators, is_softmax
from fp8verify.kernels.operators import find
from fp8verify.terms import Leg, OpContext, Role
from fp8verify.trace import Trace

# ATTENTION or OPTIMIZER; None is a layer.
Owner: TypeAlias = "Leg | None"

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


def owners_of(
    trace: Trace,
    kinds: Kinds,
    launches: Sequence[Gemm],
) -> list[Owner]:
    """Return the owners of launches, by their positions.

    A product whose call made a node that has gradients is a layer's, as inside a closure.
    """
    of_kinds = _owners_of_kinds(trace, kinds, launches)
    of_attention = attention_without_operators(trace, kinds)
    call_of_node: dict[int, int] = {}
    ran: set[int] = set()
    for gemm in launches:
        call_of_node[gemm.makes] = gemm.call
        ran.add(gemm.node)
    ran.discard(-1)
    owners: list[Owner] = []
    for gemm in launches:
        owner = of_kinds.get(gemm.kind_id)
        has_gradients = gemm.makes in ran and gemm.call == call_of_node[gemm.makes]
        if gemm.index in of_attention:
            owner = Leg.ATTENTION
        elif owner is Leg.OPTIMIZER and has_gradients:
            owner = None
        owners.append(owner)
    return owners


def _owners_of_kinds(
    trace: Trace,
    kinds: Kinds,
    launches: Sequence[Gemm],
) -> dict[int, Leg]:
    """Return ATTENTION or OPTIMIZER by number of kind, for GEMMs that are not a layer's."""
    of_launches = {gemm.kind_id: gemm.kind for gemm in launches}
    of_optimizer = optimizer_products(trace.ops, kinds.rows, of_launches)
    batched: dict[int, Kind] = {}
    inside: set[int] = set()
    for number, kind in of_launches.items():
        if number not in of_optimizer and _is_batched(kind):
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
