"""Lay evidence and judgement out as the report."""

from __future__ import annotations

from collections.abc import Sequence

from fp8verify.analysis.assembly.diagnosis import (
    communication_report,
    layers_report,
    named_layers_report,
    payoff_report,
    tax_report,
)
from fp8verify.analysis.assembly.gemms import gemm_summary, kernel_rows, leg_rows, recipe_seen
from fp8verify.analysis.assembly.memory import memory_report
from fp8verify.analysis.assembly.recorded import (
    clock_report,
    environment,
    modules_report,
    step_reports,
    steps_outside,
    timeline_report,
)
from fp8verify.analysis.assembly.units import micros
from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import numerics_report
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.totals import add_totals, gemm_totals
from fp8verify.analysis.without_operators import unplaced_ns
from fp8verify.report.model import Finding, HealthReport, RankReport, Report, Verdict
from fp8verify.report.model.diagnosis import ExpectedReport
from fp8verify.trace import Health
from fp8verify.verdict.judge import Assessment
from fp8verify.version import __version__

SCHEMA_VERSION = 2


def assemble(
    ranks: Sequence[RankFacts],
    assessed: Sequence[Assessment],
    findings: tuple[Finding, ...],
    promises: Promises,
    notes: Sequence[str] = (),
    *,
    name: str,
) -> Report:
    """Lay out the facts of all ranks as a report whose verdict is still open.

    Args:
        ranks: the facts.
        assessed: what the findings settle for each rank.
        findings: on all ranks.
        promises: what the log and the model promised.
        notes: remarks on what was read and recorded.
        name: what the run is called.
    """
    surveys = [facts.rank.survey for facts in ranks]
    gemms = [row for survey in surveys for row in survey.gemms]
    optimizer = [row for survey in surveys for row in survey.optimizer]
    attention = [row for survey in surveys for row in survey.attention]
    untrained = [row for survey in surveys for row in survey.untrained]
    return Report(
        schema_version=SCHEMA_VERSION,
        name=name,
        fp8verify_version=__version__,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        exit_code=0,
        fails=False,
        gemm=gemm_summary(add_totals(facts.rank.gemm for facts in ranks)),
        attention_gemm=gemm_summary(gemm_totals(attention)),
        untrained_gemm=gemm_summary(gemm_totals(untrained)),
        optimizer_gemm=gemm_summary(gemm_totals(optimizer)),
        gpu_time_us=_gpu_time(ranks),
        legs=leg_rows([*gemms, *optimizer]),
        recipe=recipe_seen(gemms),
        ranks=tuple(
            _rank_report(facts, found, promises)
            for facts, found in zip(ranks, assessed, strict=True)
        ),
        claims=promises.claims,
        findings=findings,
        environment=environment([facts.rank for facts in ranks]),
        notes=tuple(notes),
    )


def _gpu_time(ranks: Sequence[RankFacts]) -> dict[str, float]:
    return {key: micros(sum(f.gpu_time[key] for f in ranks)) for key in ranks[0].gpu_time}


def _rank_report(facts: RankFacts, assessed: Assessment, promises: Promises) -> RankReport:
    rank, settled = facts.rank, assessed.settled
    return RankReport(
        rank=rank.rank,
        source=rank.source,
        verdict=settled.verdict if settled else Verdict.INCONCLUSIVE,
        reason=settled.reason if settled else "",
        settled=settled is not None,
        shortfall=assessed.shortfall,
        rest=assessed.rest,
        gemm=gemm_summary(rank.gemm),
        attention_gemm=gemm_summary(gemm_totals(rank.survey.attention)),
        untrained_gemm=gemm_summary(gemm_totals(rank.survey.untrained)),
        optimizer_gemm=gemm_summary(gemm_totals(rank.survey.optimizer)),
        opaque_us=micros(sum(total.time_ns for total in rank.unrecognized)),
        unplaced_us=micros(unplaced_ns(rank, promises)),
        judged=assessed.judged,
        expected=None
        if facts.expected is None
        else ExpectedReport(
            share_of_flops=facts.expected.share,
            measured_share_of_flops=facts.expected.measured,
            left_out=facts.expected.left_out,
            stated=facts.expected.stated,
        ),
        gpu_time_us={key: micros(ns) for key, ns in facts.gpu_time.items()},
        copy_time_us={name: micros(copy[1]) for name, copy in rank.copies.items()},
        legs=leg_rows([*rank.survey.gemms, *rank.survey.optimizer]),
        recipe=recipe_seen(rank.survey.gemms),
        steps=step_reports(rank),
        timelines=tuple(map(timeline_report, rank.buckets)),
        kernels=kernel_rows(rank.survey, rank.gpu),
        communication=communication_report(rank),
        tax=tax_report(facts.payoff),
        payoff=payoff_report(facts.payoff),
        layers=layers_report(facts),
        named_layers=named_layers_report(facts),
        modules=modules_report(rank.meta),
        numerics=numerics_report(rank),
        memory=memory_report(rank.meta),
        steps_outside=steps_outside(rank.meta),
        health=_health_report(rank.health),
        clock=clock_report(rank.meta),
    )


def _health_report(health: Health) -> HealthReport:
    return HealthReport(
        events=health.events,
        skipped_events=health.skipped_events,
        truncated=health.truncated,
        kernels=health.kernels,
        kernels_without_launch=health.kernels_without_launch,
        kernels_without_op=health.kernels_without_op,
        kernels_before_window=health.kernels_before_window,
        bad_durations=health.bad_durations,
        notes=tuple(health.notes),
    )
