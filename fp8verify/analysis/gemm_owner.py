"""The owner of each GEMM: a layer, attention, or the optimizer.

A trace has no module names, so the enclosing operators decide. Attention that
a script computes with GEMMs is known by order and shape: scores of (…, L, S), a softmax over S, and
their product with the values. Their gradients have the same three sizes in another order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from fp8verify.analysis.kinds import GemmShape, gemm_shape
from fp8verify.analysis.purpose import optimizer_products
from fp8verify.kernels.operators import find
from fp8verify.kernels.symbol import split
from fp8verify.terms import Leg, OpContext, Role

if TYPE_CHECKING:
    from fp8verify.analysis.kinds import Kind, Kinds
    from fp8verify.trace import Trace

_BATCHED: Final = frozenset({"aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::addbmm"})
_SOFTMAX: Final = frozenset(
    {"aten::softmax", "aten::_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data"}
)
# Batch, and M, N and K by size: what a product and its gradients have in common.
_Sizes: TypeAlias = tuple[int, tuple[int, ...]]


def owners_of(trace: Trace, kinds: Kinds) -> dict[int, Leg]:
    """Return ATTENTION or OPTIMIZER by number of kind, for GEMMs that are not a layer's."""
    gemms = {n: kind for n, kind in enumerate(kinds.kinds) if kind.classification.role.is_gemm}
    found = dict.fromkeys(optimizer_products(trace.ops, kinds.kinds), Leg.OPTIMIZER)
    batched = {n: kind for n, kind in gemms.items() if n not in found and _is_batched(kind)}
    inside = {n for n, kind in batched.items() if _under_attention(kind.op)}
    if batched:
        inside |= _between_softmaxes(trace, kinds, batched)
    return found | dict.fromkeys(_with_gradients(batched, inside), Leg.ATTENTION)


def _is_batched(kind: Kind) -> bool:
    """Whether a kernel multiplies batches of matrices, as no linear layer does except experts."""
    if kind.op is not None and kind.op.name in _BATCHED:
        return True
    return _under_attention(kind.op) or "bmm" in split(kind.name[:200])


def _under_attention(op: OpContext | None) -> bool:
    return op is not None and any(find(name).encloses is Role.ATTENTION for name in op.parents)


def _between_softmaxes(trace: Trace, kinds: Kinds, batched: Mapping[int, Kind]) -> set[int]:
    """Return the pairs of GEMMs around a softmax whose sizes fit, in the forward pass."""
    found: set[int] = set()
    before: dict[int, tuple[int | None, bool]] = defaultdict(lambda: (None, False))
    wanted = [_is_softmax(k) or k.classification.role.is_gemm for k in kinds.kinds]
    columns = trace.kernels
    places = [place for place, number in enumerate(kinds.numbers) if wanted[number]]
    for place in sorted(places, key=columns.start_ns.__getitem__):
        stream, number = columns.stream[place], kinds.numbers[place]
        first, softmax = before[stream]
        kind = kinds.kinds[number]
        if not kind.classification.role.is_gemm:
            before[stream] = (first, True)
            continue
        is_batched = number in batched and not (kind.op is not None and kind.op.backward)
        if is_batched and softmax and first is not None and _fit(batched[first], kind):
            found |= {first, number}
        before[stream] = (number if is_batched else None, False)
    return found


def _is_softmax(kind: Kind) -> bool:
    if kind.classification.role.is_gemm:
        return False
    text = kind.name[:400].lower()
    named = "softmax" in text and "log_softmax" not in text and "logsoftmax" not in text
    return named or not _SOFTMAX.isdisjoint(kind.around)


def _fit(first: Kind, second: Kind) -> bool:
    """Whether the second product can take what the first gave; unknown shapes can."""
    scores, values = gemm_shape(first.op), gemm_shape(second.op)
    if scores is None or values is None:
        return scores is values
    return (scores.batch, scores.m, scores.n) == (values.batch, values.m, values.k)


def _with_gradients(batched: Mapping[int, Kind], inside: set[int]) -> Iterator[int]:
    """Yield the products of attention and all that have their sizes, as their gradients have."""
    shapes = {number: gemm_shape(kind.op) for number, kind in batched.items()}
    sizes = {_sizes(shape) for n, shape in shapes.items() if n in inside and shape is not None}
    forward = {n for n, k in batched.items() if k.op is not None and not k.op.backward}
    for number, shape in shapes.items():
        if shape is None:
            # Without shapes, gradients are attention's if every forward product is.
            if number in inside or (inside and forward <= inside and number not in forward):
                yield number
        elif number in inside or _sizes(shape) in sizes:
            yield number


def _sizes(shape: GemmShape) -> _Sizes:
    return shape.batch, tuple(sorted((shape.m, shape.n, shape.k)))
