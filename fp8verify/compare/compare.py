"""Compare two reports."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fp8verify.compare.causes import why_not_faster
from fp8verify.compare.losses import loss_findings, pair_losses
from fp8verify.compare.measure import Measured, budget_rows, measure_runs
from fp8verify.compare.notes import loss_notes, measured_notes, memory_notes, run_notes
from fp8verify.compare.pairs import (
    pair_gemms,
    pair_layers,
    pair_legs,
    pair_memory,
    pair_ranks,
    sizes,
)
from fp8verify.compare.speed import Speed, differs, measure_speed, reason_of
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model import Finding, Report
from fp8verify.report.model.comparison import Comparison, LossPair, Outcome, Side, StepTimes
from fp8verify.report.tables import layer_share
from fp8verify.version import __version__

SCHEMA_VERSION = 3
NOT_COMPARABLE = 3
_MORE_FP8 = 0.1


def compare(
    baseline: Report,
    candidate: Report,
    losses: tuple[LossSeries | None, LossSeries | None] = (None, None),
) -> Comparison:
    """Compare two runs of the same model over the ranks that both have.

    Args:
        baseline: the report on the run to compare with, BF16 as a rule.
        candidate: the report on the run in question.
        losses: the loss of either run's log, where there is one.
    """
    names = (baseline.name, candidate.name)
    ours, theirs = losses
    logged = (ours.times_us if ours else {}, theirs.times_us if theirs else {})
    before, after = measure_runs(baseline, candidate, logged)
    reason = _obstacle(before, after)
    if before is None or after is None or reason is not None:
        return _not_comparable(reason or "no rank to compare", names)
    loss = pair_losses(ours, theirs) if ours is not None and theirs is not None else None
    memory = pair_memory(baseline, candidate)
    return replace(
        _compared(before, after, loss),
        names=names,
        baseline=_side(baseline, before),
        candidate=_side(candidate, after),
        memory=memory,
        notes=(
            *run_notes(baseline, candidate),
            *measured_notes(before, after),
            *loss_notes(losses, loss, before, after),
            *memory_notes(memory, baseline, candidate),
        ),
    )


def _obstacle(before: Measured | None, after: Measured | None) -> str | None:
    """Say why the runs cannot be compared, or None where they can."""
    if before is None or after is None:
        return f"no GEMM ran in the {'baseline' if before is None else 'candidate'}"
    ours, theirs = sizes(before), sizes(after)
    if ours and theirs and not ours & theirs:
        return "the runs have no layer size in common: they train different models"
    if before.work and after.work:
        return None
    if "window" in (before.measured, after.measured):
        return "no steps were recorded, and no shapes that would tell the work of the windows"
    if differs(after.gemms / before.gemms):
        return (
            f"a step runs {before.gemms:.0f} GEMMs in the baseline and {after.gemms:.0f} in the "
            "candidate, and no shapes tell their work"
        )
    return None


def _not_comparable(reason: str, names: tuple[str, str]) -> Comparison:
    return Comparison(
        schema_version=SCHEMA_VERSION,
        fp8verify_version=__version__,
        outcome=Outcome.NOT_COMPARABLE,
        reason=reason,
        exit_code=NOT_COMPARABLE,
        names=names,
    )


def _compared(before: Measured, after: Measured, loss: LossPair | None) -> Comparison:
    speed = measure_speed(before, after)
    return Comparison(
        schema_version=SCHEMA_VERSION,
        fp8verify_version=__version__,
        outcome=speed.outcome,
        reason=reason_of(speed, before, after),
        exit_code=0,
        names=("", ""),
        speedup=round(speed.equal_work, 4),
        interval=speed.interval and (round(speed.interval[0], 4), round(speed.interval[1], 4)),
        steps_needed=speed.needed,
        step_speedup=round(speed.steps, 4),
        busy_speedup=None if speed.busy is None else round(speed.busy, 4),
        work_ratio=None if speed.work_ratio is None else round(speed.work_ratio, 4),
        gemm_speedup=round(speed.gemms, 4),
        budget=budget_rows(before, after),
        legs=pair_legs(before, after, speed.work),
        gemms=pair_gemms(before, after),
        layers=pair_layers(before, after),
        ranks=pair_ranks(before, after),
        loss=loss,
        findings=tuple(_findings(before, after, speed, loss)),
    )


def _findings(
    before: Measured, after: Measured, speed: Speed, loss: LossPair | None
) -> Iterator[Finding]:
    """Yield why the candidate is not faster, where that is established, and what its loss tells."""
    same = speed.outcome is Outcome.SAME and after.fp8_share > before.fp8_share + _MORE_FP8
    if speed.outcome is Outcome.SLOWER or same:
        yield from why_not_faster(before, after, speed.work)
    if speed.work == 1.0:
        yield from loss_findings(loss)


def _side(report: Report, side: Measured) -> Side:
    rank, times = side.ranks[0], side.times
    return Side(
        name=report.name,
        source=rank.source,
        rank=rank.rank,
        ranks=tuple(one.rank for one in side.ranks if one.rank is not None),
        verdict=report.verdict,
        gpu=report.environment.gpu,
        fp8_share_of_time=side.fp8_share if len(side.ranks) > 1 else layer_share(rank),
        step=StepTimes(
            measured=side.measured,
            steps=times.count,
            left_out=times.left_out,
            mean_us=round(times.mean_us, 3),
            deviation_us=None if times.deviation_us is None else round(times.deviation_us, 3),
            median_us=round(times.median_us, 3),
            min_us=round(times.min_us, 3),
            max_us=round(times.max_us, 3),
        ),
        flops_per_step=side.work,
    )
