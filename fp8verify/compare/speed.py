"""How many times as fast one run is as another at equal work, and how that is said."""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.compare.measure import GEMM, Measured
from fp8verify.report.model.comparison import Outcome, StepTimes

# Work that differs by less is the same.
SAME_WORK = 0.01
# Steps that differ by less are the same: clocks and schedulers alone move them as much.
_NOISE = 0.02
# Where the steps of a run vary, a difference within their spread is none, up to this much.
_MOST_NOISE = 0.1


class Speed(NamedTuple):
    """How many times as fast the candidate is.

    Attributes:
        outcome: whether that is faster.
        steps: of the steps as they are.
        work: what a step does, over the baseline's; 1 where it is the same or not known.
        work_ratio: the same, as measured; None where not known.
        equal_work: of the steps at equal work.
        busy: at equal work, without the time in which the GPU waits.
        gemms: of the GEMMs, at equal work.
    """

    outcome: Outcome
    steps: float
    work: float
    work_ratio: float | None
    equal_work: float
    busy: float
    gemms: float


def measure_speed(before: Measured, after: Measured) -> Speed:
    """Measure how many times as fast the candidate is."""
    ratio = work_ratio(before, after)
    work = ratio if ratio is not None and differs(ratio) else 1.0
    steps = before.times.median_us / after.times.median_us
    return Speed(
        outcome=_outcome(steps * work, max(_spread(before.times), _spread(after.times))),
        steps=steps,
        work=work,
        work_ratio=ratio,
        equal_work=steps * work,
        busy=before.busy / after.busy * work,
        gemms=before.budget[GEMM] / after.budget[GEMM] * work,
    )


def work_ratio(before: Measured, after: Measured) -> float | None:
    """Return what a step of the candidate does over the baseline's; None where not known."""
    return after.work / before.work if before.work and after.work else None


def differs(ratio: float) -> bool:
    """Whether two amounts of work of this ratio are not the same."""
    return abs(ratio - 1) > SAME_WORK


def _spread(times: StepTimes) -> float:
    return (times.max_us - times.min_us) / (2 * times.median_us)


def _outcome(speedup: float, spread: float) -> Outcome:
    if abs(speedup - 1) <= max(_NOISE, min(spread, _MOST_NOISE)):
        return Outcome.SAME
    return Outcome.FASTER if speedup > 1 else Outcome.SLOWER


def reason_of(speed: Speed, before: Measured, after: Measured) -> str:
    """Say in a sentence how fast the candidate is."""
    times = (
        f"a step takes {after.times.median_us / 1000:.2f} ms, in the baseline "
        f"{before.times.median_us / 1000:.2f} ms"
    )
    if speed.work != 1.0:
        return (
            f"at equal work {speed.equal_work:.2f}x as fast: {times}, with {speed.work:.2f}x the "
            "GEMM FLOPs"
        )
    noise = ", within noise" if speed.outcome is Outcome.SAME else ""
    return f"{times}: {speed.steps:.2f}x as fast{noise}{_where_gain_goes(before, after)}"


def _where_gain_goes(before: Measured, after: Measured) -> str:
    """Say how much of what the GEMMs gain reaches the mean step."""
    gained = before.budget[GEMM] - after.budget[GEMM]
    reached = sum(before.budget.values()) - sum(after.budget.values())
    if gained <= 0 or not 0 <= reached <= gained:
        return ""
    return (
        f"; of {gained / 1000:.2f} ms that the GEMMs gain, {reached / 1000:.2f} ms reach the step"
    )
