"""Whether casts to FP8 feed the GEMMs of layers that ran in high precision.

FP8 has other uses: KV caches, all-to-all of tokens, attention, optimizer states. Emulated FP8
casts the operands of a layer right before its GEMM, on the same stream.

Also how often the weights of FP8 layers are cast in a step, and what that costs.
The recorded sizes of its operator show that a cast is a weight's. Transformer Engine's casts
of an input and a weight run under one function, the weight's first: one cast per GEMM is the
input's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import prod
from typing import Final, NamedTuple

from fp8verify.analysis.kinds import Gemm, Kind, Kinds, gemm_shape
from fp8verify.analysis.purpose import FP8_FUNCTIONS, of_the_model, purpose_of
from fp8verify.analysis.rank import QUANTIZING, RankEvidence
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
    casts = {n: cast for n, kind in enumerate(kinds.kinds) if (cast := _cast(kind)) is not None}
    if not casts:
        return 0
    of_layers = {g.place: g for g in gemms if g.leg not in (Leg.ATTENTION, Leg.OPTIMIZER)}
    columns, fed = trace.kernels, 0
    waiting: dict[int, list[_Cast]] = defaultdict(list)
    for place in sorted(range(len(columns)), key=columns.start_ns.__getitem__):
        number, stream = kinds.numbers[place], columns.stream[place]
        kind, cast = kinds.kinds[number], casts.get(number)
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


# transformer_engine/pytorch/module/linear.py: `_Linear.apply(weight, inp, …)`.
_WEIGHT_AND_INPUT = "_Linear"
Size = tuple[int, ...]


class WeightCasts(NamedTuple):
    """The casts of weights of one rank.

    Attributes:
        passes: forward and backward passes of a step: its micro-batches.
        casts: of one weight in a step, of the size that is cast most often.
        size: that size, (outputs, inputs).
        time_ns: of all casts of weights, with the kernels that compute their scales.
    """

    passes: int
    casts: float
    size: Size
    time_ns: int


def weight_casts(rank: RankEvidence) -> WeightCasts | None:
    """Count the casts of weights; None if a step is one pass, or sizes are not recorded."""
    passes, steps = _passes(rank), len(rank.steps)
    layers = _layers_by_size(rank)
    if passes < 2 or not steps or not layers:
        return None
    calls, times = _casts(rank, layers)
    if not calls:
        return None
    often = {size: count / (steps * layers[size]) for size, count in calls.items()}
    most = max(often, key=often.__getitem__)
    return WeightCasts(passes, often[most], most, round(sum(times.values())))


def _passes(rank: RankEvidence) -> int:
    """Return the least number of passes that a step has."""
    last: dict[int, int] = defaultdict(int)
    for row in rank.survey.linear:
        last[row.step] = max(last[row.step], row.micro_batch + 1)
    return min(last.values(), default=0)


def _layers_by_size(rank: RankEvidence) -> Counter[Size]:
    """Count the FP8 layers of each size that differs from the sizes of all inputs."""
    modules = [m for m in rank.modules if m.state.startswith("fp8") and m.kind == "linear"]
    found = Counter(
        (module.out_features, module.in_features)
        for module in modules
        if module.out_features and module.in_features
    )
    shapes = [row.shape for row in rank.survey.linear if row.shape and row.leg is Leg.FPROP]
    inputs = {(shape.m, shape.k) for shape in shapes}
    return Counter({size: n for size, n in found.items() if size not in inputs})


def _casts(
    rank: RankEvidence, layers: Counter[Size]
) -> tuple[dict[Size, float], dict[Size, float]]:
    """Return calls and time by size of weight."""
    calls: dict[Size, float] = defaultdict(float)
    times: dict[Size, float] = defaultdict(float)
    both: dict[tuple[Size, int], tuple[int, int]] = {}
    for total in rank.survey.others:
        size, op = _weight_size(total.kind.op, layers), total.kind.op
        if size is None or op is None or purpose_of(total.kind) is None:
            continue
        is_cast = total.kind.classification.role is Role.CAST_QUANTIZE
        if op.name == _WEIGHT_AND_INPUT:
            key = (size, prod(op.dims[1]) if len(op.dims) > 1 else 0)
            old = both.get(key, (0, 0))
            both[key] = (old[0] + total.calls * is_cast, old[1] + total.time_ns)
            continue
        calls[size] += total.calls * is_cast
        times[size] += total.time_ns
    for (size, elements), (count, time_ns) in both.items():
        own = max(0, count - _products(rank, size, elements))
        weights, inputs = own * prod(size), (count - own) * elements
        calls[size] += own
        times[size] += time_ns * weights / ((weights + inputs) or 1)
    return {size: count for size, count in calls.items() if count}, times


def _products(rank: RankEvidence, size: Size, elements: int) -> int:
    """Count the GEMMs of a weight of this size with an input of this number of elements."""
    return sum(
        row.calls
        for row in rank.survey.linear
        if (op := row.kind.op) is not None
        and (op.name, op.dims[:1]) == (_WEIGHT_AND_INPUT, (size,))
        and len(op.dims) > 1
        and prod(op.dims[1]) == elements
    )


def _weight_size(op: OpContext | None, layers: Counter[Size]) -> Size | None:
    """Return the size of the weight that an operator reads, None if it reads none."""
    first = tuple(op.dims[0]) if op is not None and op.dims else ()
    turned = first[::-1]
    return first if first in layers else turned if len(turned) == 2 and turned in layers else None
