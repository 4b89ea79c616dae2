"""Measure whole tensors on their own device, in parts that bound the memory; nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

from .casts import (
    BLOCK_ROW,
    BLOCKS,
    DELAYED,
    E4M3,
    E5M2,
    MXFP8,
    ROWWISE,
    TENSORWISE,
    Cast,
    Format,
    Quantized,
    absolute_maxima,
    can_block,
    quantize,
)

PART = 1 << 23  # elements at once: 32 MB in float32, of which there are four at a time
# The same tensor under other recipes: what was lost. Only bytes need scales of float64.
WHAT_IF: dict[str, Cast] = {
    "tensorwise_e4m3": Cast(E4M3, TENSORWISE, double=False),
    "tensorwise_e5m2": Cast(E5M2, TENSORWISE, double=False),
    "rowwise_e4m3": Cast(E4M3, ROWWISE, power_of_2=True, double=False),
    "block_1x128_e4m3": Cast(E4M3, BLOCK_ROW, double=False),
    "mxfp8_e4m3": Cast(E4M3, MXFP8, ceiling=True, double=False),
}
MAXIMA = ("amax", "scale")  # of all calls of a layer the largest counts; the others are added up
COUNTS = (
    "zero_rows", "rows_not_finite",
    "zeros", "nan", "inf", "flushed", "saturated", "subnormal", "top_blocks",
)  # fmt: skip
SQUARES = ("signal", "noise", *WHAT_IF)  # a recipe whose blocks do not fit has NaN
COLUMNS = (*MAXIMA, *COUNTS, *SQUARES)

Figures = dict[str, Tensor]


def measure(x: Tensor, cast: Cast | None, as_type: torch.dtype | None = None) -> Tensor:
    """Return the figures of a tensor, in the order of `COLUMNS`, in float64 on its device.

    Args:
        x: a tensor of any shape and strides, whose last dimension is a row.
        cast: how it is cast; None if that is not known, or the blocks do not fit the shape.
        as_type: the type to which it is converted first.
    """
    x = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    x_type = as_type or x.dtype
    maxima = absolute_maxima(x).to(x_type).unsqueeze(-1)
    amax = maxima.amax()
    total: Figures = {
        "amax": amax,
        "zero_rows": (maxima == 0).sum(),
        # Not "less than infinity": a NaN is neither.
        "rows_not_finite": len(maxima) - (maxima < float("inf")).sum(),
    }
    whole = BLOCKS[cast.scaling][0] if cast is not None and cast.scaling in BLOCKS else 1
    height = max(1, PART // (x.shape[-1] * whole)) * whole
    for first in range(0, len(x), height):
        rows = slice(first, first + height)
        own = cast
        if cast is not None and cast.scale is not None and cast.scale.numel() > 1:
            own = cast._replace(scale=cast.scale.reshape(-1, 1)[rows])
        part = _measure_part(x[rows].to(x_type).to(torch.float32), own, amax, maxima[rows])
        total["scale"] = part.pop("scale", amax.new_zeros(()))
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return _line(total)


def measure_bytes(data: Tensor, found: Format) -> Tensor:
    """Return the figures that follow from the bytes of an FP8 tensor, without its values."""
    data = data.view(torch.uint8)
    wanted = {"zeros": found.zeros, "saturated": found.tops, "nan": found.not_numbers}
    # Cut, since a mask is as large; without a copy of what is not contiguous.
    flat = data.view(-1) if data.is_contiguous() else data
    parts = flat.split(max(1, 2 * PART // max(1, flat[0].numel()))) if data.numel() else ()
    counts = dict.fromkeys(wanted, data.new_zeros((), dtype=torch.int64))
    for part in parts:
        for name, codes in wanted.items():
            counts[name] = sum((torch.count_nonzero(part == code) for code in codes), counts[name])
    return _line(counts)


def _line(figures: Figures) -> Tensor:
    some = next(iter(figures.values()))
    nothing = some.new_zeros((), dtype=torch.float64)
    unknown = nothing + float("nan")
    found = [figures.get(name, unknown if name in WHAT_IF else nothing) for name in COLUMNS]
    return torch.stack([one.double() for one in found])


def _measure_part(x: Tensor, cast: Cast | None, amax: Tensor, maxima: Tensor) -> Figures:
    """Return figures of some rows in float32.

    Args:
        x: these rows.
        cast: how they are cast.
        amax: of the whole tensor.
        maxima: of each of these rows, (rows, 1).
    """
    kept, nan = torch.count_nonzero(x), torch.count_nonzero(x != x)
    found: Figures = {
        "zeros": x.numel() - kept,
        "nan": nan,
        "inf": x.numel() - nan - torch.count_nonzero(x.abs() < float("inf")),
        # In float64: squares of gradients leave the range of float32.
        "signal": torch.linalg.vector_norm(x, dtype=torch.float64).square(),
    }
    if cast is not None:
        found |= _under(x, cast, maxima if cast.scaling == ROWWISE else amax, kept)
    for name, other in WHAT_IF.items():
        if not can_block(x.shape, other.scaling):
            continue
        if cast is not None and cast.scale is None and other == cast._replace(double=other.double):
            found[name] = found["noise"]
        else:
            of = maxima if other.scaling == ROWWISE else amax
            found[name] = _noise(quantize(x, other, of))
    return found


def _under(x: Tensor, cast: Cast, amax: Tensor, nonzero: Tensor) -> Figures:
    done = quantize(x, cast, amax)
    magnitudes = done.values.view(torch.uint8) & 0x7F
    kept = torch.count_nonzero(magnitudes)
    found: Figures = {
        "noise": _noise(done),
        "flushed": nonzero - kept,
        "subnormal": kept - torch.count_nonzero(magnitudes >= cast.format.normal),
    }
    if cast.scale is not None or cast.scaling == MXFP8:  # others fit the largest value
        found["saturated"] = torch.count_nonzero(done.scaled.abs() > cast.format.clipped)
    if cast.scaling in (TENSORWISE, DELAYED):
        found["scale"] = done.scale.amax()
    if cast.scaling == MXFP8:
        # Blocks more than half of whose values are the largest: arXiv 2506.20752.
        at_top = (magnitudes == cast.format.tops[0]).sum(dim=(-3, -1))
        found["top_blocks"] = torch.count_nonzero(at_top > magnitudes.shape[-1] / 2)
    return found


def _noise(done: Quantized) -> Tensor:
    """Return the squares of what the cast lost; what shares a scale is divided by it once."""
    lost = done.values.to(torch.float32).sub_(done.scaled)
    scale = done.scale.reshape((1,) * (lost.dim() - done.scale.dim()) + done.scale.shape)
    shared = [place for place in range(lost.dim()) if scale.shape[place] == 1]
    norm = torch.linalg.vector_norm(lost, dim=shared, keepdim=True, dtype=torch.float64)
    return norm.div_(scale).square_().sum()
