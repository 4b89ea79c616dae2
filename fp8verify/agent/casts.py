"""Cast a tensor to FP8 as a recipe does, in plain torch: formats, scales, then bytes.

`tests/unit/test_cast_reference.py` compares the bytes of tensorwise and rowwise casts with
torchao's own; `benchmarks/gpu/numerics.py` those of Transformer Engine.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

SMALLEST_AMAX = 1e-12  # torchao/float8/float8_utils.py, EPS
TENSORWISE = "tensorwise"
ROWWISE = "rowwise"
DELAYED = "delayed"
BLOCK_ROW = "block_1x128"
BLOCK_SQUARE = "block_128x128"
MXFP8 = "mxfp8"
# Values that share a scale: rows and columns of a block.
BLOCKS = {
    BLOCK_ROW: (1, 128),
    BLOCK_SQUARE: (128, 128),
    MXFP8: (1, 32),
}


class Format(NamedTuple):
    """An FP8 format: "e4m3" or "e5m2", with "fnuz" for AMD's of before MI350, and torch's type."""

    name: str
    dtype: torch.dtype

    @property
    def largest(self) -> float:
        """Its largest finite value."""
        return float(torch.finfo(self.dtype).max)

    @property
    def smallest_normal(self) -> float:
        """What is smaller has fewer bits."""
        return float(torch.finfo(self.dtype).smallest_normal)

    @property
    def emax(self) -> int:
        """The exponent of the largest value, which MX scales leave out."""
        _, exponent = math.frexp(self.largest)
        return exponent - 1

    @property
    def clipped(self) -> float:
        """What is larger is clipped, not rounded to the largest value."""
        distance = float(torch.finfo(self.dtype).eps) * 2.0**self.emax
        return self.largest + distance / 2


E4M3 = Format("e4m3", torch.float8_e4m3fn)
E5M2 = Format("e5m2", torch.float8_e5m2)
FNUZ = (
    Format("e4m3fnuz", torch.float8_e4m3fnuz),
    Format("e5m2fnuz", torch.float8_e5m2fnuz),
)
FORMATS: dict[torch.dtype, Format] = {
    known.dtype: known for known in (E4M3, E5M2, *FNUZ)
}


class Cast(NamedTuple):
    """How a recipe casts one tensor.

    Attributes:
        format: to which format.
        scaling: which values share a scale: one of the names above.
        power_of_2: whether scales are rounded down to powers of two.
        double: whether scales are computed in float64, as torchao does.
        scale: the scale itself where the recipe keeps one.
        ceiling: whether MX scales are rounded up, so nothing is clipped.
    """

    format: Format
    scaling: str
    power_of_2: bool = False
    double: bool = True
    scale: Tensor | None = None
    ceiling: bool = False


class Quantized(NamedTuple):
    """A tensor scaled in float32, its FP8 values, and the scale that both have."""

    scaled: Tensor
    values: Tensor
    scale: Tensor


def absolute_maxima(x: Tensor) -> Tensor:
    """Return the largest magnitude of each row; NaN and infinity come through."""
    return torch.linalg.vector_norm(x, float("inf"), dim=-1)


def quantize(
    rows: Tensor,
    cast: Cast,
    amax: Tensor,
) -> Quantized:
    """Cast a matrix, or several of one shape that lie behind each other.

    Args:
        rows: matrices; for blocks their sides are multiples of the blocks'.
        cast: as the recipe does.
        amax: the largest magnitude of each tensor, or of each row; its shape broadcasts to theirs.
    """
    x = rows.to(torch.float32)
    if cast.scaling in BLOCKS:
        x = _blocked(x, BLOCKS[cast.scaling])
        amax = torch.linalg.vector_norm(x, float("inf"), dim=(-3, -1), keepdim=True)
    scale = _scale(amax, cast)
    scaled = x * scale
    limit = cast.format.largest
    # torch up to 2.11 does not saturate in eager casts.
    values = scaled.clamp(-limit, limit).to(cast.format.dtype)
    return Quantized(scaled, values, scale)


def can_block(shape: Any, scaling: str) -> bool:
    """Whether a matrix divides into whole blocks, or needs none."""
    high, wide = BLOCKS.get(scaling, (1, 1))
    has_whole_rows = shape[-2] % high == 0
    has_whole_columns = shape[-1] % wide == 0
    return bool(has_whole_rows and has_whole_columns)


def _blocked(x: Tensor, block: tuple[int, int]) -> Tensor:
    high, wide = block
    *outer, rows, columns = x.shape
    return x.view(
        *outer,
        rows // high,
        high,
        columns // wide,
        wide,
    )


def _scale(amax: Tensor, cast: Cast) -> Tensor:
    if cast.scale is not None:
        return cast.scale.to(torch.float32)
    if cast.scaling == MXFP8:
        return _mx_scale(amax.to(torch.float32), cast)
    kind = torch.float64 if cast.double else torch.float32
    bounded = amax.to(kind).clamp(min=SMALLEST_AMAX)
    scale = (cast.format.largest / bounded).to(torch.float32)
    if cast.power_of_2:
        return torch.exp2(torch.floor(torch.log2(scale)))
    return scale


def _mx_scale(amax: Tensor, cast: Cast) -> Tensor:
    """Return the reciprocal of an E8M0 scale: OCP Microscaling 1.0, 6.3, or rounded up."""
    floor = amax.clamp(min=2.0**-126)
    if cast.ceiling:
        exponent = torch.ceil(torch.log2(floor / cast.format.largest))
    else:
        exponent = torch.floor(torch.log2(floor)) - cast.format.emax
    return torch.exp2(-exponent.clamp(-127, 127))
