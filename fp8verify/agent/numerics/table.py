"""The rows of a measured step: one for each layer and tensor, added up over its calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .casts import BLOCKS, MXFP8, Cast, can_block
from .figures import COLUMNS, MAXIMA, WHAT_IF, measure, measure_bytes

MOST_ROWS = 1 << 14
MOST_CALLS = 1 << 17
MOST_DB = 150.0  # of a cast that loses nothing or next to nothing: float32 has no more


class Measurements:
    """All tensors of a step. Nothing waits for a GPU until `records`."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}  # in the order in which they were met
        self._lines: defaultdict[torch.device, list[tuple[Row, Tensor]]] = defaultdict(list)
        self._calls = 0

    def add(
        self,
        layer: str,
        tensor: str,
        x: Tensor,
        cast: Cast | None,
        *,
        as_type: torch.dtype | None = None,
    ) -> bool:
        """Measure a tensor under a cast, or only its values if the cast is not known.

        Args:
            layer: the layer's name.
            tensor: input, weight or grad_output.
            x: the tensor, which is only read.
            cast: the layer's cast.
            as_type: the type to which the layer converts it first.

        Returns:
            Whether there was room for it.
        """
        width = x.shape[-1] if x.dim() else 1
        height = x.numel() // width
        replayed = cast if cast is None or can_block((height, width), cast.scaling) else None
        row = self._row(layer, tensor, "values" if replayed is None else "replay", cast)
        if row is None:
            return False
        row.rows += height
        row.elements += x.numel()
        if replayed is not None and replayed.scaling == MXFP8:
            row.blocks += x.numel() // BLOCKS[MXFP8][1]
        self._lines[x.device].append((row, measure(x, replayed, as_type)))
        return True

    def add_bytes(self, layer: str, tensor: str, data: Tensor, cast: Cast) -> bool:
        """Count the bytes of an FP8 tensor whose values were not seen."""
        row = self._row(layer, tensor, "bytes", cast)
        if row is None:
            return False
        row.elements += data.numel()
        self._lines[data.device].append((row, measure_bytes(data, cast.format)))
        return True

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

    def _row(self, layer: str, tensor: str, source: str, cast: Cast | None) -> Row | None:
        """Return the row of a tensor for one more call; None if there is no room."""
        key = (layer, tensor)
        full = key not in self._rows and len(self._rows) >= MOST_ROWS
        if full or self._calls >= MOST_CALLS:
            return None
        self._calls += 1
        row = self._rows.setdefault(key, Row(source))
        row.calls += 1
        if row.source != source:  # what a cast loses is not known of all calls
            row.source = "values"
        if cast is not None:
            row.format, row.scaling = cast.format.name, cast.scaling
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
        found, elements = self.figures, self.elements or 1
        replayed, values = self.source == "replay", self.source != "bytes"
        # An infinite scale makes NaN of zeros.
        finite = not (found["nan"] or found["inf"])
        known = {
            "zeros": finite,
            "flushed": replayed and finite,
            "saturated": self.source != "values" and finite,
            "subnormal": replayed and finite,
        }
        mean, signal = found["signal"] / elements, found["signal"]
        what_if = {name: decibels(signal, found[name]) for name in WHAT_IF if values}
        return {
            "source": self.source,
            "format": self.format,
            "scaling": self.scaling,
            "calls": self.calls,
            "elements": self.elements,
            "sampled": self.elements,
            "amax": _finite(found["amax"]) if values else None,
            "rms": math.sqrt(mean) if values and math.isfinite(mean) else None,
            "scale": _finite(found["scale"]) or None,
            **{name: found[name] / elements if told else None for name, told in known.items()},
            "nan": found["nan"] / elements,
            "inf": found["inf"] / elements,
            "rows_not_finite": int(found["rows_not_finite"]),
            "zero_rows": found["zero_rows"] / self.rows if self.rows else None,
            "sqnr_db": decibels(signal, found["noise"]) if replayed else None,
            "top_blocks": found["top_blocks"] / self.blocks if self.blocks else None,
            "what_if": {name: db for name, db in what_if.items() if db is not None},
        }


def shortened(value: Any) -> Any:
    """Return figures of rows with five digits, for the lines of a long run."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
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
