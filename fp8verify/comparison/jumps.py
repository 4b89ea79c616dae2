"""Where a loss jumps above the steps before."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

WINDOW = 32
LEAST = 8  # values that a window needs
# Ours. Beyond ten median absolute deviations, 6.7 standard deviations, noise does not get in a run
# of a million steps; a tenth of the loss is the least that a person calls a spike.
DEVIATIONS, LEAST_SHARE = 10.0, 0.1


def jumps(points: Mapping[int, float], steps: Sequence[int]) -> list[int]:
    """Return the steps at which a loss begins to lie far above the steps before."""
    found: list[int] = []
    window: deque[float] = deque()
    ordered: list[float] = []
    above = False
    for step in steps:
        value = points[step]
        if not math.isfinite(value):
            continue
        was, above = above, len(ordered) >= LEAST and _is_far(value, ordered)
        if above and not was:
            found.append(step)
        window.append(value)
        insort(ordered, value)
        if len(window) > WINDOW:
            ordered.pop(bisect_left(ordered, window.popleft()))
    return found


def _is_far(value: float, ordered: Sequence[float]) -> bool:
    usual = ordered[len(ordered) // 2]
    if value <= usual + LEAST_SHARE * abs(usual):
        return False  # nearly always: the deviation costs more than all else
    return value > usual + DEVIATIONS * median(abs(other - usual) for other in ordered)


def own_jumps(baseline: Sequence[int], candidate: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Return the candidate's jumps of which the baseline has none nearby: hard data is for both."""
    places = {step: place for place, step in enumerate(steps)} if baseline and candidate else {}
    theirs = [places[step] for step in baseline] if places else []

    def is_shared(step: int) -> bool:
        place = places[step]
        near = bisect_left(theirs, place - WINDOW // 2)
        return near < len(theirs) and theirs[near] <= place + WINDOW // 2

    return [step for step in candidate if not (theirs and is_shared(step))]
