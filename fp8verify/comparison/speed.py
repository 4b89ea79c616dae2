"""How many times as fast one run is as another at equal work, and why it is not faster.

The first is a ratio with a 95% interval, the second causes that the traces show, GEMMs first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from fp8verify.comparison.measure import (
    ATTENTION,
    CASTS,
    GEMM,
    IDLE,
    NETWORK,
    REST,
    Measured,
    pair_gemms,
)
from fp8verify.model.comparison import Outcome
from fp8verify.model.costs import PayoffReport
from fp8verify.model.steps import StepStatistics
from fp8verify.model.verdict import Finding
from fp8verify.terms import Leg
from fp8verify.thresholds import LONG_SERIES
from fp8verify.verdict.advice import Fact
from fp8verify.verdict.findings.speed import (
    cost_of_casts,
    gemms_are_small,
    payoff_remedy,
)
from fp8verify.verdict.findings_table import finding

# Work that differs by less is the same.
SAME_WORK = 0.01
# Two recordings of one program differ by this standard deviation each, however many steps they
# have: clocks, temperature, neighbors on the machine. Parts of the runs in traces/ show as much.
_BETWEEN_RECORDINGS = 0.007
# A smaller difference is none: an interval within it is the same speed.
_SAME = 0.05
LEAST_STEPS = 2
# The variation of steps where fewer were recorded than tell it.
_USUAL_VARIATION = 0.03
_ENOUGH = 5
_MOST_STEPS = 1000
# Neighbors that resemble each other make a mean less certain by this variance, which few steps do
# not show: a correlation of 0.25 is assumed of them.
_DRIFT = (1 + 0.25) / (1 - 0.25)
# Standard errors beyond which a difference is found in 80% of the comparisons: 2.1 + 0.84.
_FOUND = 2.94
# Quantiles of Student's t for 95% (two-sided) by degrees of freedom.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
_HOW_MEASURED = {"outside": "measured without the profiler", "log": "from the logs"}


class Speed(NamedTuple):
    """How many times as fast the candidate is: fields of a `Comparison`.

    The interval is None if a run has a single step.
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
    outcome = Outcome.UNDECIDED
    if interval is not None and not interval[0] <= 1 <= interval[1]:
        if interval[0] > 1:
            outcome = Outcome.FASTER
        else:
            outcome = Outcome.SLOWER
    elif (
        interval is not None
        and interval[0] >= 1 / (1 + _SAME)
        and interval[1] <= 1 + _SAME
    ):
        outcome = Outcome.SAME
    undecided = outcome is Outcome.UNDECIDED
    gemms = before.budget[GEMM], after.budget[GEMM]
    return Speed(
        outcome=outcome,
        speedup=round(steps * work, 4),
        interval=interval and (round(interval[0], 4), round(interval[1], 4)),
        steps_needed=_needed(before.times, after.times, steps * work)
        if undecided
        else None,
        step_speedup=round(steps, 4),
        busy_speedup=round(before.busy / after.busy * work, 4)
        if after.busy > 0
        else None,
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
    freedom = whole**2 / squares if squares else math.inf
    student = 1.96 + 2.52 / freedom
    if freedom <= len(_STUDENT):
        student = _STUDENT[max(1, int(freedom)) - 1]
    reach = student * math.sqrt(whole)
    ratio = before.mean_us / after.mean_us * work
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def _needed(before: StepStatistics, after: StepStatistics, ratio: float) -> int:
    """Return how many steps of each run would make the observed difference significant."""
    known = [
        (side.deviation_us or 0.0)
        / side.mean_us
        * math.sqrt(side.count / side.effective)
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
    how = _HOW_MEASURED.get(after.measured, "profiled")
    interval = speed.interval and "95% interval {:.2f}x-{:.2f}x".format(*speed.interval)
    times = (
        f"{after.times.mean_us / 1000:.2f} ms per step, "
        f"baseline {before.times.mean_us / 1000:.2f} ms"
    )
    flops = f"{work:.2f}x the GEMM FLOPs" if work != 1.0 else ""
    remarks = "; ".join(filter(None, [interval, flops, how]))
    said = (
        f"{times}: {'at equal work ' if flops else ''}{speed.speedup:.2f}x ({remarks})"
    )
    if speed.steps_needed is not None:
        return f"{said}, undecided: {'both are possible' if interval else 'a run has one step'}"
    if speed.outcome is Outcome.SAME:
        return f"{said}, less than {_SAME:.0%} apart"
    return f"{said}{'' if flops else _where_gain_goes(before, after)}"


def _where_gain_goes(before: Measured, after: Measured) -> str:
    """Say how much of what the GEMMs gain reaches the mean step."""
    gained = before.budget[GEMM] - after.budget[GEMM]
    reached = sum(before.budget.values()) - sum(after.budget.values())
    if gained <= 0 or not 0 <= reached <= gained:
        return ""
    return f"; GEMMs are {gained / 1000:.2f} ms faster, the whole step {reached / 1000:.2f} ms"


# ---- why a run is not faster than its baseline

# FP8 GEMMs of large layers are 1.6 to 2 times as fast; a gain below this is hardly one.
_HARDLY = 1.15
_SLOWER = 0.95
_NOTICEABLE = 0.02  # of a step: work that grew by less explains nothing
_FELL = 0.1
_GEMM_REMEDY = (
    "Compare these GEMMs in both reports with --verbose: another layout, scaling or library; "
    "block scaling gains less than one scale a tensor. Check the GPU's clocks in both runs."
)
_RANK_REMEDY = (
    "Find out what differs on this rank: its configuration, its modules, its log."
)
_SCALES_REMEDY = "Precompute the scales (precompute_float8_dynamic_scale_for_fsdp)"
_GATHER_REMEDY = ", gather weights in FP8 (enable_fsdp_float8_all_gather)"
_WAIT_REMEDY = "; ranks that wait for a slower one show here too."
_REST_REMEDY = (
    "Compare these kernels in both reports with --verbose, or in a trace viewer."
)
_NO_CAUSE = "Record more steps of both runs, and compare what each kind of work takes."


def why_not_faster(before: Measured, after: Measured, work: float) -> Iterator[Finding]:
    """Name the causes in the order of what they cost, GEMMs first; times are at equal work."""
    growth = {
        name: time / work - before.budget[name] for name, time in after.budget.items()
    }
    least = _NOTICEABLE * after.times.mean_us / work
    lost = ranks_that_lost_fp8(before, after)
    causes = [
        _finding("less FP8 than in the baseline", _RANK_REMEDY, said) for said in lost
    ]
    causes += _gemms(before, after, growth[GEMM], work, least)
    gain = f"GEMMs take {_ms(growth[GEMM], '+')} a step"
    for cost, shown, cause, remedy in sorted(
        _others(after, growth), key=lambda o: -o[0]
    ):
        if cost >= least:
            causes.append(_finding(cause, remedy, f"{_ms(shown, '+')} a step; {gain}"))
    yield from causes or [
        _finding("no single kind of work takes much longer", _NO_CAUSE, gain)
    ]


def ranks_that_lost_fp8(before: Measured, after: Measured) -> Iterator[str]:
    """Say which ranks run less of their GEMM time in FP8 than in the baseline."""
    for old, new in zip(before.ranks, after.ranks, strict=False):
        had, has = (rank.layer_share or 0.0 for rank in (old, new))
        if len(before.ranks) > 1 and has < had - _FELL:
            yield (
                f"rank {new.rank} runs {has:.0%} of its GEMM time in FP8, {had:.0%} in the baseline"
            )


def _gemms(
    before: Measured, after: Measured, longer: float, work: float, least: float
) -> Iterator[Finding]:
    """Name GEMMs that became slower, or FP8 GEMMs that are hardly faster."""
    if gemms_are_small(_payoffs(after)):
        remedy = payoff_remedy("small")
    else:
        remedy = _GEMM_REMEDY
    more_fp8 = after.fp8_share > before.fp8_share + _FELL
    if longer >= least:
        slow = [pair for pair in pair_gemms(before, after) if pair.speedup < _SLOWER]
        # By how many µs a step they became slower.
        slow.sort(
            key=lambda pair: (
                pair.candidate_us * pair.candidate_calls * (pair.speedup - 1)
            )
        )
        which = ", ".join(f"{p.n} x {p.k} {p.leg} {p.speedup:.2f}x" for p in slow[:3])
        figure = (
            f"they take {_ms(longer)} a step longer{f' ({which})' if which else ''}"
        )
        yield _finding("slower GEMMs", remedy, figure)
    elif more_fp8 and before.budget[GEMM] < _HARDLY * after.budget[GEMM] / work:
        yield _finding(
            "GEMMs no faster", remedy, f"in FP8 they gain {_ms(-longer)} a step"
        )


def _others(
    after: Measured, growth: dict[str, float]
) -> Iterator[tuple[float, float, str, str]]:
    """Yield cost, its figure in the table, cause and remedy of each kind of work but GEMMs."""
    gathers = [
        rank.communication.weight_gather for rank in after.ranks if rank.communication
    ]
    in_fp8 = any(gather is not None and gather.fp8 for gather in gathers)
    facts = _facts(after)
    network = f"{_SCALES_REMEDY}{'' if in_fp8 else _GATHER_REMEDY}{_WAIT_REMEDY}"
    yield growth[NETWORK], growth[NETWORK], NETWORK, network
    yield (
        growth[IDLE],
        growth[IDLE],
        "launch-bound",
        payoff_remedy("launch-bound", facts),
    )
    yield growth[ATTENTION], growth[ATTENTION], ATTENTION, _REST_REMEDY
    if after.budget[CASTS]:
        # Fused casts do other kernels' work too, so both count.
        cause, case = cost_of_casts(
            [r.tax for r in after.ranks if r.tax], _payoffs(after)
        )
        remedy = payoff_remedy(case, facts)
        yield growth[CASTS] + growth[REST], growth[CASTS], cause, remedy
    else:
        yield growth[REST], growth[REST], REST, _REST_REMEDY


def _facts(side: Measured) -> frozenset[str]:
    """Return the facts of a run that advice on its speed needs, as its report has them."""
    facts = set()
    for rank in side.ranks:
        casts = rank.tax.rows if rank.tax else ()
        if rank.health.kernels_in_graphs:
            facts.add(Fact.GRAPHS.value)
        legs = {row.leg for row in rank.legs} | {row.leg for row in casts}
        if Leg.RECOMPUTE in legs:
            facts.add(Fact.RECOMPUTES.value)
    return frozenset(facts)


def _payoffs(side: Measured) -> list[PayoffReport]:
    return [rank.payoff for rank in side.ranks if rank.payoff is not None]


def _finding(cause: str, remedy: str, figure: str) -> Finding:
    return finding(
        "fp8-not-paying", "compared", cause=cause, figure=figure, remedy=remedy
    )


def _ms(time_us: float, sign: str = "") -> str:
    return f"{round(time_us / 1000, 2) + 0.0:{sign}.2f} ms"  # never -0.00
