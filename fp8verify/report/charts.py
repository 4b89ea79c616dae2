"""Geometry of the page's pictures: shares to bar segments, buckets to SVG paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fp8verify.report.model import Precision, TimelineReport

# User units; the pictures are stretched to the width there is.
BAR_WIDTH = 1000
TIMELINE_HEIGHT = 60
_STEPS = (2.0, 1.0, 0.5, 0.25, 0.2, 0.1)
# Ticks of 5 and more are whole numbers; those below may be 2.5 or 0.25 apart.
_WHOLE = 5.0
_LEAST_TICKS = 3
# Shares of an axis: beyond the first a label ends at its tick; the second is room for "25 ms".
_NEAR_THE_END = 0.96
_ROOM_FOR_A_UNIT = 0.25
# More step marks than this would hide the picture.
_MAX_MARKS = 24


class Segment(NamedTuple):
    """A part of a bar; `kind` is the CSS class that colours it, `tip` what it says when hovered."""

    kind: str
    x: float
    width: float
    tip: str = ""


class Bar(NamedTuple):
    """A labelled bar of several parts."""

    label: str
    segments: list[Segment]
    figures: str


class Tick(NamedTuple):
    """A mark on an axis, `at` in percent of its length."""

    at: float
    label: str


class Bars(NamedTuple):
    """Bars on one scale, and its axis."""

    rows: list[Bar]
    ticks: list[Tick]


class Band(NamedTuple):
    """All parts of one kind in a timeline, as the path of an SVG."""

    kind: str
    path: str


class StepMark(NamedTuple):
    """Where a step begins in a timeline, in user units."""

    label: str
    x: float


class Timeline(NamedTuple):
    """The picture of one trace's GPU time."""

    width: int
    bands: list[Band]
    marks: list[StepMark]
    millis: float
    ticks: list[Tick]


def kind_of(precision: str) -> str:
    """Return the CSS class of a precision class."""
    found = Precision(precision)
    if found.is_fp8:
        return "fp8"
    if found is Precision.UNKNOWN:
        return "unknown"
    return "low" if found.is_low or found is Precision.INT8 else "high"


def segments(parts: Iterable[tuple[str, float, str]], total: float) -> list[Segment]:
    """Lay parts (kind, amount, tip) side by side in a bar whose whole width stands for `total`."""
    found, x = [], 0.0
    for kind, amount, tip in parts:
        width = BAR_WIDTH * amount / total if total > 0 else 0.0
        if width > 0:
            found.append(Segment(kind, round(x, 2), round(width, 2), tip))
        x += width
    return found


def ticks(total: float, unit: str) -> list[Tick]:
    """Return round numbers from 0 to `total`, three to six of them; the last has the unit.

    Where it is at the axis' end, its label would run into the one before it, which is left out.
    """
    if total <= 0:
        return []
    power = 10.0 ** math.floor(math.log10(total))
    step = next(power * part for part in _STEPS if total / (power * part) >= _LEAST_TICKS)
    digits = max(0, 1 - math.floor(math.log10(step) + 1e-9)) if step < _WHOLE else 0
    last = int(total / step + 1e-9)
    crowded = last * step / total > _NEAR_THE_END and step / total < _ROOM_FOR_A_UNIT
    return [
        Tick(
            round(100 * n * step / total, 3),
            f"{n * step:.{digits}f}{unit if n == last else ''}",
        )
        for n in range(last + 1)
        if not (crowded and n == last - 1)
    ]


def timeline(report: TimelineReport) -> Timeline:
    """Draw the buckets of a trace as columns, GEMMs at the bottom."""
    rows = (
        ("fp8", report.fp8_us),
        ("high", report.other_precision_us),
        ("unknown", report.unknown_precision_us),
        ("rest", report.rest_us),
    )
    count = len(report.fp8_us)
    tallest = max(
        (sum(column) for column in zip(*(row for _, row in rows), strict=True)), default=0
    )
    scale = TIMELINE_HEIGHT / max(report.bucket_us, tallest)
    below = [0.0] * count
    bands = []
    for kind, times in rows:
        bands.append(Band(kind, _path(times, below, scale)))
        below = [low + us * scale for low, us in zip(below, times, strict=True)]
    span = count * report.bucket_us
    marks = [
        StepMark(f"step {number}", round(count * begin / span, 2))
        for number, begin, _ in report.steps
        if len(report.steps) <= _MAX_MARKS
    ]
    drawn = [band for band in bands if band.path]
    return Timeline(count, drawn, marks, span / 1000, ticks(span / 1000, " ms"))


def _path(times: Sequence[float], below: Sequence[float], scale: float) -> str:
    """Return one rectangle for each bucket that has time."""
    return "".join(
        f"M{x} {TIMELINE_HEIGHT - low:.1f}h1v-{us * scale:.1f}h-1z"
        for x, (us, low) in enumerate(zip(times, below, strict=True))
        if us * scale >= 0.05
    )
