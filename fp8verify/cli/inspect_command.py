"""`fp8verify inspect`: the verdict from traces that exist."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fp8verify.cli.option import files
from fp8verify.cli.options import ReportOptions, report_options
from fp8verify.cli.write_report import write_report

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fp8verify.report.model import Report


@click.command("inspect")
@click.argument("paths", nargs=-1, metavar="PATH…", shell_complete=files)
@click.option(
    "--log",
    metavar="FILE",
    shell_complete=files,
    help="The training's log, whose claims are checked against the kernels. Needs no PATH: then it "
    "is all that is reported.",
)
@click.option(
    "--stats",
    metavar="DIR",
    help="Transformer Engine's debug logs (nvdlfw_inspect_statistics_logs): findings on their "
    "underflows, overflows and amax. Needs no PATH.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Processes that read the ranks' traces.  [default: the cores, where it pays]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Read the ranks' traces on the Dask cluster of this scheduler (tcp://host:8786).",
)
@click.option(
    "--breakdown",
    is_flag=True,
    help="Add HolisticTraceAnalysis' idle, compute and overlap figures of each rank.",
)
@report_options
def command(
    options: ReportOptions,
    paths: tuple[str, ...],
    log: str | None,
    stats: str | None,
    workers: int | None,
    scheduler: str | None,
    breakdown: bool,
) -> None:
    """Verify a trace, a folder with one for each rank, or a capture of `run`.

    Traces are of torch.profiler (Kineto), Nsight Systems (.sqlite, .nsys-rep) or rocprofv3.

    PATH may be a pattern, a URL (s3://, gs://, hf://), or - for standard input.

    \b
    fp8verify inspect trace.json.gz --log train.log
    fp8verify inspect traces/ --format json -o report.json
    fp8verify inspect 's3://bucket/run7/rank*.json.gz' --workers 8
    """
    if not paths and stats is None and log is None:
        raise click.UsageError("Missing argument 'PATH…'.")
    if breakdown:
        from fp8verify.integrations.hta import require_hta

        require_hta()
    from fp8verify.analysis.fleet import rank_progress
    from fp8verify.analysis.inspection import inspect
    from fp8verify.trace.places import comes_through_pipe

    again = "" if comes_through_pipe(paths) else _again(paths, log, stats)
    with _executor(scheduler) as executor, rank_progress() as on_progress:
        report = inspect(
            paths,
            log=log,
            name=options.name,
            stats=stats,
            policy=options.policy,
            workers=workers,
            executor=executor,
            on_progress=on_progress,
        )
    whole = _with_breakdown(report, paths) if breakdown else report
    sys.exit(write_report(whole, options, again))


def _again(paths: tuple[str, ...], log: str | None, stats: str | None) -> str:
    """Return the command that prints the whole report."""
    given = {"--log": log, "--stats": stats}
    options = [str(word) for name, value in given.items() if value for word in (name, value)]
    return shlex.join(["fp8verify", "inspect", *paths, *options])


def _with_breakdown(report: Report, paths: tuple[str, ...]) -> Report:
    from fp8verify.integrations.hta import add_breakdown

    return add_breakdown(report, paths)


@contextmanager
def _executor(scheduler: str | None) -> Iterator[Executor | None]:
    if scheduler is None:
        yield None
        return
    from fp8verify.analysis.workers import dask_cluster

    with dask_cluster(scheduler) as executor:
        yield executor
