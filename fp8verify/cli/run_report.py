"""The report of `fp8verify run`, imported only when the script has ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fp8verify.capture.files import find_logs, read_ranks
from fp8verify.capture.names import LOG
from fp8verify.cli.options import emit
from fp8verify.cli.shown_command import shown_command
from fp8verify.logs.failures import failure_notes, last_error
from fp8verify.pipeline.inspection import inspect
from fp8verify.preflight import explain_missing
from fp8verify.record.command import script_name
from fp8verify.record.compiled_code import code_of_run
from fp8verify.record.folder import CAPTURE, keep_report, remove_empty
from fp8verify.record.lines import own_line, say
from fp8verify.report.forms import render
from fp8verify.report.results import Report
from fp8verify.verdict.findings_table import finding

if TYPE_CHECKING:
    from fp8verify.cli.options import ReportOptions
    from fp8verify.record.live import RunWatch
    from fp8verify.record.runner import RunResult
    from fp8verify.record.settings import RankSelection

PAGE = "report.html"
MANY_CAPTURES = 5
_MAX_WORLD = 1 << 20
# Signals that others send, not the script's own faults.
_OF_OTHERS = frozenset(
    {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGXCPU}
)
_STOPPED = re.compile(r"KeyboardInterrupt\b|(?:\w+\.)*SignalException\b")


def report_run(
    result: RunResult,
    options: ReportOptions,
    words: list[str],
    watch: RunWatch | None,
    ranks: RankSelection,
) -> int:
    """Judge what a run recorded, deliver the report, and return the exit code of the command."""
    source = result.capture
    if watch is not None and watch.worst is not None:
        source = watch.worst
    report = _judged(result, options, words, watch, source)
    if is_for_other_ranks(result, ranks):
        report = replace(
            report, exit_code=0, exit_reason="the verdict is for other ranks"
        )
    # A run that we asked to stop did not fail.
    is_stopped = watch is not None and watch.stopped
    report = replace(
        report, training_exit_code=None if is_stopped else result.exit_code
    )
    again = ""
    whole = ""
    if result.is_empty:
        remove_empty(result.capture)
    else:
        again = shlex.join(["fp8verify", "inspect", _shown_path(source)])
        whole = _keep(report, source, result.capture, with_page=options.is_default)
    # Never the script's own standard output, even where standard error is closed.
    stream = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - until the exit
    if options.shown.output is None:
        emit(own_line(), None, stream)
        if not options.shown.quiet:
            _tell_of_many_captures(result.capture)
    options.write(report, whole or again, stream, whole, is_of_run=True)
    return report.training_exit_code or report.exit_code


def _judged(
    result: RunResult,
    options: ReportOptions,
    words: list[str],
    watch: RunWatch | None,
    source: Path,
) -> Report:
    """Return the report on what a run recorded, with how the run ended and its gates.

    Args:
        result: the run.
        options: of the report.
        words: the command of the script.
        watch: of the windows that were judged during the run, None without any.
        source: the capture to judge: the run's, or that of its worst window.
    """
    capture = result.capture
    notes: list[str] = []
    if result.exit_code:
        notes += failure_notes(find_logs(capture))
    if result.guess:
        notes.append(result.guess)
    notes += result.notes
    if watch is not None:
        notes += watch.notes
    log = capture / LOG  # which a window that was kept has not
    is_apart = source != capture and log.is_file()
    script = ""
    if _is_named_by_us(capture):
        script = script_name(words)
    report = inspect(
        source,
        log=log if is_apart else None,
        name=options.name or script or capture.name,
        policy=options.policy,
        run_notes=notes,
        code=code_of_run(os.environ),
    )
    report = explain_missing(report, words)
    report = _with_failure(report, result)
    environment = replace(report.environment, command=shown_command(words))
    report = replace(report, environment=environment)
    return options.gated(report)


def _is_named_by_us(capture: Path) -> bool:
    """Whether the user named no folder for a capture."""
    return capture.name.startswith(CAPTURE)


def _tell_of_many_captures(capture: Path) -> None:
    """Say how to remove captures, if there are many beside one whose folder we named."""
    if not _is_named_by_us(capture):
        return
    kept = len(list(capture.parent.glob(f"{CAPTURE}*")))
    if kept >= MANY_CAPTURES:
        place = _shown_path(capture.parent / CAPTURE)
        say(
            f"{kept} captures are here; to remove them all: rm -r {shlex.quote(place)}*"
        )


def _keep(report: Report, source: Path, capture: Path, *, with_page: bool) -> str:
    """Write a report into the capture that it is on; return the page's path, if there is one."""
    with suppress(OSError):
        keep_report(source, report.to_json())
    page = capture / PAGE
    if with_page:
        with suppress(OSError):
            page.touch(mode=0o600)  # as private as the log
            page.write_text(render(report, "html"), encoding="utf-8")
    return _shown_path(page) if with_page and page.is_file() else ""


def _shown_path(path: Path) -> str:
    """Return a path as the current folder sees it; one outside of that as it is."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith(os.pardir) else relative  # noqa: PTH100


def is_for_other_ranks(result: RunResult, ranks: RankSelection) -> bool:
    """Whether the verdict is not for this run: it has no rank that is recorded.

    Either its ranks have a folder each, or it is a task that shares one.
    """
    metas = read_ranks(result.capture)
    size = max((meta.world_size for meta in metas.values()), default=1)

    def any_recorded(among: Iterable[int]) -> bool:
        return any(ranks.includes(rank, size) for rank in among)

    if result.ranks and not any_recorded(result.ranks):
        return True
    return (
        bool(metas)
        and not any_recorded(metas)
        and any_recorded(range(min(_MAX_WORLD, size)))
    )


def _with_failure(report: Report, result: RunResult) -> Report:
    """Report a run that failed before its window, with how it ended and its own error."""
    if any(rank.health.kernels for rank in report.ranks):
        return report
    metas = read_ranks(result.capture).values()
    seen = max((meta.steps_seen for meta in metas), default=0)
    last = last_error(find_logs(result.capture))
    # A shell may have ignored the exit code of a script that took no step.
    if result.exit_code == 0 and (last is None or seen):
        return report
    ended = _ended(result)
    error = f": {last}" if last else ""
    is_outside = _is_from_outside(result, last)
    if seen:
        # A process that was killed could not write down its last steps.
        known = any(meta.ended and meta.steps_seen == seen for meta in metas)
        place = "" if known else "at or "
        own = finding(
            "window-not-complete",
            "outside" if is_outside else "failed",
            ended=ended,
            place=place,
            seen=seen,
            error=error,
        )
    else:
        own = finding(
            "no-training-step",
            "outside" if is_outside else "failed",
            ended=ended,
            error=error,
        )
    others = [one for one in report.findings if one.code != own.code]
    if len(others) == len(report.findings):
        return report
    notes = tuple(note for note in report.notes if note != result.guess)
    return replace(report, reason=own.message, findings=(own, *others), notes=notes)


def _is_from_outside(result: RunResult, last: str | None) -> bool:
    """Whether a scheduler, a user or the system ended a run, which has no error of its own.

    Launchers and shells end with 128 and the number of the signal that ended what they started.
    """
    number = result.signal
    if number is None:
        number = result.exit_code - 128
    return number in _OF_OTHERS and (last is None or _STOPPED.match(last) is not None)


def _ended(result: RunResult) -> str:
    if result.signal is None:
        return f"the run ended with exit code {result.exit_code}"
    name = signal.Signals(result.signal).name
    return f"the run was ended by {name} (exit code {result.exit_code})"
