"""Whether FP8 can pay: savings by measured rates, costs, and whether the GPU waits for the CPU.

The kernels alone: each FP8 GEMM is compared with the measured rate of BF16 at its size,
and casts and scales are the cost. The step: a profiler makes the CPU slower, so only the wall
time of steps outside the window shows whether the GPU is busy. Also how often the weights of FP8
layers are cast in a step, and what that costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import fsum, prod
from typing import Final, NamedTuple

from fp8verify.analysis.gather import TraceEvidence
from fp8verify.analysis.gemms import GemmRow, micros, rounded
from fp8verify.analysis.gpus import part_of
from fp8verify.analysis.kinds import KindTotal, grouped
from fp8verify.analysis.purpose import LAYER_FUNCTIONS, purpose_of
from fp8verify.capture.schema import ModuleRecord
from fp8verify.report.model.parts import PayoffReport, TaxEntry, TaxReport
from fp8verify.terms import Leg, OpContext, Precision, Role, Scaling
from fp8verify.thresholds import (
    ADDED_BY_FUSED,
    NEGLIGIBLE,
    SMALL_SIDE,
    USUAL_WAIT,
    WAITING,
)

_SIXTEEN_BIT = (Precision.BF16, Precision.FP16)
_BANDWIDTH_BOUND = ("elementwise", "reduction", "quantize", "transpose", "memory")
# GPUs with the matrix units of the one that was measured (GEMM rates, not bandwidth).
_HOPPER: Final = frozenset({"H100", "H200", "GH200", "H800"})
# How much faster than BF16 a GEMM runs by scaling, in classes of GFLOP: the rates of the kernels in
# traces/ and the GEMMs of compared runs (H200, torch 2.11.0+cu130, torchao 0.17.0, Transformer
# Engine 2.20.2, 2026-11-21 and 22; docs/payoff.md has them). The FP8 GEMMs of width 768 took 1.77x
# less than those of BF16, of width 2048 1.8x to 2.0x, of width 4096 1.99x.
_SIZES: Final = (4.0, 16.0, 64.0, 200.0, 600.0)
_FULL: Final = (1.0, 1.4, 1.78, 1.9, 1.93, 1.97)
_GAINS: Final[dict[Scaling, tuple[float, ...]]] = {
    Scaling.TENSORWISE: _FULL,
    Scaling.ROWWISE: _FULL,
    Scaling.BLOCKWISE: (0.9, 1.1, 1.2, 1.3, 1.5, 1.5),
}


def payoff(
    trace: TraceEvidence,
    gpu_time: Mapping[str, int],
    step_ns: int | None,
    *,
    casts: bool,
) -> tuple[PayoffReport | None, TaxReport | None]:
    """Return what FP8 can gain on a rank, and the kernels that it needs in addition to its GEMMs.

    None if no GEMM ran, or no such kernel.

    Args:
        trace: what its traces show.
        gpu_time: its kernel time in ns by purpose.
        step_ns: the usual time of a step outside the window, if it is known.
        casts: whether it ran or cast low precision, so kernels can be overhead of FP8.
    """
    gemms = trace.trained
    busy = trace.timeline.busy
    if not gemms or not busy:
        return None, None
    copying = trace.copies.total()
    low_rows = [row for row in gemms if row.precision.is_low]
    high_rows = [row for row in gemms if row.precision in _SIXTEEN_BIT]
    low, sixteen_bit = (
        sum(row.time_ns for row in rows) for rows in (low_rows, high_rows)
    )
    saved = _saved(trace.gpu, low_rows)
    gain = _saved(trace.gpu, high_rows, in_sixteen=True)
    rows = _overhead(trace.others) if casts else ()
    cost = round(1000 * added_us(rows))
    if low and saved is not None:
        speedup = max(0.0, busy - cost + saved) / busy
    else:
        speedup = None
    ceiling = None
    if saved is not None and gain is not None and low + sixteen_bit:
        # Amdahl's law: other kernels take as long, 16-bit GEMMs as little as FP8 ones.
        ceiling = (busy - cost + saved) / max(1, busy - cost - gain)
    steps = len(trace.steps)
    in_step = (busy + copying) // steps if steps else None
    gained = ((saved or 0) - cost) / steps if steps else 0.0
    waits = of_step = None
    if step_ns and in_step is not None:
        idle = step_ns - in_step
        waits = idle > max(gained, WAITING * step_ns)
        if speedup is not None and idle <= max(gained, USUAL_WAIT * step_ns):
            of_step = max(0.0, step_ns + gained) / step_ns
    shaped = [(row.time_ns, row.shape[1:]) for row in low_rows if row.shape is not None]
    known = sum(time_ns for time_ns, _ in shaped)
    small = sum(time_ns for time_ns, sides in shaped if min(sides) < SMALL_SIDE)
    span = trace.timeline.span
    bound = sum(gpu_time[key] for key in _BANDWIDTH_BOUND)
    report = PayoffReport(
        gpu_busy_us=micros(busy),
        idle_share=round(max(0.0, span - busy - copying) / span if span else 0.0, 6),
        fp8_gemm_share=round(low / busy, 6),
        sixteen_bit_gemm_share=round(sixteen_bit / busy, 6),
        bandwidth_bound_share=round(min(1.0, bound / busy), 6),
        small_gemm_share=rounded(small / known if known else None),
        ceiling=rounded(ceiling),
        speedup_estimate=rounded(speedup),
        step_us=None if step_ns is None else micros(step_ns),
        gpu_busy_in_step_us=None if in_step is None else micros(in_step),
        waits=waits,
        step_speedup_estimate=rounded(of_step),
    )
    if not rows:
        return report, None
    time_us = round(fsum(row.time_us for row in rows), 3)
    saved_us = micros(saved or 0)
    return report, TaxReport(
        time_us=time_us,
        unfused_us=round(fsum(row.time_us for row in rows if not row.fused), 3),
        share_of_gpu_time=round(time_us / report.gpu_busy_us, 6),
        saved_at_most_us=saved_us,
        share_of_saving=rounded(time_us / saved_us) if saved_us else None,
        rows=rows,
    )


def _overhead(others: Iterable[KindTotal]) -> tuple[TaxEntry, ...]:
    """Add up the kernels that a run in BF16 would not need, by purpose, operator and leg."""
    totals: dict[tuple[str, str | None, Leg, bool], list[int]] = defaultdict(
        lambda: [0, 0]
    )
    for total in others:
        purpose = purpose_of(total.kind)
        if purpose is not None:
            op = total.kind.op
            fused = total.kind.classification.library != "PyTorch"
            row = totals[purpose, op.name or None, _leg_of(op), fused]
            row[0] += total.calls
            row[1] += total.time_ns
    rows = [
        TaxEntry(
            purpose=purpose,
            op=op,
            leg=leg,
            fused=fused,
            kernels=calls,
            time_us=micros(ns),
        )
        for (purpose, op, leg, fused), (calls, ns) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.time_us))


def _leg_of(op: OpContext) -> Leg:
    """Say for which leg it ran: a gradient's cast serves dgrad and wgrad both."""
    if not op.backward:
        return Leg.FPROP if op.name else Leg.UNKNOWN
    if LAYER_FUNCTIONS.intersection(op.parents):
        return Leg.RECOMPUTE
    return Leg.BACKWARD


def added_us(rows: Iterable[TaxEntry]) -> float:
    """Return the µs that kernels of FP8's overhead add to what BF16 takes."""
    generated = [
        row for row in rows if row.fused and (row.op or "").startswith("triton_")
    ]
    part = (1 - ADDED_BY_FUSED) * fsum(row.time_us for row in generated)
    return fsum(row.time_us for row in rows) - part


def _saved(
    gpu: str | None, rows: list[GemmRow], *, in_sixteen: bool = False
) -> int | None:
    """Return what GEMMs take longer in BF16, or less in FP8; None if no rates are known."""
    known = [row for row in rows if in_sixteen or row.precision is Precision.FP8]
    time_ns, known_ns = (sum(row.time_ns for row in some) for some in (rows, known))
    if part_of(gpu) not in _HOPPER or time_ns - known_ns > NEGLIGIBLE * time_ns:
        return None
    gains = ((row.time_ns, _gain(row)) for row in known)
    return round(
        sum(ns * (1 - 1 / gain if in_sixteen else gain - 1) for ns, gain in gains)
    )


def _gain(row: GemmRow) -> float:
    """Return how much faster a GEMM is in FP8 than in BF16; the middle of sizes without shapes."""
    gains = _GAINS[row.scaling or Scaling.TENSORWISE]
    if row.flops is None or not row.calls:
        return gains[-2]
    return gains[bisect_right(_SIZES, row.flops / row.calls / 1e9)]


# ---- casts of weights

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
    trace: TraceEvidence, modules: Iterable[ModuleRecord]
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
    layers = _layers_by_size(trace, modules)
    if micro_batches == 1 or not steps:
        return None
    costs = [
        t for t in trace.others if t.kind.op.name and purpose_of(t.kind) is not None
    ]
    casts = Counter[Size]()
    time_ns = 0.0
    for op, totals in grouped(costs, lambda total: total.kind.op).items():
        first = op.dims[0] if op.dims else ()
        size = next((size for size in (first, first[::-1]) if size in layers), None)
        if size is None:
            continue
        op_ns = sum(total.time_ns for total in totals)
        calls = sum(
            t.calls for t in totals if t.kind.classification.role is Role.CAST_QUANTIZE
        )
        inputs = gemms[op] if op.name == _WEIGHT_AND_INPUT and len(op.dims) > 1 else 0
        weights = max(0, calls - inputs)
        cast = (
            weights * prod(size),
            (calls - weights) * prod(op.dims[1]) if inputs else 0,
        )
        casts[size] += weights
        time_ns += op_ns * (cast[0] / (sum(cast) or 1) if inputs else 1)
    often = {
        size: count / (steps * layers[size]) for size, count in casts.items() if count
    }
    most = max(often, key=often.__getitem__, default=None)
    if most is None:
        return None
    return WeightCasts(micro_batches, often[most], most, round(time_ns))


def _layers_by_size(
    trace: TraceEvidence, modules: Iterable[ModuleRecord]
) -> Counter[Size]:
    """Count the FP8 layers of each size that differs from the sizes of all inputs."""
    shapes = [row.shape for row in trace.trained if row.shape and row.leg is Leg.FPROP]
    inputs = {(shape.m, shape.k) for shape in shapes}
    linears = (m for m in modules if m.state.startswith("fp8") and m.kind == "linear")
    sizes = ((module.out_features, module.in_features) for module in linears)
    return Counter((n, k) for n, k in sizes if n and k and (n, k) not in inputs)
