"""The micro-batch of each GEMM: the forward launches of a step, cut into repetitions.

A repetition ends where gradients ran in between, and where gradients took the later launch after
the earlier one: one backward pass takes what the forward pass saved in the opposite order, so that
these are of two. What one backward pass takes whole, as of three views, is cut at its embeddings,
losses or pipeline transfers, if these divide the sequence of layers evenly. A gradient belongs to
the repetition of its forward GEMM. In a trace without steps and legs, optimizer steps are the cuts.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING

from fp8verify.analysis.kinds import Gemm, Kind, Kinds
from fp8verify.analysis.pairing import BACKWARD, forward_of
from fp8verify.analysis.purpose import is_update

if TYPE_CHECKING:
    from fp8verify.trace import Trace

# What runs once in a forward pass: at the ends of a model, or of its stage in a pipeline.
_ENDS = re.compile(r"embedding|cross_entropy|nll_loss|log_softmax|sendrecv", re.IGNORECASE)


def number_micro_batches(trace: Trace, kinds: Kinds, gemms: Sequence[Gemm]) -> None:
    """Settle `micro_batch` of the launches of layers, in order."""
    starts = trace.kernels.start_ns
    consumed: dict[int, int] = {}
    for gemm in gemms:
        if gemm.forward is not None and gemm.node == gemm.forward.makes >= 0:
            consumed.setdefault(gemm.node, starts[gemm.place])
    ends = sorted(_starts(trace, kinds, _is_end))
    number: Counter[int] = Counter()
    for piece in _pieces(gemms, consumed):
        length = _repetition(piece, [starts[gemm.place] for gemm in piece], ends)
        for place, gemm in enumerate(piece):
            gemm.micro_batch = number[gemm.step] + place // length
        number[piece[0].step] += len(piece) // length
    updates = [] if trace.steps else sorted(_starts(trace, kinds, is_update))
    forward = {id(gemm) for gemm in forward_of(gemms)}
    current: dict[int, int] = defaultdict(int)
    for gemm in gemms:
        if id(gemm) in forward:
            current[gemm.step] = gemm.micro_batch
        elif gemm.forward is not None:
            gemm.micro_batch = gemm.forward.micro_batch
        else:
            is_loose = gemm.kind.op is None
            part = bisect_right(updates, starts[gemm.place]) if is_loose else 0
            gemm.micro_batch = part or current[gemm.step]


def _pieces(gemms: Sequence[Gemm], consumed: dict[int, int]) -> Iterator[list[Gemm]]:
    """Yield the forward GEMMs of each step up to where gradients tell a cut."""
    wanted = {id(gemm) for gemm in forward_of(gemms)}
    open_: dict[int, list[Gemm]] = {}
    turned: set[int] = set()
    for gemm in gemms:
        if gemm.leg in BACKWARD:
            turned.add(gemm.step)
        if id(gemm) not in wanted:
            continue
        piece = open_.setdefault(gemm.step, [])
        before = consumed.get(piece[-1].makes) if piece else None
        after = consumed.get(gemm.makes)
        in_turn = before is not None and after is not None and after > before
        if piece and (gemm.step in turned or in_turn):
            yield open_.pop(gemm.step)
            open_[gemm.step] = piece = []
        turned.discard(gemm.step)
        piece.append(gemm)
    yield from filter(None, open_.values())


def _repetition(piece: Sequence[Gemm], starts: Sequence[int], ends: Sequence[int]) -> int:
    """Return how many GEMMs a repetition has: all, if no end of a model divides them evenly."""
    first, last = bisect_left(ends, starts[0]), bisect_left(ends, starts[-1])
    length = gcd(len(piece), *(bisect_left(starts, end) for end in ends[first:last]))
    sizes = [gemm.size for gemm in piece]
    return length if sizes == sizes[:length] * (len(piece) // length) else len(piece)


def _starts(trace: Trace, kinds: Kinds, wanted: Callable[[Kind], bool]) -> Iterator[int]:
    """Yield when the kernels of some kinds began."""
    chosen = [wanted(kind) for kind in kinds.kinds]
    for number, start in zip(kinds.numbers, trace.kernels.start_ns, strict=True):
        if chosen[number]:
            yield start


def _is_end(kind: Kind) -> bool:
    if kind.op is not None and kind.op.backward:
        return False
    names = kind.around or (kind.name[:200],)
    return any(_ENDS.search(name) for name in names)
