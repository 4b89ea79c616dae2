"""What of a replayed graph is attention, by the order of its kernels.

Kernels of a replay, or of a source without operators, have no operator of their own: no shape says
that a product is batched. Their order does: attention runs a product, a softmax and a product, and
its gradients are two products, the softmax's gradient and two products. None of these runs in low
precision. A compiler moves some of the gradients away from the softmax, so where all products of a
precision are as many as attention has, they are attention's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from fp8verify.analysis.kinds import Kind, Kinds
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Precision
from fp8verify.thresholds import BEHIND_SOFTMAX
from fp8verify.trace import Trace

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
