"""`fp8verify env`: attach to a job whose command cannot be wrapped."""

from __future__ import annotations

from pathlib import Path

import click

from fp8verify.cli.options import attach_options, need_linux


@click.command("env")
@attach_options
@click.option(
    "--shell",
    type=click.Choice(("sh", "fish", "none")),
    default="sh",
    show_default=True,
    help="Whose syntax to print; none prints NAME=VALUE, as for docker --env-file or a pod's env.",
)
def command(
    *,
    steps: str | None,
    after_seconds: float | None,
    ranks: str,
    trace_dir: Path | None,
    job: str | None,
    layers: bool,
    no_shapes: bool,
    debug: bool,
    shell: str,
) -> None:
    """Print the exports that attach every Python started with them: under srun, Ray, Kubernetes.

    \b
    eval "$(fp8verify env --steps 10-12 --trace-dir DIR)"
    srun python train.py
    fp8verify inspect DIR --log slurm-1.out

    DIR has to be a new folder that every process of the job can write to. Processes that import no
    torch are left alone. In a notebook the exports have to be there before its kernel starts.
    """
    need_linux("env")
    from fp8verify.record.environment import export_line
    from fp8verify.record.settings import read_settings

    settings = read_settings(
        steps=steps,
        after_seconds=after_seconds,
        ranks=ranks,
        trace_dir=trace_dir,
        job=job,
        layers=layers,
        no_shapes=no_shapes,
        debug=debug,
    )
    click.echo(export_line(settings, shell))
