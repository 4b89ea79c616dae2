"""`fp8verify run`: record a window of a training and give the verdict on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fp8verify.cli.options import deliver, output_of, policy_of, report_options


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--steps",
    required=True,
    metavar="A-B",
    help="Optimizer steps to record: 1-based, inclusive, counted from the start of this run. "
    "Several windows: 10-12,500-502. Step A-1 warms the profiler up.",
)
@click.option(
    "--ranks",
    default="0",
    show_default=True,
    metavar="LIST",
    help="Ranks to record: 0, all, 0,7 or every:64. The others note their modules only.",
)
@click.option(
    "--trace-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the capture.  [default: fp8verify-capture-<time>-<pid> here]",
)
@click.option("--no-log", is_flag=True, help="Do not capture what the training prints.")
@click.option("--no-shapes", is_flag=True, help="Do not record operator shapes; less memory.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@report_options
@click.argument("command_line", nargs=-1, required=True, metavar="SCRIPT.py [ARGS…]")
def command(
    steps: str,
    ranks: str,
    trace_dir: Path | None,
    no_log: bool,
    no_shapes: bool,
    module: bool,
    command_line: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a training unmodified, record a window of its steps, and verify it.

    \b
    fp8verify run --steps 10-12 train.py --precision fp8
    fp8verify run --steps 10-12 -m package.train
    fp8verify run --steps 10-12 --ranks all -- torchrun --nproc-per-node 8 train.py

    A training that fails keeps its own exit code; what was recorded is kept.
    """
    from fp8verify.runner import RunSettings, parse_ranks, parse_windows, run_training

    settings = RunSettings(
        windows=parse_windows(steps),
        ranks=parse_ranks(ranks),
        trace_dir=trace_dir,
        capture_log=not no_log,
        record_shapes=not no_shapes,
    )
    result = run_training((["-m"] if module else []) + list(command_line), settings)
    # Imported only now: the analysis would make every training start a tenth of a second later.
    from fp8verify.inspection import inspect

    report = inspect(result.capture, policy=policy_of(options), run_notes=result.notes)
    deliver(report, output_of(options))
    sys.exit(result.exit_code or report.exit_code)
