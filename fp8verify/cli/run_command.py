"""`fp8verify run`, the verdict on a window of steps, and `fp8verify env` for other launchers."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from fp8verify.cli.options import (
    PLACE,
    FiniteFloat,
    ReportOptions,
    attach_options,
    flag,
    need_linux,
    report_options,
    valued,
)
from fp8verify.errors import Fp8VerifyError, UsageError
from fp8verify.files import writing
from fp8verify.record.command import script_place

if TYPE_CHECKING:
    from fp8verify.record.runner import RunResult


_NO_REPORT = 3  # as where the evidence cannot decide
_INTERRUPTED = 128 + signal.SIGINT
_WINDOW = r"[0-9]{1,9}-[0-9]{1,9}"
_WINDOWS = (
    rf"(?:[0-9]{{1,9}},)*{_WINDOW}(?:,(?:{_WINDOW}|[0-9]{{1,9}}))*|global:[0-9,-]+"
)
_GROUPS = {
    "Record": "module steps after_seconds ranks trace_dir layers blas_log numerics numerics_every "
    "numerics_eager",
    "Watch": "every window metrics on_change stop_on",
    "Report": "form output name verbose quiet",
    "Exit code": "min_share require_format strict exit_zero save_baseline baseline tolerance",
}


class RunCommand(click.Command):
    """A command with options in groups, whose --steps may also come after the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a `--steps 10-12` and a `--` that follow the script, and say what is left to it."""
        if not ctx.resilient_parsing:
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            command = given.get("command_line")
            if isinstance(command, (tuple, list)):
                ours = args[: len(args) - len(command)]
                if ours[-1:] != ["--"]:  # the first one is ours, wherever it is
                    args = [
                        *ours,
                        *self._behind(ctx, command, has_steps=_has_steps(given)),
                    ]
        return super().parse_args(ctx, args)

    def _behind(
        self, ctx: click.Context, command: Sequence[str], *, has_steps: bool
    ) -> Iterator[str]:
        """Yield our `--steps` out of the words after a script, then the command without it."""
        script, words, rest = split_command(command)
        steps, words = (None, words) if has_steps else take_steps(words)
        if steps is not None:
            click.echo(
                f"fp8verify: takes --steps {steps} from behind the script", err=True
            )
            yield from ("--steps", steps)
        options = (one for one in self.get_params(ctx) if isinstance(one, click.Option))
        known = {name for option in options for name in option.opts}
        left = [
            word.partition("=")[0] for word in words if word.partition("=")[0] in known
        ]
        if left:
            click.echo(
                f"fp8verify: left to the script: {', '.join(dict.fromkeys(left))} "
                "(options of fp8verify come before it)",
                err=True,
            )
        yield from (*script, *words, *rest)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options by what they are for."""
        rows = {
            param.name or "": row
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx))
        }
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(name) for name in names.split()])
        with formatter.section("Advanced"):
            formatter.write_dl(list(rows.values()))


def _has_steps(given: dict[str, Any]) -> bool:
    return not {"steps", "after_seconds"}.isdisjoint(given)


def split_command(command: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return a command up to its script, the words after that, and what follows the first `--`.

    Behind a launcher the script is the first .py file or module.
    """
    words = list(command)
    script = script_place(words)
    if "--" in words[script:]:
        end = words.index("--", script)
    else:
        end = len(words)
    return words[: script + 1], words[script + 1 : end], words[end + 1 :]


def take_steps(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the first `--steps` that has the form of a window out of some words."""
    words = list(words)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals:
            value = "".join(words[at + 1 : at + 2])
        if name == "--steps" and re.fullmatch(_WINDOWS, value):
            return value, words[:at] + words[at + (1 if equals else 2) :]
    return None, words


def _parse_verdicts(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> frozenset[str]:
    """Return the verdicts of a list such as "CONTRADICTED,EMULATED"."""
    if not text:
        return frozenset()
    from fp8verify.terms import Verdict  # every start of a run waits for this file

    names = frozenset(name.strip().upper() for name in text.split(",") if name.strip())
    known = [verdict.value for verdict in Verdict]
    for name in names.difference(known):
        raise click.BadParameter(f"{name[:40]!r} is none of {', '.join(known)}.")
    return names


@click.command(
    "run", cls=RunCommand, context_settings={"allow_interspersed_args": False}
)
@attach_options
@flag(
    "--numerics",
    text="Measure flushing, clipping and noise (SQNR) of the FP8 casts of each layer's input, "
    "weight and gradient, in one step after the windows. Of compiled code only the weights and the "
    "norm of the gradients are measured.",
)
@valued(
    "--numerics-every N",
    type=click.IntRange(1, 10**9),
    text="Measure every N steps, for trends in a long run; implies --numerics.",
)
@flag(
    "--numerics-eager",
    text="Run each measured step of compiled code without torch.compile, to measure inputs and "
    "output gradients too. That step rounds otherwise, which changes the numbers of the run from "
    "then on, and takes the time and memory of eager mode; implies --numerics.",
)
@flag("--no-log", text="Do not record what the script prints.")
@valued(
    "--every N",
    type=click.IntRange(4, 10**9),
    text="Record a short window every N steps for the whole run, with a verdict on each during the "
    "run; --steps is then the first window. The exit code is that of the worst verdict.",
)
@valued(
    "--window K",
    type=click.IntRange(1, 1000),
    text="Steps in each window of --every.  [default: 2]",
)
@valued(
    "--metrics FILE",
    multiple=True,
    text="With --every: append a JSON line for each window to FILE. Repeatable.",
)
@valued(
    "--on-change CMD",
    text="With --every: run CMD in a shell when the verdict changes. FP8VERIFY_OLD_VERDICT, "
    "FP8VERIFY_NEW_VERDICT, FP8VERIFY_AT and FP8VERIFY_CAPTURE describe the change.",
)
@valued(
    "--stop-on VERDICTS",
    callback=_parse_verdicts,
    text="With --every: stop the script by SIGTERM at one of these verdicts, such as "
    "CONTRADICTED,EMULATED.",
)
@valued(
    "--max-trace-mb MB",
    type=click.IntRange(0, 10**9),
    default=2048,
    show_default=True,
    text="End a window whose trace would exceed this size before compression; 0: no limit.",
)
@valued(
    "--max-window-seconds S",
    type=FiniteFloat(min=0, max=1e9),
    default=900,
    show_default=True,
    text="End a window after S seconds, at the end of a step; 0: no limit.",
)
@valued(
    "--python PATH",
    text="Python for SCRIPT.py and -m.  [default: the active environment's]",
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@report_options
@click.help_option("-h", "--help")
@click.argument(
    "command_line", nargs=-1, required=True, metavar="SCRIPT.py [ARGS…]", type=PLACE
)
def run_command(
    command_line: tuple[str, ...],
    module: bool,
    every: int | None,
    window: int | None,
    metrics: tuple[str, ...],
    on_change: str | None,
    stop_on: frozenset[str],
    **given: Any,
) -> None:
    """Run a script unmodified, record a window of its steps, and verify it.

    \b
    fp8verify run train.py
    fp8verify run --steps 10-12 train.py --precision fp8
    fp8verify run -m package.train
    fp8verify run --every 1000 --window 2 --metrics fp8.jsonl -- train.py
    fp8verify run --min-share 90% -- torchrun --nproc-per-node 8 train.py

    Without --steps, three steps are recorded. Recording starts after five steps with stable step
    times and no compilation, at the latest at step 20 or after 120 s.

    Options come before the script. After the script, fp8verify takes only --steps with a window
    such as 10-12. Everything after the first -- belongs to the script.

    The script's output does not change; the report goes to standard error, or to a file with -o. If
    the script fails, its exit code and the recording are kept. Signals, such as Ctrl-C, reach the
    script as they would without fp8verify.
    """
    need_linux("run")
    from fp8verify.record.live import RunWatch, WindowReports, open_sink
    from fp8verify.record.runner import run_training
    from fp8verify.record.settings import read_settings

    options = ReportOptions.take(given)
    words = (["-m"] if module else []) + list(command_line)
    if every is None:
        _need_every(
            window=window, metrics=metrics, on_change=on_change, stop_on=stop_on
        )
        _settle_window(given)
    settings = read_settings(every=every, window=window, **given)
    _check_output(options.shown.output)
    watch = None
    if every is not None:
        sinks = [open_sink(what) for what in metrics]
        watch = RunWatch(settings, options.policy, sinks, on_change, stop_on)
    reports = WindowReports(
        settings, options.policy, prints=options.shown.output is None
    )
    result = run_training(words, settings, watch or reports, _leave_report)
    if not result.last:  # the report is for the one that ends last
        _ignore_interrupts()
        _exit(result, result.exit_code)
    with training_comes_first(
        result, debug=given["debug"], exit_zero=options.exit_zero
    ):
        # Only now: the analysis would make every run start a tenth of a second later.
        from fp8verify.cli.run_report import report_run

        code = report_run(result, options, words, watch, settings.ranks)
        _ignore_interrupts()
    _exit(result, code)


def _settle_window(given: dict[str, Any]) -> None:
    """Drop a window or a time of a settings file that the other one on the command line replaces.

    `--steps N` with a time is a number of steps, and no window.
    """
    steps = given["steps"]
    after_seconds = given["after_seconds"]
    if steps is None or after_seconds is None or steps.isdecimal():
        return
    if not _is_on_the_line("after_seconds"):
        given["after_seconds"] = None
    elif not _is_on_the_line("steps"):
        given["steps"] = None


def _need_every(**given: object) -> None:
    """Refuse options that are only for a run with `--every`, where the command line has them.

    Raises:
        UsageError: it has one.
    """
    for name, value in given.items():
        # A settings file may serve runs of both kinds.
        if value and _is_on_the_line(name):
            wanted = "--" + name.replace("_", "-")
            raise UsageError(
                f"{wanted} needs --every.", f"Such as --every 1000 {wanted} …."
            )


def _is_on_the_line(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def _check_output(path: Path | None) -> None:
    """Refuse a report's file that cannot be written, before the script starts.

    Raises:
        UsageError: its folder does not exist, or may not be written.
    """
    if path is not None and not os.access(
        path if path.exists() else path.parent, os.W_OK
    ):
        with writing("the report", path):
            raise OSError("it may not be written, or its folder does not exist")


@contextmanager
def training_comes_first(
    result: RunResult, *, debug: bool, exit_zero: bool = False
) -> Iterator[None]:
    """Turn an error of the report into a note and an exit code.

    Args:
        result: how the script ended; if it failed, its exit code stays.
        debug: whether to print the traceback of an error of ours.
        exit_zero: whether to exit with 0 if the script did.
    """
    from fp8verify.record.lines import say

    try:
        yield
    except Fp8VerifyError as error:
        say(f"there is no report: {error.fact}")
        if result.capture.exists():
            say(error.hint)
    except Exception as error:
        if debug:
            sys.excepthook(*sys.exc_info())
        say(
            f"there is no report: {type(error).__name__}: {error}. This is an error of fp8verify; "
            "run with --debug for the traceback."
        )
    else:
        return
    _exit(result, result.exit_code or (0 if exit_zero else _NO_REPORT))


def _exit(result: RunResult, code: int) -> NoReturn:
    """Exit as the script did, if its exit code is kept."""
    if result.signal is not None and code == result.exit_code:
        from fp8verify.record.signals import (
            end_by,
        )  # needs Linux, as the command says itself

        end_by(result.signal)
    sys.exit(code)


def _leave_report(result: RunResult) -> NoReturn:
    """Leave without a report on Ctrl-C, with the exit code of the script if it failed.

    The second one does so at once: Python drops what the first one raises if it comes amid a
    callback of the import system.
    """
    code = result.exit_code or _INTERRUPTED
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    atexit.register(_ignore_interrupts)  # at its end Python would give the signal back
    click.echo(f"\nNo report. To have it: fp8verify inspect {result.capture}", err=True)
    sys.exit(code)


def _ignore_interrupts() -> None:
    """Keep Ctrl-C from changing the exit code of a process that is about to exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@click.command("env")
@attach_options
def env_command(**given: Any) -> None:
    """Print environment variables that attach fp8verify to a job under srun, Ray or Kubernetes.

    \b
    eval "$(fp8verify env --steps 10-12 --trace-dir DIR)"
    srun python train.py
    fp8verify inspect DIR --log slurm-1.out

    Every Python process that has these variables and imports torch is recorded. DIR must be a new
    folder that all processes of the job can write to. For a notebook, set the variables before its
    kernel starts.
    """
    need_linux("env")
    from fp8verify.record.injection import export_line
    from fp8verify.record.settings import read_settings

    click.echo(export_line(read_settings(**given)))
