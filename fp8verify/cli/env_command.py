"""`fp8verify env`: attach to a job whose command cannot be wrapped."""

from __future__ import annotations

from typing import Any

import click

from fp8verify.cli.options import attach_options, need_linux


@click.command("env")
@attach_options
@click.option(
    "--shell",
    type=click.Choice(("sh", "fish", "none")),
    default="sh",
    show_default=True,
    help="Shell syntax; none prints NAME=VALUE, as for docker --env-file or a pod's env.",
)
def command(shell: str, **given: Any) -> None:
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

    click.echo(export_line(read_settings(**given), shell))
