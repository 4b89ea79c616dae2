"""From trace files to the evidence of every rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from fp8verify.analysis.fleet.cycles import join_cycles
from fp8verify.analysis.fleet.launchers import without_launchers
from fp8verify.analysis.fleet.pool import cores, process_pool
from fp8verify.analysis.fleet.rank_job import ExaminedRank, RankJob, examine, not_examined
from fp8verify.analysis.fleet.shared_kinds import SharedKinds
from fp8verify.capture.ranks import NamingStep
from fp8verify.errors import InputError
from fp8verify.trace import TraceFile
from fp8verify.trace.file_ranks import two_of_one_rank
from fp8verify.trace.forking import may_fork
from fp8verify.trace.places import is_remote, is_shared, reading

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fp8verify.analysis.rank import RankEvidence

OnProgress = Callable[[int, int], None]

# Worker processes take about 0.3 CPU seconds each to start; as much JSON is read in that time.
_WORTH_A_WORKER = 32 << 20
_USUAL_RATIO = 16
# One trace of less is read in a second; forking and sharing cost a tenth of one.
_WORTH_HELPERS = 128 << 20
# Starting one more costs as much as it decodes of this.
_WORTH_A_HELPER = 32 << 20
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
    kinds = SharedKinds()
    for rank in _examine_all(jobs, workers, executor):
        ranks.append(rank._replace(evidence=kinds.share(rank.evidence)))
        if on_progress is not None:
            on_progress(len(ranks), len(jobs))
    return _in_order(ranks)


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
        helpers = _helpers(jobs[0], workers) if shared and len(jobs) == 1 else 1
        return (examine(job, helpers) for job in jobs)
    from fp8verify.analysis.fleet.retrying import (
        retrying_map,  # its executors take a while to import
    )

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
    if len(jobs) == 1 or cores() == 1:
        return 1
    size = sum(_unpacked_size(file) for job in jobs for file in job.files)
    return cores() if size > _WORTH_A_WORKER * cores() else 1


def _helpers(job: RankJob, workers: int | None) -> int:
    """Return how many processes to read one rank with: several where that costs less time."""
    count = cores() if workers is None else workers
    size = max(map(_unpacked_size, job.files))
    if count == 1 or size < _WORTH_HELPERS or not may_fork():
        return 1
    return max(2, min(count, size // _WORTH_A_HELPER))


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
    kept, notes = without_launchers(rank.evidence for rank in ranks)
    first, *others = join_cycles(kept)
    by_rank: dict[int | None, RankEvidence] = {}
    for evidence in (first._replace(remarks=(*first.remarks, *notes)), *others):
        other = by_rank.setdefault(evidence.rank, evidence)
        if other is not evidence:
            raise two_of_one_rank(evidence.rank or 0, other.source, evidence.source)
    return list(by_rank.values())
