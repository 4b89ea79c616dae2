"""The rows of a measured step: one for each layer and tensor, added up over its calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from .casts import Cast
from .figures import COLUMNS, MAXIMA, WHAT_IF

MOST_DB = 150.0  # of a cast that loses nothing or next to nothing: float32 has no more
# Below it a cast whose scale is held at that of the smallest amax, 1e-12, may lose all of a tensor
# and its squares be zero in float32 nevertheless.
LEAST_SHOWN = 1e-30
# A sampled figure is off by at most so many standard errors; rows that share a fault of their own
# and are all left out may be one in so many of the sampled ones.
ERRORS, UNSEEN, UNSEEN_DB = 4.0, 4.0, 1.0
# The figures of a tensor that are worth watching over time, then what findings also need.
SERIES = (
    "source", "format", "scaling", "amax", "rms", "scale", "flushed", "saturated", "sqnr_db",
    "nan", "inf", "rows_not_finite", "zero_rows", "top_blocks", "what_if",
)  # fmt: skip


class Sizes(NamedTuple):
    """What the host knows of a call.

    Attributes:
        rows: of the whole tensor; 0 where only bytes were seen.
        elements: of the whole tensor.
        sampled: elements of the sample.
        blocks: MX blocks.
        units: what rows are sampled by, of a tensor that is sampled.
        spread: how many of these were taken from all over it.
    """

    rows: int = 0
    elements: int = 0
    sampled: int = 0
    blocks: int = 0
    units: int = 0
    spread: int = 0


class Row:
    """What was added up for one tensor of one layer.

    `source` is "replay" (the cast was repeated), "bytes" (FP8 bytes alone were seen) or "values"
    (no cast is known).
    """

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.calls = 0
        self.source = "values"
        self.format: str | None = None
        self.scaling: str | None = None
        self.figures: defaultdict[str, float] = defaultdict(float)

    def begin(self, source: str, cast: Cast | None, sizes: Sizes) -> None:
        """Note a call, and how its tensor is cast."""
        if cast is not None:
            self.source, self.format, self.scaling = source, cast.format.name, cast.scaling
        self.calls += 1
        self.sizes = Sizes(*map(sum, zip(self.sizes, sizes, strict=True)))

    def add(self, line: Sequence[float]) -> None:
        """Add the figures of a call, whose elements are `COLUMNS`."""
        for name, value in zip(COLUMNS, line, strict=True):
            old = self.figures[name]
            if name not in MAXIMA:
                self.figures[name] = old + value
            elif not math.isnan(old):  # a NaN is larger than all
                self.figures[name] = value if math.isnan(value) else max(old, value)

    def record(self) -> dict[str, Any]:
        """Lay out all figures; those that are not known, or not of this world, are None."""
        found, replayed, values = self.figures, self.source == "replay", self.source != "bytes"
        rows, elements, blocks = self.sizes.rows, self.sizes.elements or 1, self.sizes.blocks
        nan, inf = self._not_finite()
        mean = found["signal"] / elements
        known = {
            "zeros": not (nan or inf),  # an infinite scale makes NaN of zeros
            "flushed": replayed and not (nan or inf),
            "saturated": self.source != "values" and not (nan or inf),
            "subnormal": replayed and not (nan or inf),
        }
        shares = {
            name: max(0.0, found[name] / elements) if told else None for name, told in known.items()
        }
        return {
            "source": self.source,
            "format": self.format,
            "scaling": self.scaling,
            "calls": self.calls,
            "elements": self.sizes.elements,
            "sampled": self.sizes.sampled,
            "amax": _finite(found["amax"]) if values else None,
            "rms": math.sqrt(mean) if values and math.isfinite(mean) else None,
            "scale": _finite(found["scale"]) or None,
            **shares,
            "nan": nan,
            "inf": inf,
            "rows_not_finite": int(found["rows_not_finite"]),
            "zero_rows": found["zero_rows"] / rows if rows else None,
            "sqnr_db": self._sqnr() if replayed else None,
            "top_blocks": found["top_blocks"] / blocks if blocks else None,
            "what_if": {n: db for n in WHAT_IF if values and (db := self._what_if(n)) is not None},
            "error": self._errors([name for name, told in known.items() if told]),
        }

    def _not_finite(self) -> tuple[float, float]:
        """Return the shares of NaN and infinity: at least one element of each such row of all."""
        found, elements = self.figures, self.sizes.elements or 1
        nan, inf = found["nan"] / elements, found["inf"] / elements
        least = found["rows_not_finite"] / elements
        if math.isnan(found["amax"]):  # it comes before infinities
            return max(nan, least if not inf else 1 / elements), inf
        return nan, max(inf, least)

    def _sqnr(self) -> float | None:
        """Return the decibels of the cast: none at all where it made everything zero.

        The squares of what is lost of such values may be below all of float32.
        """
        found = self.figures
        if found["flushed"] and found["flushed"] == self.sizes.elements - found["zeros"]:
            return 0.0
        return decibels(found["signal"], found["noise"])

    def _what_if(self, name: str) -> float | None:
        """Return the decibels under another recipe; None where its noise is too small to see."""
        found = self.figures
        if not found[name] and found["amax"] < LEAST_SHOWN:
            return None
        return decibels(found["signal"], found[name])

    def _errors(self, shares: Sequence[str]) -> dict[str, float]:
        """Return by how much each figure may be off for being of a sample."""
        found, sizes = self.figures, self.sizes
        if not sizes.spread or not math.isfinite(found["signal"]):
            return {}
        unseen = UNSEEN / sizes.spread * max(0.0, 1 - sizes.spread / sizes.units)
        errors = {name: self._error(name) / sizes.elements + unseen for name in shares}
        relative = {
            name: self._error(name) / found[name] if found[name] > 0 else 0.0
            for name in ("signal", "noise", *WHAT_IF)
        }
        root = math.sqrt(max(0.0, found["signal"]) / sizes.elements)
        errors["rms"] = root * relative["signal"] / 2
        decibel = 10 / math.log(10)
        of_ratio = {
            name: decibel * math.hypot(relative["signal"], relative[name])
            for name in ("noise", *WHAT_IF)
        }
        # What the largest values of rows that were left out may lose to rounding.
        rounding = found["peaks_left"] * (2.0**-8 if self.format == "e4m3" else 2.0**-6) / 3
        left = decibel * math.log1p(rounding / found["noise"]) if found["noise"] > 0 else 0.0
        errors["sqnr_db"] = of_ratio.pop("noise") + UNSEEN_DB / sizes.spread + left
        errors["what_if"] = max(of_ratio.values(), default=0.0) + UNSEEN_DB / sizes.spread
        return {name: float(f"{value:.3g}") for name, value in errors.items() if value < math.inf}

    def _error(self, name: str) -> float:
        variance = self.figures[f"{name} variance"]
        if not 0 <= variance < math.inf:
            return 0.0
        # The variance of a few units, as of blocks of rows, is not well known itself.
        few = 1 + 4 * self.calls / max(1, self.sizes.spread)
        return ERRORS * few * math.sqrt(variance)


def series_line(result: dict[str, Any]) -> dict[str, Any]:
    """Return a measured step as columns, one entry for each row: a line of a long run."""
    rows = result["rows"]
    return {
        **{name: result[name] for name in ("step", "time", "gradient", "recomputed_high")},
        **{name: [row[name] for row in rows] for name in ("layer", "tensor")},
        **{name: [_short(row[name]) for row in rows] for name in SERIES},
    }


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def decibels(signal: float, noise: float) -> float | None:
    """Return the signal-to-quantization-noise ratio; None where there is no finite one."""
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal <= 0:
        return None
    # Plus nothing, since a table would show -0.0.
    ratio = 10 * math.log10(signal / noise) if noise > 0 else MOST_DB
    return round(min(ratio, MOST_DB), 3) + 0.0


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; the share of NaN and infinity is a figure of its own."""
    return value if math.isfinite(value) else None
