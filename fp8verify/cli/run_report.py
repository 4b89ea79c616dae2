"""The report of `fp8verify run`, imported only when the training has ended."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fp8verify.analysis.inspection import inspect
from fp8verify.capture.ranks import is_left_out, read_ranks
from fp8verify.cli.conclusion import conclude
from fp8verify.cli.failed_run import with_failure
from fp8verify.doctor.afterwards import explain_missing, failure_notes, with_what_was_possible
from fp8verify.record.live.window_report import keep_report, log_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fp8verify.cli.options import ReportOptions
    from fp8verify.record.live.run_watch import RunWatch
    from fp8verify.record.settings import RunResult


def report_run(
    result: RunResult, options: ReportOptions, words: list[str], watch: RunWatch | None
) -> int:
    """Judge what a run recorded, deliver the report, and return its exit code."""
    notes = (*failure_notes(result.capture, result.exit_code), *result.notes)
    if watch is not None:
        notes = (*notes, *watch.notes)
    source = watch.worst if watch is not None and watch.worst is not None else result.capture
    log = None if source == result.capture else log_of(result.capture)
    name = options.name or result.capture.name
    report = inspect(source, log=log, name=name, policy=options.policy, run_notes=notes)
    report = with_what_was_possible(explain_missing(report, words))
    report = with_failure(report, result.capture, result.exit_code)
    report = replace(report, training_exit_code=result.exit_code)
    keep_report(source, report)
    again = shlex.join(["fp8verify", "inspect", os.path.relpath(source)])
    # Never the training's own standard output, even where standard error is closed.
    stream = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - until the exit
    return conclude(report, options, again, stream)


def is_for_other_ranks(result: RunResult, includes: Callable[[int], bool]) -> bool:
    """Whether the verdict is not for this run: it has no rank that is recorded.

    Either its ranks have a folder each, or it is a task that shares one.
    """
    recorded = any(map(includes, result.ranks)) or not result.ranks
    return is_left_out(read_ranks(result.capture).values(), includes) or not recorded
