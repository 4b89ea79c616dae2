"""Measure samples of tensors on their own device, several of one shape together.

Whatever is counted here is of sampled rows, but for NaN in bytes; what is exact is in
`measurements.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .formats import E4M3, E5M2, Format
from .replay import (
    BLOCK_ROW,
    DELAYED,
    MXFP8,
    ROWWISE,
    TENSORWISE,
    Cast,
    Quantized,
    absolute_maxima,
    can_block,
    quantize,
)

MOST_BYTES = 1 << 22
CHUNK = 1 << 24  # bytes of which NaN is counted at once
# The same tensor under other recipes: what was lost. Only bytes need scales of float64.
WHAT_IF: dict[str, Cast] = {
    "tensorwise_e4m3": Cast(E4M3, TENSORWISE, double=False),
    "tensorwise_e5m2": Cast(E5M2, TENSORWISE, double=False),
    "rowwise_e4m3": Cast(E4M3, ROWWISE, power_of_2=True, double=False),
    "block_1x128_e4m3": Cast(E4M3, BLOCK_ROW, double=False),
    "mxfp8_e4m3": Cast(E4M3, MXFP8, ceiling=True, double=False),
}
# The columns of a line: what is exact, then counts and squares of the sample, then its scale.
EXACT = ("amax", "zero_rows", "rows_not_finite")
COUNTS = ("zeros", "flushed", "saturated", "subnormal", "nan", "inf", "top_blocks")
SQUARES = ("signal", "noise", *WHAT_IF)
COLUMNS = (*EXACT, *COUNTS, *SQUARES, "scale")
MAXIMA = {"amax", "scale"}  # of all calls of a layer the largest counts; the others are added up

Figures = dict[str, Tensor]


def measure(rows: Tensor, amax: Tensor, cast: Cast | None) -> Figures:
    """Return one value of each figure for each tensor.

    Args:
        rows: rows of n tensors, (n, rows, columns).
        amax: the largest magnitudes of these tensors, whether in their sample or not, (n).
        cast: how all of them are cast; None where that is not known.
    """
    x = rows.to(torch.float32)
    maxima = absolute_maxima(x).unsqueeze(-1)
    of_all = amax.to(torch.float32).view(-1, 1, 1)
    nonzero = _count(x)
    nan = _count(x != x)
    found: Figures = {
        "zeros": x[0].numel() - nonzero,
        "nan": nan,
        "inf": x[0].numel() - nan - _count(x.abs() < float("inf")),
        # In float64: squares of gradients leave the range of float32.
        "signal": torch.linalg.vector_norm(x, dim=(1, 2), dtype=torch.float64),
    }
    if cast is not None and can_block(x.shape, cast.scaling):
        found.update(_under(x, cast, maxima if cast.scaling == ROWWISE else of_all, nonzero))
    for name, other in WHAT_IF.items():
        if not can_block(x.shape, other.scaling):
            continue
        if _same(other, cast):
            found[name] = found["noise"]
        else:
            found[name] = _noise(quantize(x, other, maxima if other.scaling == ROWWISE else of_all))
    return found


def as_lines(figures: Figures, exact: Tensor | None = None) -> Tensor:
    """Return a line for each tensor, in the order of `COLUMNS`.

    Args:
        figures: of n tensors; counts are integers, the roots of squares and the scale float64.
        exact: what is known of whole tensors, (n, 3) in the order of `EXACT`.
    """
    none = torch.zeros_like(figures["zeros"])
    nothing = none.double()
    unknown = nothing + float("nan")  # a recipe whose blocks do not fit loses not nothing
    roots = [figures.get(n, unknown if n in WHAT_IF else nothing) for n in SQUARES]
    return torch.cat(
        (
            nothing.new_zeros(len(nothing), len(EXACT)) if exact is None else exact,
            torch.stack([figures.get(name, none) for name in COUNTS], dim=1).double(),
            torch.stack(roots, dim=1).square_(),
            figures.get("scale", nothing).double().unsqueeze(1),
        ),
        dim=1,
    )


def _same(one: Cast, other: Cast | None) -> bool:
    return other is not None and other.scale is None and one == other._replace(double=one.double)


def _count(x: Tensor) -> Tensor:
    return torch.count_nonzero(x.flatten(1), dim=1)


def _under(x: Tensor, cast: Cast, amax: Tensor, nonzero: Tensor) -> Figures:
    done = quantize(x, cast, amax)
    magnitudes = done.values.view(torch.uint8) & 0x7F
    kept = _count(magnitudes)
    found: Figures = {
        "noise": _noise(done),
        "flushed": nonzero - kept,
        "subnormal": kept - _count(magnitudes >= cast.format.normal),
    }
    if cast.scale is not None or cast.scaling == MXFP8:  # others fit the largest value
        found["saturated"] = _count(done.scaled.abs() > cast.format.clipped)
    if cast.scaling in (TENSORWISE, DELAYED):
        found["scale"] = done.scale.flatten(1).amax(dim=1).expand(x.shape[0])
    if cast.scaling == MXFP8:
        found["top_blocks"] = _top_blocks(magnitudes, cast.format)
    return found


def _noise(done: Quantized) -> Tensor:
    """Return the norm of what the cast lost; what shares a scale is divided by it once."""
    lost = done.values.to(torch.float32).sub_(done.scaled)
    shared = [place for place in range(1, lost.dim()) if done.scale.shape[place] == 1]
    norm = torch.linalg.vector_norm(lost, dim=shared, keepdim=True)
    return torch.linalg.vector_norm(norm.double().div_(done.scale).flatten(1), dim=1)


def _top_blocks(magnitudes: Tensor, found: Format) -> Tensor:
    """Count blocks more than half of whose values are the largest: arXiv 2506.20752."""
    at_top = (magnitudes == found.tops[0]).sum(dim=(-3, -1))
    return _count(at_top > magnitudes.shape[-3] * magnitudes.shape[-1] / 2)


def measure_bytes(data: Tensor, found: Format) -> tuple[Figures, int]:
    """Return what FP8 bytes tell without the values that they came from, and of how many.

    NaN is counted in all bytes, since a single one matters; all else in a sample.
    """
    data = data.view(torch.uint8)
    parts = [part.reshape(-1) for part in _parts(data)]
    every = -(-data.numel() // MOST_BYTES) or 1
    sample = torch.cat([part[::every] for part in parts]).unsqueeze(0)
    counts = [_any_of(part.unsqueeze(0), found.not_numbers) for part in parts]
    figures = {
        "zeros": _any_of(sample, found.zeros),
        "saturated": _any_of(sample, found.tops),
        "nan": torch.cat(counts).sum(dim=0, keepdim=True),
    }
    return figures, sample.numel()


def _parts(data: Tensor) -> Sequence[Tensor]:
    """Cut a tensor so that a mask of a part, or a copy of one with gaps, takes little memory."""
    flat = data.view(-1) if data.is_contiguous() else data
    rows = max(1, CHUNK // (flat[0].numel() or 1)) if flat.numel() else 1
    parts: Sequence[Tensor] = flat.split(rows)
    return parts


def _any_of(data: Tensor, wanted: Sequence[int]) -> Tensor:
    """Count bytes that are among those wanted; of all above a limit by one comparison."""
    lows = sorted(byte for byte in wanted if byte < 0x80)
    both = {*lows, *(byte | 0x80 for byte in lows)} == set(wanted)
    if both and lows == list(range(lows[0], 0x80)):
        return _count((data & 0x7F) >= lows[0])
    found = data == wanted[0]
    for byte in wanted[1:]:
        found |= data == byte
    return _count(found)
