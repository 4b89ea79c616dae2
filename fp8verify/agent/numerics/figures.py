"""Measure samples of tensors on their own device, several of one shape together.

Counts are of sampled rows and estimate whole tensors, with the variance of the estimate;
what is exact is in `measurements.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .casts import (
    BLOCK_ROW,
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
from .sampling import Weights

CHUNK = 1 << 24  # bytes that are compared at once
# The same tensor under other recipes: what was lost. Only bytes need scales of float64.
WHAT_IF: dict[str, Cast] = {
    "tensorwise_e4m3": Cast(E4M3, TENSORWISE, double=False),
    "tensorwise_e5m2": Cast(E5M2, TENSORWISE, double=False),
    "rowwise_e4m3": Cast(E4M3, ROWWISE, power_of_2=True, double=False),
    "block_1x128_e4m3": Cast(E4M3, BLOCK_ROW, double=False),
    "mxfp8_e4m3": Cast(E4M3, MXFP8, ceiling=True, double=False),
}
# The columns of a line: what is exact, then totals over the tensor with their variances, its scale.
EXACT = ("amax", "zero_rows", "rows_not_finite", "peaks_left")
COUNTS = ("zeros", "flushed", "saturated", "subnormal", "nan", "inf", "top_blocks")
SQUARES = ("signal", "noise", *WHAT_IF)
TOTALS = (*COUNTS, *SQUARES)
VARIANCES = tuple(f"{name} variance" for name in TOTALS)
COLUMNS = (*EXACT, *TOTALS, *VARIANCES, "scale")
MAXIMA = {"amax", "scale"}  # of all calls of a layer the largest counts; the others are added up

Figures = dict[str, Tensor]


def measure(rows: Tensor, height: int, amax: Tensor, cast: Cast | None) -> Figures:
    """Return the figures of n tensors by unit: counts, and the roots of squares.

    Args:
        rows: sampled rows of n tensors, (n, units * height, columns).
        height: rows of a unit.
        amax: the largest magnitudes of these tensors, whether in their sample or not, (n).
        cast: how all of them are cast; None where that is not known.

    Returns:
        Each figure as (n, units), and `scale` as (n) where one holds for the whole tensor.
    """
    x = rows.to(torch.float32)
    units = x.shape[1] // height
    maxima = absolute_maxima(x).unsqueeze(-1)
    of_all = amax.to(torch.float32).view(-1, 1, 1)
    nonzero, nan = _count(x, units), _count(x != x, units)
    size = x[0].numel() // units
    found: Figures = {
        "zeros": size - nonzero,
        "nan": nan,
        "inf": size - nan - _count(x.abs() < float("inf"), units),
        # In float64: squares of gradients leave the range of float32.
        "signal": torch.linalg.vector_norm(
            x.view(len(x), units, -1), dim=2, dtype=torch.float64
        ),
    }  # fmt: skip
    if cast is not None and can_block(x.shape, cast.scaling):
        found.update(_under(x, cast, maxima if cast.scaling == ROWWISE else of_all, nonzero))
    # A few blocks of rows do not show what single values lose under other recipes.
    for name, other in WHAT_IF.items() if height == 1 else ():
        if not can_block(x.shape, other.scaling):
            continue
        if cast is not None and cast.scale is None and other == cast._replace(double=other.double):
            found[name] = found["noise"]
        else:
            row_wise = other.scaling == ROWWISE
            found[name] = _noise(quantize(x, other, maxima if row_wise else of_all), units)
    return found


def as_lines(
    figures: Figures, exact: Tensor, weights: Weights, peaks: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Return a line for each tensor, in the order of `COLUMNS`.

    Args:
        figures: of n tensors by unit, as `measure` returns them.
        exact: what is known of whole tensors, (n, 4) in the order of `EXACT`.
        weights: what each unit counts for.
        peaks: the squares of the largest values of all rows, added up over tensors, (n), and over
            sampled units, (n, units). Only what is left of the signal is then estimated, so that
            an outlier that is in no sampled row counts all the same.
    """
    nothing = torch.zeros_like(figures["zeros"], dtype=torch.float64)
    unknown = nothing + float("nan")  # a recipe whose blocks do not fit loses not nothing
    counts = [figures[name].double() if name in figures else nothing for name in COUNTS]
    roots = [figures.get(n, unknown if n in WHAT_IF else nothing).double() for n in SQUARES]
    squares = [root.square() for root in roots]
    if peaks is not None:
        squares[0] = (squares[0] - peaks[1]).clamp_(min=0)
    totals, variances = weights.add_up(torch.stack([*counts, *squares]))
    if peaks is not None:
        totals[len(COUNTS)] += peaks[0]
    scale = figures["scale"].double() if "scale" in figures else exact.new_zeros(len(exact))
    return torch.cat((exact, totals.t(), variances.t(), scale.unsqueeze(1)), dim=1)


def _count(x: Tensor, units: int) -> Tensor:
    return torch.count_nonzero(x.reshape(len(x), units, -1), dim=2)


def _under(x: Tensor, cast: Cast, amax: Tensor, nonzero: Tensor) -> Figures:
    units = nonzero.shape[1]
    done = quantize(x, cast, amax)
    magnitudes = done.values.view(torch.uint8) & 0x7F
    kept = _count(magnitudes, units)
    found: Figures = {
        "noise": _noise(done, units),
        "flushed": nonzero - kept,
        "subnormal": kept - _count(magnitudes >= cast.format.normal, units),
    }
    if cast.scale is not None or cast.scaling == MXFP8:  # others fit the largest value
        found["saturated"] = _count(done.scaled.abs() > cast.format.clipped, units)
    if cast.scaling in (TENSORWISE, DELAYED):
        found["scale"] = done.scale.flatten(1).amax(dim=1).expand(x.shape[0])
    if cast.scaling == MXFP8:
        # Blocks more than half of whose values are the largest: arXiv 2506.20752.
        at_top = (magnitudes == cast.format.tops[0]).sum(dim=(-3, -1))
        found["top_blocks"] = _count(at_top > magnitudes.shape[-1] / 2, units)
    return found


def _noise(done: Quantized, units: int) -> Tensor:
    """Return the norm of what the cast lost; what shares a scale is divided by it once."""
    lost = done.values.to(torch.float32).sub_(done.scaled)
    shared = [place for place in range(2, lost.dim()) if done.scale.shape[place] == 1]
    norm = torch.linalg.vector_norm(lost, dim=shared, keepdim=True)
    norm = norm.double().div_(done.scale).view(len(lost), units, -1)
    return torch.linalg.vector_norm(norm, dim=2)


def measure_bytes(data: Tensor, found: Format) -> Figures:
    """Return what all bytes of an FP8 tensor tell without the values that they came from."""
    data = data.view(torch.uint8)
    wanted = {"zeros": found.zeros, "saturated": found.tops, "nan": found.not_numbers}
    return {
        name: torch.stack([_any_of(part, codes) for part in _parts(data)]).sum().view(1, 1)
        for name, codes in wanted.items()
    }


def _parts(data: Tensor) -> Sequence[Tensor]:
    """Cut a tensor so that a mask of a part takes little memory."""
    flat = data.view(-1) if data.is_contiguous() else data
    rows = max(1, CHUNK // (flat[0].numel() or 1)) if flat.numel() else 1
    parts: Sequence[Tensor] = flat.split(rows)
    return parts


def _any_of(data: Tensor, wanted: Sequence[int]) -> Tensor:
    """Count bytes that are among those wanted; of all above a limit by one comparison."""
    lows = sorted(byte for byte in wanted if byte < 0x80)
    both = {*lows, *(byte | 0x80 for byte in lows)} == set(wanted)
    if both and lows == list(range(lows[0], 0x80)):
        return torch.count_nonzero((data & 0x7F) >= lows[0])
    if both and len(lows) == 1:
        return torch.count_nonzero((data & 0x7F) == lows[0])
    found = data == wanted[0]
    for byte in wanted[1:]:
        found |= data == byte
    return torch.count_nonzero(found)
