"""From trace files to the evidence of every rank."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fp8verify.analysis.fleet.cycles import join_cycles
from fp8verify.analysis.fleet.rank_job import ExaminedRank, RankJob, examine, not_examined
from fp8verify.capture.ranks import NamingStep
from fp8verify.errors import InputError
from fp8verify.trace import TraceFile
from fp8verify.trace.file_ranks import two_of_one_rank
from fp8verify.trace.places import is_remote, is_shared, reading

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fp8verify.analysis.kinds import Kind
    from fp8verify.analysis.rank import RankEvidence

OnProgress = Callable[[int, int], None]

# Worker processes take about 0.3 CPU seconds each to start; as much JSON is read in that time.
_WORTH_A_WORKER = 32 << 20
_USUAL_RATIO = 16
_REMOTE_IN_FLIGHT = 256


def gather_ranks(
    files: Sequence[TraceFile],
    *,
    naming: Mapping[int, NamingStep] | None = None,
    workers: int | None = 1,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> list[RankEvidence]:
    """Read the traces of all ranks and return their evidence by rank.

    Each trace becomes sums where it is read, so that memory grows with what the ranks ran, not
    with their traces. A rank whose trace cannot be read is in the list and says why.

    Args:
        files: several of one rank are windows of it, in order.
        naming: the steps that name layers, by rank.
        workers: processes to read with; None takes what the machine has and the work is worth.
        executor: reads with this one instead.
        on_progress: called with the ranks done and all of them, whenever one is done.

    Raises:
        InputError: none can be read, or two unrelated traces turn out to be of one rank.
    """
    jobs = _jobs(files, naming or {})
    ranks: list[ExaminedRank] = []
    kinds: dict[Kind, Kind] = {}
    for rank in _examine_all(jobs, workers, executor):
        ranks.append(rank._replace(evidence=_sharing(rank.evidence, kinds)))
        if on_progress is not None:
            on_progress(len(ranks), len(jobs))
    return _in_order(ranks)


def _sharing(evidence: RankEvidence, kinds: dict[Kind, Kind]) -> RankEvidence:
    """Return equal evidence that refers to the kinds that other ranks have, which are kept once."""
    keep, found = kinds.setdefault, evidence.survey
    return evidence._replace(
        survey=found._replace(
            gemms=[row._replace(kind=keep(row.kind, row.kind)) for row in found.gemms],
            others=[row._replace(kind=keep(row.kind, row.kind)) for row in found.others],
            optimizer=[row._replace(kind=keep(row.kind, row.kind)) for row in found.optimizer],
        )
    )


def _jobs(files: Iterable[TraceFile], naming: Mapping[int, NamingStep]) -> list[RankJob]:
    """Make one job of the declared windows of a rank, and one of every other file."""
    by_rank: dict[int, list[TraceFile]] = defaultdict(list)
    jobs = []
    for file in files:
        if file.declared:
            by_rank[file.rank].append(file)
        else:
            jobs.append(RankJob((file,), naming.get(file.rank)))
    return [
        *(RankJob(tuple(found), naming.get(rank)) for rank, found in by_rank.items()),
        *jobs,
    ]


def _examine_all(
    jobs: list[RankJob], workers: int | None, executor: Executor | None
) -> Iterator[ExaminedRank]:
    shared = all(is_shared(file.path) for job in jobs for file in job.files)
    count = min(_worth(jobs) if workers is None else workers, len(jobs))
    if not shared or (executor is None and count <= 1):
        return map(examine, jobs)
    # Executors take as long to import as a small trace to read.
    from fp8verify.analysis.fleet.pool import process_pool, retrying_map

    if executor is not None:
        jobs = list(map(_anywhere, jobs))
        return retrying_map(
            examine, jobs, lambda: nullcontext(executor), _REMOTE_IN_FLIGHT, not_examined
        )
    return retrying_map(examine, jobs, lambda: process_pool(count), 2 * count, not_examined)


def _anywhere(job: RankJob) -> RankJob:
    """Return the job for workers that started in another folder."""
    naming = job.naming
    if naming is not None and naming.file is not None:
        naming = naming._replace(file=_absolute(naming.file))
    return RankJob(tuple(map(_absolute, job.files)), naming)


def _absolute(file: TraceFile) -> TraceFile:
    return file if is_remote(file.path) else replace(file, path=file.path.absolute())


def _worth(jobs: list[RankJob]) -> int:
    """Return how many worker processes the files are worth."""
    if len(jobs) == 1 or _cores() == 1:
        return 1
    size = sum(_unpacked_size(file) for job in jobs for file in job.files)
    return _cores() if size > _WORTH_A_WORKER * _cores() else 1


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _unpacked_size(file: TraceFile) -> int:
    try:
        with reading(file.path):
            size = file.path.stat().st_size
    except InputError:
        return 0
    return size if file.name.endswith(".json") else size * _USUAL_RATIO


def _in_order(ranks: list[ExaminedRank]) -> list[RankEvidence]:
    errors = [rank.errors[0] for rank in ranks if rank.errors]
    if len(errors) == len(ranks) and not any(rank.evidence.health.events for rank in ranks):
        raise errors[0]
    kept, notes = _without_launchers(rank.evidence for rank in ranks)
    first, *others = join_cycles(kept)
    by_rank: dict[int | None, RankEvidence] = {}
    for evidence in (first._replace(remarks=(*first.remarks, *notes)), *others):
        other = by_rank.setdefault(evidence.rank, evidence)
        if other is not evidence:
            raise two_of_one_rank(evidence.rank or 0, other.source, evidence.source)
    return list(by_rank.values())


def _without_launchers(
    ranks: Iterable[RankEvidence],
) -> tuple[list[RankEvidence], tuple[str, ...]]:
    """Leave out processes that are not ranks, and say so; where there is nothing else they stay.

    Kineto's daemon records every process of a job, among them torchrun's own, which runs nothing.
    A rank states its number, runs kernels or operators, or its trace is damaged.
    """
    found = list(ranks)
    kept = [evidence for evidence in found if not _runs_nothing(evidence)]
    if not kept:
        return found, ()
    notes = (
        f"{evidence.source} was left out of the ranks: it holds no kernels, no operators and no "
        "rank, like the trace of torchrun's own process"
        for evidence in found
        if _runs_nothing(evidence)
    )
    return kept, tuple(notes)


def _runs_nothing(evidence: RankEvidence) -> bool:
    ran = evidence.health.kernels or evidence.copies or evidence.timeline.steps
    is_whole = evidence.health.complete and evidence.unreadable is None
    return evidence.guessed and evidence.process is None and is_whole and not ran
