"""`fp8verify run`: record a window of a training and give the verdict on it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from fp8verify.cli.after_script import RunCommand
from fp8verify.cli.attach_options import attach_options
from fp8verify.cli.completing import files
from fp8verify.cli.interrupts import no_more_interrupts, report_can_be_interrupted
from fp8verify.cli.option import FiniteFloat, help_option, option
from fp8verify.cli.options import ReportOptions, report_options
from fp8verify.cli.training_first import training_comes_first
from fp8verify.cli.verdict_names import parse_verdicts
from fp8verify.errors import UsageError
from fp8verify.live.at_close import judged_at_close, keep_report, log_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fp8verify.live.run_watch import RunWatch
    from fp8verify.live.sinks import Sink
    from fp8verify.runner.settings import RunResult


@click.command(
    "run",
    cls=RunCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@attach_options
@option(
    "--numerics",
    is_flag=True,
    help="Measure input, weight and gradient of every FP8 layer in one step after the windows, "
    "which compiled models run eagerly: what the cast flushes, clips and loses.",
)
@option(
    "--numerics-every",
    type=click.IntRange(1, 10**9),
    metavar="N",
    help="Measure again every N steps, for trends of a long run; implies --numerics.",
)
@option("--no-log", is_flag=True, help="Do not capture what the training prints.")
@option(
    "--every",
    type=click.IntRange(4, 10**9),
    metavar="N",
    help="Record a short window every N steps for the whole run, and judge each while the training "
    "goes on; --steps is then the first window. The exit code is the worst verdict's.",
)
@option(
    "--window",
    type=click.IntRange(1, 1000),
    metavar="K",
    help="Steps in each window of --every.  [default: 2]",
)
@option(
    "--metrics",
    multiple=True,
    metavar="FILE",
    help="With --every: append a JSON line for each window to FILE, or hand it to prometheus:FILE, "
    "tensorboard:DIR, mlflow:EXPERIMENT, wandb:PROJECT or otel:ENDPOINT. Several may be given.",
)
@option(
    "--on-change",
    metavar="CMD",
    help="With --every: run CMD in a shell when the verdict changes. FP8VERIFY_OLD_VERDICT, "
    "FP8VERIFY_NEW_VERDICT, FP8VERIFY_AT and FP8VERIFY_CAPTURE tell it what happened.",
)
@option(
    "--stop-on",
    metavar="VERDICTS",
    callback=lambda _ctx, _param, value: parse_verdicts(value),
    help="With --every: ask the training to stop, by SIGTERM, upon one of these verdicts, such as "
    "CONTRADICTED,EMULATED.",
)
@option(
    "--max-trace-mb",
    type=click.IntRange(0, 10**9),
    metavar="MB",
    default=2048,
    show_default=True,
    help="End a window whose trace would become larger, before compression; 0: never.",
)
@option(
    "--max-window-seconds",
    type=FiniteFloat(min=0, max=1e9),
    metavar="S",
    default=900,
    show_default=True,
    help="End a window after that time, at the end of a step; 0: never.",
)
@option(
    "--profiler",
    type=click.Choice(("kineto", "nsys", "rocprofv3")),
    default="kineto",
    show_default=True,
    help="What records the window: torch's own profiler, or Nsight Systems or rocprofv3 where they "
    "are installed; the command then runs under these, and their trace stays in the capture.",
)
@option(
    "--python",
    metavar="PATH",
    help="Python for SCRIPT.py and -m.  [default: that of the active environment]",
)
@option("--dry-run", is_flag=True, help="Say what would be run and injected, and stop.")
@option("-m", "module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@report_options
@help_option()
@click.argument(
    "command_line", nargs=-1, required=True, metavar="SCRIPT.py [ARGS…]", shell_complete=files
)
def command(
    options: ReportOptions,
    *,
    steps: str | None,
    after_seconds: float | None,
    ranks: str,
    trace_dir: Path | None,
    job: str | None,
    layers: bool,
    numerics: bool,
    numerics_every: int | None,
    no_log: bool,
    no_shapes: bool,
    max_trace_mb: int,
    max_window_seconds: float,
    profiler: str,
    python: str | None,
    debug: bool,
    every: int | None,
    window: int | None,
    metrics: tuple[str, ...],
    on_change: str | None,
    stop_on: frozenset[str],
    dry_run: bool,
    module: bool,
    command_line: tuple[str, ...],
) -> None:
    """Run a training unmodified, record a window of its steps, and verify it.

    \b
    fp8verify run train.py --steps 10-12
    fp8verify run train.py --precision fp8 --steps 10-12
    fp8verify run -m package.train --steps 10-12
    fp8verify run --every 1000 --window 2 --metrics fp8.jsonl -- train.py
    fp8verify run --steps 10-12 --ranks all -- torchrun --nproc-per-node 8 train.py

    Before the script every option is fp8verify's. After it, --steps is if its value is a window
    such as 10-12 and no --steps or --after-seconds stands before the script. With such a window,
    other options after the script are fp8verify's too if they have a value that fits and the source
    of the script, which is only read, does not name them; else they are the script's. A line on
    standard error says which were taken. What stands after -- is always the script's.

    What the training prints stays as it is; the report goes to standard error, or to a file with
    -o. A training that fails keeps its own exit code; what was recorded is kept. Ctrl-C goes to the
    training, the second one also asks it to terminate, the third kills it.
    """
    from fp8verify.runner import read_settings, run_training

    _refuse_unknown_option(command_line[0])
    words = (["-m"] if module else []) + list(command_line)
    if every is None:
        _need_every(window=window, metrics=metrics, on_change=on_change, stop_on=stop_on)
        steps, after_seconds = _agreed(steps, after_seconds, words)
    settings = read_settings(
        steps=steps,
        after_seconds=after_seconds,
        every=every,
        window=window,
        ranks=ranks,
        trace_dir=trace_dir,
        job=job,
        layers=layers,
        numerics=numerics,
        numerics_every=numerics_every,
        no_log=no_log,
        no_shapes=no_shapes,
        max_trace_mb=max_trace_mb,
        max_window_seconds=max_window_seconds,
        profiler=profiler,
        python=python,
        debug=debug,
    )
    if dry_run:
        from fp8verify.runner import describe_run

        click.echo(describe_run(words, settings), nl=False)
        return
    watch = None
    if every is not None:
        from fp8verify.live.run_watch import RunWatch

        watch = RunWatch(settings, options.policy, _sinks(metrics), on_change, stop_on)
    aloud = options.output is None
    at_close = judged_at_close(settings, options.policy, aloud=aloud)
    result = run_training(words, settings, watch or (at_close if profiler == "kineto" else None))
    if not result.last:  # the report is for the one that ends last
        sys.exit(result.exit_code)
    report_can_be_interrupted(result)
    with training_comes_first(result, debug=debug):
        code = _report(result, options, words, watch)
        no_more_interrupts()
        left_out = _is_left_out(result, settings.ranks.includes)
    judged = 0 if left_out else code
    # A training that we asked to stop did not fail.
    sys.exit(judged if watch is not None and watch.stopped else result.exit_code or judged)


def _report(
    result: RunResult, options: ReportOptions, words: list[str], watch: RunWatch | None
) -> int:
    """Judge what a run recorded, deliver the report, and return its exit code."""
    # Imported only now: the analysis would make every training start a tenth of a second later.
    import shlex

    from msgspec.structs import replace

    from fp8verify.cli.conclusion import conclude
    from fp8verify.cli.failed_run import with_failure
    from fp8verify.inspection import inspect
    from fp8verify.preflight.afterwards import (
        explain_missing,
        failure_notes,
        with_what_was_possible,
    )

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


def _is_left_out(result: RunResult, includes: Callable[[int], bool]) -> bool:
    """Whether the verdict is not for this run: it has no rank that is recorded.

    Either its ranks have a folder each, or it is a task that shares one.
    """
    from fp8verify.capture.ranks import is_left_out, read_ranks

    recorded = any(map(includes, result.ranks)) or not result.ranks
    return is_left_out(read_ranks(result.capture).values(), includes) or not recorded


def _need_every(**given: object) -> None:
    for name, value in given.items():
        # A settings file may serve runs of both kinds.
        if value and _rank(name) == 0:
            wanted = "--" + name.replace("_", "-")
            raise UsageError(f"{wanted} needs --every.", f"Such as --every 1000 {wanted} ….")


def _sinks(metrics: tuple[str, ...]) -> list[Sink]:
    if not metrics:
        return []
    from fp8verify.integrations.sinks import open_sink

    return [open_sink(what) for what in metrics]


def _agreed(
    steps: str | None, after_seconds: float | None, words: list[str]
) -> tuple[str | None, float | None]:
    """Settle windows and times from different places: the command line is above a variable."""
    if steps is None and after_seconds is None:
        return _steps_of_training(words), None
    if steps is not None and after_seconds is not None and not steps.isdecimal():
        if _rank("steps") < _rank("after_seconds"):
            return steps, None
        if _rank("after_seconds") < _rank("steps"):
            return None, after_seconds
    return steps, after_seconds


def _rank(name: str) -> int:
    order = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
    source = click.get_current_context().get_parameter_source(name)
    return order.index(source) if source in order else len(order)


def _steps_of_training(words: list[str]) -> str | None:
    """Return the steps that the `[profiling]` of the training's configuration names, and say so."""
    for word in words:
        if word.endswith(".toml"):
            from fp8verify.settings.files import steps_of_profiling
            from fp8verify.settings.toml import read_toml

            with suppress(OSError, ValueError):
                steps = steps_of_profiling(read_toml(Path(word)).get("profiling"))
                if steps is not None:
                    click.echo(f"fp8verify: steps {steps}, by the [profiling] of {word}", err=True)
                    return steps
    return None


def _refuse_unknown_option(word: str) -> None:
    """Tell of a mistyped option, which would be taken for the program to run.

    Raises:
        UsageError: the first word of the command is an option.
    """
    if not word.startswith("-"):
        return
    from difflib import get_close_matches

    names = [name for param in command.params for name in param.opts if name.startswith("--")]
    close = get_close_matches(word.partition("=")[0], names, n=1)
    hint = f"Did you mean {close[0]}?" if close else "fp8verify run --help lists them."
    raise UsageError(
        f"fp8verify run has no option {word.partition('=')[0]}.",
        f"{hint} The options of a script come after it.",
    )
