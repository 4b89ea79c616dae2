"""The structs for what FP8 costs, moves and can gain, for layers, and for numbers of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from fp8verify.capture.schema import GradientRecord, RecipeRecord, TensorRecord
from fp8verify.report.model.parts import LegRow
from fp8verify.terms import Leg
from fp8verify.thresholds import TOLERANCE


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives alike in kind, on this rank.

    Attributes:
        name: NCCL's name, or the kernel's.
        dtype: element type, null where not recorded.
        group_size: ranks that took part.
        calls: how many.
        bytes_in: bytes sent in all calls, null where not recorded.
        bytes_out: bytes received in all calls.
        time_us: µs of their kernels.
    """

    name: str
    dtype: str | None
    group_size: int | None
    calls: int
    bytes_in: int | None
    bytes_out: int | None
    time_us: float


class WeightGather(msgspec.Struct, frozen=True, kw_only=True):
    """What all-gathers of weights sent.

    Attributes:
        fp8: whether FP8 weights traveled, null where the bytes may be anything.
        eight_bit_bytes: bytes in 8-bit elements.
        wider_bytes: bytes in wider elements.
        bytes_per_parameter: 1 for FP8, 2 for BF16, null where not known.
    """

    fp8: bool | None
    eight_bit_bytes: int
    wider_bytes: int
    bytes_per_parameter: float | None


class CommunicationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank; overlaps count once.

    Attributes:
        time_us: µs in which communication ran.
        exposed_us: µs in which nothing but communication ran.
        collectives: the collectives by kind.
        weight_gather: what all-gathers of weights sent, null where there were none.
    """

    time_us: float
    exposed_us: float
    collectives: tuple[CollectiveRow, ...]
    weight_gather: WeightGather | None


class TaxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Casts, amax reductions, scale arithmetic or layout copies of one operator and pass.

    Attributes:
        purpose: cast, amax, scale or transpose.
        op: the operator, null where not known.
        leg: the pass in which they ran.
        fused: whether a compiler or library made them one pass over the data.
        kernels: launches.
        time_us: µs of all of them.
    """

    purpose: str
    op: str | None
    leg: Leg
    fused: bool
    kernels: int
    time_us: float


class TaxReport(msgspec.Struct, frozen=True, kw_only=True):
    """What FP8 costs in addition to its GEMMs; fused kernels also do work that BF16 needs.

    Attributes:
        time_us: µs, the most that it can be.
        unfused_us: µs of kernels that each do one step of a cast.
        share_of_gpu_time: over the time of all kernels.
        saved_at_most_us: estimate of what FP8 GEMMs save, by measured rates of their sizes; 0
            if none are known for the GPU.
        share_of_saving: `time_us` over `saved_at_most_us`, null if nothing is saved.
        rows: by purpose, operator and pass.
    """

    time_us: float
    unfused_us: float
    share_of_gpu_time: float
    saved_at_most_us: float
    share_of_saving: float | None
    rows: tuple[TaxEntry, ...]


class PayoffReport(msgspec.Struct, frozen=True, kw_only=True):
    """What FP8 can gain; estimates rest on rates that were measured for the GPU and the recipe.

    Attributes:
        gpu_busy_us: µs in which a kernel ran.
        idle_share: share of the window in which the GPU did nothing.
        fp8_gemm_share: share of busy time in FP8 GEMMs.
        sixteen_bit_gemm_share: share of busy time in BF16 and FP16 GEMMs.
        bandwidth_bound_share: share of busy time in kernels that memory bandwidth limits.
        small_gemm_share: share of FP8 GEMM time in GEMMs too small to gain, null without shapes.
        ceiling: the most that GPU time can be faster than in BF16, with every 16-bit GEMM in FP8
            and no casts (Amdahl's law).
        speedup_estimate: what the GPU time of the run as it is may be over BF16.
        step_us: median wall time of a step outside the window, null where not recorded.
        gpu_busy_in_step_us: µs that the GPU works in a step, null without steps.
        waits: whether the GPU waits in a step for more than FP8 saves, null where not known.
        step_speedup_estimate: what a step may be over BF16; null where the CPU decides it.
    """

    gpu_busy_us: float
    idle_share: float
    fp8_gemm_share: float
    sixteen_bit_gemm_share: float
    bandwidth_bound_share: float
    small_gemm_share: float | None
    ceiling: float | None
    speedup_estimate: float | None
    step_us: float | None = None
    gpu_busy_in_step_us: float | None = None
    waits: bool | None = None
    step_speedup_estimate: float | None = None


class ExpectedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was to run in low precision, by module list, recipe and log, against what did.

    Attributes:
        share_of_flops: of the FLOPs of the GEMMs that train, what was to run in FP8 or FP4.
        measured_share_of_flops: what did.
        left_out: the layers that were to stay in high precision.
        stated: whether the log names these layers, or the steps; less than half is expected only
            where it does.
    """

    share_of_flops: float
    measured_share_of_flops: float
    left_out: tuple[str, ...]
    stated: bool

    @property
    def is_met(self) -> bool:
        """Whether as much ran in low precision as was to, but for rounding of shapes."""
        return self.measured_share_of_flops >= self.share_of_flops - TOLERANCE

    @property
    def decides(self) -> bool:
        """Whether a run is judged by it: less than half is believed only where the log says so."""
        return self.share_of_flops >= 0.5 or self.stated


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Linear layers of one size, and the GEMMs of that size by GEMM pass.

    Attributes:
        n: outputs.
        k: inputs.
        modules: modules of the list.
        converted: those of them that are set for FP8.
        names: their names, shortened.
        passes: how often each module ran forward in the window, null where not known.
        passes_per_step: the same in a step, once for each micro-batch.
        observed: GEMMs that ran, by GEMM pass.
        in_fp8: those of them in FP8 or FP4, by GEMM pass.
        expected: GEMMs that the modules should have run, by GEMM pass; empty if
            unknown.
        share_of_flops: over the FLOPs of all GEMMs of layers, null unless (nearly) all are known.
    """

    n: int
    k: int
    modules: int
    converted: int
    names: tuple[str, ...]
    passes: int | None
    passes_per_step: float | None
    observed: dict[str, int]
    in_fp8: dict[str, int]
    expected: dict[str, int]
    share_of_flops: float | None


class LayersReport(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a rank by size.

    Attributes:
        rows: the sizes, the most FLOPs first.
        not_joined: modules whose size no GEMM has.
        experts: 3-D parameters of experts.
        note: where modules and kernels could not be joined, else null.
    """

    rows: tuple[LayerRow, ...]
    not_joined: tuple[str, ...]
    experts: tuple[str, ...]
    note: str | None


class NamedLayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What ran for one linear layer.

    Attributes:
        layer: its name in the model.
        n: outputs, null where the module list does not know the layer.
        k: inputs.
        state: what the module list says of it.
        legs: its GEMMs.
        casts_us: µs that FP8 cost in addition to the GEMMs, null where it did not run.
    """

    layer: str
    n: int | None
    k: int | None
    state: str | None
    legs: tuple[LegRow, ...]
    casts_us: float | None


class NamedLayersReport(msgspec.Struct, frozen=True, kw_only=True):
    """The GEMMs of each layer by name, as `fp8verify run --layers` records them.

    Attributes:
        source: window, or step for the eager step after the windows of compiled code: its kernels
            and times are not the run's, its precisions are.
        step: the number of that step.
        rows: the layers in the order in which they ran.
        gemms: GEMMs seen.
        unjoined: those that belong to no layer, or to none for certain.
        note: what is missing, else null.
    """

    source: str
    step: int | None
    rows: tuple[NamedLayerRow, ...]
    gemms: int
    unjoined: int
    note: str | None


class ScaleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A scale that Transformer Engine keeps from step to step.

    Attributes:
        layer: name in the model.
        tensor: input, weight, output, grad_output or grad_input.
        gemm: which of the layer's GEMMs, from 0.
        format: e4m3 or e5m2.
        scale: what values are multiplied by, null if it is infinite.
        amax: of the newest step, null if none was recorded.
        headroom_octaves: how much amax may grow before values are clipped.
        changed: whether the scale moved within the window, null where not known.
    """

    layer: str
    tensor: str
    gemm: int
    format: str
    scale: float | None
    amax: float | None
    headroom_octaves: float | None
    changed: bool | None


class TrendPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured step of a long run.

    Attributes:
        step: its number.
        scalars: values by name, such as fp8/amax_fwd; docs/live.md lists the names.
    """

    step: int
    scalars: dict[str, float]


class NumericsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one rank.

    Attributes:
        step: the step that was measured after the windows, null if none was.
        reason: why none was measured, null if one was or none was requested.
        rows: measured tensors, in the order in which they were met.
        recipes: recipes of Transformer Engine.
        scales: those that delayed scaling keeps.
        loss_scales: of torch's GradScalers at the end of the last window.
        gradients: gradient norms by step.
        trend: what --numerics-every saw.
        notes: what could not be measured.
    """

    step: int | None
    reason: str | None
    rows: tuple[TensorRecord, ...]
    recipes: tuple[RecipeRecord, ...]
    scales: tuple[ScaleRow, ...]
    loss_scales: tuple[float | None, ...] = ()
    gradients: tuple[GradientRecord, ...]
    trend: tuple[TrendPoint, ...]
    notes: tuple[str, ...]


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The most GPU memory that a rank had used by the end of its last window, in bytes.

    Attributes:
        allocated_peak: of tensors, by torch's own counter.
        reserved_peak: of what torch kept for tensors.
        total: of the GPU.
        why: what FP8 has to do with it, by the modules that were converted.
    """

    allocated_peak: int
    reserved_peak: int
    total: int
    why: tuple[str, ...]


# ---- the names under which figures of a run are watched over time
#
# Guides of FP8 training plot these; every sink of metrics takes them from here. docs/live.md says
# what each means.

FORWARD, BACKWARD = ("input", "weight"), ("grad_output",)


class Worst(NamedTuple):
    """A figure of the worst tensor of a measured step, by which it stands for all layers.

    Attributes:
        worst: which of several values is the worst, `min` or `max`.
        of: the figure of a measured tensor.
        tensors: of which it is taken.
        kept: the same of a scale that delayed scaling keeps, None if that has no such figure.
    """

    worst: Callable[[Iterable[float]], float]
    of: Callable[[TensorRecord], float | None]
    tensors: tuple[str, ...]
    kept: Callable[[ScaleRow], float | None] | None = None


OF_TENSORS = {
    "fp8/fwd_scale": Worst(min, lambda row: row.scale, FORWARD, lambda kept: kept.scale),
    "fp8/bwd_scale": Worst(min, lambda row: row.scale, BACKWARD, lambda kept: kept.scale),
    "fp8/amax_fwd": Worst(max, lambda row: row.amax, FORWARD, lambda kept: kept.amax),
    "fp8/amax_bwd": Worst(max, lambda row: row.amax, BACKWARD, lambda kept: kept.amax),
    "fp8/underflow_fwd": Worst(max, lambda row: row.flushed, FORWARD),
    "fp8/underflow_bwd": Worst(max, lambda row: row.flushed, BACKWARD),
    "fp8/sqnr_fwd_db": Worst(min, lambda row: row.sqnr_db, FORWARD),
    "fp8/sqnr_bwd_db": Worst(min, lambda row: row.sqnr_db, BACKWARD),
    "fp8/not_finite_fwd": Worst(max, lambda row: row.not_finite, FORWARD),
    "fp8/not_finite_bwd": Worst(max, lambda row: row.not_finite, BACKWARD),
}
GRAD_NORM = "train/grad_norm"
GRAD_NORM_CLIP_RATIO = "train/grad_norm_clip_ratio"
LOSS = "train/loss"
