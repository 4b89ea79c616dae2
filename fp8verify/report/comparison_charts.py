"""The pictures of a comparison: a step of both runs by kind of work, passes, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from fp8verify.report.charts import Bar, Bars, Tick, segments, ticks
from fp8verify.report.comparison_page import times
from fp8verify.report.model.comparison import Comparison, LossPair
from fp8verify.report.tables import millis

_WIDTH, _HEIGHT = 1000, 100
# What the parts of a step are coloured by: kinds of work, not precisions.
LEGENDS = {
    "work-gemm": "GEMM",
    "work-casts": "casts and scales",
    "work-attention": "attention",
    "work-network": "exposed communication",
    "work-rest": "other kernels",
    "work-idle": "GPU idle or copying",
}
KINDS = {label: kind for kind, label in LEGENDS.items()}
CURVES = {"curve-a": "baseline", "curve-b": "candidate"}


Points = tuple[tuple[int, float | None, float | None], ...]
WIDE = 10.0


class Curve(NamedTuple):
    """A figure of both runs as paths in a box of 1000 by 100, and its axes.

    `bends` is whether the heights are logarithms; the breaks are where one run alone first has no
    number, in the same units as the paths.
    """

    baseline: str
    candidate: str
    steps: list[Tick]
    lowest: str
    highest: str
    bends: bool
    baseline_breaks: list[float]
    candidate_breaks: list[float]


def step_bars(found: Comparison) -> Bars:
    """A mean step of both runs, by kind of work, on one scale."""
    sides = {"baseline": "baseline_us", "candidate": "candidate_us"}
    totals = {name: sum(getattr(row, us) for row in found.budget) for name, us in sides.items()}
    longest = max(totals.values(), default=0.0)
    rows = [
        Bar(
            name,
            segments(_parts(found, sides[name]), longest),
            f"{millis(total)} ms a mean step",
        )
        for name, total in totals.items()
        if total
    ]
    return Bars(rows, ticks(longest / 1000, " ms"))


def _parts(found: Comparison, us: str) -> Iterable[tuple[str, float, str]]:
    for row in found.budget:
        own = max(0.0, getattr(row, us))
        tip = f"{row.name}: {millis(own)} ms; change {row.change_us / 1000:+.2f} ms"
        yield KINDS.get(row.name, "work-rest"), own, tip


def leg_bars(found: Comparison) -> Bars:
    """GEMM time of each leg in both runs, on one scale."""
    longest = max((max(leg.baseline_us, leg.candidate_us) for leg in found.legs), default=0.0)
    rows = [
        Bar(
            f"{leg.leg}, {name}",
            segments([(kind, us, f"{leg.leg} of the {name}: {millis(us)} ms a step")], longest),
            f"{millis(us)} ms" + (f", {times(leg.speedup)}" if name == "candidate" else ""),
        )
        for leg in found.legs
        for name, kind, us in (
            ("baseline", "rest", leg.baseline_us),
            ("candidate", "work-gemm", leg.candidate_us),
        )
    ]
    return Bars(rows, ticks(longest / 1000, " ms"))


def loss_curve(loss: LossPair | None) -> Curve | None:
    """Draw the losses of both runs."""
    return None if loss is None else _curve(loss.curve, "value" if loss.counted else "step")


def gap_curve(loss: LossPair | None) -> Curve | None:
    """Draw by how much the candidate lies above the baseline, which stands for itself at 0."""
    if loss is None:
        return None
    gaps = tuple(
        (step, 0.0, after - before)
        for step, before, after in loss.curve
        if before is not None and after is not None
    )
    return _curve(gaps, "value" if loss.counted else "step")


def gradient_curve(loss: LossPair | None) -> Curve | None:
    """Draw the gradient norms; by their logarithm where they go over more than a factor of ten."""
    if loss is None:
        return None
    return _curve(loss.gradient_curve, "value" if loss.counted else "step", may_bend=True)


def _curve(points: Points, unit: str, *, may_bend: bool = False) -> Curve | None:
    """Draw a figure of both runs; None where fewer than two steps have numbers."""
    values = [value for _, *both in points for value in both if value is not None]
    if len(points) < 2 or not values:
        return None
    low, high = min(values), max(values)
    bends = may_bend and low > 0 and high > WIDE * low
    height = math.log if bends else float
    first, last = points[0][0], points[-1][0]

    def path(place: int) -> str:
        drawn = [
            (step, None if (value := both[place]) is None else height(value))
            for step, *both in points
        ]
        return _path(drawn, first, last, height(low), height(high))

    def breaks(place: int) -> list[float]:
        return [
            round(_WIDTH * (step - first) / max(1, last - first), 1)
            for step, *both in points
            if both[place] is None and both[1 - place] is not None
        ][:1]

    marks = [Tick(0.0, f"{unit} {first}"), Tick(100.0, f"{unit} {last}")]
    shown = (f"{low:.4g}", f"{high:.4g}")
    return Curve(path(0), path(1), marks, *shown, bends, [*breaks(0)], [*breaks(1)])


def _path(
    points: list[tuple[int, float | None]], first: int, last: int, low: float, high: float
) -> str:
    """Return the path of a curve; a step without a number breaks it."""
    drawn, pen = [], "M"
    for place, (step, value) in enumerate(points):
        if value is None:
            pen = "M"
            continue
        x = _WIDTH * (step - first) / max(1, last - first)
        y = _HEIGHT - _HEIGHT * (value - low) / (high - low or 1.0)
        drawn.append(f"{pen}{x:.1f} {y:.1f}")
        if pen == "M" and (place + 1 == len(points) or points[place + 1][1] is None):
            drawn.append("h0")  # alone between two gaps, it is a dot
        pen = "L"
    return "".join(drawn)
