"""The pages' pictures: bars, timelines and curves as SVG.

Lengths are in user units; the pictures are stretched to the width there is.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fp8verify.report.model.comparison import Comparison, LossPair
from fp8verify.report.model.parts import TimelineReport
from fp8verify.report.model.report import Report
from fp8verify.report.tables import millis, percent
from fp8verify.terms import Precision, fp8_share

BAR_WIDTH = 1000
TIMELINE_HEIGHT = 60
_WORK_LEGENDS = {
    "work-casts": "casts and scales",
    "work-attention": "attention",
    "work-network": "exposed communication",
    "work-rest": "other kernels",
    "work-idle": "GPU idle or copying",
}
_WORK_KINDS = {label: kind for kind, label in _WORK_LEGENDS.items()}
# What the colors mean, on the page of a report and of a comparison.
LEGENDS = {
    "fp8": "FP8",
    "high": "higher precision",
    "low": "other 4- or 8-bit formats",
    "unknown": "unknown precision",
    "rest": "other kernels",
    **_WORK_LEGENDS,
    "curve-a": "baseline",
    "curve-b": "candidate",
}
_CURVE_HEIGHT = 100
# Losses that fall by more than this factor are drawn on a logarithmic scale.
_STEEP = 2.0
# More step marks than this would hide the picture.
_MAX_MARKS = 24

# A kind (the CSS class that colors it), an amount, and what it says when hovered.
Part = tuple[str, float, str]


class Segment(NamedTuple):
    """A part of a bar; `kind` is the CSS class that colors it, `tip` what it says when hovered."""

    kind: str
    x: float
    width: float
    tip: str = ""


class Bar(NamedTuple):
    """A labeled bar of several parts."""

    label: str
    segments: list[Segment]
    figures: str


class Mark(NamedTuple):
    """A labeled place on a timeline, `at` in buckets."""

    at: float
    label: str


def bars(rows: Iterable[tuple[str, Iterable[Part], str]], whole: float) -> list[Bar]:
    """Draw bars on one scale.

    Args:
        rows: label, parts and figures of each bar.
        whole: what the whole width means.
    """
    drawn = []
    for label, parts, figures in rows:
        bar, x = Bar(label, [], figures), 0.0
        for kind, amount, tip in parts:
            width = BAR_WIDTH * amount / whole if whole > 0 else 0.0
            if width > 0:
                bar.segments.append(Segment(kind, round(x, 2), round(width, 2), tip))
            x += width
        drawn.append(bar)
    return drawn


def kind_of(precision: str) -> str:
    """Return the CSS class of a precision class."""
    known = Precision(precision)
    if known.is_fp8:
        return "fp8"
    if known is Precision.UNKNOWN:
        return "unknown"
    return "low" if known.is_low or known is Precision.INT8 else "high"


def _tip(label: str, time_us: float, whole_us: float, unit: str = "ms") -> str:
    return f"{label}: {millis(time_us)} {unit}, {percent(time_us / whole_us if whole_us else 0.0)}"


def leg_bars(report: Report) -> list[Bar]:
    """Draw all passes on one scale, so their lengths compare."""
    legs, unit = report.legs, "ms" if report.measure == "time" else "TFLOP"
    rows = [
        (
            leg.leg.value,
            _by_kind(leg.time_us, leg.leg.value, unit),
            f"{percent(fp8_share(leg.time_us))} FP8 of {millis(sum(leg.time_us.values()))} {unit}",
        )
        for leg in legs
    ]
    return bars(rows, max((sum(leg.time_us.values()) for leg in legs), default=0.0))


def _by_kind(time_us: Mapping[str, float], where: str, unit: str = "ms") -> list[Part]:
    whole = sum(time_us.values())
    parts = [
        (kind_of(name), us, _tip(f"{where}, {name}", us, whole, unit))
        for name, us in time_us.items()
    ]
    return sorted(parts, key=lambda part: list(LEGENDS).index(part[0]))


def gpu_bars(report: Report) -> list[Bar]:
    """Draw what each kind of kernel took, on the scale of all GPU time."""
    gpu_us = sum(report.gpu_time_us.values())
    gemms = Counter(report.gemm.time_us) + Counter(report.optimizer_gemm.time_us)
    rows = []
    for name, us in sorted(report.gpu_time_us.items(), key=lambda item: -item[1]):
        parts = [("rest", us, _tip(name, us, gpu_us))]
        if us:
            figures = f"{percent(us / gpu_us)}, {millis(us)} ms"
            rows.append((name, _by_kind(gemms, "GEMMs") if name == "gemm" else parts, figures))
    return bars(rows, gpu_us)


def step_bars(comparison: Comparison) -> list[Bar]:
    """Draw a mean step of both runs, by kind of work, on one scale; GEMMs by precision."""
    rows, totals = [], []
    for name, side in (("baseline", comparison.baseline), ("candidate", comparison.candidate)):
        low = (side and side.fp8_share_of_time) or 0.0
        parts, total = [], 0.0
        for row in comparison.budget:
            us = max(0.0, row.baseline_us if name == "baseline" else row.candidate_us)
            tip = f"{row.name}: {millis(us)} ms; change {row.change_us / 1000:+.2f} ms"
            if row.name == "GEMM":
                parts += [("fp8", us * low, tip), ("high", us * (1 - low), tip)]
            else:
                parts.append((_WORK_KINDS.get(row.name, "work-rest"), us, tip))
            total += us
        totals.append(total)
        if total:
            rows.append((name, parts, f"{millis(total)} ms per step"))
    return bars(rows, max(totals))


def kinds(drawn: Iterable[Bar]) -> list[str]:
    """Return the kinds that bars show, in the order of the bars."""
    seen = {segment.kind for bar in drawn for segment in bar.segments}
    return [kind for kind in LEGENDS if kind in seen]


class Timeline(NamedTuple):
    """The picture of one trace's GPU time.

    Attributes:
        width: in buckets, the user units.
        bands: the path of each kind (CSS class) that ran.
        marks: where steps begin.
        millis: the length in ms.
    """

    width: int
    bands: dict[str, str]
    marks: list[Mark]
    millis: float


def timeline(report: TimelineReport) -> Timeline:
    """Draw the buckets of a trace as columns, GEMMs at the bottom."""
    rows = {
        "fp8": report.fp8_us,
        "high": report.other_precision_us,
        "unknown": report.unknown_precision_us,
        "rest": report.rest_us,
    }
    count = len(report.fp8_us)
    tallest = max(map(sum, zip(*rows.values(), strict=True)), default=0)
    scale = TIMELINE_HEIGHT / max(report.bucket_us, tallest)
    below = [0.0] * count
    bands: dict[str, str] = defaultdict(str)
    for kind, row in rows.items():
        for x, us in enumerate(row):  # a rectangle for each bucket that has time
            if us * scale >= 0.05:
                bands[kind] += f"M{x} {TIMELINE_HEIGHT - below[x]:.1f}h1v-{us * scale:.1f}h-1z"
            below[x] += us * scale
    span = count * report.bucket_us
    marks = [
        Mark(round(count * begin / span, 2), f"step {number}") for number, begin, _ in report.steps
    ]
    marks = marks if len(marks) <= _MAX_MARKS else []
    return Timeline(count, bands, marks, span / 1000)


class Curve(NamedTuple):
    """A figure of both runs as paths in a box of 1000 by 100, the baseline's first.

    Attributes:
        paths: of both runs; a step without a number breaks a path.
        ends: what the left and the right end of the axis are called.
        ticks: the figures at the top, in the middle and at the bottom.
        is_log: whether the scale is logarithmic.
        is_gap: whether it is the gap of the runs, whose baseline is at 0.
    """

    paths: list[str]
    ends: tuple[str, str]
    ticks: tuple[str, str, str]
    is_log: bool = False
    is_gap: bool = False


Points = Sequence[tuple[int, float | None, float | None]]


def loss_curves(loss: LossPair | None) -> dict[str, Curve | None]:
    """Draw the losses and the gap (above the baseline, which is at 0)."""
    if loss is None:
        return {"curve": None, "gap": None}
    gaps = [(s, 0.0, b - a) for s, a, b in loss.curve if a is not None and b is not None]
    unit = "value" if loss.counted else "step"
    gap = _curve(gaps, unit)
    return {"curve": _loss(loss.curve, unit), "gap": gap and gap._replace(is_gap=True)}


def _loss(points: Points, unit: str) -> Curve | None:
    """Draw losses; on a logarithmic scale where the first steps would flatten the others."""
    values = [value for _, *both in points for value in both if value is not None]
    if not values or min(values) <= 0 or max(values) < _STEEP * min(values):
        return _curve(points, unit)
    drawn = _curve([(step, _log(before), _log(after)) for step, before, after in points], unit)
    low, high = min(values), max(values)
    ticks = (f"{high:.4g}", f"{math.sqrt(low * high):.4g}", f"{low:.4g}")
    return drawn and drawn._replace(ticks=ticks, is_log=True)


def _log(value: float | None) -> float | None:
    return None if value is None else math.log(value)


def _curve(points: Points, unit: str) -> Curve | None:
    """Draw a figure of both runs; None if fewer than two steps have numbers."""
    values = [value for _, *both in points for value in both if value is not None]
    if len(points) < 2 or not values:
        return None
    low, high = min(values), max(values)
    scale = _CURVE_HEIGHT / (high - low or 1.0)
    first, last = points[0][0], points[-1][0]
    paths = ["", ""]
    for run in (0, 1):
        pen = "M"
        for step, *both in points:
            value = both[run]
            if value is None:
                pen = "M"
                continue
            x = BAR_WIDTH * (step - first) / max(1, last - first)
            # A point alone between two gaps is a line of no length, which is drawn as a dot.
            paths[run] += f"{pen}{x:.1f} {_CURVE_HEIGHT - scale * (value - low):.1f}"
            paths[run] += "h0" if pen == "M" else ""
            pen = "L"
    ticks = (f"{high:.4g}", f"{(low + high) / 2:.4g}", f"{low:.4g}")
    return Curve(paths, (f"{unit} {first}", f"{unit} {last}"), ticks)
