"""Step times as a mean with its uncertainty: what two runs are compared by.

Steps that took far longer than the usual one (compilation, a checkpoint, an evaluation) are left
out. Steps of one window resemble each other more than steps of two do, and neighbours resemble
each other in a long series: `effective` is the number of independent steps that tell as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from statistics import fmean, median, variance

from fp8verify.report.model import StepStatistics

# A step of more than this many medians is no training step like the others; where a quarter of the
# steps are as long, they belong to the training.
_FAR = 1.5
_RARE = 0.25
_LONG_SERIES = 10  # steps from which on the correlation of neighbours can be estimated


def step_statistics(
    windows: Sequence[Sequence[float]], count: int | None = None
) -> StepStatistics | None:
    """Return the mean of step times and its uncertainty; None where there is no step.

    Args:
        windows: the times of each window's steps, in any unit of time.
        count: how many steps these stand for, where they are a sample.
    """
    every = [time for window in windows for time in window]
    if not every:
        return None
    usual = median(every)
    far = [time for time in every if time > _FAR * usual]
    left_out = len(far) if len(far) <= _RARE * len(every) else 0
    most = _FAR * usual if left_out else max(every)
    kept = [[time for time in window if time <= most] for window in windows]
    kept = [window for window in kept if window]
    times = [*chain.from_iterable(kept)]
    return StepStatistics(
        count=(count or len(every)) - left_out,
        left_out=left_out,
        mean_us=fmean(times),
        deviation_us=variance(times) ** 0.5 if len(times) > 1 else None,
        effective=_effective(kept, len(times)),
        median_us=median(times),
        min_us=min(times),
        max_us=max(times),
    )


def _effective(windows: Sequence[Sequence[float]], count: int) -> float:
    """Return how many independent steps tell as much as these."""
    found = float(count)
    if len(windows) > 1 and count > len(windows):
        found = count / _design_effect(windows, count)
    elif count >= _LONG_SERIES:
        alike = max(0.0, _correlation(windows[0]))
        found = count * (1 - alike) / (1 + alike)
    return max(1.0, found)


def _design_effect(windows: Sequence[Sequence[float]], count: int) -> float:
    """Return by how much windows inflate the variance of the mean: 1 + (size - 1) x correlation."""
    means = [fmean(window) for window in windows]
    whole = fmean(chain.from_iterable(windows))
    between = sum(len(w) * (m - whole) ** 2 for w, m in zip(windows, means, strict=True))
    between /= len(windows) - 1
    inside = sum((time - m) ** 2 for w, m in zip(windows, means, strict=True) for time in w)
    inside /= count - len(windows)
    size = count / len(windows)
    spread = between + (size - 1) * inside
    alike = (between - inside) / spread if spread else 0.0
    return 1 + (size - 1) * max(0.0, alike)


def _correlation(times: Sequence[float]) -> float:
    """Return how much neighbours resemble each other, from -1 to 1 (lag-1 autocorrelation)."""
    whole = fmean(times)
    moves = sum((a - whole) * (b - whole) for a, b in pairwise(times))
    spread = sum((time - whole) ** 2 for time in times)
    return min(0.9, moves / spread) if spread else 0.0
