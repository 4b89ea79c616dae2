"""The rows of a numerics step: one for each layer and tensor, added up over its calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from .measure import COLUMNS, MAXIMA, WHAT_IF
from .replay import Cast

MOST_ROWS = 1 << 14
MOST_CALLS = 1 << 17
EXACT_DB = 150.0  # of a cast that loses nothing: float32 has no more
# Below it a cast whose scale is held at that of the smallest amax, 1e-12, may lose all of a tensor
# and its squares be zero in float32 nevertheless.
LEAST_TOLD = 1e-30


class Sizes(NamedTuple):
    """What the host knows of a call: all rows and elements, those of the sample, its MX blocks."""

    rows: int
    elements: int
    sampled: int
    blocks: int


class Row:
    """What was added up for one tensor of one layer.

    `source` is "replay" (the cast was repeated), "bytes" (FP8 bytes alone were seen) or "values"
    (no cast is known).
    """

    def __init__(self) -> None:
        self.sizes = Sizes(0, 0, 0, 0)
        self.calls = 0
        self.source = "values"
        self.format: str | None = None
        self.scaling: str | None = None
        self.figures: defaultdict[str, float] = defaultdict(float)

    def describe(self, source: str, cast: Cast | None) -> None:
        """Note how the tensor was cast."""
        if cast is not None:
            self.source, self.format, self.scaling = source, cast.format.name, cast.scaling

    def add(self, line: Sequence[float]) -> None:
        """Add the figures of a call, whose elements are `COLUMNS`."""
        for name, value in zip(COLUMNS, line, strict=True):
            old = self.figures[name]
            if name not in MAXIMA:
                self.figures[name] = old + value
            elif not math.isnan(old):  # a NaN is larger than all
                self.figures[name] = value if math.isnan(value) else max(old, value)


class Table:
    """All rows of a step, in the order in which the tensors were met."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self._tickets: list[Row] = []

    def ticket(
        self, layer: str, tensor: str, cast: Cast | None, source: str, sizes: Sizes
    ) -> int | None:
        """Return under which number the figures of a call will come; None if there is no room."""
        key = (layer, tensor)
        full = key not in self._rows and len(self._rows) >= MOST_ROWS
        if full or len(self._tickets) >= MOST_CALLS:
            return None
        row = self._rows.setdefault(key, Row())
        row.describe(source, cast)
        row.calls += 1
        row.sizes = Sizes(*(old + new for old, new in zip(row.sizes, sizes, strict=True)))
        self._tickets.append(row)
        return len(self._tickets) - 1

    def fill(self, tickets: Sequence[int], lines: Tensor) -> None:
        """Add figures to the rows of their tickets."""
        for ticket, line in zip(tickets, lines.tolist(), strict=True):
            self._tickets[ticket].add(line)

    def records(self) -> list[dict[str, Any]]:
        """Lay out all rows."""
        return [_record(layer, tensor, row) for (layer, tensor), row in self._rows.items()]


def _record(layer: str, tensor: str, row: Row) -> dict[str, Any]:
    found, sizes = row.figures, row.sizes
    sampled, replayed = sizes.sampled or 1, row.source == "replay"
    nan, inf = _not_finite(row)
    values = row.source != "bytes"

    def share(name: str, known: bool = True) -> float | None:
        # An infinite scale makes NaN of zeros, which are then not zero any more.
        return _figure(max(0.0, found[name] / sampled)) if known and not (nan or inf) else None

    return {
        "layer": layer,
        "tensor": tensor,
        "source": row.source,
        "format": row.format,
        "scaling": row.scaling,
        "calls": row.calls,
        "elements": sizes.elements,
        "sampled": sizes.sampled,
        "amax": _figure(found["amax"]) if values else None,
        "rms": _figure(_root(found["signal"] / sampled)) if values else None,
        "scale": _figure(found["scale"]) or None,
        "zeros": share("zeros"),
        "flushed": share("flushed", replayed),
        "saturated": share("saturated", row.source != "values"),
        "subnormal": share("subnormal", replayed),
        "nan": nan,
        "inf": inf,
        "rows_not_finite": int(found["rows_not_finite"]),
        "zero_rows": _figure(found["zero_rows"] / sizes.rows) if sizes.rows else None,
        "sqnr_db": _sqnr(row) if replayed else None,
        "top_blocks": found["top_blocks"] / sizes.blocks if sizes.blocks else None,
        "what_if": {
            name: db for name in WHAT_IF if values and (db := _what_if(row, name)) is not None
        },
    }


def _not_finite(row: Row) -> tuple[float, float]:
    """Return the shares of NaN and infinity: at least one element of each such row of all."""
    found, sampled = row.figures, row.sizes.sampled or 1
    if row.source == "bytes":  # of which all were looked at
        return found["nan"] / (row.sizes.elements or 1), 0.0
    nan, inf = found["nan"] / sampled, found["inf"] / sampled
    least = found["rows_not_finite"] / (row.sizes.elements or 1)
    if math.isnan(found["amax"]):  # it comes before infinities
        return max(nan, least if not inf else 1 / row.sizes.elements), inf
    return nan, max(inf, least)


def _sqnr(row: Row) -> float | None:
    """Return the decibels of the cast: none at all where it made everything zero.

    The squares of what is lost of such values may be below all of float32.
    """
    found = row.figures
    if found["flushed"] and found["flushed"] == row.sizes.sampled - found["zeros"]:
        return 0.0
    return decibels(found["signal"], found["noise"])


def _what_if(row: Row, name: str) -> float | None:
    """Return the decibels under another recipe; None where its noise is too small to be seen."""
    found = row.figures
    if not found[name] and found["amax"] < LEAST_TOLD:
        return None
    return decibels(found["signal"], found[name])


def _root(square: float) -> float:
    return math.sqrt(square) if math.isfinite(square) else square


def decibels(signal: float, noise: float) -> float | None:
    """Return the signal-to-quantisation-noise ratio; None where there is no finite one."""
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal <= 0:
        return None
    # Plus nothing, since a table would show -0.0.
    return round(10 * math.log10(signal / noise), 3) + 0.0 if noise > 0 else EXACT_DB


def _figure(value: float) -> float | None:
    """Return a number that JSON can hold; a NaN or infinity is told by its share."""
    return value if math.isfinite(value) else None
