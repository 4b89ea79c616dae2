"""What the gaps between two losses come to: how large, whether they grow, where one has left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from fp8verify.compare.noise import (
    SURE,
    is_noise,
    mean,
    resolution,
    standard_error,
    stands_out,
)

MOST_GAP = 0.05  # of the baseline's loss: the most that guides expect of FP8
LEAST_STEPS = 8
GROWTH = 1.5
Item = TypeVar("Item")


class Gaps(NamedTuple):
    """Candidate less baseline over the steps at which both are finite.

    Attributes:
        mean: None where there is no such step.
        largest: the gap that is furthest from zero, at `largest_step`.
        relative: mean gap of the last half of the steps, over the baseline's loss there.
        trend: growing, steady, shrinking or unknown.
        diverged_step: from which on the candidate stays above the baseline, if it does.
        is_noise: whether the gap of the last half may be chance or rounding.
    """

    mean: float | None
    largest: float | None
    largest_step: int | None
    relative: float | None
    trend: str
    diverged_step: int | None
    is_noise: bool


def measure_gaps(
    before: Mapping[int, float], after: Mapping[int, float], steps: Sequence[int]
) -> Gaps:
    """Measure the gaps between two losses at the steps that both have."""
    apart = ((step, after[step] - before[step]) for step in steps)
    gaps = {step: gap for step, gap in apart if math.isfinite(gap)}
    values = list(gaps.values())
    printed = resolution(losses[step] for step in gaps for losses in (before, after))
    worst = max(gaps, key=lambda step: abs(gaps[step]), default=None)
    return Gaps(
        mean=_short(mean(values)) if values else None,
        largest=None if worst is None else _short(gaps[worst]),
        largest_step=worst,
        relative=_relative(gaps, before),
        trend=_trend(values),
        diverged_step=_diverged(gaps, before, printed),
        is_noise=_is_noise(values, printed),
    )


def _short(value: float) -> float:
    """Return a number to six decimals, one below a thousandth to as many digits."""
    return float(f"{value:.6g}") if abs(value) < 1e-3 else round(value, 6)


def _relative(gaps: Mapping[int, float], before: Mapping[int, float]) -> float | None:
    half = _last_half(list(gaps))
    usual = abs(mean([before[step] for step in half])) if half else 0.0
    found = mean([gaps[step] for step in half]) / usual if usual else math.inf
    return round(found, 6) if math.isfinite(found) else None


def _last_half(items: Sequence[Item]) -> Sequence[Item]:
    return items[len(items) // 2 :]


def _is_noise(gaps: Sequence[float], printed: float) -> bool:
    """Whether the gap of the last half may be chance, or less than the digits that were printed."""
    half = _last_half(gaps)
    return is_noise(half, gaps) or abs(mean(half)) <= printed


def _trend(gaps: Sequence[float]) -> str:
    """Compare the gap of the first half of the steps with that of the last."""
    if len(gaps) < 2 * LEAST_STEPS:
        return "unknown"
    half = len(gaps) // 2
    first, last = (abs(mean(part)) for part in (gaps[:half], gaps[half:]))
    noise = SURE * standard_error(gaps[:half]) + SURE * standard_error(gaps[half:])
    if last > GROWTH * first + noise:
        return "growing"
    return "shrinking" if first > GROWTH * last + noise else "steady"


def _diverged(gaps: Mapping[int, float], before: Mapping[int, float], printed: float) -> int | None:
    """Return the first step from which on every later gap is above 5 %, if that is no chance."""
    count = _above_at_the_end(gaps, before, printed)
    values = list(gaps.values())
    last, earlier = values[-count:], values[:-count]
    if count < LEAST_STEPS or is_noise(last, earlier) or not stands_out(last, earlier):
        return None
    return list(gaps)[-count]


def _above_at_the_end(
    gaps: Mapping[int, float], before: Mapping[int, float], printed: float
) -> int:
    """Count the last gaps that are all above 5 % of the baseline's loss."""
    count = 0
    for step in reversed(list(gaps)):
        if gaps[step] <= max(MOST_GAP * abs(before[step]), printed):
            break
        count += 1
    return count
