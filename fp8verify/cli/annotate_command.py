"""`fp8verify annotate`: the user's own trace, with its GEMMs colored by precision."""

from __future__ import annotations

from pathlib import Path

import click

from fp8verify.cli.options import FILE
from fp8verify.errors import InputError


@click.command("annotate")
@click.argument("trace", type=click.Path())
@click.option(
    "-o",
    "--output",
    required=True,
    type=FILE,
    metavar="FILE",
    help="The new trace: .json, .json.gz or .json.zst.",
)
def command(trace: str, output: Path) -> None:
    """Copy a trace with every GEMM labeled by precision and GEMM pass, for trace viewers.

    Kernels get a color (for chrome://tracing) and arguments. Each stream gets a precision track,
    which Perfetto colors by name. Nothing else changes.

    \b
    fp8verify annotate trace.json.gz -o annotated.json.gz
    fp8verify annotate capture/rank0.json.gz -o rank0-annotated.json
    """
    from fp8verify.annotate import annotate
    from fp8verify.trace import find_traces

    files = find_traces(trace)
    if len({file.path for file in files}) > 1:
        raise InputError(
            f"{trace} holds {len(files)} traces.", f"Name one of them, such as {files[0].path}."
        )
    counts = annotate(Path(trace) if Path(trace).is_file() else files[0].path, output)
    shown = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    click.echo(f"{output}: {sum(counts.values())} GEMM kernels labeled{shown and f' ({shown})'}")
