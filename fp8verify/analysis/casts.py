"""Whether casts to FP8 feed the GEMMs of layers that ran in high precision.

FP8 has other uses: KV caches, all-to-all of tokens, attention, optimizer states. Emulated FP8
casts the operands of a layer right before its GEMM, on the same stream.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import prod
from typing import Final, NamedTuple

from fp8verify.analysis.kinds import Gemm, Kind, Kinds, gemm_shape
from fp8verify.analysis.purpose import FP8_FUNCTIONS, QUANTIZING, of_the_model
from fp8verify.kernels.operators import Part, find
from fp8verify.terms import Leg, OpContext, Role
from fp8verify.trace import Trace

_FP8: Final = re.compile(r"Float8_e\dm\d")
_READS: Final = re.compile(r"dequant|upcast", re.IGNORECASE)


class _Cast(NamedTuple):
    """Elements of the FP8 tensors of a cast; None if it may feed any following GEMM."""

    written: frozenset[int] | None
    read: frozenset[int] = frozenset()


def fed_gemms(trace: Trace, kinds: Kinds, gemms: list[Gemm]) -> int:
    """Count the launches of layers' GEMMs in high precision whose activations casts to FP8 round.

    Casts for attention, collectives or FP8 GEMMs do not count, nor do weights that are only stored
    or rounded in FP8.
    """
    casts = {n: cast for n, kind in enumerate(kinds.rows) if (cast := _cast(kind)) is not None}
    if not casts:
        return 0
    of_layers = {g.place: g for g in gemms if g.leg not in (Leg.ATTENTION, Leg.OPTIMIZER)}
    columns, fed = trace.kernels, 0
    waiting: dict[int, list[_Cast]] = defaultdict(list)
    for place in sorted(range(len(columns)), key=columns.start_ns.__getitem__):
        number, stream = kinds.ids[place], columns.stream[place]
        kind, cast = kinds.rows[number], casts.get(number)
        role = kind.classification.role
        if cast is not None:
            parents = () if kind.op is None else kind.op.parents
            gathers = any(find(name).part is Part.GATHER for name in parents)
            waiting[stream].append(cast._replace(written=frozenset()) if gathers else cast)
        elif role.is_gemm or role in (Role.ATTENTION, Role.COMMUNICATION):
            gemm = of_layers.get(place)
            fed += gemm is not None and _feed(waiting[stream], gemm)
            waiting[stream] = []
    return fed


def _cast(kind: Kind) -> _Cast | None:
    """Return what a kernel of the model casts to FP8, None for any other kernel."""
    found, op = kind.classification, kind.op
    if found.role.is_gemm or found.role in (Role.ATTENTION, Role.COMMUNICATION):
        return None
    if not of_the_model(op):
        return None
    typed = op is not None and any(_FP8.search(name) for name in op.types)
    if not typed and not _casts_by_name(kind):
        return None
    if op is not None and FP8_FUNCTIONS.intersection(op.around):
        return _Cast(None)
    if op is not None and typed and any(op.dims):
        return _typed(op)
    return _Cast(None) if _casts_by_name(kind) else None


def _casts_by_name(kind: Kind) -> bool:
    found = kind.classification
    casts = found.role in QUANTIZING and found.precision.is_low
    return casts and not _READS.search(kind.name[:400])


def _typed(op: OpContext) -> _Cast:
    """Whether a cast reads or writes FP8: `copy_` records its output first, others their inputs."""
    typed = list(zip(op.types, op.dims, strict=False))
    sizes = frozenset(prod(dims) for name, dims in typed if _FP8.search(name) and dims)
    tensors = [name for name, dims in typed if dims]
    first_is_fp8 = bool(tensors) and _FP8.search(tensors[0]) is not None
    writes = first_is_fp8 if op.name == "aten::copy_" else not first_is_fp8
    return _Cast(sizes) if writes else _Cast(frozenset(), sizes)


def _feed(casts: list[_Cast], gemm: Gemm) -> bool:
    """Whether casts since the GEMM before rounded an activation of this one, and read it back."""
    if any(cast.written is None for cast in casts):
        return True
    shape = gemm_shape(gemm.kind.op)
    if shape is None:
        return any(cast.written for cast in casts)
    a, b = shape.batch * shape.m * shape.k, shape.batch * shape.k * shape.n
    written = Counter(size for cast in casts for size in cast.written or ())
    read = {size for cast in casts for size in cast.read}
    if gemm.leg is Leg.WGRAD:  # of two activations
        return any(written[size] and size in read for size in (a, b))
    # The weight has the size b: of two operands of one size both must have been rounded.
    return written[a] > (a == b) and a in read
