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
from fp8verify.verdict.findings_table import finding

CURVE_POINTS = 400
MOST_GAP = 0.05  # the most that guides expect of FP8
# DeepSeek-V3 (arXiv 2412.19437) keeps below 0.25%; most guides expect 1%.
EXPECTED_GAP = 0.01
EARLY_STEPS = 50
_SAME_EPOCH = 0.02  # transformers rounds epochs to two digits
_BLOCKS = 8
_LEAST_STEPS = 8
_ROLLING = 5
_INFINITE = 1e150
_MOST = 1e12  # a relative gap: a loss that explodes stays a number
_GROWTH = 1.5
# Two-sided quantiles of Student's t for 99.9%, by the number of blocks less two.
_STUDENT = (636.6, 31.60, 12.92, 8.61, 6.87, 5.96)
Points = Mapping[int, float]


def pair_losses(
    baseline: LossSeries | None, candidate: LossSeries | None
) -> LossPair | str:
    """Compare two series at their common steps; or return why not, "" if there is none."""
    if baseline is None or candidate is None:
        if baseline:
            known = "baseline"
        elif candidate:
            known = "candidate"
        else:
            known = ""
        return known and f"only the log of the {known} has losses"
    if apart := _why_apart(baseline, candidate):
        return f"the losses are not compared: {apart}"
    before = baseline.points
    after = candidate.points
    common = sorted(before.keys() & after.keys())
    if not common:
        return "the logs' losses have no step in common"
    steps = [step for step in common if _usable(before[step]) and _usable(after[step])]
    gaps = [after[step] - before[step] for step in steps]
    relative = _relative(gaps, [before[step] for step in steps])
    half = relative[len(relative) // 2 :]
    digit = _digit(before, after, steps)
    diverged = _diverged(steps, relative, digit)
    pairs = zip(gaps, steps, strict=True)
    largest, at = max(pairs, key=lambda pair: abs(pair[0]), default=(None, None))
    bad, bad_run = _first_bad(before, after, common)
    return LossPair(
        frameworks=(baseline.framework, candidate.framework),
        steps=len(steps),
        first_step=common[0],
        last_step=common[-1],
        last_baseline=_finite(before[common[-1]]),
        last_candidate=_finite(after[common[-1]]),
        mean_gap=_short(fmean(gaps)) if gaps else None,
        largest_gap=None if largest is None else _short(largest),
        largest_gap_step=at,
        first_bad_step=bad,
        first_bad_run=bad_run,
        counted=baseline.counted,
        relative_gap=round(median(half), 6) if half else None,
        trend=_trend(relative),
        gap_is_noise=diverged is None and _is_noise(half, digit),
        diverged_step=diverged,
        curve=_curve(before, after, common, {at, bad, diverged}),
    )


def _why_apart(baseline: LossSeries, candidate: LossSeries) -> str | None:
    """Return why equal step numbers of two series are different steps; None if they are not."""
    if baseline.counted != candidate.counted:
        if baseline.counted:
            silent = baseline.framework
        else:
            silent = candidate.framework
        return f"the log of {silent} does not give the steps of its losses"
    shared = sorted(baseline.epochs.keys() & candidate.epochs.keys())
    for place in shared[:1] + shared[-1:]:
        epochs = baseline.epochs[place], candidate.epochs[place]
        if abs(epochs[0] - epochs[1]) > _SAME_EPOCH * max(1.0, *map(abs, epochs)):
            return (
                f"the lines have no steps, and loss {place} is of epoch {epochs[0]:g} in the "
                f"baseline and of {epochs[1]:g} in the candidate (logging_steps, or a resumed run)"
            )
    return None


def _relative(gaps: Sequence[float], before: Sequence[float]) -> list[float]:
    """Return gaps over the baseline's loss around each step: a single loss may be near 0."""
    size = len(before) // _BLOCKS or 1
    found: list[float] = []
    for place in range(0, len(gaps), size):
        around = median(map(abs, before[place : place + size])) or math.inf
        found += [gap / around for gap in gaps[place : place + size]]
    return [min(_MOST, max(-_MOST, gap)) for gap in found]


def _usable(loss: float) -> bool:
    """Whether a loss can be added up and squared; a larger one is as good as infinite."""
    return abs(loss) < _INFINITE


def _blocks(values: Sequence[float]) -> list[float]:
    """Return the medians of at most eight parts of the values."""
    size = max(2, -(-len(values) // _BLOCKS))
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    return [median(part) for part in parts if len(part) > size // 2]


def _error(blocks: Sequence[float]) -> float:
    """Return the random error of the mean of blocks; a steady trend does not count."""
    if len(blocks) < 3:
        return math.inf
    moves = stdev(after - before for before, after in pairwise(blocks)) / math.sqrt(2)
    return _STUDENT[len(blocks) - 3] * moves / math.sqrt(len(blocks))


def _is_noise(relative: Sequence[float], printed: float) -> bool:
    """Whether a gap may be chance, or less than the digits that were printed."""
    blocks = _blocks([math.copysign(math.log1p(abs(gap)), gap) for gap in relative])
    return not blocks or abs(fmean(blocks)) <= max(_error(blocks), printed)


def _trend(relative: Sequence[float]) -> str:
    """Compare the gap of the first third of the steps with that of the last."""
    third = len(relative) // 3
    if third < _LEAST_STEPS // 2:
        return "unknown"
    first = relative[:third]
    last = relative[-third:]
    ours = abs(median(first))
    theirs = abs(median(last))
    noise = _scatter(first) + _scatter(last)
    if theirs > _GROWTH * ours + noise:
        return "growing"
    if ours > _GROWTH * theirs + noise:
        return "shrinking"
    return "steady"


def _scatter(values: Sequence[float]) -> float:
    """Return the error of a mean from differences of neighbors: a trend does not count."""
    moves = [abs(after - before) for before, after in pairwise(values)]
    if moves:
        return 3 * median(moves) / math.sqrt(len(values))
    return 0.0


def _diverged(
    steps: Sequence[int], relative: Sequence[float], digit: float
) -> int | None:
    """Return the first step from which on the gap is above 5%, if that is significant."""
    rolling = [
        median(relative[max(0, place - _ROLLING // 2) : place + _ROLLING // 2 + 1])
        for place in range(len(relative))
    ]
    at = next((n for n in range(len(rolling), 0, -1) if rolling[n - 1] <= MOST_GAP), 0)
    last = relative[at:]
    earlier = relative[:at]
    if len(last) < _LEAST_STEPS or _is_noise(last, digit):
        return None
    size = min(len(last), len(earlier)) or 1
    before = (abs(median(earlier[n : n + size])) for n in range(0, len(earlier), size))
    if median(last) > _GROWTH * max(before, default=0.0):
        return steps[at]
    return None


def _digit(before: Points, after: Points, steps: Sequence[int]) -> float:
    """Return the last digit that losses were printed with, as a share of the later ones."""
    losses = [series[step] for step in steps for series in (before, after)]
    some = losses[:: 1 + len(losses) // 512]
    places = (Decimal(repr(loss)).as_tuple().exponent for loss in some)
    last = min((place for place in places if isinstance(place, int)), default=0)
    if steps:
        usual = median(abs(before[step]) for step in steps[len(steps) // 2 :])
    else:
        usual = 0.0
    # Differences of printed numbers are rounded, too.
    if usual:
        return 1.001 * 10.0**last / usual
    return 0.0


def _first_bad(
    before: Points, after: Points, steps: Sequence[int]
) -> tuple[int | None, str | None]:
    """Return the first step whose loss is not finite in one run only, else in both, and the run."""
    runs = {
        (True, False): "candidate",
        (False, True): "baseline",
        (False, False): "both",
    }
    usable = ((step, (_usable(before[step]), _usable(after[step]))) for step in steps)
    bad = [(step, runs[which]) for step, which in usable if which in runs]
    return min(bad, key=lambda found: found[1] == "both", default=(None, None))


def _curve(
    before: Points, after: Points, steps: Sequence[int], shown: AbstractSet[int | None]
) -> tuple[tuple[int, float | None, float | None], ...]:
    """Return at most about 400 steps: both ends, some between, and those that are to be shown.

    With the neighbors of the latter: a spike must not look as if it lasted.
    """
    every = -(-len(steps) // CURVE_POINTS) or 1
    return tuple(
        (step, _finite(before[step]), _finite(after[step]))
        for place, step in enumerate(steps)
        if place % every == 0
        or step == steps[-1]
        or shown & set(steps[place - 1 : place + 2])
    )


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
        yield finding(
            "nan-or-inf", "compared", where=loss.place_of(loss.first_bad_step)
        )
    gap = loss.relative_gap or 0.0
    if loss.diverged_step is not None:
        since = loss.diverged_step - loss.first_step
        early = ""
        if since < EARLY_STEPS and not loss.counted:
            early = "early"
        where = loss.place_of(loss.diverged_step)
        case = early if since else "from-start"
        yield finding("loss-diverged", case, limit=MOST_GAP, where=where)
    elif gap > EXPECTED_GAP and not loss.gap_is_noise:
        yield finding(
            "loss-gap",
            "large" if gap > MOST_GAP else "",
            above=f"{gap:.1%} above" if gap < 10 else f"{gap + 1:.3g} times",
            steps="logged values" if loss.counted else "steps",
            trend="trend unknown" if loss.trend == "unknown" else loss.trend,
        )
