"""As many points of two curves as a picture of both needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

CURVE_POINTS = 400
Curve = tuple[tuple[int, float | None, float | None], ...]


def loss_curve(
    before: Mapping[int, float],
    after: Mapping[int, float],
    steps: Sequence[int],
    told: AbstractSet[int | None],
) -> Curve:
    """Return some of the steps: both ends, those between, and those of which something is told."""
    every = -(-len(steps) // CURVE_POINTS) or 1
    places = {*range(len(steps) - 1, -1, -every), *range(min(1, len(steps)))}
    if every > 1 and told != {None}:
        places.update(_beside(steps, told))
    shown = [steps[place] for place in sorted(places)]
    return tuple((step, _finite(before[step]), _finite(after[step])) for step in shown)


def gradient_curve(before: Mapping[int, float], after: Mapping[int, float]) -> Curve:
    """Return the gradient norms of both; the candidate's largest is always among them."""
    steps = sorted(before.keys() & after.keys())
    finite = (step for step in steps if math.isfinite(after[step]))
    worst = max(finite, key=after.__getitem__, default=None)
    return loss_curve(before, after, steps, {worst})


def _beside(steps: Sequence[int], told: AbstractSet[int | None]) -> Iterator[int]:
    """Yield the places of steps, and those beside them: a spike must not look as if it lasted."""
    for place, step in enumerate(steps):
        if step in told:
            yield from (max(0, place - 1), place, min(len(steps) - 1, place + 1))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
