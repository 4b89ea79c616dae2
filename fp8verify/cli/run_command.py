"""`fp8verify run`: record a window of a training and give the verdict on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fp8verify.cli.after_script import RunCommand
from fp8verify.cli.attach_options import attach_options
from fp8verify.cli.completing import files
from fp8verify.cli.interrupts import no_more_interrupts, report_can_be_interrupted
from fp8verify.cli.option import FiniteFloat, help_option, option
from fp8verify.cli.options import ReportOptions, report_options
from fp8verify.cli.run_window import need_every, settle_window
from fp8verify.cli.training_first import training_comes_first
from fp8verify.cli.verdict_names import parse_verdicts
from fp8verify.errors import UsageError
from fp8verify.record.live.window_report import judged_at_close

if TYPE_CHECKING:
    from fp8verify.record.live.sinks import Sink


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
    help="With --every: append a JSON line for each window to FILE, or give it to tensorboard:DIR "
    "or wandb:PROJECT. Several may be given.",
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
    from fp8verify.record import read_settings, run_training

    _refuse_unknown_option(command_line[0])
    words = (["-m"] if module else []) + list(command_line)
    if every is None:
        need_every(window=window, metrics=metrics, on_change=on_change, stop_on=stop_on)
        steps, after_seconds = settle_window(steps, after_seconds, words)
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
        python=python,
        debug=debug,
    )
    if dry_run:
        from fp8verify.record import describe_run

        click.echo(describe_run(words, settings), nl=False)
        return
    watch = None
    if every is not None:
        from fp8verify.record.live.run_watch import RunWatch

        watch = RunWatch(settings, options.policy, _sinks(metrics), on_change, stop_on)
    aloud = options.output is None
    at_close = judged_at_close(settings, options.policy, aloud=aloud)
    result = run_training(words, settings, watch or at_close)
    if not result.last:  # the report is for the one that ends last
        sys.exit(result.exit_code)
    report_can_be_interrupted(result)
    with training_comes_first(result, debug=debug, exit_zero=options.exit_zero):
        # Only now: the analysis would make every training start a tenth of a second later.
        from fp8verify.cli.run_report import is_for_other_ranks, report_run

        code = report_run(result, options, words, watch)
        no_more_interrupts()
        judged = 0 if is_for_other_ranks(result, settings.ranks.includes) else code
    # A training that we asked to stop did not fail.
    sys.exit(judged if watch is not None and watch.stopped else result.exit_code or judged)


def _sinks(metrics: tuple[str, ...]) -> list[Sink]:
    if not metrics:
        return []
    from fp8verify.integrations.sinks import open_sink

    return [open_sink(what) for what in metrics]


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
