"""Which products are attention's, where no fused kernel computes it?

With operators they are known by order and shape: scores of (…, L, S), a softmax over S, and their
product with the values. Their gradients have the same three sizes in another order.

Kernels of a replay, or of a source without operators, have no operator of their own: no shape says
that a product is batched. Their order does: attention runs a product, a softmax and a product, and
its gradients are two products, the softmax's gradient and two products. None of these runs in low
precision. A compiler moves some of the gradients away from the softmax, so where all products of a
precision are as many as attention has, they are attention's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from fp8verify.analysis.kinds import Kind, Kinds, gemm_shape
from fp8verify.kernels.operators import find
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import OpContext, Precision, Role
from fp8verify.thresholds import BEHIND_SOFTMAX
from fp8verify.trace import Trace

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


# ---- with operators


def attention_by_operators(
    trace: Trace,
    kinds: Kinds,
    gemms: Mapping[int, Kind],
) -> set[int]:
    """Return the numbers of kinds of GEMM that are attention's.

    Args:
        trace: the window.
        kinds: of all its kernels.
        gemms: the kinds of GEMM that may be, by their numbers.
    """
    batched: dict[int, Kind] = {}
    inside: set[int] = set()
    for number, kind in gemms.items():
        if not _is_batched(kind):
            continue
        batched[number] = kind
        if _under_attention(kind.op):
            inside.add(number)
    if batched:
        inside |= _between_softmaxes(trace, kinds, batched)
    return set(_with_gradients(batched, inside))


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
        if not kind.multiplies:
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
    if kind.multiplies or is_softmax(kind):
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


# ---- without operators


# What encloses the replays of graphs that torch.compile captures.
_REGION: Final = lazy_pattern(
    r"CompiledFunction|Torch-Compiled Region|## Call CompiledFxGraph|"
    r"autograd::engine::evaluate_function: CompiledFunction"
)
# How many products attention runs on each side of a softmax, and of its gradient.
_BESIDE_SOFTMAX: Final = 1
_BESIDE_GRADIENT: Final = 2


def attention_without_operators(trace: Trace, kinds: Kinds) -> set[int]:
    """Return the indices of the products of attention among kernels without own operators."""
    if not any(map(_products_beside, kinds.rows)):
        return set()
    of_streams: dict[int, list[int]] = defaultdict(list)
    for index in kinds.started(lambda _: True):
        of_streams[trace.kernels.stream[index]].append(index)
    found: set[int] = set()
    expected: Counter[Precision] = Counter()
    for indices in of_streams.values():
        for position, index in enumerate(indices):
            kind = kinds.rows[kinds.ids[index]]
            count = _products_beside(kind)
            if not count:
                continue
            first_seen = max(0, position - _SEEN)
            behind = position + 1
            seen_before = indices[first_seen:position]
            seen_after = indices[behind : behind + _SEEN]
            before = _next_products(kinds, reversed(seen_before), count)
            after = _next_products(kinds, seen_after, count)
            if before and after:
                found.update(before, after)
                precision = _precision(kinds, before[0])
                expected[precision] += 2 * count
    alike = _unlaunched(kinds)
    for precision, count in expected.items():
        if len(alike[precision]) == count:
            found.update(alike[precision])
    return found


_SEEN: Final = _BESIDE_GRADIENT + BEHIND_SOFTMAX


def is_softmax(kind: Kind) -> bool:
    """Whether a kernel by its name is a softmax that is no loss's."""
    text = kind.name[:400].lower()
    if "log_softmax" in text or "logsoftmax" in text:
        return False
    return "softmax" in text


def _products_beside(kind: Kind) -> int:
    """Return how many products attention runs on each side of a kernel; 0 if it is no softmax."""
    if not is_softmax(kind) or not _has_no_operator(kind):
        return 0
    is_gradient = "backward" in kind.name[:400].lower()
    return _BESIDE_GRADIENT if is_gradient else _BESIDE_SOFTMAX


def _next_products(
    kinds: Kinds,
    indices: Iterable[int],
    count: int,
) -> list[int]:
    """Return the indices of the products that come first, at most so many.

    Only the first may have other kernels before it.
    """
    found: list[int] = []
    for number, index in enumerate(indices):
        kind = kinds.rows[kinds.ids[index]]
        if _may_be_of_attention(kind):
            found.append(index)
        elif kind.is_gemm or found or number == BEHIND_SOFTMAX:
            break
        if len(found) == count:
            break
    return found


def _unlaunched(kinds: Kinds) -> dict[Precision, list[int]]:
    """Return the indices of all products that may be attention's, by their precision."""
    found: dict[Precision, list[int]] = defaultdict(list)
    may_be = [_may_be_of_attention(kind) for kind in kinds.rows]
    for index, number in enumerate(kinds.ids):
        if may_be[number]:
            found[_precision(kinds, index)].append(index)
    return found


def _precision(kinds: Kinds, index: int) -> Precision:
    return kinds.rows[kinds.ids[index]].precision


def _may_be_of_attention(kind: Kind) -> bool:
    if kind.is_low or not kind.multiplies:
        return False
    return _has_no_operator(kind)


def _has_no_operator(kind: Kind) -> bool:
    """Whether what launched a kernel says nothing of it: a replay, or a source of kernels alone."""
    name = kind.op.name
    return not name or _REGION.match(name) is not None
