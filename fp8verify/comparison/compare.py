"""Hold two reports against each other."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fp8verify.comparison.causes import not_paying
from fp8verify.comparison.gemms import pair_gemms, pair_legs, sizes
from fp8verify.comparison.layers import pair_layers
from fp8verify.comparison.loss_findings import loss_findings
from fp8verify.comparison.losses import pair_losses, why_apart
from fp8verify.comparison.measure import GEMM, Measured, budget_rows, measure
from fp8verify.comparison.memory import memory_notes
from fp8verify.logs.losses import LossSeries
from fp8verify.model import Finding, Report
from fp8verify.model.comparison import (
    Comparison,
    LossPair,
    Outcome,
    RankPair,
    Side,
    StepTimes,
)
from fp8verify.report.naming import run_name
from fp8verify.version import __version__

SCHEMA_VERSION = 2
NOT_COMPARABLE = 3
# Steps that differ by less are the same: clocks and schedulers alone move them as much.
_NOISE = 0.02
# Where the steps of a run vary, a difference within their spread is none, up to this much.
_MOST_NOISE = 0.1
_SAME_WORK = 0.01


def compare(
    baseline: Report,
    candidate: Report,
    losses: tuple[LossSeries | None, LossSeries | None] = (None, None),
) -> Comparison:
    """Compare two runs of the same model; the first rank that both have stands for each.

    Args:
        baseline: the report on the run to compare with, BF16 as a rule.
        candidate: the report on the run in question.
        losses: the loss of either run's log, where there is one.
    """
    names = (run_name(baseline), run_name(candidate))
    before, after = _pick_ranks(baseline, candidate)
    loss = _loss(losses)
    obstacle = _obstacle(before, after)
    if before is None or after is None or obstacle is not None:
        alike = not (before and after and _differ(before, after))
        found = _not_comparable(obstacle or "no rank to compare", loss, judged=alike)
        return replace(found, names=names)
    found = _compared(before, after, loss)
    return replace(
        found,
        names=names,
        baseline=_side(baseline, before),
        candidate=_side(candidate, after),
        ranks=_rank_pairs(baseline, candidate),
        notes=tuple(_notes(baseline, candidate, before, after, losses)),
    )


def _pick_ranks(baseline: Report, candidate: Report) -> tuple[Measured | None, Measured | None]:
    before = {rank.rank: found for rank in baseline.ranks if (found := measure(rank))}
    after = {rank.rank: found for rank in candidate.ranks if (found := measure(rank))}
    common = next((rank for rank in before if rank in after), None)
    if common in before and common in after:
        return before[common], after[common]
    return next(iter(before.values()), None), next(iter(after.values()), None)


def _rank_pairs(baseline: Report, candidate: Report) -> tuple[RankPair, ...]:
    """Pair the ranks that both runs have; nothing where there is one alone."""
    before, after = (
        {rank.rank: found for rank in report.ranks if (found := measure(rank))}
        for report in (baseline, candidate)
    )
    common = sorted(rank for rank in before.keys() & after if rank is not None)
    pairs = [(rank, before[rank].times, after[rank].times) for rank in common]
    return tuple(
        RankPair(
            rank=rank,
            baseline_us=old.median_us,
            candidate_us=new.median_us,
            step_speedup=round(old.median_us / new.median_us, 4),
        )
        for rank, old, new in pairs
        if len(pairs) > 1 and old.median_us and new.median_us
    )


def _obstacle(before: Measured | None, after: Measured | None) -> str | None:
    """Say why the runs cannot be compared, or None where they can."""
    for name, side in (("baseline", before), ("candidate", after)):
        if side is None:
            return f"no GEMM ran in the {name}"
        if not side.times.median_us:
            return f"no time is known of the {name}"
    if before is None or after is None:
        return None
    if _differ(before, after):
        return "the runs have no layer size in common: they train different models"
    if before.work and after.work:
        return None
    if "window" in (before.times.measured, after.times.measured):
        return "no steps were recorded, and no shapes that would tell the work of the windows"
    counts = (before.gemms, after.gemms)
    if abs(counts[1] / counts[0] - 1) > _SAME_WORK:
        return (
            f"a step runs {counts[0]:.0f} GEMMs in the baseline and {counts[1]:.0f} in the "
            "candidate, and no shapes tell their work"
        )
    return None


def _differ(before: Measured, after: Measured) -> bool:
    """Whether two runs train different models, whose losses say nothing of each other."""
    ours, theirs = sizes(before.rank), sizes(after.rank)
    return bool(ours and theirs and not ours & theirs)


def _not_comparable(reason: str, loss: LossPair | None, *, judged: bool) -> Comparison:
    return Comparison(
        schema_version=SCHEMA_VERSION,
        fp8verify_version=__version__,
        outcome=Outcome.NOT_COMPARABLE,
        reason=reason,
        exit_code=NOT_COMPARABLE,
        speedup=None,
        step_speedup=None,
        busy_speedup=None,
        work_ratio=None,
        gemm_speedup=None,
        baseline=None,
        candidate=None,
        names=("", ""),
        budget=(),
        legs=(),
        gemms=(),
        layers=(),
        ranks=(),
        loss=loss,
        findings=tuple(loss_findings(loss)) if judged else (),
        notes=(),
    )


def _compared(before: Measured, after: Measured, loss: LossPair | None) -> Comparison:
    ratio = after.work / before.work if before.work and after.work else None
    work = 1.0 if ratio is None or abs(ratio - 1) <= _SAME_WORK else ratio
    steps = before.times.median_us / after.times.median_us
    outcome = _outcome(steps * work, max(_spread(before.times), _spread(after.times)))
    gemms = before.budget[GEMM] / after.budget[GEMM] * work
    return Comparison(
        schema_version=SCHEMA_VERSION,
        fp8verify_version=__version__,
        outcome=outcome,
        reason=_reason(before, after, outcome, steps, work),
        exit_code=0,
        speedup=round(steps * work, 4),
        step_speedup=round(steps, 4),
        busy_speedup=round(before.busy / after.busy * work, 4),
        work_ratio=None if ratio is None else round(ratio, 4),
        gemm_speedup=round(gemms, 4),
        baseline=None,
        candidate=None,
        names=("", ""),
        budget=budget_rows(before, after),
        legs=pair_legs(before, after, work),
        gemms=pair_gemms(before, after),
        layers=pair_layers(before, after),
        ranks=(),
        loss=loss,
        findings=(
            *_findings(before, after, outcome, work),
            *(loss_findings(loss) if work == 1.0 else ()),
        ),
        notes=(),
    )


def _spread(times: StepTimes) -> float:
    return (times.max_us - times.min_us) / (2 * times.median_us)


def _outcome(speedup: float, spread: float) -> Outcome:
    if abs(speedup - 1) <= max(_NOISE, min(spread, _MOST_NOISE)):
        return Outcome.SAME
    return Outcome.FASTER if speedup > 1 else Outcome.SLOWER


def _reason(before: Measured, after: Measured, outcome: Outcome, steps: float, work: float) -> str:
    times = (
        f"a step takes {after.times.median_us / 1000:.2f} ms, in the baseline "
        f"{before.times.median_us / 1000:.2f} ms"
    )
    if work != 1.0:
        return (
            f"at equal work {steps * work:.2f}x as fast: {times}, with {work:.2f}x the GEMM FLOPs"
        )
    noise = ", within noise" if outcome is Outcome.SAME else ""
    return f"{times}: {steps:.2f}x as fast{noise}{_where_gain_goes(before, after)}"


def _where_gain_goes(before: Measured, after: Measured) -> str:
    """Say how much of what the GEMMs gain reaches the mean step."""
    gained = before.budget[GEMM] - after.budget[GEMM]
    reached = sum(before.budget.values()) - sum(after.budget.values())
    if gained <= 0 or not 0 <= reached <= gained:
        return ""
    return (
        f"; of {gained / 1000:.2f} ms that the GEMMs gain, {reached / 1000:.2f} ms reach the step"
    )


def _findings(before: Measured, after: Measured, outcome: Outcome, work: float) -> list[Finding]:
    ran, had = (side.rank.gemm.fp8_share_of_time or 0.0 for side in (after, before))
    if outcome is Outcome.FASTER or ran <= had:
        return []
    return list(not_paying(before, after, work))


def _side(report: Report, side: Measured) -> Side:
    return Side(
        name=run_name(report),
        source=side.rank.source,
        rank=side.rank.rank,
        verdict=report.verdict,
        gpu=report.environment.gpu,
        fp8_share_of_time=side.rank.gemm.fp8_share_of_time,
        step=side.times,
        flops_per_step=side.work,
    )


def _notes(
    baseline: Report,
    candidate: Report,
    before: Measured,
    after: Measured,
    losses: tuple[LossSeries | None, LossSeries | None],
) -> list[str]:
    gpus = (baseline.environment.gpu, candidate.environment.gpu)
    counts = (before.times.steps, after.times.steps)
    ours, theirs = sizes(before.rank), sizes(after.rank)
    share = (before.rank.gemm.fp8_share_of_time, after.rank.gemm.fp8_share_of_time)
    said = {
        f"different GPUs: {gpus[0]} and {gpus[1]}": gpus[0] != gpus[1],
        f"{len(baseline.ranks)} and {len(candidate.ranks)} ranks": len(baseline.ranks)
        != len(candidate.ranks),
        f"{counts[0]} and {counts[1]} steps recorded": counts[0] != counts[1],
        "one step was recorded: no spread is known": min(counts) == 1,
        f"{len(ours ^ theirs)} layer sizes occur in one run alone": bool(ours)
        and bool(theirs)
        and ours != theirs,
        "no shapes were recorded: that both runs do the same work is taken for granted": not (
            before.work and after.work
        ),
        "the candidate runs no more FP8 than the baseline": (share[1] or 0) <= (share[0] or 0),
    }
    held = [note for note, holds in said.items() if holds]
    return [*held, *_loss_notes(before, after, losses), *memory_notes(baseline, candidate)]


def _loss_notes(
    before: Measured, after: Measured, losses: tuple[LossSeries | None, LossSeries | None]
) -> Iterator[str]:
    ours, theirs = losses
    if ours is None and theirs is None:
        return
    if ours is None or theirs is None:
        yield f"only the log of the {'candidate' if ours is None else 'baseline'} has losses"
        return
    if _loss(losses) is None:
        apart = why_apart(ours, theirs)
        reason = "the logs' losses have no step in common"
        yield f"the losses are not compared: {apart}" if apart else reason
    elif before.work and after.work and abs(after.work / before.work - 1) > _SAME_WORK:
        yield (
            f"a step of the candidate does {after.work / before.work:.2f} times the work: equal "
            "steps are not equal tokens, and the gap of the losses is not judged"
        )


def _loss(losses: tuple[LossSeries | None, LossSeries | None]) -> LossPair | None:
    before, after = losses
    return pair_losses(before, after) if before is not None and after is not None else None
