"""Which micro-batch of its step is a product of?

The micro-batches are the forward launches of a step, cut into repetitions. One ends where gradients
ran in between, and where gradients took the later launch after the earlier one: one backward pass
takes what the forward pass saved in the opposite order, so these are of two. What one backward pass
takes whole, as of three views, is cut at its embeddings, losses or pipeline transfers, if these
repeat with the layers. A gradient belongs to the repetition of its forward product. In a trace
without steps and legs, optimizer steps are the cuts.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final

from fp8verify.analysis.kinds import Kind, Kinds, Size
from fp8verify.analysis.placing.known import Known
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.analysis.placing.training import Pairs
from fp8verify.analysis.purpose import is_update
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import BACKWARD_LEGS, Leg
from fp8verify.trace import Trace

# What runs once in a forward pass: at the ends of a model, or of its stage in a pipeline.
_ENDS: Final = lazy_pattern(
    r"embedding|cross_entropy|nll_loss|log_softmax|sendrecv", re.IGNORECASE
)


def micro_batches_of(
    trace: Trace,
    kinds: Kinds,
    products: Sequence[Gemm],
    known: Known,
    pairs: Pairs,
) -> dict[int, int]:
    """Return by position the micro-batches of products of layers, in order."""
    starts = trace.kernels.start_ns
    found = _of_forward_products(trace, kinds, products, known, pairs)
    updates: list[int] = []
    if not trace.steps:
        updates = [starts[index] for index in kinds.started(is_update)]
    current: dict[int, int] = defaultdict(int)
    for gemm in products:
        position = gemm.position
        forward = pairs.forward.get(position)
        if position in found:
            current[gemm.step] = found[position]
        elif forward is not None:
            found[position] = found.get(forward.position, 0)
        else:
            after_updates = 0
            if not gemm.kind.op.name:
                after_updates = bisect_right(updates, starts[gemm.index])
            found[position] = after_updates or current[gemm.step]
    return found


def _of_forward_products(
    trace: Trace,
    kinds: Kinds,
    products: Sequence[Gemm],
    known: Known,
    pairs: Pairs,
) -> dict[int, int]:
    """Return by position the micro-batches of the forward products that train."""
    starts = trace.kernels.start_ns
    consumed: dict[int, int] = {}  # when the first gradient of each node began
    for gemm in products:
        forward = pairs.forward.get(gemm.position)
        node = known.node(gemm)
        if forward is not None and node == forward.makes >= 0:
            consumed.setdefault(node, starts[gemm.index])
    ends = [starts[index] for index in kinds.started(_is_end)]
    number: Counter[int] = Counter()
    found = {}
    for piece in _pieces(products, known, pairs, consumed):
        step = piece[0].step
        starts_of_piece = [starts[gemm.index] for gemm in piece]
        sizes = [known.size(gemm) for gemm in piece]
        length = _repetition(sizes, starts_of_piece, ends)
        for place, gemm in enumerate(piece):
            found[gemm.position] = number[step] + place // length
        number[step] += len(piece) // length
    return found


def _pieces(
    products: Sequence[Gemm],
    known: Known,
    pairs: Pairs,
    consumed: Mapping[int, int],
) -> Iterator[list[Gemm]]:
    """Yield the forward products of each step that train up to where gradients tell a cut."""
    pieces: dict[int, list[Gemm]] = {}
    turned: set[int] = set()
    for gemm in products:
        leg = known.leg(gemm)
        if leg in BACKWARD_LEGS:
            turned.add(gemm.step)
        trains = pairs.trained[gemm.position]
        if leg is not Leg.FPROP or not trains:
            continue
        piece = pieces.setdefault(gemm.step, [])
        is_cut = gemm.step in turned
        if piece and not is_cut:
            own = consumed.get(gemm.makes, -inf)
            last = consumed.get(piece[-1].makes, inf)
            is_cut = own > last
        if piece and is_cut:
            yield pieces.pop(gemm.step)
            piece = []
            pieces[gemm.step] = piece
        turned.discard(gemm.step)
        piece.append(gemm)
    yield from filter(None, pieces.values())


def _repetition(
    sizes: Sequence[Size],
    starts: Sequence[int],
    ends: Sequence[int],
) -> int:
    """Return how many of some products a repetition has.

    All of them, if layers and ends of a model do not repeat.

    Args:
        sizes: of the products, in order.
        starts: when each began.
        ends: when the ends of models began.
    """
    first = bisect_left(ends, starts[0])
    last = bisect_left(ends, starts[-1])
    cuts = {bisect_left(starts, end) for end in ends[first:last]}
    cuts.add(0)
    marks = []
    for place, (_, n, k) in enumerate(
        sizes
    ):  # views of one batch may differ in their tokens
        marks.append((n, k, place in cuts))
    for length in sorted(cuts - {0}):
        times, rest = divmod(len(sizes), length)
        if not rest and marks == marks[:length] * times:
            return length
    return len(sizes)


def _is_end(kind: Kind) -> bool:
    if kind.op.backward:
        return False
    names = kind.op.around or (kind.name[:200],)
    return any(map(_ENDS.search, names))
