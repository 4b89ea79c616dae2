"""Which GEMMs in high precision multiply what casts to FP8 rounded: FP8 that is only emulated.

FP8 has other uses: KV caches, all-to-all of tokens, attention, optimizer states. Emulated FP8
casts the operands of a layer right before its GEMM, on the same stream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from fp8verify.analysis.kinds import Kind, Kinds, gemm_shape
from fp8verify.analysis.placing import Placed
from fp8verify.analysis.purpose import (
    CONSUMERS,
    FP8_FUNCTIONS,
    FP8_TYPE,
    gathers,
    of_the_model,
    takes_fp8,
)
from fp8verify.terms import Leg
from fp8verify.trace import Trace


class _Cast(NamedTuple):
    """Elements of the FP8 tensors of a cast; None if it may feed any following GEMM."""

    written: frozenset[int] | None = frozenset()
    read: frozenset[int] = frozenset()


def fed_gemms(
    trace: Trace,
    kinds: Kinds,
    gemms: Iterable[Placed],
) -> int:
    """Count the launches of layers' GEMMs in high precision whose activations casts to FP8 round.

    Casts for attention, collectives or FP8 GEMMs do not count, nor do weights that are only stored
    or rounded in FP8.
    """
    casts = [_cast(kind) for kind in kinds.rows]
    if not any(casts):
        return 0
    of_layers = {placed.gemm.index: placed for placed in gemms if placed.of_layer}
    fed = 0
    waiting: dict[int, list[_Cast]] = defaultdict(list)
    for index in kinds.started(_casts_or_consumes):
        cast = casts[kinds.ids[index]]
        stream = trace.kernels.stream[index]
        if cast is not None:
            waiting[stream].append(cast)
            continue
        since_last = waiting.pop(stream, [])
        placed = of_layers.get(index)
        if placed is not None and _feed(since_last, placed):
            fed += 1
    return fed


def _casts_or_consumes(kind: Kind) -> bool:
    return kind.role in CONSUMERS or _cast(kind) is not None


def _cast(kind: Kind) -> _Cast | None:
    """Return what a kernel of the model casts to FP8, None for any other kernel.

    Operators record their inputs; `copy_` records its output first.
    """
    op = kind.op
    if kind.role in CONSUMERS or not of_the_model(op):
        return None
    cast = _cast_of(kind)
    if cast is not None and gathers(op):
        return cast._replace(written=frozenset())
    return cast


def _cast_of(kind: Kind) -> _Cast | None:
    op = kind.op
    if not takes_fp8(op):
        return None
    if not FP8_FUNCTIONS.isdisjoint(op.around):
        return _Cast(None)
    types = []
    fp8_sizes: set[int] = set()
    for name, dims in zip(op.types, op.dims, strict=False):
        if not dims:
            continue
        types.append(name)
        if FP8_TYPE.search(name):
            fp8_sizes.add(prod(dims))
    if not types:
        return None  # by name alone it may be anything's: that counts where FP8 is requested
    first_is_fp8 = FP8_TYPE.search(types[0]) is not None
    first_is_output = op.name == "aten::copy_"
    reads_fp8 = first_is_fp8 != first_is_output
    if reads_fp8:
        return _Cast(read=frozenset(fp8_sizes))
    return _Cast(written=frozenset(fp8_sizes))


def _feed(casts: list[_Cast], placed: Placed) -> bool:
    """Whether casts since the GEMM before rounded an activation of this one, and read it back."""
    if any(cast.written is None for cast in casts):
        return True
    shape = gemm_shape(placed.gemm.kind.op)
    if shape is None:
        return any(cast.written for cast in casts)
    a = shape.batch * shape.m * shape.k
    b = shape.batch * shape.k * shape.n
    written = Counter[int]()
    read: set[int] = set()
    for cast in casts:
        written.update(cast.written or ())
        read |= cast.read
    read_back = read.intersection(written)
    if placed.leg is Leg.WGRAD:  # of two activations
        return a in read_back or b in read_back
    # The weight has the size b: of two operands of one size both must have been rounded.
    both = a == b
    return a in read_back and written[a] > both
