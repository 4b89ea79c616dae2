"""The finding on scales that are broken or keep changing, the loss scale among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import Kept, histories_of, kept_scales, loss_scales_of
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import SeriesRecord
from fp8verify.report.model import Finding
from fp8verify.verdict.findings.numerics.kept_scales import (
    and_others,
    better_scaling,
    layers_of,
    name_of,
)
from fp8verify.verdict.findings_table import finding

MOST_OCTAVES = 4.0  # ours, over a series or a history
LEAST_POINTS = 5
GROWN = 8.0  # ours, after the warm-up: a sound small model grew 27 times in its first 150 steps
WARM_UP_STEPS = 200  # ours
LEAST_LOSS_SCALE = 1.0  # ours; torch's GradScaler begins with 65,536


def scale_unstable(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Scales at zero or infinity, or that keep changing by octaves."""
    kept = [one for one in kept_scales(facts.rank.numerics) if one.used]
    yield from _broken([one for one in kept if _is_broken(one)])
    yield from _restless([one for one in kept if not _is_broken(one)])
    yield from _loss_scales(facts)
    yield from _trends(facts)


def _is_broken(kept: Kept) -> bool:
    return not 0 < kept.scale < math.inf


def _broken(found: Sequence[Kept]) -> Iterator[Finding]:
    """Scales at zero or infinity."""
    if found:
        yield finding(
            "scale-unstable",
            name=name_of(found[0]),
            scale=found[0].scale,
            others=and_others(found),
            layers=layers_of(found),
        )


def _restless(kept: Sequence[Kept]) -> Iterator[Finding]:
    """Scales whose amax keeps changing by octaves."""
    found = [one for one in kept if _octaves(one.slot.amax) > MOST_OCTAVES]
    if found:
        worst = max(found, key=lambda one: _octaves(one.slot.amax))
        yield finding(
            "scale-unstable",
            "swinging",
            name=name_of(worst),
            octaves=_octaves(worst.slot.amax),
            steps=len(worst.slot.amax),
            threshold=MOST_OCTAVES,
            others=and_others(found),
            remedy=better_scaling(worst),
            layers=layers_of(found),
        )


def _loss_scales(facts: RankFacts) -> Iterator[Finding]:
    """Loss scales that GradScaler has halved to less than one, and infinite ones."""
    scales = loss_scales_of(facts.rank.numerics)
    low = [scale for scale in scales if scale is None or scale < LEAST_LOSS_SCALE]
    if low:
        now = "infinite" if low[0] is None else f"{low[0]:g} (below {LEAST_LOSS_SCALE:g}, ours)"
        yield finding("scale-unstable", "loss-scale", now=now)


def _trends(facts: RankFacts) -> Iterator[Finding]:
    """Tensors whose amax keeps growing after the warm-up of a long run."""
    numerics = facts.rank.numerics
    if numerics is None:
        return
    late = _after_warm_up(numerics.series)
    grown = list(_grown(late))
    if grown:
        times, layer, tensor = max(grown)
        yield finding(
            "scale-unstable",
            "growing",
            tensor=tensor,
            layer=layer,
            times=times,
            first=late[0].step,
            last=late[-1].step,
            threshold=GROWN,
            layers=[name for _, name, _ in grown],
        )


def _after_warm_up(series: Sequence[SeriesRecord]) -> Sequence[SeriesRecord]:
    """Return the later half of a series: while a model begins to learn, every amax grows."""
    half = series[len(series) // 2 :]
    return [line for line in half if line.step >= WARM_UP_STEPS]


def _grown(series: Sequence[SeriesRecord]) -> Iterator[tuple[float, str, str]]:
    """Yield how many times the amax of a tensor grew, its layer, and which tensor it is."""
    for (layer, tensor), points in histories_of(series, "amax").items():
        values = [amax for _, amax in points]
        if _rises(values) and values[-1] >= GROWN * values[0]:
            yield values[-1] / values[0], layer, tensor


def _rises(values: Sequence[float]) -> bool:
    if len(values) < LEAST_POINTS or values[0] <= 0:
        return False
    up = sum(after >= before for before, after in pairwise(values))
    return up >= 0.75 * (len(values) - 1)


def _octaves(values: Sequence[float | None]) -> float:
    """Return how far values swing to and fro; a steady rise or fall is no swing."""
    known = [math.log2(value) for value in values if value]
    steps = [after - before for before, after in pairwise(known)]
    turns = sum(a * b < 0 for a, b in pairwise(steps))
    if len(known) < LEAST_POINTS or 2 * turns < len(steps):
        return 0.0
    return max(known) - min(known)
