"""Options that `inspect` and `run` share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import click

from fp8verify.cli.option import option, width_option
from fp8verify.report import forms
from fp8verify.verdict.policy import FORMATS, Policy
from fp8verify.verdict.shares import parse_share

if TYPE_CHECKING:
    from fp8verify.verdict.baseline import Baseline

P = ParamSpec("P")
R = TypeVar("R")


class ReportOptions(NamedTuple):
    """What the user asks of a report: the values of `_OPTIONS`, by the names of its parameters."""

    form: str | None
    output: Path | None
    name: str | None
    min_share: float | None
    require_format: str | None
    strict: bool
    exit_zero: bool
    save_baseline: Path | None
    baseline: Baseline | None
    tolerance: float
    verbose: bool
    quiet: bool
    width: int | None

    @property
    def policy(self) -> Policy:
        """How the verdict is judged and becomes an exit code."""
        return Policy(self.min_share, self.strict, self.exit_zero)


def _share(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return parse_share(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _baseline(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Baseline | None:
    """Read the baseline before anything else, so that a bad one fails before a long run."""
    if value is None:
        return None
    from fp8verify.verdict.baseline import read_baseline

    return read_baseline(value)


_OPTIONS = (
    option(
        "--format",
        "form",
        type=click.Choice(forms.NAMES),
        help="Form of the report; github also appends to the job's summary.  "
        "[default: as -o ends: .html .json .md .csv .xml; else text]",
    ),
    option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the report to a file instead of standard output (run: standard error).",
    ),
    option(
        "--name", metavar="NAME", help="What the report calls the run.  [default: folder or file]"
    ),
    option(
        "--min-share",
        metavar="F",
        callback=_share,
        help="Share of GEMM time in FP8 or FP4 that ACTIVE asks for, 0.9 or 90%; given, less than "
        "that exits with 1.  [default: 0.5]",
    ),
    option(
        "--require-format",
        type=click.Choice(FORMATS),
        help="Exit with 1 unless --min-share of every rank's GEMM time ran in this format.",
    ),
    option("--strict", is_flag=True, help="Exit with 1 on PARTIAL."),
    option("--exit-zero", is_flag=True, help="Report, and exit with 0 whatever the verdict."),
    option(
        "--save-baseline",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keep the FP8 share, legs and layers of this run for --baseline.",
    ),
    option(
        "--baseline",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        callback=_baseline,
        help="Exit with 1 if the FP8 share, a leg or a layer fell below this saved state.",
    ),
    option(
        "--tolerance",
        metavar="F",
        default="2%",
        show_default=True,
        callback=_share,
        help="Points by which a share may fall below the baseline.",
    ),
    option("-v", "--verbose", is_flag=True, help="Show every table, uncut."),
    option(
        "-q",
        "--quiet",
        is_flag=True,
        help="Print at most four lines: verdict, share, whether FP8 pays, where the report is.",
    ),
    width_option,
)


def report_options(command: Callable[Concatenate[ReportOptions, P], R]) -> Callable[P, R]:
    """Add the options of a report to a command, which gets them as its first argument."""

    @wraps(command)
    def with_options(*args: P.args, **given: P.kwargs) -> R:
        own: dict[str, Any] = {name: given.pop(name) for name in ReportOptions._fields}
        return command(ReportOptions(**own), *args, **given)

    for add in reversed(_OPTIONS):
        with_options = add(with_options)
    return with_options
