"""Options of `run` and `env`: which steps of which ranks are recorded, and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from fp8verify.cli.option import FiniteFloat, option

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = (
    option(
        "--steps",
        metavar="A-B",
        help="Optimizer steps to record: 1-based, inclusive, counted from the start of this run. "
        "Several windows: 10-12,500-502; those that touch are one. Step A-1 warms the profiler up. "
        "global:5000-5002 goes by the framework's own numbers, which go on where a run resumes.",
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
        default="0",
        show_default=True,
        metavar="LIST",
        help="Ranks to record: 0, all, 0,7 or every:64. The others note their modules only.",
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


def attach_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options to a command."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command
