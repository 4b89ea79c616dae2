"""The names under which figures of a training are watched over time, once for every output.

Guides of FP8 training plot these; whoever writes to TensorBoard, Weights & Biases and the like
takes the names from here.
"""

from __future__ import annotations

from typing import NamedTuple


class Scalar(NamedTuple):
    """A figure that one step has one of; `means` says how it joins all layers."""

    name: str
    means: str


FWD_SCALE = Scalar("fp8/fwd_scale", "the smallest scale of an input or weight")
BWD_SCALE = Scalar("fp8/bwd_scale", "the smallest scale of a gradient of an output")
AMAX_FWD = Scalar("fp8/amax_fwd", "the largest magnitude of an input or weight")
AMAX_BWD = Scalar("fp8/amax_bwd", "the largest magnitude of a gradient of an output")
UNDERFLOW_FWD = Scalar("fp8/underflow_fwd", "the largest share of an input or weight flushed")
UNDERFLOW_BWD = Scalar("fp8/underflow_bwd", "the largest share of a gradient flushed to zero")
SQNR_FWD = Scalar("fp8/sqnr_fwd_db", "the lowest SQNR of an input or weight")
SQNR_BWD = Scalar("fp8/sqnr_bwd_db", "the lowest SQNR of a gradient of an output")
NOT_FINITE_FWD = Scalar(
    "fp8/not_finite_fwd", "the largest share of NaN and infinity in an input or weight"
)
NOT_FINITE_BWD = Scalar(
    "fp8/not_finite_bwd", "the largest share of NaN and infinity in a gradient of an output"
)
GRAD_NORM = Scalar("train/grad_norm", "the norm of the gradients that the optimizer used")
GRAD_NORM_CLIP_RATIO = Scalar(
    "train/grad_norm_clip_ratio", "what torch's clipping left of the norm, 1 where it did nothing"
)
LOSS = Scalar("train/loss", "the loss, where a line of the log gives it with this step")
SCALARS = (
    FWD_SCALE,
    BWD_SCALE,
    AMAX_FWD,
    AMAX_BWD,
    UNDERFLOW_FWD,
    UNDERFLOW_BWD,
    SQNR_FWD,
    SQNR_BWD,
    NOT_FINITE_FWD,
    NOT_FINITE_BWD,
    GRAD_NORM,
    GRAD_NORM_CLIP_RATIO,
    LOSS,
)
