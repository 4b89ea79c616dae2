"""How many times as fast one run is as another at equal work: a ratio with a 95 % interval."""

from __future__ import annotations

import math
from typing import NamedTuple

from fp8verify.analysis.timeline import LONG_SERIES
from fp8verify.compare.measure import GEMM, Measured
from fp8verify.report.model.comparison import Outcome
from fp8verify.report.model.parts import StepStatistics

# Work that differs by less is the same.
SAME_WORK = 0.01
# Two recordings of one program differ by this standard deviation each, however many steps they
# have: clocks, temperature, neighbours on the machine. Parts of the runs in traces/ show as much.
_BETWEEN_RECORDINGS = 0.007
# A smaller difference is none: an interval within it is the same speed.
_SAME = 0.05
LEAST_STEPS = 3
# The variation of steps where fewer were recorded than tell it.
_USUAL_VARIATION = 0.03
_ENOUGH = 5
_MOST_STEPS = 1000
# Neighbours that resemble each other make a mean less certain by this variance, which few steps do
# not show: a correlation of 0.25 is assumed of them.
_DRIFT = (1 + 0.25) / (1 - 0.25)
# Standard errors beyond which a difference is found in 80 % of the comparisons: 2.1 + 0.84.
_FOUND = 2.94
# Quantiles of Student's t for 95 % (two-sided) by degrees of freedom.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


class Speed(NamedTuple):
    """How many times as fast the candidate is: fields of a `Comparison`.

    The interval is None if a run has fewer than three steps.
    """

    outcome: Outcome
    speedup: float
    interval: tuple[float, float] | None
    steps_needed: int | None
    step_speedup: float
    busy_speedup: float | None
    gemm_speedup: float | None


def measure_speed(before: Measured, after: Measured, work: float = 1.0) -> Speed:
    """Measure the speed-up of the candidate, whose step does `work` times the baseline's work."""
    steps = before.times.mean_us / after.times.mean_us
    interval = _interval(before.times, after.times, work)
    outcome = _outcome(interval)
    undecided = outcome is Outcome.UNDECIDED
    gemms = before.budget[GEMM], after.budget[GEMM]
    return Speed(
        outcome=outcome,
        speedup=round(steps * work, 4),
        interval=interval and (round(interval[0], 4), round(interval[1], 4)),
        steps_needed=_needed(before.times, after.times, steps * work) if undecided else None,
        step_speedup=round(steps, 4),
        busy_speedup=round(before.busy / after.busy * work, 4) if after.busy > 0 else None,
        gemm_speedup=round(gemms[0] / gemms[1] * work, 4) if gemms[1] > 0 else None,
    )


def work_ratio(before: Measured, after: Measured) -> float | None:
    """Return the work of a candidate's step relative to the baseline's; None if not known.

    Steps with equal FLOPs do the same work, even if a window begins or ends within a step.
    Otherwise the forward pass counts, which recomputation does not change.
    """
    if not (before.work and after.work):
        return None
    if before.step_flops and after.step_flops:
        ratio = after.step_flops / before.step_flops
        if not differs(ratio):
            return ratio
    return after.work / before.work


def differs(ratio: float) -> bool:
    """Whether two amounts of work of this ratio are not the same."""
    return abs(ratio - 1) > SAME_WORK


def _interval(
    before: StepStatistics, after: StepStatistics, work: float
) -> tuple[float, float] | None:
    """Return the bounds of the ratio of two means, by Welch's t of their logarithms."""
    if min(before.count, after.count) < LEAST_STEPS:
        return None
    parts = [
        (
            ((side.deviation_us or 0.0) / side.mean_us) ** 2
            / side.effective
            * (_DRIFT if side.count < LONG_SERIES else 1.0),
            side.effective - 1,
        )
        for side in (before, after)
    ]
    sampled = sum(variance for variance, _ in parts)
    whole = sampled + 2 * _BETWEEN_RECORDINGS**2
    squares = sum(variance**2 / max(1.0, freedom) for variance, freedom in parts)
    reach = _student(whole**2 / squares if squares else math.inf) * math.sqrt(whole)
    ratio = before.mean_us / after.mean_us * work
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def _student(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    if freedom <= len(_STUDENT):
        return _STUDENT[max(1, int(freedom)) - 1]
    return 1.96 + 2.52 / freedom


def _outcome(interval: tuple[float, float] | None) -> Outcome:
    if interval is None:
        return Outcome.UNDECIDED
    low, high = interval
    if low <= 1 <= high:
        same = low >= 1 / (1 + _SAME) and high <= 1 + _SAME
        return Outcome.SAME if same else Outcome.UNDECIDED
    return Outcome.FASTER if low > 1 else Outcome.SLOWER


def _needed(before: StepStatistics, after: StepStatistics, ratio: float) -> int:
    """Return how many steps of each run would make the observed difference significant."""
    known = [
        (side.deviation_us or 0.0) / side.mean_us * math.sqrt(side.count / side.effective)
        for side in (before, after)
        if side.count >= _ENOUGH
    ]
    variation = max(known, default=0.0) or _USUAL_VARIATION
    wanted = max(abs(math.log(ratio)), _SAME)
    sampled = (wanted / _FOUND) ** 2 - 2 * _BETWEEN_RECORDINGS**2
    least = max(_ENOUGH, min(before.count, after.count) + 1)
    return min(_MOST_STEPS, max(least, math.ceil(2 * variation**2 / sampled)))


def reason_of(speed: Speed, work: float, before: Measured, after: Measured) -> str:
    """Say in a sentence how fast the candidate is, and how sure that is."""
    times = (
        f"a step takes {after.times.mean_us / 1000:.2f} ms, "
        f"{before.times.mean_us / 1000:.2f} ms in the baseline{_measured_in(after)}"
    )
    ratio = f"{speed.speedup:.2f}x as fast{bounds(speed.interval)}"
    if work != 1.0:
        ratio = f"at equal work {ratio} ({work:.2f}x the GEMM FLOPs)"
    if speed.steps_needed is not None:
        few = min(before.times.count, after.times.count) < LEAST_STEPS
        why = ", since fewer than three steps were recorded" if few else ""
        return f"cannot tell{why}: {times}: {ratio}"
    if speed.outcome is Outcome.SAME:
        return f"{times}: {ratio}, less than {_SAME:.0%} apart"
    gain = "" if work != 1.0 else _where_gain_goes(before, after)
    return f"{times}: {ratio}{gain}"


def bounds(interval: tuple[float, float] | None) -> str:
    """Return " (95 %: 1.21x to 1.30x)", empty without an interval."""
    return f" (95 %: {interval[0]:.2f}x to {interval[1]:.2f}x)" if interval else ""


def _measured_in(side: Measured) -> str:
    known = {
        "outside": " (wall time of steps without the profiler)",
        "log": " (from the training's log)",
    }
    return known.get(side.measured, " (under the profiler)")


def _where_gain_goes(before: Measured, after: Measured) -> str:
    """Say how much of what the GEMMs gain reaches the mean step."""
    gained = before.budget[GEMM] - after.budget[GEMM]
    reached = sum(before.budget.values()) - sum(after.budget.values())
    if gained <= 0 or not 0 <= reached <= gained:
        return ""
    return f"; GEMMs are {gained / 1000:.2f} ms faster, the whole step {reached / 1000:.2f} ms"
