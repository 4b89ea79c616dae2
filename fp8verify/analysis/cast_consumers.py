"""Whether casts to FP8 feed the GEMMs of layers that ran in high precision.

FP8 has other uses: KV caches, all-to-all of tokens, attention, optimizer states. What emulates FP8
casts the operands of a layer right before its product, on the same stream.
"""

from __future__ import annotations

import re
from collections import defaultdict
from enum import Enum
from typing import Final, NamedTuple

from fp8verify.analysis.flops import gemm_shape
from fp8verify.analysis.kinds import GemmLabel, Kind, Kinds
from fp8verify.analysis.purpose import FP8_FUNCTIONS, of_the_model
from fp8verify.kernels import Classification
from fp8verify.kernels.operators import Part, find
from fp8verify.report.model import Leg, OpContext, Role, Shape
from fp8verify.text import lazy_pattern
from fp8verify.trace import Trace

_QUANTIZING: Final = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)
_FP8: Final = lazy_pattern(r"Float8_e\dm\d")
_READS: Final = lazy_pattern(r"dequant|upcast", re.IGNORECASE)


class _Part(Enum):
    """What a kernel means for the products after it on its stream."""

    GEMM = "gemm"
    FEEDS = "feeds"
    ENDS = "ends"
    """What uses the tensors that were cast before it: attention, communication, an FP8 GEMM."""


class _Cast(NamedTuple):
    """Elements of the FP8 tensors of a cast, None where it feeds whatever comes next."""

    written: frozenset[int] | None
    read: frozenset[int] = frozenset()


def fed_gemms(trace: Trace, kinds: Kinds, labels: list[GemmLabel]) -> int:
    """Count the launches of layers' GEMMs in high precision that casts to FP8 feed."""
    casts = {n: cast for n, kind in enumerate(kinds.kinds) if (cast := _cast(kind)) is not None}
    moved = _Moved()
    if not casts:
        return 0
    gemms = {label.place: kinds.kinds[label.kind] for label in labels if _is_layers(label)}
    parts = [_part(kind, number in casts) for number, kind in enumerate(kinds.kinds)]
    fed = 0
    waiting: dict[int, list[_Cast]] = defaultdict(list)
    columns = trace.kernels
    for place in sorted(range(len(columns)), key=columns.start_ns.__getitem__):
        number, stream = kinds.numbers[place], columns.stream[place]
        if kinds.kinds[number].classification.role is Role.COMMUNICATION:
            moved.collective()
        if parts[number] is _Part.FEEDS:
            waiting[stream].append(moved.without_moved(casts[number], kinds.kinds[number].op))
        elif parts[number] is not None:
            kind = gemms.get(place)
            fed += kind is not None and any(_feeds(cast, kind) for cast in waiting[stream])
            waiting[stream] = []
    return fed


class _Moved:
    """Tells FP8 tensors that collectives move, and that are widened again behind them."""

    def __init__(self) -> None:
        self._any = False
        self._own: set[int] = set()

    def collective(self) -> None:
        """Hear of a collective: what it may have moved is no operand's cast any more."""
        self._any = True
        self._own.clear()

    def without_moved(self, cast: _Cast, op: OpContext | None) -> _Cast:
        """Return what a cast writes and reads for the products after it."""
        gathers = op is not None and any(find(name).part is Part.GATHER for name in op.parents)
        if cast.written and not gathers:
            self._own |= cast.written
        read = frozenset(size for size in cast.read if not self._any or size in self._own)
        return _Cast(frozenset() if gathers else cast.written, read)


def _is_layers(label: GemmLabel) -> bool:
    return label.leg not in (Leg.ATTENTION, Leg.OPTIMIZER)


def _part(kind: Kind, casts: bool) -> _Part | None:
    role = kind.classification.role
    if casts:
        return _Part.FEEDS
    if role.is_gemm:
        return _Part.ENDS if kind.classification.precision.is_low else _Part.GEMM
    return _Part.ENDS if role in (Role.ATTENTION, Role.COMMUNICATION) else None


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
    if op is not None and FP8_FUNCTIONS.intersection((op.name, *op.parents)):
        return _Cast(None)
    if op is not None and typed and any(op.dims):
        return _typed(op)
    return _Cast(None) if _casts_by_name(kind) else None


def _casts_by_name(kind: Kind) -> bool:
    found: Classification = kind.classification
    casts = found.role in _QUANTIZING and found.precision.is_low
    return casts and not _READS.search(kind.name[:400])


def _typed(op: OpContext) -> _Cast:
    """Tell reading from writing: `copy_` records its output first, other kernels their inputs."""
    typed = list(zip(op.types, op.dims, strict=False))
    sizes = frozenset(_size(dims) for name, dims in typed if _FP8.search(name) and dims)
    tensors = [name for name, dims in typed if dims]
    first_is_fp8 = bool(tensors) and _FP8.search(tensors[0]) is not None
    writes = first_is_fp8 if op.name == "aten::copy_" else not first_is_fp8
    return _Cast(sizes) if writes else _Cast(frozenset(), sizes)


def _feeds(cast: _Cast, gemm: Kind) -> bool:
    """Whether a cast has the size of an operand; what was only stored in FP8, that of a weight."""
    shape = gemm_shape(gemm.op)
    if cast.written is None or shape is None:
        return cast.written is None or bool(cast.written)
    a, b = shape.batch * shape.m * shape.k, shape.batch * shape.k * shape.n
    return bool(cast.written & {a, b}) or b in cast.read


def _size(dims: Shape) -> int:
    total = 1
    for size in dims:
        total *= size
    return total
