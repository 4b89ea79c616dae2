"""The main job: traces, logs and censuses on disk in, a finished report out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from msgspec.structs import replace

from fp8verify.analysis.fleet import OnProgress, gather_ranks
from fp8verify.analysis.sidecars import (
    Said,
    Sidecars,
    losses_of,
    read_sidecars,
    remarks_on,
    said_by,
)
from fp8verify.capture.numerics import RankNumerics
from fp8verify.capture.ranks import (
    called_apis,
    census_remarks,
    declared_traces,
    named_traces,
    naming_steps,
    remarks,
)
from fp8verify.capture.schema import RankMeta
from fp8verify.errors import InputError
from fp8verify.logs.losses import LossSeries
from fp8verify.report.forms import Report, with_forms
from fp8verify.trace import (
    NoTraceError,
    Trace,
    TraceFile,
    TraceFiles,
    find_traces,
    read_trace,
)
from fp8verify.trace.places import comes_through_pipe, reading, run_name
from fp8verify.trace.readers import PRINTED_TABLE, glance_at
from fp8verify.verdict.policy import Policy

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fp8verify.analysis.rank import RankEvidence


def inspect(
    path: str | Path | Sequence[str | Path],
    *,
    log: str | Path | None = None,
    name: str | None = None,
    stats: str | Path | None = None,
    policy: Policy | None = None,
    run_notes: Sequence[str] = (),
    workers: int | None = 1,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> Report:
    """Tell from traces whether the training ran in FP8.

    Args:
        path: a Kineto Chrome trace (.json, .json.gz, .json.zst), a folder with one for each
            rank, a pattern such as "traces/rank*.json.gz", a URL of one of these (s3://, gs://,
            hf://), "-" for a trace on standard input, several of these, or a capture of
            `fp8verify run`, whose logs and census are read too.
        log: the training's log, when it is not in the capture.
        name: what the report calls the run; the name of its folder or file by default.
        stats: the folder of Transformer Engine's debug logs, whose statistics are held against the
            same rules as those of `fp8verify run --numerics`; with it or `log`, `path` may be
            empty.
        policy: the FP8 share asked for, and how the verdict becomes an exit code.
        run_notes: why `fp8verify run` could not observe the run, if it could not.
        workers: processes that read the ranks' traces; None for as many as pay. A script that
            asks for more than one needs the `if __name__ == "__main__"` of multiprocessing.
        executor: reads the ranks' traces instead: any of `concurrent.futures`, or a cluster's.
        on_progress: called with the number of ranks read and of all, after each.

    Raises:
        InputError: nothing there can be read as a trace or a log.
    """
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    policy = policy or Policy()
    if not paths:
        if stats is not None:
            return _report_of_stats(Path(stats), policy, name)
        if log is None:
            raise InputError("No path was given.", "Give a trace or a folder of traces.")
        return _report_of_log(Path(log), policy, name)
    name = name or run_name(paths)
    if comes_through_pipe(paths):
        return _report_of_pipe(paths[0], log, policy, run_notes, name)
    sidecars = read_sidecars(paths, stats)
    said = said_by(sidecars.folder, log, called_apis(sidecars.metas))
    notes = [*run_notes, *sidecars.notes]
    try:
        files = _find(paths, sidecars)
    except NoTraceError:
        if sidecars.folder is None or not (sidecars.metas or notes):
            raise
        ranks = _without_traces(sidecars.folder, sidecars.metas)
        remarked = remarks(sidecars.metas)
    else:
        ranks = _read_traces(files, sidecars, workers, executor, on_progress)
        profiled = {rank.rank for rank in ranks}
        remarked = [*_notes(files, sidecars.metas), *census_remarks(sidecars.metas, profiled)]
    losses = losses_of(sidecars.folder, log)
    ranks = _with_numerics(ranks, sidecars.numerics, losses)
    notes += remarks_on(log, None)
    report = _report(ranks, said, policy, [*notes, *said.notes, *remarked], name)
    return _with_census(report, len(sidecars.metas))


def _with_census(report: Report, count: int) -> Report:
    """Say of how many ranks there is a census where not all were profiled."""
    findings = tuple(
        structs.replace(finding, message=f"{finding.message}, {count} by census")
        if finding.code == "ranks-not-observed" and count > len(report.ranks)
        else finding
        for finding in report.findings
    )
    return structs.replace(report, findings=findings)


def _find(paths: Sequence[str | Path], sidecars: Sidecars) -> TraceFiles:
    declared = declared_traces(sidecars.metas)
    return find_traces(*paths, declared=declared)


def _read_traces(
    files: TraceFiles,
    sidecars: Sidecars,
    workers: int | None,
    executor: Executor | None,
    on_progress: OnProgress | None,
) -> list[RankEvidence]:
    """Read the traces, and add to each rank what the runner noted about it."""
    folder = sidecars.folder
    ranks = gather_ranks(
        _with_layers(files, sidecars.metas),
        naming=naming_steps(folder, sidecars.metas) if folder is not None else {},
        workers=workers,
        executor=executor,
        on_progress=on_progress,
    )
    return _with_metas(ranks, sidecars.metas)


def _report(
    ranks: Sequence[RankEvidence],
    said: Said,
    policy: Policy,
    notes: Sequence[str],
    name: str,
) -> Report:
    """Work out the facts of all ranks, judge them, and lay both out."""
    from fp8verify.analysis.assembly import assemble
    from fp8verify.analysis.facts import work_out
    from fp8verify.analysis.promises import collect_promises
    from fp8verify.verdict.judge import assess, judge

    promises = collect_promises(said.claims, ranks, said.layers, said.phases)
    facts = [work_out(rank, promises) for rank in ranks]
    assessed, findings = assess(facts, promises)
    limits = dict.fromkeys(remark for rank in ranks for remark in rank.remarks)
    found = assemble(facts, assessed, findings, promises, [*notes, *limits], name=name)
    return with_forms(Report, judge(found, policy))


def _report_of_pipe(
    path: str | Path,
    log: str | Path | None,
    policy: Policy,
    notes: Sequence[str],
    name: str,
) -> Report:
    """Report a trace that comes through a pipe, with nothing else but a log."""
    from fp8verify.analysis.fleet import read_pipe

    said = said_by(None, log)
    return _report([read_pipe(path)], said, policy, [*notes, *said.notes], name)


def _report_of_log(log: Path, policy: Policy, name: str | None) -> Report:
    """Report a log alone: what it claims, how far it came and how it ended.

    No kernel is seen, unless the log holds a printed table of them.
    """
    from fp8verify.analysis.gather import gather
    from fp8verify.verdict.inconclusive import LOG_ALONE

    said, losses = said_by(None, log), losses_of(None, log)
    rank = gather(_printed_table(log))
    if not rank.health.kernels:
        rank.health.notes.append(LOG_ALONE)
    notes = [*said.notes, *remarks_on(log, losses)]
    ranks = _with_numerics([rank], {}, losses)
    return _report(ranks, said, policy, notes, name or run_name([log]))


def _printed_table(log: Path) -> Trace:
    """Return the kernels of a key_averages() table that the log holds; none if it holds none."""
    try:
        found, glance = glance_at(log)
        if found is PRINTED_TABLE and glance.is_trace:
            return read_trace(log)
    except InputError:
        pass  # what is wrong with the file was said when its claims were read
    return Trace(source=log.name)


def _report_of_stats(folder: Path, policy: Policy, name: str | None) -> Report:
    """Report statistics alone: they tell nothing of the kernels, so the verdict stays open."""
    from fp8verify.analysis.gather import gather
    from fp8verify.analysis.te_debug import read_stats

    with reading(str(folder)):
        found = read_stats(folder)
    ranks = [gather(Trace(source=folder.name, rank=rank)) for rank in sorted(found)]
    ranks = _with_numerics(ranks, found, None)
    return _report(ranks, Said(), policy, [], name or run_name([folder]))


def _with_metas(ranks: Sequence[RankEvidence], metas: dict[int, RankMeta]) -> list[RankEvidence]:
    """Add to each rank what the runner noted about it."""
    numbers = (-1 if rank.rank is None else rank.rank for rank in ranks)
    return [
        rank._replace(meta=metas.get(number)) for rank, number in zip(ranks, numbers, strict=True)
    ]


def _with_numerics(
    ranks: Sequence[RankEvidence], numerics: dict[int, RankNumerics], losses: LossSeries | None
) -> list[RankEvidence]:
    """Add to each rank its numerics, and to the first one the losses of the run."""
    return [
        rank._replace(
            numerics=numerics.get(-1 if rank.rank is None else rank.rank),
            losses=None if place else losses,
        )
        for place, rank in enumerate(ranks)
    ]


def _with_layers(files: TraceFiles, metas: dict[int, RankMeta]) -> list[TraceFile]:
    """Mark the traces in which the layers have names."""
    named = named_traces(metas)
    return [replace(file, layers=file.path.name in named) for file in files]


def _notes(files: TraceFiles, metas: dict[int, RankMeta]) -> list[str]:
    """Say what the run remarked, what was not read, and what was recorded and is not there."""
    names = {file.path.name for file in files}
    return [
        *remarks(metas),
        *(f"{skipped.name} {_no_trace(skipped)} and was left out" for skipped in files.skipped),
        *(
            f"{name} of rank {rank} is not there, although the run recorded it"
            for name, rank in declared_traces(metas).items()
            if name not in names
        ),
    ]


def _no_trace(path: Path) -> str:
    return "holds no trace" if path.is_dir() else "is not a trace"


def _without_traces(folder: Path, metas: dict[int, RankMeta]) -> list[RankEvidence]:
    """Make evidence of a capture whose window never opened: there is a census at best."""
    from fp8verify.analysis.gather import gather

    if not metas:
        return [gather(Trace(source=folder.name))]
    return [
        gather(Trace(source=folder.name, rank=rank, world_size=meta.world_size), meta)
        for rank, meta in sorted(metas.items())
    ]
