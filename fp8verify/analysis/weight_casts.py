"""How often the weights of FP8 layers are cast in a step, and what that costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from fp8verify.analysis.gather import TraceEvidence
from fp8verify.analysis.kinds import KindTotal
from fp8verify.analysis.purpose import purpose_of
from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import Leg, OpContext, Role

# Transformer Engine's casts of an input and a weight run under one function: one cast a GEMM is the
# input's. transformer_engine/pytorch/module/linear.py: `_Linear.apply(weight, inp, …)`.
_WEIGHT_AND_INPUT = "_Linear"
Size = tuple[int, ...]


class WeightCasts(NamedTuple):
    """The casts of weights of one rank.

    Attributes:
        micro_batches: of a step, each a forward and a backward pass.
        casts: of one weight in a step, of the size that is cast most often.
        size: that size, (outputs, inputs).
        time_ns: of all casts of weights, with the kernels that compute their scales.
    """

    micro_batches: int
    casts: float
    size: Size
    time_ns: int


def weight_casts(
    trace: TraceEvidence,
    modules: Iterable[ModuleRecord],
) -> WeightCasts | None:
    """Count the casts of weights, which their operators' sizes tell from those of inputs.

    None if a step is one micro-batch, or sizes are not recorded.
    """
    last = Counter[int]()
    gemms = Counter[OpContext]()
    for row in trace.trained:
        last[row.step] = max(last[row.step], row.micro_batch)
        gemms[row.kind.op] += row.calls
    micro_batches = min(last.values(), default=0) + 1
    steps = len(trace.steps)
    if micro_batches == 1 or not steps:
        return None
    layers = _layers_by_size(trace, modules)
    casts = Counter[Size]()
    time_ns = 0.0
    for op, totals in _costs_by_operator(trace).items():
        size = _weight_of(op, layers)
        if size is not None:
            count, of_weights_ns = _of_one_operator(op, size, totals, gemms[op])
            casts[size] += count
            time_ns += of_weights_ns
    often: dict[Size, float] = {}
    for size, count in casts.items():
        if count:
            often[size] = count / (steps * layers[size])
    if not often:
        return None
    most = max(often, key=often.__getitem__)
    return WeightCasts(
        micro_batches=micro_batches,
        casts=often[most],
        size=most,
        time_ns=round(time_ns),
    )


def _costs_by_operator(trace: TraceEvidence) -> dict[OpContext, list[KindTotal]]:
    """Return the kernels that FP8 needs in addition, by the operator that launched them."""
    costs: dict[OpContext, list[KindTotal]] = defaultdict(list)
    for total in trace.others:
        op = total.kind.op
        if op.name and purpose_of(total.kind) is not None:
            costs[op].append(total)
    return costs


def _weight_of(op: OpContext, layers: Counter[Size]) -> Size | None:
    """Return the size of the weight that an operator reads first, as it is or transposed."""
    first = op.dims[0] if op.dims else ()
    if first in layers:
        return first
    return first[::-1] if first[::-1] in layers else None


def _of_one_operator(
    op: OpContext,
    size: Size,
    totals: Sequence[KindTotal],
    gemms: int,
) -> tuple[int, float]:
    """Return how many weights an operator cast, and the ns of that.

    Args:
        op: the operator.
        size: of the weight that it reads.
        totals: its casts and their scales.
        gemms: the products that it launched itself.
    """
    op_ns = 0
    casts = 0
    for total in totals:
        op_ns += total.amount
        if total.kind.role is Role.CAST_QUANTIZE:
            casts += total.kernels
    if op.name != _WEIGHT_AND_INPUT or len(op.dims) < 2 or not gemms:
        return casts, op_ns
    weights = max(0, casts - gemms)
    of_weights = weights * prod(size)
    of_inputs = (casts - weights) * prod(op.dims[1])
    return weights, op_ns * of_weights / (of_weights + of_inputs or 1)


def _layers_by_size(
    trace: TraceEvidence,
    modules: Iterable[ModuleRecord],
) -> Counter[Size]:
    """Count the FP8 layers of each size that differs from the sizes of all inputs."""
    inputs: set[tuple[int, int]] = set()
    for row in trace.trained:
        if row.shape and row.leg is Leg.FPROP:
            inputs.add((row.shape.m, row.shape.k))
    sizes = Counter[Size]()
    for module in modules:
        n = module.out_features
        k = module.in_features
        is_fp8 = module.state.startswith("fp8") and module.kind == "linear"
        if is_fp8 and n and k and (n, k) not in inputs:
            sizes[n, k] += 1
    return sizes
