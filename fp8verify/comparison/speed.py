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
from fp8verify.model.comparison import GemmPair, Outcome
from fp8verify.model.costs import PayoffReport
from fp8verify.model.steps import StepStatistics
from fp8verify.model.verdict import Finding
from fp8verify.terms import Leg
from fp8verify.thresholds import (
    BETWEEN_RECORDINGS,
    ENOUGH_STEPS,
    FOUND,
    HARDLY_FASTER,
    LEAST_STEPS,
    LONG_SERIES,
    MOST_STEPS,
    NEIGHBORS,
    NOTICEABLE,
    OTHER_FP8_SHARE,
    SAME_SPEED,
    SAME_WORK,
    SLOWER_GEMM,
    USUAL_VARIATION,
)
from fp8verify.verdict.advice import Fact, is_of_engine
from fp8verify.verdict.findings.speed import (
    cost_of_casts,
    gemms_are_small,
    payoff_remedy,
)
from fp8verify.verdict.findings_table import finding

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


def measure_speed(
    before: Measured,
    after: Measured,
    work: float = 1.0,
) -> Speed:
    """Measure the speed-up of the candidate, whose step does `work` times the baseline's work."""
    step_speedup = before.times.mean_us / after.times.mean_us
    speedup = step_speedup * work
    interval = _interval(before.times, after.times, work)
    outcome = _outcome(interval)
    steps_needed = None
    if outcome is Outcome.UNDECIDED:
        steps_needed = _needed(before.times, after.times, speedup)
    busy_speedup = None
    if after.busy > 0:
        busy_speedup = round(before.busy / after.busy * work, 4)
    gemm_speedup = None
    if after.budget[GEMM] > 0:
        gemm_speedup = round(before.budget[GEMM] / after.budget[GEMM] * work, 4)
    if interval is not None:
        interval = (round(interval[0], 4), round(interval[1], 4))
    return Speed(
        outcome=outcome,
        speedup=round(speedup, 4),
        interval=interval,
        steps_needed=steps_needed,
        step_speedup=round(step_speedup, 4),
        busy_speedup=busy_speedup,
        gemm_speedup=gemm_speedup,
    )


def _outcome(interval: tuple[float, float] | None) -> Outcome:
    """Return what the interval of a speed-up decides."""
    if interval is None:
        return Outcome.UNDECIDED
    least, most = interval
    if least > 1:
        return Outcome.FASTER
    if most < 1:
        return Outcome.SLOWER
    if least >= 1 / (1 + SAME_SPEED) and most <= 1 + SAME_SPEED:
        return Outcome.SAME
    return Outcome.UNDECIDED


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
    before: StepStatistics,
    after: StepStatistics,
    work: float,
) -> tuple[float, float] | None:
    """Return the bounds of the ratio of two means, by Welch's t of their logarithms."""
    if min(before.count, after.count) < LEAST_STEPS:
        return None
    sampled = 0.0
    squares = 0.0
    for side in (before, after):
        relative = (side.deviation_us or 0.0) / side.mean_us
        variance = relative**2 / side.effective
        if side.count < LONG_SERIES:
            variance *= (1 + NEIGHBORS) / (1 - NEIGHBORS)
        sampled += variance
        squares += variance**2 / max(1.0, side.effective - 1)
    whole = sampled + 2 * BETWEEN_RECORDINGS**2
    freedom = math.inf
    if squares:
        freedom = whole**2 / squares
    student = 1.96 + 2.52 / freedom
    if freedom <= len(_STUDENT):
        student = _STUDENT[max(1, int(freedom)) - 1]
    reach = student * math.sqrt(whole)
    ratio = before.mean_us / after.mean_us * work
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def _needed(
    before: StepStatistics,
    after: StepStatistics,
    ratio: float,
) -> int:
    """Return how many steps of each run would make the observed difference significant."""
    variation = 0.0
    for side in (before, after):
        if side.count >= ENOUGH_STEPS:
            relative = (side.deviation_us or 0.0) / side.mean_us
            correlated = math.sqrt(side.count / side.effective)
            variation = max(variation, relative * correlated)
    if not variation:
        variation = USUAL_VARIATION
    wanted = max(abs(math.log(ratio)), SAME_SPEED)
    sampled = (wanted / FOUND) ** 2 - 2 * BETWEEN_RECORDINGS**2
    needed = math.ceil(2 * variation**2 / sampled)
    least = max(ENOUGH_STEPS, min(before.count, after.count) + 1)
    return min(MOST_STEPS, max(least, needed))


def reason_of(
    speed: Speed,
    work: float,
    before: Measured,
    after: Measured,
) -> str:
    """Say in a sentence how fast the candidate is, and how sure that is."""
    remarks = []
    if speed.interval:
        least, most = speed.interval
        remarks.append(f"95% interval {least:.2f}x-{most:.2f}x")
    speedup = f"{speed.speedup:.2f}x"
    same_work = work == 1.0
    if not same_work:
        remarks.append(f"{work:.2f}x the GEMM FLOPs")
        speedup = f"at equal work {speedup}"
    remarks.append(_HOW_MEASURED.get(after.measured, "profiled"))
    times = (
        f"{after.times.mean_us / 1000:.2f} ms per step, "
        f"baseline {before.times.mean_us / 1000:.2f} ms"
    )
    sentence = f"{times}: {speedup} ({'; '.join(remarks)})"
    if speed.steps_needed is not None:
        doubt = "both are possible" if speed.interval else "a run has one step"
        return f"{sentence}, undecided: {doubt}"
    if speed.outcome is Outcome.SAME:
        return f"{sentence}, less than {SAME_SPEED:.0%} apart"
    if same_work:
        return f"{sentence}{_where_gain_goes(before, after)}"
    return sentence


def _where_gain_goes(before: Measured, after: Measured) -> str:
    """Say how much of what the GEMMs gain reaches the mean step."""
    gained = before.budget[GEMM] - after.budget[GEMM]
    reached = sum(before.budget.values()) - sum(after.budget.values())
    if gained <= 0 or not 0 <= reached <= gained:
        return ""
    return f"; GEMMs are {gained / 1000:.2f} ms faster, the whole step {reached / 1000:.2f} ms"


# ---- why a run is not faster than its baseline

_GEMM_REMEDY = (
    "Compare these GEMMs in both reports with --verbose: another layout, scaling or library; "
    "block scaling gains less than one scale per tensor. Check the GPU's clocks in both runs."
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


def why_not_faster(
    before: Measured,
    after: Measured,
    work: float,
) -> Iterator[Finding]:
    """Name the causes in the order of what they cost, GEMMs first; times are at equal work."""
    growth = {}
    for name, time in after.budget.items():
        growth[name] = time / work - before.budget[name]
    least = NOTICEABLE * after.times.mean_us / work
    causes = []
    for lost in ranks_that_lost_fp8(before, after):
        causes.append(_finding("less FP8 than in the baseline", _RANK_REMEDY, lost))
    causes += _gemms(before, after, growth[GEMM], work, least)
    gain = f"GEMMs take {_ms(growth[GEMM], '+')} a step"
    others = sorted(_others(after, growth), key=lambda other: -other[0])
    for cost, shown, cause, remedy in others:
        if cost >= least:
            figure = f"{_ms(shown, '+')} a step; {gain}"
            causes.append(_finding(cause, remedy, figure))
    if not causes:
        cause = "no single kind of work takes much longer"
        causes.append(_finding(cause, _NO_CAUSE, gain))
    yield from causes


def ranks_that_lost_fp8(before: Measured, after: Measured) -> Iterator[str]:
    """Say which ranks run less of their GEMM time in FP8 than in the baseline."""
    if len(before.ranks) <= 1:
        return
    for old, new in zip(before.ranks, after.ranks, strict=False):
        had = old.layer_share or 0.0
        has = new.layer_share or 0.0
        if has < had - OTHER_FP8_SHARE:
            yield (
                f"rank {new.rank} runs {has:.0%} of its GEMM time in FP8, {had:.0%} in the baseline"
            )


def _gemms(
    before: Measured,
    after: Measured,
    longer: float,
    work: float,
    least: float,
) -> Iterator[Finding]:
    """Name GEMMs that became slower, or FP8 GEMMs that are hardly faster."""
    remedy = _GEMM_REMEDY
    if gemms_are_small(_payoffs(after)):
        remedy = payoff_remedy("small")
    more_fp8 = after.fp8_share > before.fp8_share + OTHER_FP8_SHARE
    if longer >= least:
        slow = [
            pair for pair in pair_gemms(before, after) if pair.speedup < SLOWER_GEMM
        ]
        slow.sort(key=_saved_us)
        figure = f"they take {_ms(longer)} a step longer"
        if slow:
            slowest = [f"{p.n}x{p.k} {p.leg} {p.speedup:.2f}x" for p in slow[:3]]
            figure = f"{figure} ({', '.join(slowest)})"
        yield _finding("slower GEMMs", remedy, figure)
    elif more_fp8 and before.budget[GEMM] < HARDLY_FASTER * after.budget[GEMM] / work:
        figure = f"in FP8 they gain {_ms(-longer)} a step"
        yield _finding("GEMMs no faster", remedy, figure)


def _saved_us(pair: GemmPair) -> float:
    """Return by how many µs a step GEMMs became faster, below 0 for slower ones."""
    return pair.candidate_us * pair.candidate_calls * (pair.speedup - 1)


def _others(
    after: Measured,
    growth: dict[str, float],
) -> Iterator[tuple[float, float, str, str]]:
    """Yield cost, its figure in the table, cause and remedy of each kind of work but GEMMs."""
    facts = _facts(after)
    network = growth[NETWORK]
    idle = growth[IDLE]
    attention = growth[ATTENTION]
    casts = growth[CASTS]
    rest = growth[REST]
    remedy = _SCALES_REMEDY
    if not _gathers_fp8(after):
        remedy += _GATHER_REMEDY
    yield network, network, NETWORK, remedy + _WAIT_REMEDY
    yield idle, idle, "launch-bound", payoff_remedy("launch-bound", facts)
    yield attention, attention, ATTENTION, _REST_REMEDY
    if after.budget[CASTS]:
        # Fused casts do other kernels' work too, so both count.
        taxes = [rank.tax for rank in after.ranks if rank.tax]
        cause, case = cost_of_casts(taxes, _payoffs(after))
        yield casts + rest, casts, cause, payoff_remedy(case, facts)
    else:
        yield rest, rest, REST, _REST_REMEDY


def _gathers_fp8(side: Measured) -> bool:
    """Whether a rank of a run gathers its weights in FP8."""
    for rank in side.ranks:
        if rank.communication is None or rank.communication.weight_gather is None:
            continue
        if rank.communication.weight_gather.fp8:
            return True
    return False


def _facts(side: Measured) -> frozenset[str]:
    """Return the facts of a run that advice on its speed needs, as its report has them."""
    facts = set()
    for rank in side.ranks:
        if rank.health.kernels_in_graphs:
            facts.add(Fact.GRAPHS.value)
        if any(map(is_of_engine, (row.name for row in rank.kernels))):
            facts.add(Fact.ENGINE.value)
        legs = {row.leg for row in rank.legs}
        if rank.tax:
            legs |= {row.leg for row in rank.tax.rows}
        if Leg.RECOMPUTE in legs:
            facts.add(Fact.RECOMPUTES.value)
    return frozenset(facts)


def _payoffs(side: Measured) -> list[PayoffReport]:
    return [rank.payoff for rank in side.ranks if rank.payoff is not None]


def _finding(
    cause: str,
    remedy: str,
    figure: str,
) -> Finding:
    return finding(
        "fp8-not-paying",
        "compared",
        cause=cause,
        figure=figure,
        remedy=remedy,
    )


def _ms(time_us: float, sign: str = "") -> str:
    return f"{round(time_us / 1000, 2) + 0.0:{sign}.2f} ms"  # never -0.00
