"""Where finished text goes, in which form, how wide, and with colors or without."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

import click

from fp8verify.cli.options import ReportOptions, ResultOptions
from fp8verify.files import writing

if TYPE_CHECKING:
    from fp8verify.report.model.report import Rendered, Report

LEAST_WIDTH, MOST_WIDTH = 20, 1000  # narrower than this no figure has room


def emit(text: str, file: Path | None, stream: TextIO | None = None) -> None:
    """Write text whole to `file`, or else to `stream`; a reader that goes away is not an error.

    Args:
        text: what to write.
        file: where to.
        stream: standard output if None; a closed stream gets nothing. If standard error cannot be
            written (a full disk), the text is lost.

    Raises:
        UsageError: the file cannot be written.
    """
    if file is not None:
        _write_file(file, text)
        return
    stream = stream or sys.stdout
    if stream is None:  # as Python has it where the descriptor is closed
        return
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")  # a terminal may not know every sign
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and stream is not sys.stderr:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write_file(path: Path, text: str, mode: str = "w") -> None:
    with writing("the report", path), path.open(mode, encoding="utf-8") as file:
        file.write(text)


def _screen(file: object, stream: IO[str] | None) -> tuple[bool, int | None]:
    """Return whether text shows colors, and its width; None for the terminal's own.

    Colors are for terminals, and for pipes where FORCE_COLOR is set (force-color.org); a pipe is
    as wide as COLUMNS says.
    """
    # Python has no stream where the descriptor is closed.
    terminal = file is None and stream is not None and stream.isatty()
    forced = file is None and bool(os.environ.get("FORCE_COLOR"))
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and LEAST_WIDTH <= int(said) <= MOST_WIDTH:
        return terminal or forced, int(said)
    return terminal or forced, None if terminal else 80


def write_result(
    found: Rendered,
    options: ResultOptions,
    whole: str = "",
    stream: TextIO | None = None,
    page: str = "",
) -> None:
    """Render a result and write it whole.

    Args:
        found: the result.
        options: format and file; the format github also appends to the job's summary; with
            `quiet` at most four lines are printed, but a file gets the whole result.
        whole: the command that prints the whole result.
        stream: used without a file; standard output if None.
        page: the file that has the whole result already, which text then names.
    """
    from fp8verify.report.forms import brief, render

    form, output, quiet = options.form, options.output, options.quiet
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if form == "github" and summary:
        _write_file(Path(summary), render(found, "markdown"), mode="a")
    if output is not None or not quiet or form != "text":
        terminal, width = _screen(output, stream or sys.stdout)
        how = {"terminal": terminal, "verbose": options.verbose}
        emit(render(found, form, width=width, whole=page, **how), output, stream)
    if quiet and (output is not None or form == "text"):
        emit(brief(found, str(output or whole)), None, stream)


def apply_gates(report: Report, options: ReportOptions) -> Report:
    """Compare a report with the baseline and the format that the user asks for."""
    gate = not options.exit_zero
    if options.baseline is not None:
        from fp8verify.verdict.gates import check_baseline

        report = check_baseline(report, options.baseline, options.tolerance, gate=gate)
    if options.require_format is not None:
        from fp8verify.verdict.gates import check_format

        share = options.policy.share
        report = check_format(report, options.require_format, share, gate=gate)
    return report


def write_report(
    report: Report,
    options: ReportOptions,
    again: str,
    stream: TextIO | None = None,
    page: str = "",
) -> None:
    """Write a report, and save it as a baseline if the user asks for one.

    Args:
        report: the finished report.
        options: the user's choices.
        again: the command that prints the whole report.
        stream: used without `-o`; standard output if None.
        page: the file that has the whole report already.
    """
    write_result(report, options.shown, again, stream, page)
    if options.save_baseline is not None:
        from fp8verify.verdict.gates import can_be_baseline, write_baseline

        if can_be_baseline(report):
            write_baseline(report, options.save_baseline)
        else:
            click.echo(f"no baseline was saved: the run is {report.verdict.value}", err=True)
