"""Options that several commands share: what to record, what to report, and where to."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

import click

from fp8verify.errors import UsageError
from fp8verify.files import writing
from fp8verify.report import REPORT_FORMS
from fp8verify.text import clean
from fp8verify.verdict.policy import EXPECTED, FORMATS, Policy, parse_share

if TYPE_CHECKING:
    from fp8verify.report.results import Rendered, Report
    from fp8verify.verdict.gates import Baseline

C = TypeVar("C", bound=Callable[..., Any])
LEAST_WIDTH = 20  # narrower than this no figure has room
MOST_WIDTH = 1000

FILE = click.Path(dir_okay=False, path_type=Path)
# A path, a pattern, a URL or "-", which stays as it is typed; a shell completes files and folders.
PLACE = click.Path(readable=False)

_BY_SUFFIX = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".xml": "junit",
}


class FiniteFloat(click.FloatRange):
    """A number in a range; click takes `nan` for one in every range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number that the text means."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class _Valued(click.Option):
    """An option whose help leaves out the range of its value; an error names it."""

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """Return what the help adds in brackets."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


def added(*options: Callable[[Any], Any]) -> Callable[[C], C]:
    """Return a decorator that adds options to a command, in this order."""

    def add(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def flag(*names: str, text: str) -> Callable[[Any], Any]:
    """Return an option without a value; `text` is its help."""
    return click.option(*names, is_flag=True, help=text)


def valued(name: str, *parameter: str, text: str, **more: Any) -> Callable[[Any], Any]:
    """Return an option with a value.

    Args:
        name: the option and its value, as the help shows them: "--every N".
        parameter: the name of the command's parameter, if it is another.
        text: the help.
        more: other arguments of `click.option`.
    """
    option, _, metavar = name.partition(" ")
    return click.option(
        option, *parameter, metavar=metavar, help=text, cls=_Valued, **more
    )


def form_option(
    forms: Collection[str], text: str, default: str | None = None
) -> Callable[[C], C]:
    """Return --format; `text` is its help. Without a default the file's suffix says the form."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(list(forms)),
        default=default,
        show_default=default is not None,
        help=text,
    )


def output_option(text: str, metavar: str | None = None) -> Callable[[C], C]:
    """Return -o; `text` is its help."""
    return click.option("-o", "--output", type=FILE, metavar=metavar, help=text)


def result_options(forms: Collection[str], verbose: str) -> Callable[[C], C]:
    """Return --format, -o and -v; `verbose` says what the last one shows."""
    return added(
        form_option(
            forms, "Format of the result.  [default: by the suffix of -o; else text]"
        ),
        output_option("Write the result to a file instead of standard output."),
        flag("-v", "--verbose", text=verbose),
    )


attach_options = added(
    valued(
        "--steps A-B",
        text="Optimizer steps to record: 1-based, inclusive, counted from the start of this run. "
        "Several windows: 10-12,500-502; adjacent windows are joined. Step A-1 warms up the "
        "profiler. global:5000-5002 uses the framework's own step numbers, which continue when a "
        "run resumes.  "
        "[default: three, once step times are stable]",
    ),
    valued(
        "--after-seconds S",
        type=FiniteFloat(min=0, max=1e9),
        text="Record the first steps after S seconds of the run; --steps N is then the number of "
        "steps (default: 3).",
    ),
    valued(
        "--ranks LIST",
        default="auto",
        show_default=True,
        text="Ranks to record: 0, all, 0,7 or every:64; auto is every rank "
        "up to 8 ranks, else the first rank of each node. Other ranks record their modules only.",
    ),
    valued(
        "--trace-dir DIR",
        type=click.Path(file_okay=False, path_type=Path),
        text="Folder for the capture; the nodes of one job may share it.  "
        "[default of run: fp8verify-capture-SCRIPT-TIME-PID here]",
    ),
    valued(
        "--job NAME",
        text="Name of the job whose nodes share --trace-dir.  "
        "[default: torchrun's --rdzv-id, Slurm's step]",
    ),
    flag(
        "--layers",
        text="Name the layer of every GEMM of an eager model. Of compiled code the trace names "
        "no layers; there the report names them by size, as the list of modules has them.",
    ),
    flag(
        "--blas-log",
        text="Have cuBLASLt log its products in each window: the library's own word for the types "
        "of each GEMM that it computes. Other kernels (CUTLASS, Triton) are not in its log.",
    ),
    flag(
        "--no-shapes",
        text="Do not record operator shapes: windows need less memory and time.",
    ),
    flag(
        "--debug",
        text="Write what the agent did, with tracebacks, into the capture: debug.*.log. "
        "FP8VERIFY_DEBUG=1 does the same.",
    ),
)


def need_linux(command: str) -> None:
    """Check that runs can be observed on this system.

    Raises:
        UsageError: they cannot.
    """
    if sys.platform != "linux":
        raise UsageError(
            f"`fp8verify {command}` needs Linux.",
            "Record a trace there and read it here: inspect, compare, table, explain, annotate and "
            "doctor --config work on this system.",
        )


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


class ResultOptions(NamedTuple):
    """How and where to a result is written, by the names of the parameters of `result_options`."""

    form: str
    output: Path | None
    verbose: bool
    quiet: bool

    @classmethod
    def take(cls, given: dict[str, Any], forms: Collection[str]) -> ResultOptions:
        """Take these options out of a command's parameters.

        Args:
            given: the parameters.
            forms: the available formats.

        Raises:
            UsageError: the suffix of the file is another format's.
        """
        form, *others = (given.pop(name, False) for name in cls._fields)
        return cls(form or _form_of(others[0], forms), *others)

    def write(
        self,
        found: Rendered,
        whole: str = "",
        stream: TextIO | None = None,
        page: str = "",
        *,
        is_of_run: bool = False,
    ) -> None:
        """Render a result and write it whole.

        The format github also appends to the job's summary. With `quiet` at most four lines are
        printed, but a file gets the whole result.

        Args:
            found: the result.
            whole: the command that prints the whole result.
            stream: used without a file; standard output if None.
            page: the file that has the whole result already, which text then names.
            is_of_run: whether a run has just ended, whose standard error stays as without us.
        """
        from fp8verify.report.forms import brief, outcome, render

        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if self.form == "github" and summary:
            _write_file(Path(summary), render(found, "markdown"), mode="a")
        is_brief = self.quiet and (self.output is not None or self.form == "text")
        if self.output is not None or not is_brief:
            terminal, width = _screen(self.output, stream or sys.stdout)
            text = render(
                found,
                self.form,
                terminal=terminal,
                verbose=self.verbose,
                width=width,
                whole=page,
            )
            emit(text, self.output, stream)
        if is_brief:
            emit(brief(found, str(self.output or whole)), None, stream)
        elif self.output is not None and not is_of_run:
            # Not to standard output, which may be the file.
            emit(f"{self.output}: {outcome(found)}\n", None, sys.stderr)


def _form_of(output: Path | None, forms: Collection[str]) -> str:
    by_suffix = "text"
    if output:
        by_suffix = _BY_SUFFIX.get(output.suffix.lower(), "text")
    if by_suffix in forms:
        return by_suffix
    suffixes = [suffix for suffix, form in _BY_SUFFIX.items() if form in forms]
    raise UsageError(
        f"{output} would be {by_suffix}, which this result does not have.",
        f"Let the file end in {' '.join(suffixes)}, or pass --format.",
    )


class ReportOptions(NamedTuple):
    """The user's choices for a report, by the names of the parameters of `report_options`.

    Attributes:
        shown: its format and file.
        is_default: whether the user gave neither a format nor a file.
    """

    shown: ResultOptions
    is_default: bool
    name: str | None
    min_share: float | str | None
    require_format: str | None
    strict: bool
    exit_zero: bool
    save_baseline: Path | None
    baseline: Baseline | None
    tolerance: float

    @classmethod
    def take(cls, given: dict[str, Any]) -> ReportOptions:
        """Take these options out of a command's parameters."""
        is_default = given["form"] is None and given["output"] is None
        shown = ResultOptions.take(given, REPORT_FORMS)
        return cls(
            shown, is_default, **{name: given.pop(name) for name in cls._fields[2:]}
        )

    @property
    def policy(self) -> Policy:
        """How the verdict is judged and becomes an exit code."""
        if isinstance(self.min_share, str):
            return Policy(None, self.strict, self.exit_zero, expected=True)
        return Policy(self.min_share, self.strict, self.exit_zero)

    def gated(self, report: Report) -> Report:
        """Compare a report with the baseline and the format that the user asks for."""
        gate = not self.exit_zero
        if self.baseline is not None:
            from fp8verify.verdict.gates import gated, regressions

            report = gated(
                report, regressions(report, self.baseline, self.tolerance), gate=gate
            )
        if self.require_format is not None:
            from fp8verify.verdict.gates import gated, other_formats

            unmet = other_formats(report, self.require_format, self.policy.share)
            report = gated(report, unmet, gate=gate)
        return report

    def write(
        self,
        report: Report,
        again: str,
        stream: TextIO | None = None,
        page: str = "",
        *,
        is_of_run: bool = False,
    ) -> None:
        """Write a report, and save it as a baseline if the user asks for one.

        Args:
            report: the finished report.
            again: the command that prints the whole report.
            stream: used without `-o`; standard output if None.
            page: the file that has the whole report already.
            is_of_run: whether a run has just ended, whose standard error stays as without us.
        """
        self.shown.write(report, again, stream, page, is_of_run=is_of_run)
        if self.save_baseline is not None:
            is_told = not (is_of_run or self.shown.quiet)
            _save_baseline(report, self.save_baseline, is_told=is_told)


def _save_baseline(report: Report, file: Path, *, is_told: bool) -> None:
    from fp8verify.text import printable
    from fp8verify.verdict.gates import can_be_baseline, write_baseline

    if not can_be_baseline(report):
        refused = f"no baseline was saved: the run is {report.verdict.value}"
        click.echo(refused, err=True)
        return
    write_baseline(report, file)
    if is_told:
        click.echo(f"{printable(str(file))}: baseline saved", err=True)


def _parse_share(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> float | str | None:
    if value is None or value == EXPECTED:
        return value
    try:
        return parse_share(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _read_baseline(
    _ctx: click.Context, _param: click.Parameter, value: Path | None
) -> Baseline | None:
    """Read the baseline before anything else, so a bad one fails before a long run."""
    if value is None:
        return None
    from fp8verify.verdict.gates import read_baseline

    return read_baseline(value)


report_options = added(
    form_option(
        REPORT_FORMS,
        "Format of the report; github also appends to the job's summary.  "
        "[default: by the suffix of -o: .html .json .md .csv .xml; else text]",
    ),
    output_option(
        "Write the report to a file instead of standard output (run: standard error)."
    ),
    valued(
        "--name NAME",
        callback=lambda _, __, given: given and clean(given),
        text="Name of the run in the report.  [default: folder or file]",
    ),
    valued(
        "--min-share F",
        callback=_parse_share,
        text="Minimum share of GEMM time in FP8 or FP4 for ACTIVE: 0.9, 90%, or `expected`, the "
        "share that follows from modules and log. If given, a smaller share exits with 1.  "
        "[default: the expected share, else 0.5]",
    ),
    click.option(
        "--require-format",
        type=click.Choice(FORMATS),
        help="Exit with 1 unless --min-share of every rank's GEMM time ran in this format, with "
        "3 if kernels of unknown format leave that open.",
    ),
    flag("--strict", text="Exit with 1 on PARTIAL."),
    flag("--exit-zero", text="Exit with 0 whatever the verdict."),
    valued(
        "--save-baseline FILE",
        type=FILE,
        text="Save the FP8 shares of the run, of its legs and its layers, and which library "
        "ran each GEMM, for --baseline.",
    ),
    valued(
        "--baseline FILE",
        type=FILE,
        callback=_read_baseline,
        text="Exit with 1 if the FP8 share, a leg or a layer is below this saved baseline, or if "
        "GEMMs left their library for a slower one.",
    ),
    valued(
        "--tolerance F",
        default="2%",
        show_default=True,
        callback=_parse_share,
        text="Percentage points by which a share may be below the baseline.",
    ),
    flag("-v", "--verbose", text="Show every table in full."),
    flag(
        "-q",
        "--quiet",
        text="Print at most four lines: verdict, reason, error or speed, exit code.",
    ),
)
