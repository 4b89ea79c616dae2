"""Measure whole tensors on their own device, and add the figures up over a step.

Tensors are measured in parts that bound the memory. Nothing waits before `records`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import casts
from ..casts import Cast, Format, Quantized

PART = 1 << 23  # elements at once: 32 MB in float32, of which there are four at a time
# The same tensor under other recipes: what was lost. Only bytes need scales of float64.
WHAT_IF: dict[str, Cast] = {
    "tensorwise_e4m3": Cast(casts.E4M3, casts.TENSORWISE, double=False),
    "tensorwise_e5m2": Cast(casts.E5M2, casts.TENSORWISE, double=False),
    "rowwise_e4m3": Cast(casts.E4M3, casts.ROWWISE, power_of_2=True, double=False),
    "block_1x128_e4m3": Cast(casts.E4M3, casts.BLOCK_ROW, double=False),
    "mxfp8_e4m3": Cast(casts.E4M3, casts.MXFP8, ceiling=True, double=False),
}
# Of all calls of a layer the largest counts; the others are added up.
MAXIMA = ("amax", "scale")
COUNTS = (
    "zero_rows",
    "rows_not_finite",
    "zeros",
    "nan",
    "inf",
    "flushed",
    "saturated",
    "subnormal",
    "top_blocks",
)
SQUARES = ("signal", "noise", *WHAT_IF)  # a recipe whose blocks do not fit has NaN
COLUMNS = (*MAXIMA, *COUNTS, *SQUARES)

MOST_ROWS = 1 << 14
MOST_CALLS = 1 << 17
MOST_DB = 150.0  # of a cast that loses nothing or next to nothing: float32 has no more

Figures = dict[str, Tensor]


def measure(
    x: Tensor,
    cast: Cast | None,
    as_type: torch.dtype | None = None,
) -> Tensor:
    """Return the figures of a tensor, in the order of `COLUMNS`, in float64 on its device.

    Args:
        x: a tensor of any shape and strides, whose last dimension is a row.
        cast: how it is cast; None if that is not known, or the blocks do not fit the shape.
        as_type: the type to which it is converted first.
    """
    width = x.shape[-1] if x.dim() else 1
    x = x.reshape(-1, width)
    x_type = as_type or x.dtype
    maxima = casts.absolute_maxima(x).to(x_type).unsqueeze(-1)
    amax = maxima.amax()
    # Not those that are not less than infinity: a NaN is neither.
    finite_rows = (maxima < float("inf")).sum()
    total: Figures = {
        "amax": amax,
        "zero_rows": (maxima == 0).sum(),
        "rows_not_finite": len(maxima) - finite_rows,
    }
    height = _rows_of_a_part(width, cast)
    for first in range(0, len(x), height):
        rows = slice(first, first + height)
        values = x[rows].to(x_type).to(torch.float32)
        part = _measure_part(values, cast, amax, maxima[rows])
        total["scale"] = part.pop("scale", amax.new_zeros(()))
        for name, value in part.items():
            if name in total:
                value = total[name] + value
            total[name] = value
    return _line(total)


def _rows_of_a_part(width: int, cast: Cast | None) -> int:
    """Return how many rows are measured at once: a whole number of blocks."""
    block = 1
    if cast is not None and cast.scaling in casts.BLOCKS:
        block = casts.BLOCKS[cast.scaling][0]
    blocks = PART // (width * block)
    return max(1, blocks) * block


def measure_bytes(data: Tensor, form: Format) -> Tensor:
    """Return the figures that follow from the bytes of an FP8 tensor, without its values."""
    zeros = data.new_zeros((), dtype=torch.int64)
    saturated = zeros
    nan = zeros
    for part in _parts_of(data):
        magnitudes = part.view(form.dtype).to(torch.float32).abs_()
        zeros = zeros + torch.count_nonzero(magnitudes == 0)
        at_largest = torch.count_nonzero(magnitudes == form.largest)
        saturated = saturated + at_largest
        # Not "larger": a NaN is neither.
        finite = torch.count_nonzero(magnitudes <= form.largest)
        nan = nan + part.numel() - finite
    figures = {
        "zeros": zeros,
        "saturated": saturated,
        "nan": nan,
    }
    return _line(figures)


def _parts_of(data: Tensor) -> Sequence[Tensor]:
    """Return a tensor in parts, without a copy of what is not contiguous."""
    if not data.numel():
        return ()
    flat = data.view(-1) if data.is_contiguous() else data
    width = max(1, flat[0].numel())
    parts: Sequence[Tensor] = flat.split(max(1, PART // width))
    return parts


def _line(figures: Figures) -> Tensor:
    some = next(iter(figures.values()))
    nothing = some.new_zeros((), dtype=torch.float64)
    unknown = nothing + float("nan")
    columns = []
    for name in COLUMNS:
        default = unknown if name in WHAT_IF else nothing
        column = figures.get(name, default)
        columns.append(column.double())
    return torch.stack(columns)


def _measure_part(
    x: Tensor,
    cast: Cast | None,
    amax: Tensor,
    maxima: Tensor,
) -> Figures:
    """Return figures of some rows in float32.

    Args:
        x: these rows.
        cast: how they are cast.
        amax: of the whole tensor.
        maxima: of each of these rows, (rows, 1).
    """
    elements = x.numel()
    nonzero = torch.count_nonzero(x)
    nan = torch.count_nonzero(x != x)
    finite = torch.count_nonzero(x.abs() < float("inf"))
    # In float64: squares of gradients leave the range of float32.
    norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    figures: Figures = {
        "zeros": elements - nonzero,
        "nan": nan,
        "inf": elements - nan - finite,
        "signal": norm.square(),
    }
    if cast is not None:
        of = maxima if cast.scaling == casts.ROWWISE else amax
        figures |= _under(x, cast, of, nonzero)
    for name, other in WHAT_IF.items():
        if not casts.can_block(x.shape, other.scaling):
            continue
        if _is_alike(cast, other):
            figures[name] = figures["noise"]
        else:
            of = maxima if other.scaling == casts.ROWWISE else amax
            figures[name] = _noise(casts.quantize(x, other, of))
    return figures


def _is_alike(cast: Cast | None, other: Cast) -> bool:
    """Whether a cast loses what another one would."""
    if cast is None or cast.scale is not None:
        return False
    return other == cast._replace(double=other.double)


def _under(
    x: Tensor,
    cast: Cast,
    amax: Tensor,
    nonzero: Tensor,
) -> Figures:
    form = cast.format
    done = casts.quantize(x, cast, amax)
    magnitudes = done.values.to(torch.float32).abs_()
    left = torch.count_nonzero(magnitudes)
    normal = torch.count_nonzero(magnitudes >= form.smallest_normal)
    figures: Figures = {
        "noise": _noise(done),
        "flushed": nonzero - left,
        "subnormal": left - normal,
    }
    # Others fit the largest value.
    may_clip = cast.scale is not None or cast.scaling == casts.MXFP8
    if may_clip:
        too_large = done.scaled.abs() > form.clipped
        figures["saturated"] = torch.count_nonzero(too_large)
    if cast.scaling in (casts.TENSORWISE, casts.DELAYED):
        figures["scale"] = done.scale.amax()
    if cast.scaling == casts.MXFP8:
        # Blocks more than half of whose values are the largest: arXiv 2506.20752.
        at_top = (magnitudes == form.largest).sum(dim=(-3, -1))
        half = magnitudes.shape[-1] / 2
        figures["top_blocks"] = torch.count_nonzero(at_top > half)
    return figures


def _noise(done: Quantized) -> Tensor:
    """Return the squares of what the cast lost; what shares a scale is divided by it once."""
    lost = done.values.to(torch.float32).sub_(done.scaled)
    outer = (1,) * (lost.dim() - done.scale.dim())
    scale = done.scale.reshape(outer + done.scale.shape)
    shared = [at for at, size in enumerate(scale.shape) if size == 1]
    norm = torch.linalg.vector_norm(
        lost,
        dim=shared,
        keepdim=True,
        dtype=torch.float64,
    )
    return norm.div_(scale).square_().sum()


# --- the rows of a step: one for each layer and tensor, added up over its calls ---


class Measurements:
    """All tensors of a step. Nothing waits for a GPU until `records`.

    Attributes:
        is_full: whether there was no room for a tensor.
    """

    def __init__(self) -> None:
        self.is_full = False
        # In the order in which they were met.
        self._rows: dict[tuple[str, str], Row] = {}
        self._lines: defaultdict[torch.device, list[tuple[Row, Tensor]]]
        self._lines = defaultdict(list)
        self._calls = 0

    def add(
        self,
        layer: str,
        tensor: str,
        x: Tensor,
        cast: Cast | None,
        as_type: Any = None,
    ) -> None:
        """Measure a tensor under a cast, or only its values if the cast is not known.

        Args:
            layer: the layer's name.
            tensor: input, weight or grad_output.
            x: the tensor, which is only read.
            cast: the layer's cast.
            as_type: the type to which the layer converts it first; None for its own.
        """
        width = x.shape[-1] if x.dim() else 1
        height = x.numel() // width
        replayed = None
        source = "values"
        if cast is not None and casts.can_block((height, width), cast.scaling):
            replayed = cast
            source = "replay"
        row = self._row(layer, tensor, source, cast)
        if row is None:
            return
        row.rows += height
        row.elements += x.numel()
        if replayed is not None and replayed.scaling == casts.MXFP8:
            row.blocks += x.numel() // casts.BLOCKS[casts.MXFP8][1]
        line = measure(x, replayed, as_type)
        self._lines[x.device].append((row, line))

    def add_bytes(
        self,
        layer: str,
        tensor: str,
        data: Tensor,
        cast: Cast,
    ) -> None:
        """Count the bytes of an FP8 tensor whose values were not seen."""
        row = self._row(layer, tensor, "bytes", cast)
        if row is not None:
            row.elements += data.numel()
            line = measure_bytes(data, cast.format)
            self._lines[data.device].append((row, line))

    def records(self) -> list[dict[str, Any]]:
        """Copy all figures to the host and return the rows; waits for the devices."""
        for device, pairs in self._lines.items():
            if device.type == "cuda":  # the script may have used several streams
                torch.cuda.synchronize(device)
            lines = torch.stack([line for _, line in pairs]).tolist()
            for (row, _), line in zip(pairs, lines, strict=True):
                row.add(line)
        self._lines.clear()
        records = []
        for (layer, tensor), row in self._rows.items():
            named = {"layer": layer, "tensor": tensor}
            records.append(named | row.record())
        return records

    def _row(
        self,
        layer: str,
        tensor: str,
        source: str,
        cast: Cast | None,
    ) -> Row | None:
        """Return the row of a tensor for one more call; None if there is no room."""
        key = (layer, tensor)
        no_row_left = len(self._rows) >= MOST_ROWS and key not in self._rows
        if no_row_left or self._calls >= MOST_CALLS:
            self.is_full = True
            return None
        self._calls += 1
        row = self._rows.setdefault(key, Row(source))
        row.calls += 1
        if row.source != source:  # what a cast loses is not known of all calls
            row.source = "values"
        if cast is not None:
            row.format = cast.format.name
            row.scaling = cast.scaling
        return row


class Row:
    """Sums for one tensor of one layer.

    `source` is "replay" (the cast was repeated), "bytes" (only FP8 bytes were seen) or "values"
    (no cast is known). `rows` is 0 if only bytes were seen; `blocks` are MX blocks.
    """

    def __init__(self, source: str) -> None:
        self.calls = 0
        self.rows = 0
        self.elements = 0
        self.blocks = 0
        self.source = source
        self.format: str | None = None
        self.scaling: str | None = None
        self.figures: defaultdict[str, float] = defaultdict(float)

    def add(self, line: Sequence[float]) -> None:
        """Add the figures of a call, in the order of `COLUMNS`."""
        for name, value in zip(COLUMNS, line, strict=True):
            old = self.figures[name]
            if name not in MAXIMA:
                self.figures[name] = old + value
            elif not math.isnan(old):  # a NaN is larger than all
                is_larger = math.isnan(value) or value > old
                self.figures[name] = value if is_larger else old

    def record(self) -> dict[str, Any]:
        """Return all figures; unknown and impossible ones are None."""
        sums = self.figures
        return {
            "source": self.source,
            "format": self.format,
            "scaling": self.scaling,
            "calls": self.calls,
            "elements": self.elements,
            **self._of_values(),
            "scale": _finite(sums["scale"]) or None,
            **self._of_the_cast(),
            "nan": self._share("nan"),
            "inf": self._share("inf"),
            "rows_not_finite": int(sums["rows_not_finite"]),
            "zero_rows": _ratio(sums["zero_rows"], self.rows),
            "top_blocks": _ratio(sums["top_blocks"], self.blocks),
        }

    def _share(self, name: str) -> float:
        return self.figures[name] / (self.elements or 1)

    def _of_values(self) -> dict[str, Any]:
        """Return what is known only if the values were seen."""
        if self.source == "bytes":
            return {
                "amax": None,
                "rms": None,
                "what_if": {},
            }
        mean = self._share("signal")
        rms = math.sqrt(mean) if math.isfinite(mean) else None
        what_if = {}
        for name in WHAT_IF:
            ratio = decibels(self.figures["signal"], self.figures[name])
            if ratio is not None:
                what_if[name] = ratio
        return {
            "amax": _finite(self.figures["amax"]),
            "rms": rms,
            "what_if": what_if,
        }

    def _of_the_cast(self) -> dict[str, Any]:
        """Return what is known only of a cast that was repeated, or of its bytes."""
        sums = self.figures
        told: dict[str, Any] = dict.fromkeys(
            ("zeros", "flushed", "saturated", "subnormal", "sqnr_db")
        )
        was_repeated = self.source == "replay"
        if was_repeated:
            told["sqnr_db"] = decibels(sums["signal"], sums["noise"])
        # An infinite scale makes NaN of zeros.
        if sums["nan"] or sums["inf"]:
            return told
        told["zeros"] = self._share("zeros")
        if self.source != "values":
            told["saturated"] = self._share("saturated")
        if was_repeated:
            told["flushed"] = self._share("flushed")
            told["subnormal"] = self._share("subnormal")
        return told


def _ratio(count: float, of: int) -> float | None:
    return count / of if of else None


def shortened(value: Any) -> Any:
    """Return figures of rows with five digits, for the lines of a long run."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return value


def decibels(signal: float, noise: float) -> float | None:
    """Return the signal-to-quantization-noise ratio in dB; None if it is not finite."""
    are_finite = math.isfinite(signal) and math.isfinite(noise)
    if not are_finite or signal <= 0:
        return None
    # Plus nothing, since a table would show -0.0.
    ratio = 10 * math.log10(signal / noise) if noise > 0 else MOST_DB
    return round(min(ratio, MOST_DB), 3) + 0.0


def _finite(value: float) -> float | None:
    """Return a number that JSON can represent: None for NaN and infinity."""
    return value if math.isfinite(value) else None
