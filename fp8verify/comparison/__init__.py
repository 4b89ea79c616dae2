"""`fp8verify.compare` and `fp8verify.table`: runs by path or report in, one result out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import asdict, replace

from fp8verify.comparison import measure, speed
from fp8verify.comparison.losses import loss_findings, pair_losses
from fp8verify.comparison.measure import Measured
from fp8verify.errors import InputError, UsageError
from fp8verify.logs.losses import LossSeries, loss_expression, read_losses
from fp8verify.model.comparison import (
    ComparedSteps,
    LossPair,
    MemoryPair,
    Outcome,
    RunRow,
    Side,
)
from fp8verify.model.verdict import Finding
from fp8verify.pipeline.inspection import inspect, logs_of
from fp8verify.report.payoff import payoff
from fp8verify.report.results import Comparison, Report, RunTable
from fp8verify.report.sentences import configured_scalings, steps_shown
from fp8verify.terms import Severity
from fp8verify.text import counted
from fp8verify.thresholds import LEAST_STEPS, OTHER_FP8_SHARE, SAME_MEMORY
from fp8verify.trace.places import place, reading
from fp8verify.verdict.findings_table import finding
from fp8verify.version import __version__

Run = str | Path | Report
SCHEMA_VERSION = 3
TABLE_SCHEMA_VERSION = 1
_FAILED = 1
NOT_COMPARABLE = 3
_OTHER_WORK = (
    "a step of the candidate does {:.2f} times the work: equal steps are not equal tokens, and the "
    "gap of the losses is not judged"
)


def compare_reports(
    baseline: Report,
    candidate: Report,
    losses: tuple[LossSeries | None, LossSeries | None] = (None, None),
) -> Comparison:
    """Compare two runs of the same model over the ranks that both have.

    Args:
        baseline: the report on the run to compare with, BF16 as a rule.
        candidate: the report on the run in question.
        losses: the losses in each run's log, if any.
    """
    baseline_losses, candidate_losses = losses
    logged = (_logged_times(baseline_losses), _logged_times(candidate_losses))
    measured = measure.measure_runs(baseline, candidate, logged)
    if not isinstance(measured, str):
        measured = _obstacle(*measured) or measured
    if isinstance(measured, str):
        return Comparison(
            schema_version=SCHEMA_VERSION,
            fp8verify_version=__version__,
            outcome=Outcome.NOT_COMPARABLE,
            reason=measured,
            exit_code=NOT_COMPARABLE,
            names=(baseline.name, candidate.name),
        )
    before, after = measured
    ratio = speed.work_ratio(before, after)
    work = 1.0
    if ratio is not None and speed.differs(ratio):
        work = ratio
    memory = measure.pair_memory(baseline, candidate)
    measured_speed = speed.measure_speed(before, after, work)
    findings: list[Finding] = []
    if _is_too_slow(measured_speed, before, after):
        findings += speed.why_not_faster(before, after, work)
    notes = list(_run_notes(baseline, candidate, before, after))
    loss = None
    paired = pair_losses(baseline_losses, candidate_losses)
    if isinstance(paired, str):
        if paired:
            notes.append(paired)
    else:
        loss = paired
        if work == 1.0:
            findings += loss_findings(loss)
        else:
            notes.append(_OTHER_WORK.format(work))
    notes += memory_notes(memory)
    return Comparison(
        schema_version=SCHEMA_VERSION,
        fp8verify_version=__version__,
        reason=speed.reason_of(measured_speed, work, before, after),
        exit_code=0,
        names=(baseline.name, candidate.name),
        baseline=_side(baseline, before),
        candidate=_side(candidate, after),
        budget=measure.budget_rows(before, after),
        legs=measure.pair_legs(before, after, work),
        gemms=measure.pair_gemms(before, after),
        layers=measure.pair_layers(before, after),
        ranks=measure.pair_ranks(before, after),
        loss=loss,
        memory=memory,
        findings=tuple(findings),
        notes=tuple(notes),
        work_ratio=None if ratio is None else round(ratio, 4),
        **measured_speed._asdict(),
    )


def _logged_times(losses: LossSeries | None) -> Mapping[int, float]:
    if losses is None:
        return {}
    return losses.times_us


def _is_too_slow(
    found: speed.Speed,
    before: Measured,
    after: Measured,
) -> bool:
    """Whether the candidate is slower, or as fast though more of it runs in FP8."""
    if found.outcome is Outcome.SLOWER:
        return True
    more_fp8 = after.fp8_share > before.fp8_share + OTHER_FP8_SHARE
    return found.outcome is Outcome.SAME and more_fp8


def _obstacle(before: Measured, after: Measured) -> str | None:
    """Return why the runs cannot be compared, None if they can."""
    ours = measure.sizes(before)
    theirs = measure.sizes(after)
    if ours and theirs and not ours & theirs:
        return "the runs have no layer size in common: they train different models"
    if before.work and after.work:
        return None
    if "window" in (before.measured, after.measured):
        return "no steps were recorded, and without shapes the work of the windows is unknown"
    if speed.differs(after.gemms / before.gemms):
        return (
            f"a step runs {before.gemms:.0f} GEMMs in the baseline and {after.gemms:.0f} in the "
            "candidate, and without shapes their work is unknown"
        )
    return None


def _side(report: Report, side: Measured) -> Side:
    rank = side.ranks[0]
    figures = {}
    for name, value in asdict(side.times).items():
        if name.endswith("_us"):
            figures[name] = value and round(value, 3)
    step = ComparedSteps(
        measured=side.measured,
        steps=side.times.count,
        left_out=side.times.left_out,
        **figures,
    )
    return Side(
        name=report.name,
        source=rank.source,
        rank=rank.rank,
        ranks=tuple(rank.rank for rank in side.ranks if rank.rank is not None),
        verdict=report.verdict,
        gpu=report.environment.gpu,
        fp8_share_of_time=side.fp8_share,
        step=step,
        flops_per_step=side.work,
    )


# ---- what a reader has to know of the two runs apart from the figures


def _run_notes(
    baseline: Report,
    candidate: Report,
    before: Measured,
    after: Measured,
) -> Iterator[str]:
    """Yield how the runs, and the steps and GEMMs that are compared, differ."""
    baseline_gpu = baseline.environment.gpu
    candidate_gpu = candidate.environment.gpu
    if baseline_gpu != candidate_gpu:
        yield f"different GPUs: {baseline_gpu} and {candidate_gpu}"
    if len(baseline.ranks) != len(candidate.ranks):
        yield f"{len(baseline.ranks)} and {len(candidate.ranks)} ranks"
    for name, times in (("baseline", before.times), ("candidate", after.times)):
        if times.left_out:
            steps = counted(times.left_out, "step")
            yield f"{steps} of the {name} left out: longer than 1.5 times the median"
    fewest = min(before.times.count, after.times.count)
    if after.measured in ("gpu", "cpu") and fewest >= LEAST_STEPS:
        yield "step times were measured under the profiler, which slows the CPU"
    ours = measure.sizes(before)
    theirs = measure.sizes(after)
    if ours and theirs and ours != theirs:
        yield f"{len(ours ^ theirs)} layer sizes occur in only one run"
    if not (before.work and after.work):
        yield "no shapes were recorded: the same work is assumed for both runs"
    if after.fp8_share <= before.fp8_share:
        yield "the candidate's FP8 share is not above the baseline's"
    yield from speed.ranks_that_lost_fp8(before, after)


def memory_notes(memory: MemoryPair | None) -> list[str]:
    """Say why the fullest rank needs more memory."""
    if memory is None:
        return []
    usual = memory.baseline_allocated * (1 + SAME_MEMORY)
    if memory.candidate_allocated <= usual:
        return []
    return [f"memory: {line}" for line in memory.why]


# ---- runs by path, and what is demanded of them


def compare(
    baseline: Run,
    candidate: Run,
    *,
    baseline_log: str | Path | None = None,
    candidate_log: str | Path | None = None,
    loss_regex: str | None = None,
    min_speedup: float | None = None,
    max_loss_gap: float | str | None = None,
    workers: int | None = 1,
) -> Comparison:
    """Compare two runs: is the candidate faster, and where does the gain go?

    Args:
        baseline: the run to compare with, BF16 as a rule: a path as for `inspect`, or its report.
        candidate: the run in question.
        baseline_log: the baseline's log, for its losses, when it is not in the capture.
        candidate_log: the candidate's.
        loss_regex: finds the loss in a line of both logs: groups loss and, if it can, step.
        min_speedup: how many times as fast the candidate has to be, at equal work.
        max_loss_gap: by how much its loss may be above the baseline's: a number (on average over
            the steps), or a share such as "5%" (in the last half of the steps).
        workers: processes that read the ranks' traces; None for as many as pay.

    Raises:
        InputError: nothing there can be read as a trace or a log.
        UsageError: `loss_regex` or `max_loss_gap` is invalid.
    """
    gap = parse_gap(max_loss_gap)
    if loss_regex is None:
        own = None
    else:
        own = loss_expression(loss_regex)
    before, before_loss = _load(baseline, baseline_log, own, workers)
    after, after_loss = _load(candidate, candidate_log, own, workers)
    before, after = _named_apart((baseline, candidate), (before, after))
    found = compare_reports(before, after, (before_loss, after_loss))
    return apply_gate(found, min_speedup=min_speedup, max_loss_gap=gap)


def parse_gap(text: float | str | None) -> tuple[float, bool] | None:
    """Return a loss gap and whether it is relative: 0.05 is absolute, "5%" is a share.

    Raises:
        UsageError: it is neither a number nor a percentage, or below 0.
    """
    if text is None:
        return None
    written = str(text).strip()
    relative = written.endswith("%")
    with suppress(ValueError):
        gap = float(written.removesuffix("%")) / (100 if relative else 1)
        if 0 <= gap < math.inf:
            return gap, relative
    raise UsageError(
        f"--max-loss-gap {text} is neither a number nor a percentage",
        "Pass a difference of losses such as 0.05, or a share of the loss such as 5%.",
    )


def apply_gate(
    found: Comparison,
    *,
    min_speedup: float | None = None,
    max_loss_gap: tuple[float, bool] | None = None,
) -> Comparison:
    """Add a finding and the exit code 1 for each demand that is not met.

    Args:
        found: the comparison; of runs that cannot be compared it is returned as it is.
        min_speedup: how many times as fast the candidate has to be, at equal work.
        max_loss_gap: by how much its loss may be above the baseline's, and whether that is a share
            of the baseline's loss.
    """
    if found.outcome is Outcome.NOT_COMPARABLE:
        return found
    unmet: list[Finding] = []
    if min_speedup is not None:
        unmet += _too_slow(found.speedup, min_speedup)
    if max_loss_gap is not None:
        unmet += _loss_apart(found.loss, *max_loss_gap)
    if unmet:
        return replace(found, exit_code=_FAILED, findings=(*unmet, *found.findings))
    return found


def _too_slow(speedup: float | None, least: float) -> Iterator[Finding]:
    if speedup is None:
        yield finding("speedup-below-minimum", reached="unknown", least=least)
    elif speedup < least:
        reached = f"{speedup:.3f}x"
        yield finding("speedup-below-minimum", reached=reached, least=least)


def _loss_apart(
    loss: LossPair | None,
    most: float,
    relative: bool,
) -> Iterator[Finding]:
    if loss is None:
        yield finding("loss-gap-unknown")
        return
    if relative:
        gap = loss.relative_gap
        style = "+.2%"
        limit = f"{most:.3%}".rstrip("%0").rstrip(".") + " %"
    else:
        gap = loss.mean_gap
        style = "+.4f"
        limit = f"{most:g}"
    shown = "unknown" if gap is None else format(gap, style)
    broken = loss.first_bad_step is not None and loss.first_bad_run != "both"
    if broken:
        since = f"from step {loss.first_bad_step} on"
        shown = f"{shown}, and infinite or NaN in one run {since}"
    if broken or gap is None or gap > most:
        yield finding("loss-gap-too-large", gap=shown, most=limit)


def _load(
    run: Run,
    log: str | Path | None,
    own: re.Pattern[str] | None,
    workers: int | None,
) -> tuple[Report, LossSeries | None]:
    """Inspect one run and read the losses of its log, or of those in its capture."""
    if isinstance(run, Report):
        return run, None
    report = inspect(run, log=log, workers=workers)
    if report.measure != "time":
        raise InputError(
            f"{report.name} is the log of a BLAS library, which has no times to compare.",
            "Compare traces or captures; `fp8verify table` shows the shares of logs.",
        )
    with reading(str(log or run)):
        where = place(run)
        logs = logs_of(where if where.is_dir() else None, log)
        return report, read_losses(logs, own)


def _named_apart(given: Sequence[Run], reports: Sequence[Report]) -> list[Report]:
    """Return reports of different names: runs of one name are called by their paths."""
    names = [report.name for report in reports]
    renamed = []
    for run, report in zip(given, reports, strict=True):
        if isinstance(run, Report) or names.count(report.name) == 1:
            renamed.append(report)
        else:
            renamed.append(replace(report, name=str(run)))
    return renamed


# ---- many runs, one row each


def table(*runs: Run | Iterable[Run], workers: int | None = 1) -> RunTable:
    """Show many runs in one table, one row each: a sweep, or a week of CI.

    Args:
        runs: paths as for `inspect`, or reports, or lists of them.
        workers: processes that read the ranks' traces; None for as many as pay.

    Raises:
        InputError: nothing at one of the paths can be read as a trace.
    """
    given: list[Run] = []
    for run in runs:
        if isinstance(run, str | Path | Report):
            given.append(run)
        else:
            given += run
    reports = []
    for run in given:
        if isinstance(run, Report):
            reports.append(run)
        else:
            reports.append(inspect(run, workers=workers))
    rows = [_row(report) for report in _named_apart(given, reports)]
    return RunTable(
        schema_version=TABLE_SCHEMA_VERSION,
        fp8verify_version=__version__,
        exit_code=max((row.exit_code for row in rows), default=0),
        runs=tuple(rows),
    )


def _row(report: Report) -> RunRow:
    """Return what a table of runs shows of a report; times are of its first rank with GEMMs."""
    step_us = None
    gemm_us_per_step = None
    casts_share = None
    rank = next(filter(measure.is_known, report.ranks), None)
    if rank is not None:
        step_us = measure.profiled_step_us(rank)
        rank_gemm_us = sum(rank.gemm.time_us.values())
        gemm_us_per_step = round(rank_gemm_us / measure.steps_of(rank), 3)
        if rank.tax is not None:
            casts_share = rank.tax.share_of_gpu_time
    gemm = report.gemm
    gemm_us = sum(gemm.time_us.values())
    tflops = None
    if gemm.flops and gemm.flops_coverage >= 1 and gemm_us:
        tflops = round(sum(gemm.flops.values()) / gemm_us / 1e6, 1)
    estimate = payoff(report)
    severities = [finding.severity for finding in report.findings]
    return RunRow(
        name=report.name,
        verdict=report.verdict,
        reason=report.reason,
        exit_code=report.exit_code,
        gpu=report.environment.gpu,
        ranks=len(report.ranks),
        steps=steps_shown(report).removeprefix("steps ").removeprefix("step "),
        fp8_share_of_time=report.layer_share,
        lowest_rank_share=report.lowest_share,
        precisions=tuple(row.precision for row in report.layer_gemm.rows),
        scaling=configured_scalings(report) or tuple(report.recipe.time_us),
        step_us=step_us,
        gemm_us_per_step=gemm_us_per_step,
        tflops=tflops,
        casts_share_of_gpu_time=casts_share,
        speedup_estimate=estimate and estimate.speedup,
        speed="" if estimate is None else estimate.text,
        errors=severities.count(Severity.ERROR),
        warnings=severities.count(Severity.WARNING),
        software=dict(report.environment.versions),
    )
