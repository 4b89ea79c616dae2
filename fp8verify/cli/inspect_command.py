"""`fp8verify inspect`: the verdict from traces that exist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fp8verify.cli.options import deliver, output_of, policy_of, report_options


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The training's log, whose claims are held against the kernels.",
)
@report_options
def command(path: Path, log: Path | None, **options: Any) -> None:
    """Verify a Kineto trace, a folder with one for each rank, or a capture of `run`.

    \b
    fp8verify inspect trace.json.gz --log train.log
    fp8verify inspect traces/ --format json -o report.json
    """
    from fp8verify.inspection import inspect

    report = inspect(path, log=log, policy=policy_of(options))
    deliver(report, output_of(options))
    sys.exit(report.exit_code)
