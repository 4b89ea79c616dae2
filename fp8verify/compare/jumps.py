"""Where a loss jumps above the steps before."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

WINDOW = 32
LEAST = 16  # values that a window needs: the deviation of fewer is often far too small
# Ours. Beyond ten median absolute deviations, 6.7 standard deviations, noise does not get in a run
# of a million steps; a tenth of the loss is the least that a person calls a spike.
DEVIATIONS, LEAST_SHARE = 10.0, 0.1
# Ours. Losses of small batches have long tails: a jump of one run alone is three times as high as
# all but one in two hundred of the other run's values.
TAIL, TIMES = 0.995, 3.0


class Height(NamedTuple):
    """By how much a loss lies above the median of the steps before, and whether that is far."""

    step: int
    above: float
    far: bool


def heights(points: Mapping[int, float], steps: Sequence[int]) -> Iterator[Height]:
    """Yield the heights of the steps that have enough finite losses before them."""
    window: deque[float] = deque()
    ordered: list[float] = []
    for step in steps:
        value = points[step]
        if not math.isfinite(value):
            continue
        if len(ordered) >= LEAST:
            yield Height(step, value - ordered[len(ordered) // 2], _is_far(value, ordered))
        window.append(value)
        insort(ordered, value)
        if len(window) > WINDOW:
            ordered.pop(bisect_left(ordered, window.popleft()))


def _is_far(value: float, ordered: Sequence[float]) -> bool:
    usual = ordered[len(ordered) // 2]
    if value <= usual + LEAST_SHARE * abs(usual):
        return False  # nearly always: the deviation costs more than all else
    return value > usual + DEVIATIONS * median(abs(other - usual) for other in ordered)


def jumps(found: Sequence[Height]) -> list[int]:
    """Return the steps at which a loss begins to lie far above the steps before."""
    before = (False, *(height.far for height in found))
    return [height.step for height, was in zip(found, before, strict=False) if height.far > was]


def own_jumps(
    baseline: Sequence[Height], candidate: Sequence[Height], steps: Sequence[int]
) -> list[int]:
    """Return the candidate's jumps that neither the baseline's noise nor its data explain.

    Hard data makes both runs jump at about the same step.
    """
    found = jumps(candidate)
    if not found:
        return []
    least = TIMES * (1 + LEAST / (len(baseline) or 1)) * _tail(baseline)
    above = {height.step: height.above for height in candidate}
    places = {step: place for place, step in enumerate(steps)}
    theirs = [places[step] for step in jumps(baseline)]

    def is_shared(step: int) -> bool:
        place = places[step]
        near = bisect_left(theirs, place - WINDOW // 2)
        return near < len(theirs) and theirs[near] <= place + WINDOW // 2

    return [step for step in found if above[step] > least and not is_shared(step)]


def _tail(found: Sequence[Height]) -> float:
    known = sorted(height.above for height in found)
    return max(0.0, known[min(len(known) - 1, int(TAIL * len(known)))]) if known else 0.0
