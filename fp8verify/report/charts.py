"""Geometry of the pages' pictures: times to the segments of bars, buckets and curves to SVG paths.

Lengths are in user units; the pictures are stretched to the width there is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fp8verify.report.model import LegRow, Precision, Report, TimelineReport, fp8_share
from fp8verify.report.model.comparison import BudgetRow, Comparison, LossPair, RunTable
from fp8verify.report.tables import millis, percent, precision_rows, times
from fp8verify.text import printable

BAR_WIDTH = 1000
TIMELINE_HEIGHT = 60
# What the colours mean on the page of a report, of a comparison and of a table of runs.
LEGENDS = {
    "fp8": "FP8",
    "high": "higher precision",
    "mixed": "some in FP8",
    "low": "other 4 or 8 bits",
    "unknown": "unknown precision",
    "rest": "other kernels",
}
WORK_LEGENDS = {
    "work-gemm": "GEMM",
    "work-casts": "casts and scales",
    "work-attention": "attention",
    "work-network": "exposed communication",
    "work-rest": "other kernels",
    "work-idle": "GPU idle or copying",
}
CURVE_LEGENDS = {"curve-a": "baseline", "curve-b": "candidate"}
RUN_LEGENDS = {"fp8": "FP8", "high": "other precisions", "rest": "a step"}
_WORK_KINDS = {label: kind for kind, label in WORK_LEGENDS.items()}
_CURVE_HEIGHT = 100
# Curves that span more than this factor are drawn by their logarithm.
_WIDE = 10.0
_STEPS = (2.0, 1.0, 0.5, 0.25, 0.2, 0.1)
# Ticks of 5 and more are whole numbers; those below may be 2.5 or 0.25 apart.
_WHOLE = 5.0
_LEAST_TICKS = 3
# Shares of an axis: beyond the first a label ends at its tick; the second is room for "25 ms".
_NEAR_THE_END = 0.96
_ROOM_FOR_A_UNIT = 0.25
# More step marks than this would hide the picture.
_MAX_MARKS = 24

# A kind (the CSS class that colours it), an amount, and what it says when hovered.
Part = tuple[str, float, str]


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
    """A mark on an axis, `at` in percent of its length (in a timeline, in user units)."""

    at: float
    label: str


class Bars(NamedTuple):
    """Bars on one scale, and its axis."""

    rows: list[Bar]
    ticks: list[Tick]


_PERCENT = [Tick(at, f"{at}%") for at in (0, 20, 40, 60, 80, 100)]


def segments(parts: Iterable[Part], total: float) -> list[Segment]:
    """Lay parts next to each other in a bar whose whole width means `total`."""
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
        Tick(round(100 * n * step / total, 3), f"{n * step:.{digits}f}{unit if n == last else ''}")
        for n in range(last + 1)
        if not (crowded and n == last - 1)
    ]


def bars(
    rows: Iterable[tuple[str, Iterable[Part], str]], whole: float, axis: list[Tick] | None = None
) -> Bars:
    """Draw bars on one scale.

    Args:
        rows: label, parts and figures of each bar.
        whole: what the whole width means.
        axis: by default that of milliseconds, where amounts are microseconds.
    """
    found = [Bar(label, segments(parts, whole), figures) for label, parts, figures in rows]
    return Bars(found, ticks(whole / 1000, " ms") if axis is None else axis)


def kind_of(precision: str) -> str:
    """Return the CSS class of a precision class."""
    found = Precision(precision)
    if found.is_fp8:
        return "fp8"
    if found is Precision.UNKNOWN:
        return "unknown"
    return "low" if found.is_low or found is Precision.INT8 else "high"


def precision_bar(report: Report) -> Bars:
    """Draw one bar: the GEMM time of linear layers by precision."""
    rows = precision_rows(report)
    parts = [
        (kind_of(row.precision), row.time_us, _tip(row.precision, row.time_us, row.share))
        for row in rows
    ]
    gemm_us = sum(row.time_us for row in rows)
    return bars([("GEMMs", parts, f"{millis(gemm_us)} ms")], gemm_us)


def _tip(label: str, time_us: float, share: float) -> str:
    return f"{label}: {millis(time_us)} ms, {percent(share)}"


def leg_bars(legs: Sequence[LegRow]) -> Bars:
    """Draw all passes on one scale, so that their lengths compare."""
    rows = [
        (
            leg.leg.value,
            _by_kind(leg.time_us, leg.leg.value),
            f"{percent(fp8_share(leg.time_us))} FP8 of {millis(sum(leg.time_us.values()))} ms",
        )
        for leg in legs
    ]
    return bars(rows, max((sum(leg.time_us.values()) for leg in legs), default=0.0))


def _by_kind(time_us: Mapping[str, float], where: str) -> list[Part]:
    whole = sum(time_us.values())
    parts = [
        (kind_of(name), us, _tip(f"{where}, {name}", us, us / whole if whole else 0.0))
        for name, us in time_us.items()
    ]
    return sorted(parts, key=lambda part: list(LEGENDS).index(part[0]))


def gpu_bars(report: Report) -> Bars:
    """Draw what each kind of kernel took, on the scale of all GPU time."""
    gpu_us = sum(report.gpu_time_us.values())
    gemms = Counter(report.gemm.time_us) + Counter(report.optimizer_gemm.time_us)
    rows = []
    for name, us in sorted(report.gpu_time_us.items(), key=lambda item: -item[1]):
        parts = [("rest", us, _tip(name, us, us / gpu_us if gpu_us else 0.0))]
        if name == "gemm":
            parts = _by_kind(gemms, "GEMMs")
        if us:
            rows.append((name, parts, f"{percent(us / gpu_us)}, {millis(us)} ms"))
    return bars(rows, gpu_us, _PERCENT)


def step_bars(found: Comparison) -> Bars:
    """Draw a mean step of both runs, by kind of work, on one scale."""
    sides = {
        "baseline": [(row, row.baseline_us) for row in found.budget],
        "candidate": [(row, row.candidate_us) for row in found.budget],
    }
    totals = {name: sum(us for _, us in own) for name, own in sides.items()}
    rows = [
        (name, [_work(*one) for one in own], f"{millis(totals[name])} ms a mean step")
        for name, own in sides.items()
        if totals[name]
    ]
    return bars(rows, max(totals.values()))


def _work(row: BudgetRow, us: float) -> Part:
    own = max(0.0, us)
    tip = f"{row.name}: {millis(own)} ms; change {row.change_us / 1000:+.2f} ms"
    return _WORK_KINDS.get(row.name, "work-rest"), own, tip


def work_kinds(found: Comparison) -> list[str]:
    """Return the colours that `step_bars` uses."""
    return [_WORK_KINDS[row.name] for row in found.budget if row.name in _WORK_KINDS]


def pass_bars(found: Comparison) -> Bars:
    """Draw the GEMM time of each pass in both runs, on one scale."""
    rows = [
        (
            f"{leg.leg}, {name}",
            [(kind, us, f"{leg.leg} of the {name}: {millis(us)} ms a step")],
            f"{millis(us)} ms" + (f", {times(leg.speedup)}" if name == "candidate" else ""),
        )
        for leg in found.legs
        for name, kind, us in (
            ("baseline", "rest", leg.baseline_us),
            ("candidate", "work-gemm", leg.candidate_us),
        )
    ]
    return bars(
        rows, max((max(leg.baseline_us, leg.candidate_us) for leg in found.legs), default=0.0)
    )


def share_bars(found: RunTable) -> Bars:
    """Draw the FP8 share of each run."""
    rows = []
    for run in found.runs:
        share, name = run.fp8_share_of_time, printable(run.name)
        if share is not None:
            tip = f"{name}: {percent(share)} of GEMM time in FP8"
            parts = [("fp8", share, tip), ("high", 1 - share, tip)]
            rows.append((name, parts, f"{percent(share)} FP8"))
    return bars(rows, 1.0, _PERCENT)


def run_step_bars(found: RunTable) -> Bars:
    """Draw the time of a step of each run."""
    known = [(printable(run.name), run.step_us) for run in found.runs if run.step_us]
    rows = [
        (name, [("rest", us, f"{name}: {millis(us)} ms a step")], f"{millis(us)} ms")
        for name, us in known
    ]
    return bars(rows, max((us for _, us in known), default=0.0))


class Timeline(NamedTuple):
    """The picture of one trace's GPU time.

    Attributes:
        width: in buckets, the user units.
        bands: the path of each kind (CSS class) that ran.
        marks: where steps begin.
        millis: the length in ms.
        ticks: of the axis.
    """

    width: int
    bands: dict[str, str]
    marks: list[Tick]
    millis: float
    ticks: list[Tick]


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
    bands = {}
    for kind, row in rows.items():
        path = _columns(row, below, scale)
        if path:
            bands[kind] = path
        below = [low + us * scale for low, us in zip(below, row, strict=True)]
    span = count * report.bucket_us
    marks = [
        Tick(round(count * begin / span, 2), f"step {number}") for number, begin, _ in report.steps
    ]
    marks = marks if len(marks) <= _MAX_MARKS else []
    return Timeline(count, bands, marks, span / 1000, ticks(span / 1000, " ms"))


def _columns(row: Sequence[float], below: Sequence[float], scale: float) -> str:
    """Return one rectangle for each bucket that has time."""
    return "".join(
        f"M{x} {TIMELINE_HEIGHT - low:.1f}h1v-{us * scale:.1f}h-1z"
        for x, (us, low) in enumerate(zip(row, below, strict=True))
        if us * scale >= 0.05
    )


class Curve(NamedTuple):
    """A figure of both runs as paths in a box of 1000 by 100, the baseline's first.

    Attributes:
        paths: of both runs; a step without a number breaks a path.
        breaks: of both runs, where it alone first has no number.
        steps: of the axis.
        lowest: the figure at the bottom.
        highest: the figure at the top.
        bends: whether the heights are logarithms.
    """

    paths: list[str]
    breaks: list[list[float]]
    steps: list[Tick]
    lowest: str
    highest: str
    bends: bool


Points = Sequence[tuple[int, float | None, float | None]]


def loss_curves(loss: LossPair | None) -> dict[str, Curve | None]:
    """Draw the losses, the gap (above the baseline, which is at 0) and the gradient norms."""
    if loss is None:
        return {"curve": None, "gap": None, "gradients": None}
    gaps = [(s, 0.0, b - a) for s, a, b in loss.curve if a is not None and b is not None]
    unit = "value" if loss.counted else "step"
    return {
        "curve": _curve(loss.curve, unit),
        "gap": _curve(gaps, unit),
        "gradients": _curve(loss.gradient_curve, unit, may_bend=True),
    }


def _curve(points: Points, unit: str, *, may_bend: bool = False) -> Curve | None:
    """Draw a figure of both runs; None where fewer than two steps have numbers."""
    values = [value for _, *both in points for value in both if value is not None]
    if len(points) < 2 or not values:
        return None
    low, high = min(values), max(values)
    bends = may_bend and low > 0 and high > _WIDE * low
    height = math.log if bends else float
    lowest, span = height(low), height(high) - height(low) or 1.0
    first, last = points[0][0], points[-1][0]
    xs = [BAR_WIDTH * (step - first) / max(1, last - first) for step, *_ in points]
    paths, breaks = [], []
    for own, other in ((1, 2), (2, 1)):
        ys = [
            None if (value := point[own]) is None
            else _CURVE_HEIGHT - _CURVE_HEIGHT * (height(value) - lowest) / span
            for point in points
        ]  # fmt: skip
        paths.append(_path(xs, ys))
        gaps = (
            round(x, 1)
            for x, point in zip(xs, points, strict=True)
            if point[own] is None and point[other] is not None
        )
        breaks.append([*gaps][:1])
    marks = [Tick(0.0, f"{unit} {first}"), Tick(100.0, f"{unit} {last}")]
    return Curve(paths, breaks, marks, f"{low:.4g}", f"{high:.4g}", bends)


def _path(xs: Sequence[float], ys: Sequence[float | None]) -> str:
    """Return the path of a curve; a point without a height breaks it."""
    drawn, pen = [], "M"
    for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y is None:
            pen = "M"
            continue
        drawn.append(f"{pen}{x:.1f} {y:.1f}")
        if pen == "M" and (place + 1 == len(ys) or ys[place + 1] is None):
            drawn.append("h0")  # alone between two gaps, it is a dot
        pen = "L"
    return "".join(drawn)
