"""What `inspect` and `run` do with a finished report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from fp8verify.cli.options import ReportOptions
from fp8verify.cli.output import emit, form_of, screen, write_file
from fp8verify.report import forms
from fp8verify.report.forms import RenderOptions

if TYPE_CHECKING:
    from fp8verify.report.model import Report


def write_report(
    report: Report, options: ReportOptions, again: str, stream: TextIO | None = None
) -> int:
    """Hold a report against baseline and format, deliver it, and return the exit code.

    Args:
        report: the finished report.
        options: what the user asked of it.
        again: the command that prints the whole report.
        stream: where it goes without `-o`; standard output if None.
    """
    if options.baseline is not None:
        from fp8verify.verdict.baseline import hold

        gate = not options.exit_zero
        report = hold(report, options.baseline, options.tolerance, gate=gate)
    if options.require_format is not None:
        from fp8verify.verdict.required_format import hold_format

        gate = not options.exit_zero
        share = options.policy.share
        report = hold_format(report, options.require_format, share, gate=gate)
    _deliver(report, options, again, stream or sys.stdout)
    if options.save_baseline is not None:
        _save_baseline(report, options.save_baseline)
    return report.exit_code


def _save_baseline(report: Report, path: Path) -> None:
    from fp8verify.verdict.baseline import can_be_baseline, write_baseline

    if can_be_baseline(report):
        write_baseline(report, path)
    else:
        click.echo(f"no baseline was saved: the run is {report.verdict.value}", err=True)


def _deliver(report: Report, options: ReportOptions, again: str, stream: TextIO | None) -> None:
    """Render a report and write it whole: a reader that goes away is not an error."""
    form = form_of(options.form, options.output, forms.NAMES)
    if form == "github":
        _append_summary(report)
    if options.output is not None or not options.quiet or form != "text":
        terminal, width = screen(options.output, options.width, stream)
        text = forms.render(report, form, RenderOptions(terminal, options.verbose, width))
        emit(text, options.output, stream)
    if options.quiet and (options.output is not None or form == "text"):
        emit(forms.brief(report, str(options.output or again)), None, stream)


def _append_summary(report: Report) -> None:
    """Append to the job summary, where GitHub Actions says there is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        write_file(Path(path), forms.render(report, "markdown"), mode="a")
