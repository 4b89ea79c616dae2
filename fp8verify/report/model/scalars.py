"""The names under which figures of a run are watched over time, once for every output.

Guides of FP8 training plot these; whoever writes to TensorBoard, Weights & Biases and the like
takes the names from here. docs/live.md says what each means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

FORWARD, BACKWARD = ("input", "weight"), ("grad_output",)


class Worst(NamedTuple):
    """A figure of the worst tensor of a measured step, by which it stands for all layers.

    Attributes:
        worst: which of several values is the worst, `min` or `max`.
        column: of a measured tensor; `not_finite` is the share of NaN and infinities.
        tensors: of which it is taken.
    """

    worst: Callable[[Iterable[float]], float]
    column: str
    tensors: tuple[str, ...]


OF_TENSORS = {
    "fp8/fwd_scale": Worst(min, "scale", FORWARD),
    "fp8/bwd_scale": Worst(min, "scale", BACKWARD),
    "fp8/amax_fwd": Worst(max, "amax", FORWARD),
    "fp8/amax_bwd": Worst(max, "amax", BACKWARD),
    "fp8/underflow_fwd": Worst(max, "flushed", FORWARD),
    "fp8/underflow_bwd": Worst(max, "flushed", BACKWARD),
    "fp8/sqnr_fwd_db": Worst(min, "sqnr_db", FORWARD),
    "fp8/sqnr_bwd_db": Worst(min, "sqnr_db", BACKWARD),
    "fp8/not_finite_fwd": Worst(max, "not_finite", FORWARD),
    "fp8/not_finite_bwd": Worst(max, "not_finite", BACKWARD),
}
GRAD_NORM = "train/grad_norm"
GRAD_NORM_CLIP_RATIO = "train/grad_norm_clip_ratio"
LOSS = "train/loss"
