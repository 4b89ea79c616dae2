"""The losses of two logs at equal steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from fp8verify.compare.curves import gradient_curve, loss_curve
from fp8verify.compare.gaps import measure_gaps
from fp8verify.compare.jumps import heights, jumps, own_jumps
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model.comparison import LossPair

MOST_SPIKES = 256
SAME_EPOCH = 0.02  # transformers rounds epochs to two digits


class _Spikes(NamedTuple):
    """The first steps at which the losses jump; `own` are the candidate's alone."""

    baseline: tuple[int, ...]
    candidate: tuple[int, ...]
    own: tuple[int, ...]


def pair_losses(baseline: LossSeries, candidate: LossSeries) -> LossPair | None:
    """Compare two series at the steps that both have; None where there is none."""
    steps = sorted(baseline.points.keys() & candidate.points.keys())
    if not steps or why_apart(baseline, candidate) is not None:
        return None
    return _paired(baseline, candidate, steps)


def why_apart(baseline: LossSeries, candidate: LossSeries) -> str | None:
    """Say why equal numbers of two series are not the same step; None where they are."""
    if baseline.counted != candidate.counted:
        silent = baseline.framework if baseline.counted else candidate.framework
        return f"the log of {silent} does not say of which steps its losses are"
    shared = sorted(baseline.epochs.keys() & candidate.epochs.keys())
    for place in shared[:1] + shared[-1:]:
        epochs = baseline.epochs[place], candidate.epochs[place]
        if abs(epochs[0] - epochs[1]) > SAME_EPOCH * max(1.0, *map(abs, epochs)):
            return (
                f"no line says its step, and loss {place} is of epoch {epochs[0]:g} in the "
                f"baseline and of {epochs[1]:g} in the candidate (logging_steps, or a resumed run)"
            )
    return None


def _paired(baseline: LossSeries, candidate: LossSeries, steps: Sequence[int]) -> LossPair:
    before, after, last = baseline.points, candidate.points, steps[-1]
    gaps = measure_gaps(before, after, steps)
    bad, bad_run = _first_bad(before, after, steps)
    spikes = _spikes(before, after, steps)
    told = {*spikes.own, gaps.largest_step, bad, gaps.diverged_step}
    return LossPair(
        frameworks=(baseline.framework, candidate.framework),
        steps=len(steps),
        first_step=steps[0],
        last_step=last,
        last_baseline=before[last] if math.isfinite(before[last]) else None,
        last_candidate=after[last] if math.isfinite(after[last]) else None,
        mean_gap=gaps.mean,
        largest_gap=gaps.largest,
        largest_gap_step=gaps.largest_step,
        first_bad_step=bad,
        counted=baseline.counted,
        relative_gap=gaps.relative,
        trend=gaps.trend,
        spikes=(spikes.baseline, spikes.candidate),
        diverged_step=gaps.diverged_step,
        gradient_norms=_gradient_norms(baseline.gradients, candidate.gradients),
        curve=loss_curve(before, after, steps, told),
        gradient_curve=gradient_curve(baseline.gradients, candidate.gradients),
        first_bad_run=bad_run,
        own_spikes=spikes.own,
        gap_is_noise=gaps.is_noise,
    )


def _first_bad(
    before: Mapping[int, float], after: Mapping[int, float], steps: Sequence[int]
) -> tuple[int | None, str | None]:
    """Return the first step whose loss is no number in one run alone, and which run that is."""
    for step in steps:
        ours = math.isfinite(before[step])
        if ours != math.isfinite(after[step]):
            return step, "candidate" if ours else "baseline"
    return None, None


def _spikes(
    before: Mapping[int, float], after: Mapping[int, float], steps: Sequence[int]
) -> _Spikes:
    ours, theirs = list(heights(before, steps)), list(heights(after, steps))
    found = jumps(ours), jumps(theirs), own_jumps(ours, theirs, steps)
    return _Spikes(*(tuple(some[:MOST_SPIKES]) for some in found))


def _gradient_norms(
    before: Mapping[int, float], after: Mapping[int, float]
) -> tuple[float, float] | None:
    """Return the median of either run, over the steps at which both are finite."""
    both = [(before[step], after[step]) for step in before.keys() & after.keys()]
    finite = [(b, c) for b, c in both if math.isfinite(b) and math.isfinite(c)]
    return (median(b for b, _ in finite), median(c for _, c in finite)) if finite else None
