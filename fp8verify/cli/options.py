"""Options that several commands share: what to record, and what to report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import click

from fp8verify.cli.option import FiniteFloat, option, width_option
from fp8verify.cli.output import REPORT_FORMS
from fp8verify.errors import UsageError
from fp8verify.verdict.policy import EXPECTED, FORMATS, Policy, parse_share

if TYPE_CHECKING:
    from fp8verify.verdict.baseline import Baseline

P = ParamSpec("P")
R = TypeVar("R")


_ATTACH_OPTIONS = (
    option(
        "--steps",
        metavar="A-B",
        help="Optimizer steps to record: 1-based, inclusive, counted from the start of this run. "
        "Several windows: 10-12,500-502; those that touch are one. Step A-1 warms the profiler up. "
        "global:5000-5002 goes by the framework's own numbers, which go on where a run resumes.  "
        "[default: three, once step times are stable]",
    ),
    option(
        "--after-seconds",
        type=FiniteFloat(min=0, max=1e9),
        metavar="S",
        help="Record the first steps that begin S seconds into the run; --steps is then their "
        "number.  [default: 3]",
    ),
    option(
        "--ranks",
        default="auto",
        show_default=True,
        metavar="LIST",
        help="Ranks to record: 0, all, 0,7 or every:64; auto is all of up to 8 ranks, and of more "
        "the first one of each node. The others note their modules only.",
    ),
    option(
        "--trace-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder for the capture; the nodes of one job may share it.  "
        "[default of run: fp8verify-capture-<time>-<pid> here]",
    ),
    option(
        "--job",
        metavar="NAME",
        help="The job whose nodes share --trace-dir.  "
        "[default: torchrun's --rdzv-id, Slurm's step]",
    ),
    option(
        "--layers",
        is_flag=True,
        help="Name the layer of every GEMM. A compiled model runs one step after the windows "
        "eagerly, with eager's rounding and memory.",
    ),
    option(
        "--no-shapes",
        is_flag=True,
        help="Do not record operator shapes: less memory, and windows end sooner.",
    ),
    option(
        "--debug",
        is_flag=True,
        help="Write what the agent did, with tracebacks, into the capture: debug.*.log. "
        "FP8VERIFY_DEBUG=1 does the same.",
    ),
)


def need_linux(command: str) -> None:
    """Check that trainings can be observed on this system.

    Raises:
        UsageError: they cannot.
    """
    try:
        import fcntl  # noqa: F401
        import termios  # noqa: F401
    except ImportError:
        is_linux = False
    else:
        is_linux = sys.platform == "linux" and hasattr(os, "fork")
    if not is_linux:
        raise UsageError(
            f"`fp8verify {command}` needs Linux.",
            "Record a trace there and read it here: inspect, compare, table, explain, annotate and "
            "doctor --config work on this system.",
        )


def attach_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options to a command."""
    for add in reversed(_ATTACH_OPTIONS):
        command = add(command)
    return command


class ReportOptions(NamedTuple):
    """What the user asks of a report, by the names of the parameters of `_REPORT_OPTIONS`."""

    form: str | None
    output: Path | None
    name: str | None
    min_share: float | str | None
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
        if isinstance(self.min_share, str):
            return Policy(None, self.strict, self.exit_zero, expected=True)
        return Policy(self.min_share, self.strict, self.exit_zero)


def _share(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | str | None:
    if value is None or value == EXPECTED:
        return value
    try:
        return parse_share(value)
    except ValueError as error:
        meant = f" Did you mean {value}%?" if _is_percent(value) else ""
        raise click.BadParameter(f"{error}{meant}") from None


def _is_percent(value: str) -> bool:
    try:
        return 1 < float(value) <= 100
    except ValueError:
        return False


def _baseline(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Baseline | None:
    """Read the baseline before anything else, so that a bad one fails before a long run."""
    if value is None:
        return None
    from fp8verify.verdict.baseline import read_baseline

    return read_baseline(value)


_REPORT_OPTIONS = (
    option(
        "--format",
        "form",
        type=click.Choice(REPORT_FORMS),
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
        help="Share of GEMM time in FP8 or FP4 that ACTIVE asks for, 0.9 or 90%, or `expected` for "
        "what census and log promise; given, less than that exits with 1.  [default: what is "
        "promised, else 0.5]",
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
        help="Print at most four lines: verdict, error, whether FP8 pays, where the report is.",
    ),
    width_option,
)


def report_options(command: Callable[Concatenate[ReportOptions, P], R]) -> Callable[P, R]:
    """Add the options of a report to a command, which gets them as its first argument."""

    @wraps(command)
    def with_options(*args: P.args, **given: P.kwargs) -> R:
        own: dict[str, Any] = {name: given.pop(name) for name in ReportOptions._fields}
        return command(ReportOptions(**own), *args, **given)

    for add in reversed(_REPORT_OPTIONS):
        with_options = add(with_options)
    return with_options


def parse_verdicts(text: str | None) -> frozenset[str]:
    """Return the verdicts of a list such as "CONTRADICTED,EMULATED".

    Raises:
        BadParameter: one is not a verdict.
    """
    if not text:
        return frozenset()
    from fp8verify.terms import Verdict  # every start of a run waits for this file

    names = frozenset(name.strip().upper() for name in text.split(",") if name.strip())
    known = [verdict.value for verdict in Verdict]
    for name in names.difference(known):
        raise click.BadParameter(f"{name[:40]!r} is none of {', '.join(known)}.")
    return names
