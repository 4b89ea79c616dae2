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
MAXIMA = (
    "amax",
    "scale",
)  # of all calls of a layer the largest counts; the others are added up
COUNTS = (
    "zero_rows", "rows_not_finite",
    "zeros", "nan", "inf", "flushed", "saturated", "subnormal", "top_blocks",
)  # fmt: skip
SQUARES = ("signal", "noise", *WHAT_IF)  # a recipe whose blocks do not fit has NaN
COLUMNS = (*MAXIMA, *COUNTS, *SQUARES)

MOST_ROWS = 1 << 14
MOST_CALLS = 1 << 17
MOST_DB = 150.0  # of a cast that loses nothing or next to nothing: float32 has no more

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
    maxima = casts.absolute_maxima(x).to(x_type).unsqueeze(-1)
    amax = maxima.amax()
    total: Figures = {
        "amax": amax,
        "zero_rows": (maxima == 0).sum(),
        # Not "less than infinity": a NaN is neither.
        "rows_not_finite": len(maxima) - (maxima < float("inf")).sum(),
    }
    if cast is not None and cast.scaling in casts.BLOCKS:
        whole = casts.BLOCKS[cast.scaling][0]
    else:
        whole = 1
    height = max(1, PART // (x.shape[-1] * whole)) * whole
    for first in range(0, len(x), height):
        rows = slice(first, first + height)
        part = _measure_part(
            x[rows].to(x_type).to(torch.float32), cast, amax, maxima[rows]
        )
        total["scale"] = part.pop("scale", amax.new_zeros(()))
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return _line(total)


def measure_bytes(data: Tensor, form: Format) -> Tensor:
    """Return the figures that follow from the bytes of an FP8 tensor, without its values."""
    counts = dict.fromkeys(
        ("zeros", "saturated", "nan"), data.new_zeros((), dtype=torch.int64)
    )
    # In parts, and without a copy of what is not contiguous.
    flat = data.view(-1) if data.is_contiguous() else data
    for part in (
        flat.split(max(1, PART // max(1, flat[0].numel()))) if data.numel() else ()
    ):
        magnitudes = part.view(form.dtype).to(torch.float32).abs_()
        counts["zeros"] = counts["zeros"] + torch.count_nonzero(magnitudes == 0)
        counts["saturated"] = counts["saturated"] + torch.count_nonzero(
            magnitudes == form.largest
        )
        # Not "larger": a NaN is neither.
        finite = torch.count_nonzero(magnitudes <= form.largest)
        counts["nan"] = counts["nan"] + part.numel() - finite
    return _line(counts)


def _line(figures: Figures) -> Tensor:
    some = next(iter(figures.values()))
    nothing = some.new_zeros((), dtype=torch.float64)
    unknown = nothing + float("nan")
    columns = [
        figures.get(name, unknown if name in WHAT_IF else nothing) for name in COLUMNS
    ]
    return torch.stack([column.double() for column in columns])


def _measure_part(
    x: Tensor, cast: Cast | None, amax: Tensor, maxima: Tensor
) -> Figures:
    """Return figures of some rows in float32.

    Args:
        x: these rows.
        cast: how they are cast.
        amax: of the whole tensor.
        maxima: of each of these rows, (rows, 1).
    """
    nonzero = torch.count_nonzero(x)
    nan = torch.count_nonzero(x != x)
    figures: Figures = {
        "zeros": x.numel() - nonzero,
        "nan": nan,
        "inf": x.numel() - nan - torch.count_nonzero(x.abs() < float("inf")),
        # In float64: squares of gradients leave the range of float32.
        "signal": torch.linalg.vector_norm(x, dtype=torch.float64).square(),
    }
    if cast is not None:
        figures |= _under(
            x, cast, maxima if cast.scaling == casts.ROWWISE else amax, nonzero
        )
    for name, other in WHAT_IF.items():
        if not casts.can_block(x.shape, other.scaling):
            continue
        if (
            cast is not None
            and cast.scale is None
            and other == cast._replace(double=other.double)
        ):
            figures[name] = figures["noise"]
        else:
            of = maxima if other.scaling == casts.ROWWISE else amax
            figures[name] = _noise(casts.quantize(x, other, of))
    return figures


def _under(x: Tensor, cast: Cast, amax: Tensor, nonzero: Tensor) -> Figures:
    done = casts.quantize(x, cast, amax)
    magnitudes = done.values.to(torch.float32).abs_()
    left = torch.count_nonzero(magnitudes)
    figures: Figures = {
        "noise": _noise(done),
        "flushed": nonzero - left,
        "subnormal": left
        - torch.count_nonzero(magnitudes >= cast.format.smallest_normal),
    }
    if (
        cast.scale is not None or cast.scaling == casts.MXFP8
    ):  # others fit the largest value
        figures["saturated"] = torch.count_nonzero(
            done.scaled.abs() > cast.format.clipped
        )
    if cast.scaling in (casts.TENSORWISE, casts.DELAYED):
        figures["scale"] = done.scale.amax()
    if cast.scaling == casts.MXFP8:
        # Blocks more than half of whose values are the largest: arXiv 2506.20752.
        at_top = (magnitudes == cast.format.largest).sum(dim=(-3, -1))
        figures["top_blocks"] = torch.count_nonzero(at_top > magnitudes.shape[-1] / 2)
    return figures


def _noise(done: Quantized) -> Tensor:
    """Return the squares of what the cast lost; what shares a scale is divided by it once."""
    lost = done.values.to(torch.float32).sub_(done.scaled)
    scale = done.scale.reshape(
        (1,) * (lost.dim() - done.scale.dim()) + done.scale.shape
    )
    shared = [
        dimension for dimension in range(lost.dim()) if scale.shape[dimension] == 1
    ]
    norm = torch.linalg.vector_norm(lost, dim=shared, keepdim=True, dtype=torch.float64)
    return norm.div_(scale).square_().sum()


# --- the rows of a step: one for each layer and tensor, added up over its calls ---


class Measurements:
    """All tensors of a step. Nothing waits for a GPU until `records`.

    Attributes:
        is_full: whether there was no room for a tensor.
    """

    def __init__(self) -> None:
        self.is_full = False
        self._rows: dict[
            tuple[str, str], Row
        ] = {}  # in the order in which they were met
        self._lines: defaultdict[torch.device, list[tuple[Row, Tensor]]] = defaultdict(
            list
        )
        self._calls = 0

    def add(
        self, layer: str, tensor: str, x: Tensor, cast: Cast | None, as_type: Any = None
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
        if cast is None or casts.can_block((height, width), cast.scaling):
            replayed = cast
        else:
            replayed = None
        row = self._row(layer, tensor, "values" if replayed is None else "replay", cast)
        if row is not None:
            row.rows += height
            row.elements += x.numel()
            if replayed is not None and replayed.scaling == casts.MXFP8:
                row.blocks += x.numel() // casts.BLOCKS[casts.MXFP8][1]
            self._lines[x.device].append((row, measure(x, replayed, as_type)))

    def add_bytes(self, layer: str, tensor: str, data: Tensor, cast: Cast) -> None:
        """Count the bytes of an FP8 tensor whose values were not seen."""
        row = self._row(layer, tensor, "bytes", cast)
        if row is not None:
            row.elements += data.numel()
            self._lines[data.device].append((row, measure_bytes(data, cast.format)))

    def records(self) -> list[dict[str, Any]]:
        """Copy all figures to the host and return the rows; waits for the devices."""
        for device, pairs in self._lines.items():
            if device.type == "cuda":  # the script may have used several streams
                torch.cuda.synchronize(device)
            lines = torch.stack([line for _, line in pairs]).tolist()
            for (row, _), line in zip(pairs, lines, strict=True):
                row.add(line)
        self._lines.clear()
        return [
            {"layer": layer, "tensor": tensor, **row.record()}
            for (layer, tensor), row in self._rows.items()
        ]

    def _row(
        self, layer: str, tensor: str, source: str, cast: Cast | None
    ) -> Row | None:
        """Return the row of a tensor for one more call; None if there is no room."""
        key = (layer, tensor)
        if (
            len(self._rows) >= MOST_ROWS and key not in self._rows
        ) or self._calls >= MOST_CALLS:
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
        self.calls = self.rows = self.elements = self.blocks = 0
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
                self.figures[name] = value if math.isnan(value) else max(old, value)

    def record(self) -> dict[str, Any]:
        """Return all figures; unknown and impossible ones are None."""
        sums = self.figures
        elements = self.elements or 1
        replayed = self.source == "replay"
        values = self.source != "bytes"
        # An infinite scale makes NaN of zeros.
        finite = not (sums["nan"] or sums["inf"])
        known = {
            "zeros": finite,
            "flushed": replayed and finite,
            "saturated": self.source != "values" and finite,
            "subnormal": replayed and finite,
        }
        mean = sums["signal"] / elements
        signal = sums["signal"]
        what_if = {name: decibels(signal, sums[name]) for name in WHAT_IF if values}
        return {
            "source": self.source,
            "format": self.format,
            "scaling": self.scaling,
            "calls": self.calls,
            "elements": self.elements,
            "amax": _finite(sums["amax"]) if values else None,
            "rms": math.sqrt(mean) if values and math.isfinite(mean) else None,
            "scale": _finite(sums["scale"]) or None,
            **{
                name: sums[name] / elements if told else None
                for name, told in known.items()
            },
            "nan": sums["nan"] / elements,
            "inf": sums["inf"] / elements,
            "rows_not_finite": int(sums["rows_not_finite"]),
            "zero_rows": sums["zero_rows"] / self.rows if self.rows else None,
            "sqnr_db": decibels(signal, sums["noise"]) if replayed else None,
            "top_blocks": sums["top_blocks"] / self.blocks if self.blocks else None,
            "what_if": {name: db for name, db in what_if.items() if db is not None},
        }


def shortened(value: Any) -> Any:
    """Return figures of rows with five digits, for the lines of a long run."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def decibels(signal: float, noise: float) -> float | None:
    """Return the signal-to-quantization-noise ratio in dB; None if it is not finite."""
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal <= 0:
        return None
    # Plus nothing, since a table would show -0.0.
    ratio = 10 * math.log10(signal / noise) if noise > 0 else MOST_DB
    return round(min(ratio, MOST_DB), 3) + 0.0


def _finite(value: float) -> float | None:
    """Return a number that JSON can represent: None for NaN and infinity."""
    return value if math.isfinite(value) else None
