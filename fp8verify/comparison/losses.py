"""The losses of two logs at equal steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from fp8verify.comparison.jumps import heights, jumps, own_jumps
from fp8verify.comparison.noise import SURE, is_noise, mean, resolution, standard_error, stands_out
from fp8verify.logs.losses import LossSeries
from fp8verify.model import Finding, Severity
from fp8verify.model.comparison import LossPair

# What guides expect of FP8 beside BF16 is 1 to 5 %; DeepSeek-V3 (arXiv 2412.19437) keeps below
# 0.25 %, Megatron-LM#1152 below 0.01 after billions of tokens.
EXPECTED_GAP, MOST_GAP = 0.01, 0.05
EARLY_STEPS = 50
LEAST_STEPS = 8
GROWTH = 1.5
MOST_SPIKES = 256
CURVE_POINTS = 400
SAME_EPOCH = 0.02  # transformers rounds epochs to two digits
Item = TypeVar("Item")
Curve = tuple[tuple[int, float | None, float | None], ...]


def pair_losses(baseline: LossSeries, candidate: LossSeries) -> LossPair | None:
    """Compare two series at the steps that both have; None where there is none."""
    steps = sorted(baseline.points.keys() & candidate.points.keys())
    if not steps or why_apart(baseline, candidate) is not None:
        return None
    before, after = baseline.points, candidate.points
    finite = {step: (math.isfinite(before[step]), math.isfinite(after[step])) for step in steps}
    gaps = {step: after[step] - before[step] for step in steps if all(finite[step])}
    gaps = {step: gap for step, gap in gaps.items() if math.isfinite(gap)}
    worst = max(gaps, key=lambda step: abs(gaps[step]), default=None)
    last = steps[-1]
    bad = next((step for step in steps if finite[step][0] != finite[step][1]), None)
    ours, theirs = list(heights(before, steps)), list(heights(after, steps))
    spikes, own = (jumps(ours), jumps(theirs)), own_jumps(ours, theirs, steps)
    printed = resolution(losses[step] for step in gaps for losses in (before, after))
    diverged = _diverged(gaps, before, printed)
    told = {*own[:MOST_SPIKES], *(step for step in (worst, bad, diverged) if step is not None)}
    return LossPair(
        frameworks=(baseline.framework, candidate.framework),
        steps=len(steps),
        first_step=steps[0],
        last_step=last,
        last_baseline=_finite(before[last]),
        last_candidate=_finite(after[last]),
        mean_gap=_short(mean(list(gaps.values()))) if gaps else None,
        largest_gap=None if worst is None else _short(gaps[worst]),
        largest_gap_step=worst,
        first_bad_step=bad,
        counted=baseline.counted,
        relative_gap=_relative(gaps, before),
        trend=_trend(list(gaps.values())),
        spikes=(tuple(spikes[0][:MOST_SPIKES]), tuple(spikes[1][:MOST_SPIKES])),
        diverged_step=diverged,
        gradient_norms=_gradients(baseline, candidate),
        curve=_curve(before, after, steps, told),
        gradient_curve=_gradient_curve(baseline, candidate),
        first_bad_run=None if bad is None else "candidate" if finite[bad][0] else "baseline",
        own_spikes=tuple(own[:MOST_SPIKES]),
        gap_is_noise=_is_noise(list(gaps.values()), printed),
    )


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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
    steps = list(gaps)
    count = 0
    for step in reversed(steps):
        if gaps[step] <= max(MOST_GAP * abs(before[step]), printed):
            break
        count += 1
    values = list(gaps.values())
    last, earlier = values[-count:], values[:-count]
    if count < LEAST_STEPS or is_noise(last, earlier) or not stands_out(last, earlier):
        return None
    return steps[-count]


def _gradients(baseline: LossSeries, candidate: LossSeries) -> tuple[float, float] | None:
    steps = baseline.gradients.keys() & candidate.gradients.keys()
    both = [
        (baseline.gradients[step], candidate.gradients[step])
        for step in steps
        if math.isfinite(baseline.gradients[step]) and math.isfinite(candidate.gradients[step])
    ]
    return (median(b for b, _ in both), median(c for _, c in both)) if both else None


def _gradient_curve(baseline: LossSeries, candidate: LossSeries) -> Curve:
    steps = sorted(baseline.gradients.keys() & candidate.gradients.keys())
    worst = max(
        (step for step in steps if math.isfinite(candidate.gradients[step])),
        key=lambda step: candidate.gradients[step],
        default=None,
    )
    told = set() if worst is None else {worst}
    return _curve(baseline.gradients, candidate.gradients, steps, told)


def _curve(
    before: Mapping[int, float], after: Mapping[int, float], steps: list[int], told: set[int]
) -> Curve:
    """Return as many steps as a picture needs: both ends, and those of which something is told.

    One before and one after each of these too, so that it does not look as if it lasted longer.
    """
    every = -(-len(steps) // CURVE_POINTS) or 1
    places = {*range(len(steps) - 1, -1, -every), *range(min(1, len(steps)))}
    if told and every > 1:
        for place, step in enumerate(steps):
            if step in told:
                places |= {max(0, place - 1), place, min(len(steps) - 1, place + 1)}
    shown = [steps[place] for place in sorted(places)]
    return tuple((step, _finite(before[step]), _finite(after[step])) for step in shown)


def loss_findings(loss: LossPair | None) -> Iterator[Finding]:
    """Yield what the gap of two losses calls for."""
    if loss is None:
        return
    if loss.first_bad_run == "candidate":
        yield _not_finite(loss)
    if loss.diverged_step is not None:
        yield _divergence(loss, loss.diverged_step)
    elif (loss.relative_gap or 0.0) > EXPECTED_GAP and not loss.gap_is_noise:
        yield _gap(loss, loss.relative_gap or 0.0)
    # A loss that has left the baseline's jumps as it likes.
    spikes = [s for s in loss.own_spikes if loss.diverged_step is None or s < loss.diverged_step]
    if spikes:
        yield _spikes(loss, spikes)


def at(loss: LossPair, step: int | None) -> str:
    """Say of which step, or of which line where no line says its step."""
    return f"logged value {step}" if loss.counted else f"step {step}"


def _not_finite(loss: LossPair) -> Finding:
    return Finding(
        code="nan-or-inf",
        severity=Severity.ERROR,
        message=f"the candidate's loss is no number at {at(loss, loss.first_bad_step)}, where the "
        "baseline's is one",
        hint="`run --numerics` with a window just before it names the first layer and tensor; try "
        "gradient clipping, a lower learning rate, a larger margin, E5M2 for gradients.",
    )


def _divergence(loss: LossPair, step: int) -> Finding:
    where = f"{at(loss, step)} and stays more than {MOST_GAP:.0%} above it"
    if step == loss.first_step:
        how = (
            f"is more than {MOST_GAP:.0%} above the baseline's from {at(loss, step)} on, the first "
            "that both have"
        )
        hint = (
            "Other data, another seed or other weights do this, too: begin both alike. If they do, "
            "the forward pass is wrong from the start (TE#1047): compare it layer by layer."
        )
    elif not loss.counted and step - loss.first_step < EARLY_STEPS:
        how = f"leaves the baseline's at {where}, in the first fifty steps"
        hint = (
            "What diverges at once is set up wrong: versions, scales, a layer that FP8 does not "
            "suit."
        )
    else:
        how = f"leaves the baseline's at {where}"
        hint = (
            "What diverges late is outliers or underflow that grows: keep FP8 weights off first, "
            "then watch it with run --numerics-every."
        )
    return Finding(
        code="loss-diverged",
        severity=Severity.WARNING,
        message=f"the candidate's loss {how}",
        hint=hint,
    )


def _gap(loss: LossPair, gap: float) -> Finding:
    grave = gap > MOST_GAP
    trend = "trend unknown" if loss.trend == "unknown" else loss.trend
    return Finding(
        code="loss-gap",
        severity=Severity.WARNING if grave else Severity.INFO,
        message=f"the candidate's loss is {_above(gap)} the baseline's in the last half of the "
        f"{'logged values' if loss.counted else 'steps'}, {trend}",
        hint="Guides expect 1 to 5 % of FP8; DeepSeek-V3 kept below 0.25 % (arXiv 2412.19437). "
        "run --numerics names the layers that lose most.",
    )


def _above(gap: float) -> str:
    return f"{gap:.1%} above" if gap < 10 else f"{gap + 1:.3g} times"


def _spikes(loss: LossPair, steps: Sequence[int]) -> Finding:
    count = len(steps)
    times = "once" if count == 1 else f"{count} times"
    return Finding(
        code="loss-spikes",
        severity=Severity.INFO,
        message=f"the candidate's loss jumps {times} where the baseline's does not, first at "
        f"{at(loss, steps[0])}",
        hint="Clip gradients, lengthen the amax history or raise the margin; watch the scales with "
        "run --numerics-every.",
    )
