"""The finding on scales that are broken or keep changing, the loss scale among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import Kept, histories_of, kept_scales, loss_scales_of
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import SeriesRecord
from fp8verify.report.model import Finding, Severity
from fp8verify.verdict.findings.numerics.kept_scales import better_scaling, finding_on, name_of

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
        yield finding_on(
            found,
            "scale-unstable",
            Severity.WARNING,
            f"the scale of {name_of(found[0])} is {found[0].scale:g}",
            "An amax was zero or not finite: look for NaN in the steps before, clip gradients, "
            "lower the learning rate.",
        )


def _restless(kept: Sequence[Kept]) -> Iterator[Finding]:
    """Scales whose amax keeps changing by octaves."""
    found = [one for one in kept if _octaves(one.slot.amax) > MOST_OCTAVES]
    if found:
        worst = max(found, key=lambda one: _octaves(one.slot.amax))
        yield finding_on(
            found,
            "scale-unstable",
            Severity.WARNING,
            f"the amax of {name_of(worst)} keeps changing, over {_octaves(worst.slot.amax):.1f} "
            f"octaves in {len(worst.slot.amax)} steps (from {MOST_OCTAVES:.0f} on, ours)",
            f"{better_scaling(worst)}; clip gradients or lower the learning rate if the loss jumps "
            "too.",
        )


def _loss_scales(facts: RankFacts) -> Iterator[Finding]:
    """Loss scales that GradScaler has halved to less than one, and infinite ones."""
    scales = loss_scales_of(facts.rank.numerics)
    low = [scale for scale in scales if scale is None or scale < LEAST_LOSS_SCALE]
    if low:
        now = "infinite" if low[0] is None else f"{low[0]:g} (below {LEAST_LOSS_SCALE:g}, ours)"
        yield Finding(
            code="scale-unstable",
            severity=Severity.WARNING,
            message=f"the loss scale of GradScaler is {now}",
            hint="It is halved at each step whose gradients are not finite: look for NaN in the "
            "steps before, clip gradients, lower the learning rate; BF16 needs no GradScaler.",
        )


def _trends(facts: RankFacts) -> Iterator[Finding]:
    """Tensors whose amax keeps growing after the warm-up of a long run."""
    numerics = facts.rank.numerics
    if numerics is None:
        return
    late = _after_warm_up(numerics.series)
    grown = list(_grown(late))
    if grown:
        times, layer, tensor = max(grown)
        yield Finding(
            code="scale-unstable",
            severity=Severity.WARNING,
            message=f"the amax of the {tensor} of {layer} grew {times:.0f} times from step "
            f"{late[0].step} to {late[-1].step} (from {GROWN:.0f} on, ours)",
            hint="Outliers that grow at down projections are SwiGLU's (arXiv 2409.12517): keep "
            "this layer in BF16, use Smooth-SwiGLU, or scale by row or block.",
            layers=tuple(dict.fromkeys(name for _, name, _ in grown)),
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
