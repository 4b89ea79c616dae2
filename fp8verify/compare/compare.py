"""Hold two reports against each other."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fp8verify.compare.causes import not_paying
from fp8verify.compare.comparable import differ, obstacle
from fp8verify.compare.gemms import pair_gemms, pair_legs
from fp8verify.compare.layers import pair_layers
from fp8verify.compare.loss_findings import loss_findings
from fp8verify.compare.losses import pair_losses
from fp8verify.compare.measure import Measured, budget_rows
from fp8verify.compare.memory import memory_notes
from fp8verify.compare.notes import loss_notes, rank_notes, run_notes
from fp8verify.compare.ranks import pair_ranks, pick_ranks
from fp8verify.compare.speed import Speed, measure_speed, reason_of
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model import Finding, Report
from fp8verify.report.model.comparison import Comparison, LossPair, Outcome, Side
from fp8verify.report.tables import layer_share
from fp8verify.version import __version__

SCHEMA_VERSION = 2
NOT_COMPARABLE = 3


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
    names = (baseline.name, candidate.name)
    before, after = pick_ranks(baseline, candidate)
    loss = _loss(losses)
    reason = obstacle(before, after)
    if before is None or after is None or reason is not None:
        alike = not (before and after and differ(before, after))
        return _not_comparable(reason or "no rank to compare", names, loss, judged=alike)
    return replace(
        _compared(before, after, loss),
        names=names,
        baseline=_side(baseline, before),
        candidate=_side(candidate, after),
        ranks=pair_ranks(baseline, candidate),
        notes=(
            *run_notes(baseline, candidate),
            *rank_notes(before, after),
            *loss_notes(losses, loss, before, after),
            *memory_notes(baseline, candidate),
        ),
    )


def _loss(losses: tuple[LossSeries | None, LossSeries | None]) -> LossPair | None:
    before, after = losses
    return pair_losses(before, after) if before is not None and after is not None else None


def _not_comparable(
    reason: str, names: tuple[str, str], loss: LossPair | None, *, judged: bool
) -> Comparison:
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
        names=names,
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
    speed = measure_speed(before, after)
    return Comparison(
        schema_version=SCHEMA_VERSION,
        fp8verify_version=__version__,
        outcome=speed.outcome,
        reason=reason_of(speed, before, after),
        exit_code=0,
        speedup=round(speed.equal_work, 4),
        step_speedup=round(speed.steps, 4),
        busy_speedup=round(speed.busy, 4),
        work_ratio=None if speed.work_ratio is None else round(speed.work_ratio, 4),
        gemm_speedup=round(speed.gemms, 4),
        baseline=None,
        candidate=None,
        names=("", ""),
        budget=budget_rows(before, after),
        legs=pair_legs(before, after, speed.work),
        gemms=pair_gemms(before, after),
        layers=pair_layers(before, after),
        ranks=(),
        loss=loss,
        findings=tuple(_findings(before, after, speed, loss)),
        notes=(),
    )


def _findings(
    before: Measured, after: Measured, speed: Speed, loss: LossPair | None
) -> Iterator[Finding]:
    ran, had = (layer_share(side.rank) or 0.0 for side in (after, before))
    if speed.outcome is not Outcome.FASTER and ran > had:
        yield from not_paying(before, after, speed.work)
    if speed.work == 1.0:
        yield from loss_findings(loss)


def _side(report: Report, side: Measured) -> Side:
    return Side(
        name=report.name,
        source=side.rank.source,
        rank=side.rank.rank,
        verdict=report.verdict,
        gpu=report.environment.gpu,
        fp8_share_of_time=layer_share(side.rank),
        step=side.times,
        flops_per_step=side.work,
    )
