"""The losses of two logs at equal steps: a robust relative gap, its trend, and divergence.

A gap is the candidate's loss minus the baseline's, relative to the baseline's. Medians of blocks
of steps are used: they do not react to spikes, and they vary less than single steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from itertools import pairwise
from statistics import fmean, median, stdev

from fp8verify.logs.losses import LossSeries
from fp8verify.model.comparison import LossPair
from fp8verify.model.verdict import Finding
from fp8verify.thresholds import (
    EARLY_STEPS,
    EXPECTED_GAP,
    INFINITE_LOSS,
    LARGEST_GAP,
    LEAST_LOSS_BLOCKS,
    LEAST_LOSSES,
    LEAST_OF_A_THIRD,
    LOSS_BLOCKS,
    LOSS_GROWTH,
    MOST_GAP,
    PRINTED_DIGITS,
    ROLLING,
    SAME_EPOCH,
    STUDENT,
    THIRD_ERRORS,
    TOLD_AS_TIMES,
)
from fp8verify.verdict.findings_table import finding

CURVE_POINTS = 400
_DIGITS_OF = 512  # losses whose digits are counted
Points = Mapping[int, float]


def pair_losses(
    baseline: LossSeries | None,
    candidate: LossSeries | None,
) -> LossPair | str:
    """Compare two series at their common steps; or return why not, "" if there is none."""
    if baseline is None or candidate is None:
        return _why_alone(baseline, candidate)
    why_apart = _why_apart(baseline, candidate)
    if why_apart:
        return f"the losses are not compared: {why_apart}"
    before = baseline.points
    after = candidate.points
    common = sorted(before.keys() & after.keys())
    if not common:
        return "the logs' losses have no step in common"
    steps = [step for step in common if _usable(before[step]) and _usable(after[step])]
    gaps = [after[step] - before[step] for step in steps]
    relative = _relative(gaps, [before[step] for step in steps])
    last_half = relative[len(relative) // 2 :]
    digit = _digit(before, after, steps)
    diverged = _diverged(steps, relative, digit)
    mean_gap = None
    largest_gap = None
    largest_gap_step = None
    relative_gap = None
    if gaps:
        mean_gap = _short(fmean(gaps))
        largest = max(gaps, key=abs)
        largest_gap = _short(largest)
        largest_gap_step = steps[gaps.index(largest)]
        relative_gap = round(median(last_half), 6)
    bad_step, bad_run = _first_bad(before, after, common)
    shown = {largest_gap_step, bad_step, diverged}
    return LossPair(
        frameworks=(baseline.framework, candidate.framework),
        steps=len(steps),
        first_step=common[0],
        last_step=common[-1],
        last_baseline=_finite(before[common[-1]]),
        last_candidate=_finite(after[common[-1]]),
        mean_gap=mean_gap,
        largest_gap=largest_gap,
        largest_gap_step=largest_gap_step,
        first_bad_step=bad_step,
        first_bad_run=bad_run,
        counted=baseline.counted,
        relative_gap=relative_gap,
        trend=_trend(relative),
        gap_is_noise=diverged is None and _is_noise(last_half, digit),
        diverged_step=diverged,
        curve=_curve(before, after, common, shown),
    )


def _why_alone(baseline: LossSeries | None, candidate: LossSeries | None) -> str:
    """Return which one of two logs has losses, "" if none has."""
    if baseline:
        return "only the log of the baseline has losses"
    if candidate:
        return "only the log of the candidate has losses"
    return ""


def _why_apart(baseline: LossSeries, candidate: LossSeries) -> str | None:
    """Return why equal step numbers of two series are different steps; None if they are not."""
    if baseline.counted != candidate.counted:
        if baseline.counted:
            silent = baseline.framework
        else:
            silent = candidate.framework
        return f"the log of {silent} does not give the steps of its losses"
    shared = sorted(baseline.epochs.keys() & candidate.epochs.keys())
    for number in shared[:1] + shared[-1:]:
        before = baseline.epochs[number]
        after = candidate.epochs[number]
        allowed = SAME_EPOCH * max(1.0, abs(before), abs(after))
        if abs(before - after) > allowed:
            return (
                f"the lines have no steps, and loss {number} is of epoch {before:g} in the "
                f"baseline and of {after:g} in the candidate (logging_steps, or a resumed run)"
            )
    return None


def _relative(gaps: Sequence[float], before: Sequence[float]) -> list[float]:
    """Return gaps over the baseline's loss around each step: a single loss may be near 0."""
    size = len(before) // LOSS_BLOCKS or 1
    relative: list[float] = []
    for start in range(0, len(gaps), size):
        block = slice(start, start + size)
        around = median(map(abs, before[block])) or math.inf
        for gap in gaps[block]:
            bounded = min(LARGEST_GAP, max(-LARGEST_GAP, gap / around))
            relative.append(bounded)
    return relative


def _usable(loss: float) -> bool:
    """Whether a loss can be added up and squared; a larger one is as good as infinite."""
    return abs(loss) < INFINITE_LOSS


def _blocks(values: Sequence[float]) -> list[float]:
    """Return the medians of at most eight parts of the values."""
    size = max(2, -(-len(values) // LOSS_BLOCKS))
    medians = []
    for start in range(0, len(values), size):
        part = values[start : start + size]
        if len(part) > size // 2:
            medians.append(median(part))
    return medians


def _error(blocks: Sequence[float]) -> float:
    """Return the random error of the mean of blocks; a steady trend does not count."""
    if len(blocks) < LEAST_LOSS_BLOCKS:
        return math.inf
    moves = [after - before for before, after in pairwise(blocks)]
    deviation = stdev(moves) / math.sqrt(2)
    student = STUDENT[len(blocks) - LEAST_LOSS_BLOCKS]
    return student * deviation / math.sqrt(len(blocks))


def _is_noise(relative: Sequence[float], printed: float) -> bool:
    """Whether a gap may be chance, or less than the digits that were printed."""
    logarithms = [math.copysign(math.log1p(abs(gap)), gap) for gap in relative]
    blocks = _blocks(logarithms)
    if not blocks:
        return True
    return abs(fmean(blocks)) <= max(_error(blocks), printed)


def _trend(relative: Sequence[float]) -> str:
    """Compare the gap of the first third of the steps with that of the last."""
    third = len(relative) // 3
    if third < LEAST_OF_A_THIRD:
        return "unknown"
    first = relative[:third]
    last = relative[-third:]
    gap_at_first = abs(median(first))
    gap_at_last = abs(median(last))
    noise = _scatter(first) + _scatter(last)
    if gap_at_last > LOSS_GROWTH * gap_at_first + noise:
        return "growing"
    if gap_at_first > LOSS_GROWTH * gap_at_last + noise:
        return "shrinking"
    return "steady"


def _scatter(values: Sequence[float]) -> float:
    """Return the error of a mean from differences of neighbors: a trend does not count."""
    moves = [abs(after - before) for before, after in pairwise(values)]
    if moves:
        return THIRD_ERRORS * median(moves) / math.sqrt(len(values))
    return 0.0


def _diverged(
    steps: Sequence[int],
    relative: Sequence[float],
    digit: float,
) -> int | None:
    """Return the first step from which on the gap is above 5%, if that is significant."""
    since = _above_since(relative)
    earlier = relative[:since]
    last = relative[since:]
    if len(last) < LEAST_LOSSES or _is_noise(last, digit):
        return None
    size = min(len(last), len(earlier)) or 1
    largest_before = 0.0
    for start in range(0, len(earlier), size):
        gap = abs(median(earlier[start : start + size]))
        largest_before = max(largest_before, gap)
    if median(last) > LOSS_GROWTH * largest_before:
        return steps[since]
    return None


def _above_since(relative: Sequence[float]) -> int:
    """Return the index of the first step from which on the rolling median stays above 5%."""
    reach = ROLLING // 2
    for index in reversed(range(len(relative))):
        around = relative[max(0, index - reach) : index + reach + 1]
        if median(around) <= MOST_GAP:
            return index + 1
    return 0


def _digit(
    before: Points,
    after: Points,
    steps: Sequence[int],
) -> float:
    """Return the last digit that losses were printed with, as a share of the later ones."""
    losses = []
    for step in steps:
        losses.append(before[step])
        losses.append(after[step])
    some = losses[:: 1 + len(losses) // _DIGITS_OF]
    exponents = []
    for loss in some:
        exponent = Decimal(repr(loss)).as_tuple().exponent
        if isinstance(exponent, int):
            exponents.append(exponent)
    last_digit = 10.0 ** min(exponents, default=0)
    usual = 0.0
    if steps:
        last_half = steps[len(steps) // 2 :]
        usual = median(abs(before[step]) for step in last_half)
    if not usual:
        return 0.0
    # Differences of printed numbers are rounded, too.
    return PRINTED_DIGITS * last_digit / usual


def _first_bad(
    before: Points,
    after: Points,
    steps: Sequence[int],
) -> tuple[int | None, str | None]:
    """Return the first step whose loss is not finite in one run only, else in both, and the run."""
    first_of_both = None
    for step in steps:
        before_is_usable = _usable(before[step])
        after_is_usable = _usable(after[step])
        if before_is_usable and not after_is_usable:
            return step, "candidate"
        if after_is_usable and not before_is_usable:
            return step, "baseline"
        if first_of_both is None and not before_is_usable:
            first_of_both = step
    if first_of_both is None:
        return None, None
    return first_of_both, "both"


def _curve(
    before: Points,
    after: Points,
    steps: Sequence[int],
    shown: AbstractSet[int | None],
) -> tuple[tuple[int, float | None, float | None], ...]:
    """Return at most about 400 steps: both ends, some between, and those that are to be shown.

    With the neighbors of the latter: a spike must not look as if it lasted.
    """
    every = -(-len(steps) // CURVE_POINTS) or 1
    curve = []
    for index, step in enumerate(steps):
        is_regular = index % every == 0 or step == steps[-1]
        if is_regular or shown & set(steps[index - 1 : index + 2]):
            curve.append((step, _finite(before[step]), _finite(after[step])))
    return tuple(curve)


def _finite(value: float) -> float | None:
    if math.isfinite(value):
        return value
    return None


def _short(value: float) -> float:
    """Return a number to six digits."""
    return float(f"{value:.6g}")


def loss_findings(loss: LossPair) -> Iterator[Finding]:
    """Yield what the gap of two losses calls for."""
    if loss.first_bad_run == "candidate":
        where = loss.place_of(loss.first_bad_step)
        yield finding("nan-or-inf", "compared", where=where)
    gap = loss.relative_gap or 0.0
    if loss.diverged_step is not None:
        yield _divergence(loss, loss.diverged_step)
    elif gap > EXPECTED_GAP and not loss.gap_is_noise:
        yield _large_gap(loss, gap)


def _divergence(loss: LossPair, diverged_step: int) -> Finding:
    since = diverged_step - loss.first_step
    if not since:
        case = "from-start"
    elif since < EARLY_STEPS and not loss.counted:
        case = "early"
    else:
        case = ""
    where = loss.place_of(diverged_step)
    return finding("loss-diverged", case, limit=MOST_GAP, where=where)


def _large_gap(loss: LossPair, gap: float) -> Finding:
    above = f"{gap:.1%} above"
    if gap >= TOLD_AS_TIMES:
        above = f"{gap + 1:.3g} times"
    trend = loss.trend
    if trend == "unknown":
        trend = "trend unknown"
    return finding(
        "loss-gap",
        "large" if gap > MOST_GAP else "",
        above=above,
        steps="logged values" if loss.counted else "steps",
        trend=trend,
    )
