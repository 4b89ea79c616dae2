"""Options that `inspect` and `run` share, and what both do with a finished report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from fp8verify.errors import UsageError
from fp8verify.model import Report
from fp8verify.verdict import Policy

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Output(NamedTuple):
    """Where a report goes and in which form; no file is standard output."""

    form: str
    file: Path | None
    verbose: bool


def _share(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Parse a share given as a fraction or in percent."""
    text = value.strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no share: pass 0.5 or 50%.") from None
    if not 0 <= share <= 1:
        raise click.BadParameter(f"{value!r} is not between 0 and 1 (0% and 100%).")
    return share


_OPTIONS = (
    click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the report.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the report to a file instead of standard output.",
    ),
    click.option(
        "--min-share",
        metavar="F",
        default="0.5",
        show_default=True,
        callback=_share,
        help="FP8 share of GEMM time that ACTIVE asks for: 0.5 or 50%.",
    ),
    click.option("--strict", is_flag=True, help="Exit with 1 on PARTIAL."),
    click.option("--exit-zero", is_flag=True, help="Report, and exit with 0 whatever the verdict."),
    click.option("-v", "--verbose", is_flag=True, help="Show every table, uncut."),
)


def report_options(command: _Command) -> _Command:
    """Add the options of a report to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def policy_of(options: dict[str, Any]) -> Policy:
    """Read the policy from the shared options."""
    return Policy(options["min_share"], options["strict"], options["exit_zero"])


def output_of(options: dict[str, Any]) -> Output:
    """Read the form and place of the report from the shared options."""
    return Output(options["form"], options["output"], options["verbose"])


def deliver(report: Report, output: Output) -> None:
    """Render a report and write it whole: a reader that goes away is no error."""
    text = _render(report, output)
    if output.file is not None:
        _write_file(output.file, text)
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every sign
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _render(report: Report, output: Output) -> str:
    if output.form == "json":
        from fp8verify.report.json_form import to_json

        return to_json(report)
    from fp8verify.report.text import to_text

    terminal = output.file is None and sys.stdout.isatty()
    return to_text(report, terminal=terminal, verbose=output.verbose)


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write the report to {path}: {error.strerror}",
            "Pass -o a file in a folder that exists and may be written.",
        ) from None
