"""`fp8verify inspect`, the verdict from traces, and `fp8verify annotate`, which labels them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fp8verify.capture.names import BOOTS
from fp8verify.cli.options import (
    FILE,
    PLACE,
    ReportOptions,
    flag,
    report_options,
    valued,
)
from fp8verify.cli.progress import shown_progress
from fp8verify.errors import InputError, requires
from fp8verify.text import clean, counted

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fp8verify.kernels.code_files import CodeSource
    from fp8verify.report.results import Report
    from fp8verify.trace.tables import Missing


@click.command("inspect")
@click.argument("paths", nargs=-1, metavar="PATH…", type=PLACE)
@valued(
    "--log FILE",
    type=PLACE,
    text="The run's log; its claims are compared with the kernels. Without PATH, only the log "
    "is reported.",
)
@valued(
    "--code DIR",
    type=PLACE,
    text="A cache of Triton's or TorchInductor's compiled kernels (or a folder of one kernel). What "
    "their machine code multiplies decides.",
)
@valued(
    "--bf16 PATH",
    type=PLACE,
    text="A trace or capture of the same model in BF16 on such a GPU: the gain is estimated by what "
    "its GEMMs took.",
)
@valued(
    "--workers N",
    type=click.IntRange(1, 10_000),
    text="Number of processes that read the ranks' traces.  [default: by cores and size]",
)
@valued(
    "--scheduler ADDRESS",
    text="Read the ranks' traces on the Dask cluster of this scheduler (tcp://host:8786).",
)
@flag(
    "--breakdown",
    text="Add idle, compute and overlap times of each rank (HolisticTraceAnalysis).",
)
@report_options
def inspect_command(
    paths: tuple[str, ...],
    log: str | None,
    code: str | None,
    bf16: str | None,
    scheduler: str | None,
    breakdown: bool,
    workers: int | None,
    **given: Any,
) -> None:
    """Verify a trace, a folder with one trace per rank, or a capture of `run`.

    Traces come from torch.profiler (Kineto), Nsight Systems (.sqlite) or rocprofv3.

    PATH may be a pattern, a URL (s3://, gs://, hf://), or - for standard input.

    \b
    fp8verify inspect trace.json.gz --log train.log
    fp8verify inspect traces/ --format json -o report.json
    fp8verify inspect 's3://bucket/run7/rank*.json.gz' --workers 8
    """
    if not paths and log is None:
        raise click.UsageError("Missing argument 'PATH…'.")
    options = ReportOptions.take(given)
    if breakdown:
        with requires("HolisticTraceAnalysis", "--breakdown"):  # before traces are read
            import hta  # noqa: F401
    _tidy(paths, quiet=options.shown.quiet)
    from fp8verify.pipeline.inspection import inspect
    from fp8verify.trace.places import comes_through_pipe

    cluster: AbstractContextManager[Executor | None] = nullcontext()
    if scheduler is not None:
        from fp8verify.pipeline.workers import dask_cluster

        cluster = dask_cluster(scheduler)
    with cluster as executor, shown_progress(paths, quiet=options.shown.quiet):
        report: Report = inspect(
            paths,
            log=log,
            name=options.name,
            policy=options.policy,
            workers=workers,
            executor=executor,
            code=_named_code(code),
            bf16=bf16,
        )
    if breakdown:
        from fp8verify.integrations.hta import add_breakdown

        report = add_breakdown(report, paths)
    named = ["--log", log] if log else []
    named += ["--code", code] if code else []
    named += ["--bf16", bf16] if bf16 else []
    again = shlex.join(map(str, ("fp8verify", "inspect", *paths, *named)))
    report = options.gated(report)
    options.write(report, "" if comes_through_pipe(paths) else again)
    sys.exit(report.exit_code)


def _tidy(paths: tuple[str, ...], *, quiet: bool) -> None:
    """Remove what killed runs left in captures, and say so."""
    for path in paths:
        capture = Path(path)
        if not any(capture.glob(BOOTS)):
            continue
        from fp8verify.record.leftovers import remove_leftovers

        for name in remove_leftovers(capture):
            if not quiet:
                place = clean(str(capture / name))
                click.echo(f"removed {place}, which a killed run had left", err=True)


def _named_code(folder: str | None) -> CodeSource:
    """Return a folder of compiled code that the user named.

    Raises:
        InputError: there is none.
    """
    from fp8verify.kernels.code_files import NO_SOURCE, ON_REQUEST, CodeSource

    if folder is None:
        return NO_SOURCE
    path = Path(folder)
    if not path.is_dir():
        raise InputError(
            f"There is no folder {folder}.",
            "Give --code the cache: $TRITON_CACHE_DIR, ~/.triton/cache or $TORCHINDUCTOR_CACHE_DIR.",
        )
    return CodeSource(folders=(path,), limits=ON_REQUEST, asked=True)


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
def annotate_command(trace: str, output: Path) -> None:
    """Copy a trace with every GEMM labeled by precision and leg, for trace viewers.

    Kernels get arguments, and each stream a precision track, which Perfetto colors by name. Nothing
    else changes.

    \b
    fp8verify annotate trace.json.gz -o annotated.json.gz
    fp8verify annotate capture/rank0.json.gz -o rank0-annotated.json
    """
    from fp8verify.annotate import annotate
    from fp8verify.trace import find_traces

    files = find_traces(trace)
    if len({file.path for file in files}) > 1:
        raise InputError(
            f"{trace} holds {len(files)} traces.",
            f"Name one of them, such as {files[0].path}.",
        )
    path = Path(trace) if Path(trace).is_file() else files[0].path
    counts, missing = annotate(path, output)
    lacks = list(_lacks(missing))
    if lacks:
        click.echo(
            f"warning: {output} lacks what cannot be read in {path.name}: {', '.join(lacks)}; "
            "its metadata says so, and inspect counts it",
            err=True,
        )
    shown = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    click.echo(
        f"{output}: {sum(counts.values())} GEMM kernels labeled{shown and f' ({shown})'}"
    )


def _lacks(missing: Missing) -> Iterator[str]:
    """Yield what a copy lacks of its original."""
    if missing.events:
        yield counted(missing.events, "event")
    if missing.cut:
        yield "what came after the place where it is cut"
    if missing.documents:
        yield counted(missing.documents, "document") + " after it"
