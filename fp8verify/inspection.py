"""The main job: traces, logs and censuses on disk in, a finished report out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fp8verify.assembly import assemble
from fp8verify.errors import InputError
from fp8verify.evidence.census import LOG_NAME, find_metas
from fp8verify.evidence.claims import scan_log
from fp8verify.evidence.rank import RankEvidence, gather
from fp8verify.logs import read_log
from fp8verify.model import Claim, Report
from fp8verify.runner.capture import RankMeta
from fp8verify.trace import Trace, TraceFile, find_traces, read_trace
from fp8verify.verdict import Policy


def inspect(
    path: str | Path,
    *,
    log: str | Path | None = None,
    policy: Policy | None = None,
    run_notes: Sequence[str] = (),
) -> Report:
    """Tell from traces on disk whether the training ran in FP8.

    Args:
        path: a Kineto Chrome trace (.json, .json.gz, .json.zst), a folder with one for each
            rank, or a capture of `fp8verify run`, whose log and census are read too.
        log: the training's log, when it is not in the capture.
        policy: the FP8 share asked for, and how the verdict becomes an exit code.
        run_notes: why `fp8verify run` could not observe the run, if it could not.

    Raises:
        InputError: nothing there can be read as a trace or a log.
    """
    where = Path(path)
    metas = find_metas(where)
    claims = _claims(where, Path(log) if log is not None else None)
    notes = list(run_notes)
    try:
        files = find_traces(where)
    except InputError:
        if not (metas or run_notes):
            raise
        return assemble(_without_traces(where, metas), claims, policy or Policy(), notes)
    ranks = [_rank(file, metas, alone=len(files) == 1) for file in files]
    notes += [f"{skipped.name} is no trace and was left out" for skipped in files.skipped]
    return assemble(ranks, claims, policy or Policy(), notes)


def _without_traces(where: Path, metas: dict[int, RankMeta]) -> list[RankEvidence]:
    """Make evidence of a capture whose window never opened: there is a census at best."""
    if not metas:
        return [gather(Trace(source=where.name))]
    return [
        gather(
            Trace(source=where.name, rank=rank, world_size=meta.world_size),
            meta,
            alone=len(metas) == 1,
        )
        for rank, meta in sorted(metas.items())
    ]


def _rank(file: TraceFile, metas: dict[int, RankMeta], *, alone: bool) -> RankEvidence:
    trace = read_trace(file.path)
    if trace.rank is None:
        trace.rank = file.rank
    return gather(trace, metas.get(trace.rank), alone=alone)


def _claims(where: Path, log: Path | None) -> list[Claim]:
    if log is None and where.is_dir() and (where / LOG_NAME).is_file():
        log = where / LOG_NAME
    return [] if log is None else scan_log(read_log(log), source=log.name)
