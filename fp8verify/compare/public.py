"""`fp8verify.compare` and `fp8verify.table`: runs by path or report in, one result out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from fp8verify.analysis.inspection import inspect
from fp8verify.compare.compare import compare as compare_reports
from fp8verify.compare.gates import hold
from fp8verify.compare.inputs import distinct_names, load
from fp8verify.compare.runs import run_row
from fp8verify.logs.losses import PATTERNS, LossPattern, LossSeries, compile_loss_regex
from fp8verify.report.model import Report
from fp8verify.report.public import Comparison, RunTable, with_forms
from fp8verify.version import __version__

Run = str | Path | Report
TABLE_SCHEMA_VERSION = 1


def compare(
    baseline: Run,
    candidate: Run,
    *,
    baseline_log: str | Path | None = None,
    candidate_log: str | Path | None = None,
    loss_regex: str | None = None,
    min_speedup: float | None = None,
    max_loss_gap: float | None = None,
    workers: int | None = 1,
) -> Comparison:
    """Hold two runs against each other: is the candidate faster, and where does the gain go?

    Args:
        baseline: the run to compare with, BF16 as a rule: a path as for `inspect`, or its report.
        candidate: the run in question.
        baseline_log: the baseline's log, for its losses, when it is not in the capture.
        candidate_log: the candidate's.
        loss_regex: where a log line has the loss: named groups loss and, if it can, step.
        min_speedup: how many times as fast the candidate has to be, at equal work.
        max_loss_gap: by how much its loss may lie above the baseline's, on average.
        workers: processes that read the ranks' traces; None for as many as pay.

    Raises:
        InputError: nothing there can be read as a trace or a log.
        UsageError: `loss_regex` is none.
    """
    patterns = PATTERNS if loss_regex is None else (compile_loss_regex(loss_regex),)
    before, before_loss = _load(baseline, baseline_log, patterns, workers)
    after, after_loss = _load(candidate, candidate_log, patterns, workers)
    found = compare_reports(before, after, (before_loss, after_loss))
    old, new = distinct_names(((baseline, before), (candidate, after)))
    found = replace(found, names=(old, new))
    if found.baseline is not None and found.candidate is not None:
        found = replace(
            found,
            baseline=replace(found.baseline, name=old),
            candidate=replace(found.candidate, name=new),
        )
    held = hold(found, min_speedup=min_speedup, max_loss_gap=max_loss_gap)
    return with_forms(Comparison, held)


def _load(
    run: Run, log: str | Path | None, patterns: tuple[LossPattern, ...], workers: int | None
) -> tuple[Report, LossSeries | None]:
    if isinstance(run, Report):
        return run, None
    return load(str(run), None if log is None else str(log), patterns, workers=workers)


def _listed(runs: Run | Iterable[Run]) -> Iterable[Run]:
    return runs if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]


def table(*runs: Run | Iterable[Run], workers: int | None = 1) -> RunTable:
    """Lay many runs side by side, one row each: a sweep, or a week of CI at a glance.

    Args:
        runs: paths as for `inspect`, or reports, or lists of them.
        workers: processes that read the ranks' traces; None for as many as pay.

    Raises:
        InputError: nothing at one of the paths can be read as a trace.
    """
    given = list(chain.from_iterable(map(_listed, runs)))
    reports = [run if isinstance(run, Report) else inspect(run, workers=workers) for run in given]
    names = distinct_names(tuple(zip(given, reports, strict=True)))
    rows = tuple(run_row(report, name) for report, name in zip(reports, names, strict=True))
    return RunTable(
        schema_version=TABLE_SCHEMA_VERSION,
        fp8verify_version=__version__,
        exit_code=max((row.exit_code for row in rows), default=0),
        runs=rows,
    )
