"""The report's nouns for what the numbers of a run are."""

from __future__ import annotations

import msgspec

from fp8verify.capture.schema import GradientRecord, RecipeRecord


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of one FP8 layer in the measured step; shares are of its elements, 0 to 1.

    Attributes:
        layer: name in the model; of a module with two GEMMs with the weight's, as mlp.fc1.
        tensor: input, weight or grad_output.
        source: replay (the cast was repeated), bytes (FP8 bytes were seen) or values.
        format: e4m3 or e5m2, null where the cast is not known.
        scaling: tensorwise, rowwise, delayed, block_1x128, block_128x128 or mxfp8.
        elements: how many values it has, over all passes of the layer.
        sampled: of how many of them the shares, rms and dB are; amax and zero_rows are of all.
        amax: the largest magnitude, null if it is not finite.
        rms: root mean square.
        zeros: share that is zero.
        flushed: share that the cast makes zero.
        saturated: share that the cast clips.
        subnormal: share that the cast leaves with fewer bits.
        nan: share of NaN.
        inf: share of infinities.
        zero_rows: share of rows that are all zero.
        sqnr_db: signal over the noise of the cast in dB.
        what_if: the same under other recipes.
        error: by how much figures of a sample may be off, by name; empty if all was measured.
    """

    layer: str
    tensor: str
    source: str
    format: str | None
    scaling: str | None
    elements: int = 0
    sampled: int = 0
    amax: float | None
    rms: float | None
    zeros: float | None
    flushed: float | None
    saturated: float | None
    subnormal: float | None
    nan: float
    inf: float
    zero_rows: float | None
    sqnr_db: float | None
    what_if: dict[str, float]
    error: dict[str, float] = {}


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
        scalars: values by the names of fp8verify.report.model.scalars.
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
    rows: tuple[TensorRow, ...]
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
