"""The main job: traces, logs and module lists on disk in, a finished report out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fp8verify.analysis.bf16_times import SIXTEEN_BIT
from fp8verify.analysis.gather import TraceEvidence, gather
from fp8verify.analysis.rank import (
    NO_LOSSES,
    NO_META,
    NO_NUMERICS,
    NO_SIGNS,
    RankEvidence,
    Recorded,
)
from fp8verify.capture import files as captured
from fp8verify.capture.schema import RankMeta, RankNumerics
from fp8verify.errors import InputError
from fp8verify.kernels.code_files import NO_SOURCE, CodeSource
from fp8verify.logs.lines import read_lines
from fp8verify.logs.losses import LossSeries, read_losses
from fp8verify.logs.signs import LogSigns, read_signs
from fp8verify.logs.statements import LayerClaim, LogReading
from fp8verify.pipeline.assembly import assemble
from fp8verify.pipeline.fleet import gather_ranks, naming_steps, read_pipe
from fp8verify.report.results import Report
from fp8verify.text import listed
from fp8verify.trace import (
    NoTraceError,
    Trace,
    TraceFile,
    TraceFiles,
    find_traces,
    read_trace,
)
from fp8verify.trace.archive_names import archive_name, is_archive
from fp8verify.trace.places import (
    comes_through_pipe,
    is_remote,
    place,
    reading,
    run_name,
)
from fp8verify.trace.readers import BLAS_LOG, KERNEL_TABLE, glance_at
from fp8verify.verdict.assessment import assess
from fp8verify.verdict.expected import collect_requested
from fp8verify.verdict.judge import judge
from fp8verify.verdict.policy import Policy


class _Sidecars(NamedTuple):
    """The files next to the traces of a capture.

    Attributes:
        folder: of the traces, None if they are in none.
        metas: the runner's records of each rank.
        numerics: its records of each rank's scales and tensors.
        notes: why an attached job was not observed.
    """

    folder: Path | None
    metas: dict[int, RankMeta]
    numerics: dict[int, RankNumerics]
    notes: Sequence[str]


if TYPE_CHECKING:
    from concurrent.futures import Executor


_NO_CAPTURE = _Sidecars(
    folder=None,
    metas={},
    numerics={},
    notes=(),
)


def inspect(
    path: str | Path | Sequence[str | Path],
    *,
    log: str | Path | None = None,
    name: str | None = None,
    policy: Policy | None = None,
    run_notes: Sequence[str] = (),
    workers: int | None = 1,
    executor: Executor | None = None,
    code: CodeSource = NO_SOURCE,
    bf16: str | Path | None = None,
) -> Report:
    """Tell from traces whether a run used FP8.

    Args:
        path: a Kineto Chrome trace (.json, .json.gz, .json.zst), a folder with one for each
            rank, a pattern such as "traces/rank*.json.gz", a URL of one of these (s3://, gs://,
            hf://), "-" for a trace on standard input, several of these, a zip or tar with the
            traces, or a capture of `fp8verify run`, whose logs and module list are read too.
        log: the run's log, when it is not in the capture; with it, `path` may be empty.
        name: what the report calls the run; the name of its folder or file by default.
        policy: the FP8 share asked for, and how the verdict becomes an exit code.
        run_notes: why `fp8verify run` could not observe the run, if it could not.
        workers: processes that read the ranks' traces; None for as many as pay. A script that
            asks for more than one needs the `if __name__ == "__main__"` of multiprocessing.
        executor: reads the ranks' traces instead: any of `concurrent.futures`, or a cluster's.
        code: caches with the machine code of the kernels, beside what a capture has of it. What is
            found in caches that nobody named is kept in the capture.
        bf16: traces of the same model in BF16 on such a GPU: what its GEMMs took tells what those
            in FP8 gain.

    Raises:
        InputError: nothing there can be read as a trace or a log, or there are no GEMMs in 16 bits
            in `bf16`, or it ran on another GPU.
    """
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    archive = _only_archive(paths)
    if archive is not None:
        with _of_archive(archive) as unpacked:
            return inspect(
                unpacked,
                log=log,
                name=name or archive_name(archive),
                policy=policy,
                run_notes=run_notes,
                workers=workers,
                executor=executor,
                code=code,
                bf16=bf16,
            )
    sidecars = _read_sidecars(paths)
    logs = logs_of(sidecars.folder, log)
    reading_of_logs = _read_logs(logs, captured.called_apis(sidecars.metas))
    remarks: list[str] = []
    if not paths:
        traces = [_printed_table(log)]
    elif comes_through_pipe(paths):
        traces = read_pipe(paths[0])
    else:
        how = _Workers(workers, executor)
        is_noted = bool(run_notes or sidecars.notes)
        traces, remarks = _gather(paths, sidecars, code, how, is_noted=is_noted)
    traces = _beside(traces, bf16, workers)
    losses = read_losses(logs)
    ranks = _with_records(traces, sidecars, losses, read_signs(logs))
    of_end = _remarks_on(log, None if paths else losses)
    notes = [*run_notes, *sidecars.notes, *of_end, *reading_of_logs.notes]
    notes += [*remarks, *_limits_of(ranks)]
    requested = collect_requested(reading_of_logs, ranks)
    requested = requested._replace(listed=len(sidecars.metas), has_log=bool(logs))
    report = assemble(
        ranks,
        assess(ranks, requested),
        requested,
        notes,
        name=name or run_name(paths or [str(log)]),
        logs=[path.name for path in logs],
    )
    return judge(_with_command(report, sidecars.folder), policy or Policy())


def _limits_of(ranks: Iterable[RankEvidence]) -> list[str]:
    """Return what the sources of traces cannot say, each once."""
    limits: dict[str, None] = {}
    for rank in ranks:
        limits.update(dict.fromkeys(rank.trace.remarks))
    return list(limits)


def _with_command(report: Report, folder: Path | None) -> Report:
    """Add the command that was run, if the capture has it."""
    if folder is None or is_remote(folder):
        return report
    command = captured.read_command(folder)
    environment = replace(report.environment, command=command)
    return replace(report, environment=environment)


def _beside(
    traces: Sequence[TraceEvidence], bf16: str | Path | None, workers: int | None
) -> list[TraceEvidence]:
    """Give traces the GEMMs of a run in BF16, if there is one.

    Raises:
        InputError: it has none with sizes, or ran on another GPU.
    """
    if bf16 is None:
        return list(traces)
    of_bf16 = gather_ranks(list(find_traces(bf16)), workers=workers)
    high = []
    for rank in of_bf16:
        for row in rank.gemms:
            if row.precision in SIXTEEN_BIT and row.shape is not None:
                high.append(row)
    if not high:
        raise InputError(
            f"{bf16} holds no GEMMs in 16 bits with their sizes.",
            "Give --bf16 a trace of the same model without FP8, with record_shapes=True.",
        )
    here = {rank.gpu for rank in traces if rank.gpu}
    there = {rank.gpu for rank in of_bf16 if rank.gpu}
    if here and there and here.isdisjoint(there):
        raise InputError(
            f"{bf16} ran on {listed(sorted(there))}, and this run on {listed(sorted(here))}.",
            "Record the run in BF16 on the same model of GPU.",
        )
    return [replace(rank, beside=tuple(high)) for rank in traces]


def _only_archive(paths: Sequence[str | Path]) -> Path | None:
    """Return the path that was given if it is the only one, and a zip or tar."""
    if len(paths) != 1 or not str(paths[0]):
        return None
    with reading(str(paths[0])):
        path = place(paths[0])
        return path if is_archive(path) else None


@contextmanager
def _of_archive(archive: Path) -> Iterator[Path]:
    """Give the folder of the traces in an archive; errors name the archive in its place."""
    # zipfile and tarfile take long to import.
    from fp8verify.trace.archives import unpacked

    with unpacked(archive) as folder:
        try:
            yield folder
        except InputError as error:
            fact = error.fact.replace(str(folder), str(archive))
            hint = error.hint.replace(str(folder), str(archive))
            raise InputError(fact, hint) from None


def _with_recorded(
    code: CodeSource,
    folder: Path | None,
) -> tuple[CodeSource, tuple[str, ...]]:
    """Add the compiled code that a capture has; a damaged record of it decides nothing."""
    if folder is None:
        return code, ()
    try:
        return code._replace(kernels=captured.read_code(folder)), ()
    except InputError as error:
        return code, (f"compiled code was not used: {error.fact.rstrip('.')}",)


def _keep_code(
    folder: Path,
    ranks: Sequence[TraceEvidence],
    code: CodeSource,
) -> None:
    """Keep what caches hold of the kernels, so the capture has its proof elsewhere too."""
    found = captured.distinct(kernel for rank in ranks for kernel in rank.compiled)
    if len(found) > len(code.kernels):
        first = min(rank.rank or 0 for rank in ranks)
        with suppress(OSError):
            captured.keep_code(folder, first, found)


def _printed_table(log: str | Path | None) -> TraceEvidence:
    """Return the kernels of a table, or of a BLAS library, in the log; none if there are none."""
    if log is None:
        raise InputError("No path was given.", "Give a trace or a folder of traces.")
    path = Path(log)
    trace = Trace(source=path.name)
    # What is wrong with the file was said when its claims were read.
    with suppress(InputError):
        source, glance = glance_at(path)
        if source in (BLAS_LOG, KERNEL_TABLE) and glance.is_trace:
            trace = read_trace(path)
    evidence = gather(trace)
    if not evidence.health.kernels:
        evidence.health.log_alone = True
        evidence.health.notes.append("a log, and no trace")
    return evidence


def _with_sidecars(
    files: TraceFiles,
    folder: Path | None,
    metas: dict[int, RankMeta],
) -> list[TraceFile]:
    """Return the traces with what the run recorded of each: names of layers, the BLAS log."""
    named = captured.named_traces(metas)
    logs: Mapping[str, Path] = {}
    if folder is not None:
        logs = captured.blas_logs(folder, metas)
    return [
        replace(
            file,
            layers=file.path.name in named,
            blas_log=file.blas_log or logs.get(file.path.name),
        )
        for file in files
    ]


def _notes(files: TraceFiles, metas: dict[int, RankMeta]) -> list[str]:
    """Say what was not read, and what was recorded and is not there."""
    notes = []
    for path in files.skipped:
        what = "has no trace" if path.is_dir() else "is not a trace"
        notes.append(f"{path.name} {what} and was left out")
    names = {file.path.name for file in files}
    for name, rank in captured.declared_traces(metas).items():
        if name not in names:
            why = "is not there, although the run recorded it"
            notes.append(f"{name} of rank {rank} {why}")
    return notes


def _read_logs(paths: Sequence[Path], calls: Sequence[str]) -> LogReading:
    """Return what the logs and calls claim, and what of the logs was not read."""
    if not (paths or calls):
        return LogReading()
    # Its patterns take a while.
    from fp8verify.logs.claims import claim_of_call, read_claims
    from fp8verify.logs.statements import Statement

    statements: list[Statement] = []
    notes: list[str] = []
    layers: list[LayerClaim] = []
    mention = None
    for path in paths:
        with reading(str(path)):
            log = read_claims(path)
        statements += log.statements
        notes += log.notes
        layers += log.layers
        if mention is None:
            mention = log.mention
    for call in calls:
        statements.append(Statement(claim_of_call(call), call))
    return LogReading(statements, notes, layers, mention)


# ---- the files of a capture next to its traces: records of its ranks, and logs


def _read_sidecars(paths: Sequence[str | Path]) -> _Sidecars:
    """Read the files next to the traces, if these are in the folder of a capture.

    Args:
        paths: the traces that the user gave; a capture is recognized if it is the only path.
    """
    if len(paths) != 1 or comes_through_pipe(paths):
        return _NO_CAPTURE
    with reading(str(paths[0])):
        folder = place(paths[0])
        if not folder.is_dir():
            return _NO_CAPTURE
        metas = captured.read_ranks(folder)
        notes: Sequence[str] = ()
        if not is_remote(folder):  # as is what `fp8verify env` attached to
            notes = captured.notes_on_attachment(folder, observed=bool(metas))
        return _Sidecars(
            folder=folder,
            metas=metas,
            numerics=captured.read_numerics(folder),
            notes=notes,
        )


class _Workers(NamedTuple):
    """What reads the traces of ranks: so many processes, or an executor."""

    processes: int | None
    executor: Executor | None


def _gather(
    paths: Sequence[str | Path],
    sidecars: _Sidecars,
    code: CodeSource,
    workers: _Workers,
    *,
    is_noted: bool,
) -> tuple[list[TraceEvidence], list[str]]:
    """Read the traces of all ranks; return their evidence, and remarks on what was recorded.

    Args:
        paths: of the traces.
        sidecars: what is next to them.
        code: where the machine code of their kernels may be.
        workers: what reads them.
        is_noted: whether a note says why there may be none.

    Raises:
        NoTraceError: there is none, nor a record of a run in which there may be none.
    """
    folder = sidecars.folder
    metas = sidecars.metas
    try:
        files = find_traces(*paths, declared=captured.declared_traces(metas))
    except NoTraceError:
        if folder is None or not (metas or is_noted):
            raise
        return _of_no_window(folder, metas), captured.remarks(metas)
    code, unused = _with_recorded(code, folder)
    traces = gather_ranks(
        _with_sidecars(files, folder, metas),
        naming=naming_steps(folder, metas) if folder is not None else {},
        code=code,
        workers=workers.processes,
        executor=workers.executor,
    )
    profiled = {rank.rank for rank in traces}
    if folder is not None and code.folders and not code.asked:
        _keep_code(folder, traces, code)
    remarks = [
        *captured.remarks(metas),
        *_notes(files, metas),
        *captured.census_remarks(metas, profiled),
        *unused,
    ]
    return traces, remarks


def _of_no_window(
    folder: Path,
    metas: Mapping[int, RankMeta],
) -> list[TraceEvidence]:
    """Return the ranks of a capture whose window never opened: it has a module list at most."""
    ranks = []
    for rank, meta in sorted(metas.items()):
        trace = Trace(
            source=folder.name,
            rank=rank,
            world_size=meta.world_size,
        )
        ranks.append(gather(trace))
    return ranks or [gather(Trace(source=folder.name))]


def _with_records(
    traces: Sequence[TraceEvidence],
    sidecars: _Sidecars,
    losses: LossSeries | None,
    signs: LogSigns,
) -> list[RankEvidence]:
    """Return the traces with what was recorded of each; the first has what the log says."""
    ranks: list[RankEvidence] = []
    for trace in traces:
        number = -1 if trace.rank is None else trace.rank
        recorded = Recorded(
            meta=sidecars.metas.get(number, NO_META),
            numerics=sidecars.numerics.get(number, NO_NUMERICS),
            losses=NO_LOSSES if ranks or losses is None else losses,
            signs=NO_SIGNS if ranks else signs,
        )
        ranks.append(RankEvidence(trace, recorded))
    return ranks


def logs_of(folder: Path | None, log: str | Path | None) -> list[Path]:
    """Return the log that the user gave, else those of a capture."""
    if log is not None:
        return [place(log)]
    if folder is not None:
        return captured.find_logs(folder)
    return []


# An error further from the end of a log than this was survived.
_AT_THE_END = 200


def _remarks_on(log: str | Path | None, losses: LossSeries | None) -> list[str]:
    """Say how far the run came by its log, and with which error it ended."""
    if log is None:
        return []
    from fp8verify.logs.failures import causes, last_error

    path = place(log)
    notes = []
    if losses is not None and losses.points:
        first = min(losses.points)
        last = max(losses.points)
        notes.append(
            f"{path.name} has losses of steps {first} to {last}, "
            f"the last is {losses.points[last]:.4g}"
        )
    end = deque((line.text for line in read_lines(path)), maxlen=_AT_THE_END)
    known = [cause for cause in causes(end) if cause.ends_run]
    for cause in known:
        notes.append(
            f"{path.name} ends with an error (“{cause.text[:120]}”); a known cause: "
            f"{cause.failure.cause}. {cause.failure.remedy}"
        )
    error = last_error([path])
    if error is not None and not known:
        notes.append(f"{path.name} ends with an error: {error}")
    return notes
