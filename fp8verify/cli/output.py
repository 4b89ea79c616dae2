"""Where finished text goes, in which form, how wide, and with colours or without."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TextIO

import click

from fp8verify.cli.options import LEAST_WIDTH, MOST_WIDTH, REPORT_FORMS, ReportOptions
from fp8verify.errors import UsageError

if TYPE_CHECKING:
    from fp8verify.report.forms import Result
    from fp8verify.report.model import Report

_BY_SUFFIX = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".xml": "junit",
}


def form_of(given: str | None, output: Path | None, known: Collection[str]) -> str:
    """Return the form to write: `given`, else that of the suffix of `output`, else text.

    Raises:
        UsageError: the suffix is that of a form of other results.
    """
    if given is not None or output is None:
        return given or "text"
    by_suffix = _BY_SUFFIX.get(output.suffix.lower(), "text")
    if by_suffix in known:
        return by_suffix
    suffixes = [suffix for suffix, form in _BY_SUFFIX.items() if form in known]
    raise UsageError(
        f"{output} would be {by_suffix}, which this result has no form of.",
        f"Let the file end in {' '.join(suffixes)}, or pass --format.",
    )


def emit(text: str, file: Path | None, stream: TextIO | None = None) -> None:
    """Write text whole to `file`, or else to `stream`; a reader that goes away is not an error.

    Args:
        text: what to write.
        file: where to.
        stream: standard output if None; a stream that is closed gets nothing. What standard error
            cannot take, on a full disk, is lost: there is nowhere left to say so.

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
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write the report to {path}: {error.strerror}",
            "Pass -o a file in a folder that exists and may be written.",
        ) from None


class Screen(NamedTuple):
    """What the text is for.

    Attributes:
        terminal: whether it shows colours.
        width: its columns, None for the terminal's own.
    """

    terminal: bool
    width: int | None


def screen(file: object, width: int | None = None, stream: IO[str] | None = None) -> Screen:
    """Say what the text of a command is for.

    Colours are for terminals, and for pipes where FORCE_COLOR is set (force-color.org); a pipe is
    as wide as COLUMNS says.

    Args:
        file: the file that -o names; None for `stream`.
        width: what --width says.
        stream: where text without a file goes, standard output by default.
    """
    stream = stream or sys.stdout
    # Python has no stream where the descriptor is closed.
    terminal = file is None and stream is not None and stream.isatty()
    forced = file is None and bool(os.environ.get("FORCE_COLOR"))
    said = os.environ.get("COLUMNS", "")
    if width is None and said.isdecimal() and LEAST_WIDTH <= int(said) <= MOST_WIDTH:
        width = int(said)
    return Screen(terminal or forced, width or (None if terminal else 80))


def write_result(
    found: Result,
    form: str,
    output: Path | None,
    *,
    width: int | None,
    verbose: bool,
    quiet: bool = False,
    whole: str = "",
    stream: TextIO | None = None,
) -> None:
    """Render a result and write it whole.

    Args:
        found: the result.
        form: one of the result's forms; github also appends to the summary of the job.
        output: the file that -o names.
        width: what --width says.
        verbose: whether to show every table.
        quiet: whether to print at most four lines; a file gets the whole result all the same.
        whole: the command that prints the whole result.
        stream: where it goes without a file; standard output if None.
    """
    from fp8verify.report.forms import RenderOptions, brief, render

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if form == "github" and summary:
        _write_file(Path(summary), render(found, "markdown"), mode="a")
    if output is not None or not quiet or form != "text":
        terminal, columns = screen(output, width, stream)
        emit(render(found, form, RenderOptions(terminal, verbose, columns)), output, stream)
    if quiet and (output is not None or form == "text"):
        emit(brief(found, str(output or whole)), None, stream)


def write_report(
    report: Report, options: ReportOptions, again: str, stream: TextIO | None = None
) -> int:
    """Compare a report with baseline and format, write it, and return the exit code.

    Args:
        report: the finished report.
        options: what the user asked of it.
        again: the command that prints the whole report.
        stream: where it goes without `-o`; standard output if None.
    """
    gate = not options.exit_zero
    if options.baseline is not None:
        from fp8verify.verdict.baseline import hold

        report = hold(report, options.baseline, options.tolerance, gate=gate)
    if options.require_format is not None:
        from fp8verify.verdict.required_format import hold_format

        share = options.policy.share
        report = hold_format(report, options.require_format, share, gate=gate)
    write_result(
        report,
        form_of(options.form, options.output, REPORT_FORMS),
        options.output,
        width=options.width,
        verbose=options.verbose,
        quiet=options.quiet,
        whole=again,
        stream=stream,
    )
    if options.save_baseline is not None:
        _save_baseline(report, options.save_baseline)
    return report.exit_code


def _save_baseline(report: Report, path: Path) -> None:
    from fp8verify.verdict.baseline import can_be_baseline, write_baseline

    if can_be_baseline(report):
        write_baseline(report, path)
    else:
        click.echo(f"no baseline was saved: the run is {report.verdict.value}", err=True)
