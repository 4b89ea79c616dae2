"""The numbers of a rank, and the names under which they are watched over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from fp8verify.capture.schema import GradientRecord, RecipeRecord, TensorRecord


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


# ---- the names under which figures of a run are watched over time
#
# Guides of FP8 training plot these; every sink of metrics takes them from here. docs/live.md says
# what each means.

FORWARD = ("input", "weight")
BACKWARD = ("grad_output",)


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
    "fp8/fwd_scale": Worst(
        min, lambda row: row.scale, FORWARD, lambda kept: kept.scale
    ),
    "fp8/bwd_scale": Worst(
        min, lambda row: row.scale, BACKWARD, lambda kept: kept.scale
    ),
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
