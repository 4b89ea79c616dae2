"""From trace files to the evidence of every rank: in this process, in others, on a cluster."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from fp8verify.analysis.code_word import wanted_code
from fp8verify.analysis.gather import TraceEvidence, gather, merge_windows
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import Kind, KindTotal, grouped
from fp8verify.analysis.layers import NamedLayers
from fp8verify.capture.files import is_file_name
from fp8verify.capture.names import LAYERS
from fp8verify.capture.schema import NamingRecord, RankMeta
from fp8verify.errors import InputError
from fp8verify.kernels.code_files import (
    NO_CODE,
    NO_SOURCE,
    CacheContents,
    CodeSource,
)
from fp8verify.trace import Trace, TraceFile, read_open_trace, read_trace
from fp8verify.trace.folder import two_of_one_rank
from fp8verify.trace.places import STDIN, is_remote, is_shared, reading
from fp8verify.trace.readers import read_products

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fp8verify.pipeline.workers import OpenExecutor
    from fp8verify.trace.blas_log import Product

# Worker processes take about 0.3 CPU seconds each to start; as much JSON is read in that time.
_WORTH_A_WORKER = 32 << 20
_USUAL_RATIO = 16
# tensorboard_trace_handler's names: host_pid.time.pt.trace.json (torch/profiler/profiler.py, 2.11).
_WORKER = re.compile(
    r"(?:^|/)(?P<worker>[^/]+)\.\d{10,}(?:\.\w+)*?\.pt\.trace\.json(?:\.\w+)?$"
)


_Logged: TypeAlias = "list[tuple[int, Product]] | None"
_Row = TypeVar("_Row", GemmRow, KindTotal)


class Naming(NamedTuple):
    """The record of a step that names layers, and its trace, if there are any."""

    step: NamingRecord | None = None
    trace: TraceFile | None = None


class RankJob(NamedTuple):
    """The traces of one rank: one for each window of a capture, in order.

    `naming` is the eager step that names its layers, if the windows do not, and `layers` its trace.
    `code` is where the machine code of its kernels may be.
    """

    files: tuple[TraceFile, ...]
    naming: NamingRecord | None = None
    layers: TraceFile | None = None
    code: CodeSource = NO_SOURCE


def naming_steps(folder: Path, metas: dict[int, RankMeta]) -> dict[int, Naming]:
    """Return, by rank, the eager steps that name the layers of compiled code."""
    steps: dict[int, Naming] = {}
    for rank, meta in metas.items():
        if meta.naming is None:
            continue
        name = meta.naming.trace or ""
        file = None
        if is_file_name(name):
            file = TraceFile(
                path=folder / LAYERS / name,
                rank=rank,
                name=f"{LAYERS}/{name}",
                layers=True,
            )
        steps[rank] = Naming(meta.naming, file)
    return steps


def gather_ranks(
    files: Sequence[TraceFile],
    *,
    naming: Mapping[int, Naming] | None = None,
    code: CodeSource = NO_SOURCE,
    workers: int | None = 1,
    executor: Executor | None = None,
) -> list[TraceEvidence]:
    """Read the traces of all ranks and return their evidence by rank.

    Each trace is reduced to sums in the process that reads it, so memory does not grow with
    the size of traces. A rank whose trace cannot be read is in the list, with the error.

    Args:
        files: several files of one rank are its windows, in order.
        naming: the steps that name layers, by rank.
        code: where the machine code of their kernels may be.
        workers: number of processes; None chooses by the machine and the size of the files.
        executor: used instead of processes.

    Raises:
        InputError: no trace can be read, or two unrelated traces have the same rank.
    """
    jobs = [job._replace(code=code) for job in _jobs(files, naming or {})]
    ranks: list[TraceEvidence] = []
    kinds: dict[Kind, Kind] = {}
    for examined in _examine_all(jobs, workers, executor):
        ranks += [_sharing(rank, kinds) for rank in examined]
    return _in_order(ranks)


def _sharing(evidence: TraceEvidence, kinds: dict[Kind, Kind]) -> TraceEvidence:
    """Return equal evidence that refers to the kinds that other ranks have, which are kept once."""
    return replace(
        evidence,
        gemms=_with_kinds(evidence.gemms, kinds),
        others=_with_kinds(evidence.others, kinds),
        optimizer=_with_kinds(evidence.optimizer, kinds),
    )


def _with_kinds(rows: Iterable[_Row], kinds: dict[Kind, Kind]) -> list[_Row]:
    sharing = []
    for row in rows:
        kind = kinds.setdefault(row.kind, row.kind)
        sharing.append(row._replace(kind=kind))
    return sharing


def _jobs(files: Iterable[TraceFile], naming: Mapping[int, Naming]) -> list[RankJob]:
    """Make one job of the declared windows of a rank, and one of every other file."""
    in_order = sorted(files, key=lambda file: not file.declared)
    windows = grouped(in_order, lambda file: file.rank if file.declared else file)
    jobs = []
    for same in windows.values():
        of_rank = naming.get(same[0].rank, Naming())
        jobs.append(RankJob(tuple(same), naming=of_rank.step, layers=of_rank.trace))
    return jobs


def _examine_all(
    jobs: list[RankJob],
    workers: int | None,
    executor: Executor | None,
) -> Iterator[list[TraceEvidence]]:
    files: list[TraceFile] = []
    for job in jobs:
        files += job.files
    if workers is None:
        workers = _worth(files)
    count = min(workers, len(jobs))
    is_alone = executor is None and count <= 1
    are_shared = all(is_shared(file.path) for file in files)
    if is_alone or not are_shared:
        yield from map(examine, jobs)
        return
    # Executors take as long to import as a small trace to read.
    from fp8verify.pipeline.workers import process_pool, spread

    if executor is None:
        opened: AbstractContextManager[Executor] = process_pool(count)
        one_more: OpenExecutor = partial(process_pool, 1)
    else:
        opened = nullcontext(executor)
        one_more = partial(_kept_open, executor)
    anywhere = map(_anywhere, jobs)
    with opened as pool:
        yield from spread(examine, anywhere, pool, not_examined, one_more=one_more)


def _kept_open(executor: Executor) -> AbstractContextManager[Executor]:
    return nullcontext(executor)


def _anywhere(job: RankJob) -> RankJob:
    """Return the job for workers that started in another folder."""
    layers = None
    if job.layers is not None:
        layers = _absolute(job.layers)
    files = tuple(map(_absolute, job.files))
    return job._replace(files=files, layers=layers)


def _absolute(file: TraceFile) -> TraceFile:
    if is_remote(file.path):
        return file
    return replace(file, path=file.path.absolute())


def _worth(files: Iterable[TraceFile]) -> int:
    """Return how many worker processes the files are worth, by what they take unpacked."""
    size = 0
    try:
        for file in files:
            size_of_file = file.path.stat().st_size
            if not file.name.endswith(".json"):
                size_of_file *= _USUAL_RATIO
            size += size_of_file
    except (InputError, OSError):
        return 1
    cores = _cores()
    if size > _WORTH_A_WORKER * cores:
        return cores
    return 1


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_order(ranks: list[TraceEvidence]) -> list[TraceEvidence]:
    errors = [rank.error for rank in ranks if rank.error is not None]
    has_events = any(rank.health.events for rank in ranks)
    if len(errors) == len(ranks) and not has_events:
        raise errors[0]
    ordered = join_cycles(_without_launchers(ranks))
    for first, second in pairwise(ordered):
        if first.rank == second.rank:
            raise two_of_one_rank(first.rank or 0, first.source, second.source)
    return ordered


def _without_launchers(ranks: list[TraceEvidence]) -> list[TraceEvidence]:
    """Leave out what is of no rank, and say so; where there is nothing else it stays.

    Kineto's daemon records every process of a job, among them torchrun's own, which runs nothing.
    """
    kept = []
    notes = []
    for rank in ranks:
        if not _runs_nothing(rank):
            kept.append(rank)
            continue
        notes.append(
            f"{rank.source} was left out of the ranks: it holds no kernels, no operators and no "
            "rank, like the trace of torchrun's own process"
        )
    if not kept or not notes:
        return ranks
    first = replace(kept[0], remarks=(*kept[0].remarks, *notes))
    return [first, *kept[1:]]


def _runs_nothing(evidence: TraceEvidence) -> bool:
    """Whether a process is no rank: no number, no kernels, and its trace is whole."""
    if not evidence.guessed or evidence.process is not None:
        return False
    if not evidence.health.complete or evidence.error is not None:
        return False
    ran = evidence.health.kernels or evidence.copies or evidence.timeline.steps
    return not ran


def examine(job: RankJob) -> list[TraceEvidence]:
    """Read the traces of a rank, or of the ranks that were joined in one file.

    One that cannot be read costs only itself.
    """
    read: list[TraceEvidence] = []
    for file in job.files:
        read += _read(file, job.code)
    if len(job.files) == 1 and len(read) > 1:
        return read
    error = None
    parts = []
    for part in read:
        if part.error is None:
            parts.append(part)
        elif error is None:
            error = part.error
    evidence = replace(merge_windows(parts or read[:1]), error=error)
    if evidence.named is None and job.naming is not None:
        evidence = replace(evidence, naming=_name_from(job.naming, job.layers))
    return [evidence]


def not_examined(job: RankJob, reason: str) -> list[TraceEvidence]:
    """Return what is known of a job that no worker could finish."""
    first = job.files[0]
    error = InputError(
        f"{first.name}: {reason}.",
        "Read it alone to see why; fewer --workers need less memory.",
    )
    return _unread(first, error)


def _unread(file: TraceFile, error: InputError) -> list[TraceEvidence]:
    nothing = gather(Trace(source=file.name, rank=file.rank))
    return [replace(nothing, error=error)]


def _name_from(naming: NamingRecord, file: TraceFile | None) -> NamedLayers:
    """Read the step that names layers; problems with it become notes."""
    empty = NamedLayers(source="step", step=naming.step)
    if file is None:
        return empty._replace(note=naming.reason)
    part = _read(file)[0]
    if part.error is not None:
        fact = part.error.fact.rstrip(".")
        return empty._replace(note=f"the step that names them cannot be read: {fact}")
    named = part.named or empty._replace(note=f"no GEMM ran in {file.name}")
    note = named.note
    if not note and not part.health.complete:
        note = f"{file.name} is not whole"
    return named._replace(
        source="step",
        step=naming.step,
        note=note or None,
    )


def _read(file: TraceFile, code: CodeSource = NO_SOURCE) -> list[TraceEvidence]:
    """Return the evidence of a file: of one rank, unless it joins several, or why there is none."""
    try:
        trace = read_trace(
            file.path,
            name=file.name,
            layers=file.layers,
            split=not file.declared,
            launches=file.blas_log is not None,
            configs=code != NO_SOURCE,
        )
    except InputError as error:
        # Its frames hold what was read of the trace.
        return _unread(file, error.with_traceback(None))
    except MemoryError:
        too_large = InputError(
            f"{file.name} needs more memory than there is.",
            "Use fewer --workers, or a machine with more memory.",
        )
        return _unread(file, too_large)
    logged = _logged(file, trace)
    return _gathered(
        trace,
        file.rank,
        guessed=file.guessed,
        logged=logged,
        code=code,
    )


def _logged(file: TraceFile, trace: Trace) -> _Logged:
    """Read what the BLAS library logged; a log that cannot be read costs only itself."""
    if file.blas_log is None:
        return None
    try:
        return read_products(file.blas_log)
    except InputError as error:
        fact = error.fact.rstrip(".")
        trace.remarks.append(f"the BLAS library's log cannot be read: {fact}")
        return None


def _gathered(
    trace: Trace,
    rank: int,
    *,
    guessed: bool = False,
    logged: _Logged = None,
    code: CodeSource = NO_SOURCE,
) -> list[TraceEvidence]:
    """Return the evidence of a file; ranks that it joins are numbered by their position in it."""
    if not trace.others:
        guessed = guessed and trace.rank is None
        if trace.rank is None:
            trace.rank = rank
        evidence = gather(trace, logged, _compiled(trace, code))
        return [replace(evidence, guessed=guessed)]
    parts = []
    for number, part in enumerate((trace, *trace.others), rank):
        part.rank = number
        evidence = gather(part, compiled=_compiled(part, code))
        parts.append(replace(evidence, guessed=True))
    return parts


def _compiled(trace: Trace, code: CodeSource) -> CacheContents:
    """Return the machine code that may be of a trace's kernels."""
    if code == NO_SOURCE:
        return NO_CODE
    return code.contents(wanted_code(trace), trace.compute_capability)


def read_pipe(path: str | Path) -> list[TraceEvidence]:
    """Read a trace from a pipe, once; it has no name, and no rank unless it joins several.

    Raises:
        InputError: it is not a trace, or standard input is a terminal.
    """
    is_stdin = str(path) == STDIN
    if is_stdin and sys.stdin.isatty():
        raise InputError(
            "- reads a trace from standard input, which is a terminal.",
            "Pipe one in: zcat trace.json.gz | fp8verify inspect -",
        )
    name = "standard input" if is_stdin else str(path)
    with ExitStack() as stack:
        stack.enter_context(reading(name))
        if is_stdin:
            trace = read_open_trace(sys.stdin.buffer, name)
        else:
            file = stack.enter_context(Path(path).open("rb"))
            trace = read_open_trace(file, name)
    return _gathered(trace, 0)


def join_cycles(ranks: Iterable[TraceEvidence]) -> list[TraceEvidence]:
    """Join what is of one rank and process, and return all by rank.

    torch.profiler's schedule with `repeat`, or tensorboard_trace_handler, leaves a file a cycle.
    Ranks of one job work at the same time, the windows of one process one after another. Ranks that
    are only a position among the files are numbered anew where some of them are joined.
    """
    known: list[TraceEvidence] = []
    guessed: list[TraceEvidence] = []
    for members in grouped(ranks, _process_of).values():
        windows = sorted(members, key=lambda evidence: evidence.bounds or (0, 0))
        if _run_in_turn(windows):
            windows = [merge_windows(windows)]
        for evidence in windows:
            same_sort = guessed if evidence.guessed else known
            same_sort.append(evidence)
    taken = {evidence.rank for evidence in known}
    every = range(len(known) + len(guessed))
    free = (number for number in every if number not in taken)
    guessed.sort(key=_number_of)
    for evidence, number in zip(guessed, free, strict=False):
        known.append(replace(evidence, rank=number))
    known.sort(key=_number_of)
    return known


def _run_in_turn(windows: Sequence[TraceEvidence]) -> bool:
    """Whether windows, by their begin, do not overlap."""
    bounds = [window.bounds for window in windows if window.bounds is not None]
    return all(before[1] <= after[0] for before, after in pairwise(bounds))


def _number_of(evidence: TraceEvidence) -> int:
    return evidence.rank or 0


def _process_of(evidence: TraceEvidence) -> Hashable:
    """Return rank and process; traces without a process are kept separate."""
    if evidence.process is None or evidence.bounds is None:
        return id(evidence)
    rank = None if evidence.guessed else evidence.rank
    worker = _WORKER.search(evidence.source)
    return rank, evidence.process, worker["worker"] if worker else None
