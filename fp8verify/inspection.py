"""The main job: traces, logs and censuses on disk in, a finished report out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.capture.files import find_logs
from fp8verify.capture.names import BOOTS
from fp8verify.capture.numerics import RankNumerics, read_numerics
from fp8verify.capture.ranks import (
    called_apis,
    declared_traces,
    named_by_ranges,
    named_traces,
    naming_steps,
    read_ranks,
    recorded_processes,
    remarks,
)
from fp8verify.capture.schema import RankMeta
from fp8verify.errors import InputError
from fp8verify.fleet import OnProgress, gather_ranks
from fp8verify.judging.policy import Policy
from fp8verify.logs.lines import read_lines
from fp8verify.logs.losses import LossSeries, scan_losses
from fp8verify.model import Claim
from fp8verify.report.public import Report, with_forms
from fp8verify.trace import NoTraceError, Trace, TraceFile, TraceFiles, find_traces
from fp8verify.trace.naming import run_name
from fp8verify.trace.places import comes_through_pipe, is_remote, place, reading
from fp8verify.trace.waiting import plan

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fp8verify.evidence.rank import RankEvidence

# What is not needed before a trace is read is imported after it, or while helpers read.
_AFTER_READING = (
    "fp8verify.kernels",
    "fp8verify.evidence.gemms",
    "fp8verify.evidence.gather",
    "fp8verify.evidence.merge_windows",
    "fp8verify.evidence.facts",
    "fp8verify.assembly.diagnosis",
    "fp8verify.judging.findings",
    "fp8verify.judging.judge",
    "fp8verify.assembly.report",
)


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
            same rules as those of `fp8verify run --numerics`; with it, `path` may be empty.
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
    if not paths and stats is not None:
        return _report_of_stats(Path(stats), policy or Policy(), name)
    if not paths:
        raise InputError("No path was given.", "Give a trace or a folder of traces.")
    policy, name = policy or Policy(), name or run_name(paths)
    if comes_through_pipe(paths):
        from fp8verify.fleet.pipe import read_pipe

        claims, unread = _claims(None, log)
        return _report([read_pipe(paths[0])], claims, policy, [*run_notes, *unread], name)
    folder = _folder(paths)
    with reading(str(paths[0])):
        metas = read_ranks(folder) if folder is not None else {}
        numerics = read_numerics(folder) if folder is not None else {}
        numerics |= _stats(stats)
        run_notes = [*run_notes, *_attachment(folder, metas)]
        outside = any(meta.recording is not None for meta in metas.values())
        processes = recorded_processes(folder) if folder is not None and outside else {}
    claims, unread = _claims(folder, log, called_apis(metas))
    try:
        files = find_traces(*paths, declared=declared_traces(metas), processes=processes)
    except NoTraceError:
        if folder is None or not (metas or run_notes):
            raise
        notes = [*run_notes, *unread, *remarks(metas)]
        ranks = _with_numerics(_without_traces(folder, metas), numerics, _losses(folder, log))
        return _report(ranks, claims, policy, notes, name)
    plan(_AFTER_READING)
    ranks = gather_ranks(
        _with_layers(files, metas),
        naming=naming_steps(folder, metas) if folder is not None else {},
        workers=workers,
        executor=executor,
        on_progress=on_progress,
    )
    notes = [*run_notes, *unread, *_notes(files, metas)]
    ranks = _with_numerics(_with_metas(ranks, metas), numerics, _losses(folder, log))
    return _report(ranks, claims, policy, notes, name)


def _stats(stats: str | Path | None) -> dict[int, RankNumerics]:
    if stats is None:
        return {}
    from fp8verify.evidence.te_debug import read_stats

    return read_stats(Path(stats))


def _attachment(folder: Path | None, metas: dict[int, RankMeta]) -> tuple[str, ...]:
    """Return what kept a job that `fp8verify env` attached to from being observed."""
    if folder is None or is_remote(folder) or not any(folder.glob(BOOTS)):
        return ()
    from fp8verify.runner.environment import notes_on_attachment

    return notes_on_attachment(folder, observed=bool(metas))


def _report(
    ranks: Sequence[RankEvidence],
    claims: Sequence[Claim],
    policy: Policy,
    notes: Sequence[str],
    name: str,
) -> Report:
    """Work out the facts of all ranks, judge them, and lay both out."""
    from fp8verify.assembly.report import assemble
    from fp8verify.evidence.facts import work_out
    from fp8verify.evidence.promises import collect_promises
    from fp8verify.judging.judge import judge

    facts = [work_out(rank) for rank in ranks]
    judgement = judge(facts, collect_promises(claims, ranks), policy)
    limits = dict.fromkeys(remark for rank in ranks for remark in rank.remarks)
    found = assemble(facts, judgement, claims, [*notes, *limits], name=name)
    return with_forms(Report, found)


def _report_of_stats(folder: Path, policy: Policy, name: str | None) -> Report:
    """Report statistics alone: they tell nothing of the kernels, so the verdict stays open."""
    from fp8verify.evidence.gather import gather
    from fp8verify.evidence.te_debug import read_stats

    with reading(str(folder)):
        found = read_stats(folder)
    ranks = [gather(Trace(source=folder.name, rank=rank)) for rank in sorted(found)]
    ranks = _with_numerics(ranks, found, None)
    return _report(ranks, [], policy, [], name or run_name([folder]))


def _folder(paths: Sequence[str | Path]) -> Path | None:
    """Return the folder if there is one path and it is one, so that a capture can be told."""
    if len(paths) != 1:
        return None
    with reading(str(paths[0])):
        found = place(paths[0])
        return found if found.is_dir() else None


def _with_metas(ranks: Sequence[RankEvidence], metas: dict[int, RankMeta]) -> list[RankEvidence]:
    """Lay beside each rank what the runner noted about it."""
    numbers = (-1 if rank.rank is None else rank.rank for rank in ranks)
    return [
        rank._replace(meta=metas.get(number)) for rank, number in zip(ranks, numbers, strict=True)
    ]


def _with_numerics(
    ranks: Sequence[RankEvidence], numerics: dict[int, RankNumerics], losses: LossSeries | None
) -> list[RankEvidence]:
    """Lay beside each rank its numerics, and beside the first the losses of the run."""
    return [
        rank._replace(
            numerics=numerics.get(-1 if rank.rank is None else rank.rank),
            losses=None if place else losses,
        )
        for place, rank in enumerate(ranks)
    ]


def _with_layers(files: TraceFiles, metas: dict[int, RankMeta]) -> list[TraceFile]:
    """Mark the traces in which the layers have names."""
    named, ranks = named_traces(metas), named_by_ranges(metas)
    return [replace(file, layers=file.path.name in named or file.rank in ranks) for file in files]


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
    return "holds no trace" if path.is_dir() else "is no trace"


def _without_traces(folder: Path, metas: dict[int, RankMeta]) -> list[RankEvidence]:
    """Make evidence of a capture whose window never opened: there is a census at best."""
    from fp8verify.evidence.gather import gather

    if not metas:
        return [gather(Trace(source=folder.name))]
    return [
        gather(Trace(source=folder.name, rank=rank, world_size=meta.world_size), meta)
        for rank, meta in sorted(metas.items())
    ]


def _losses(folder: Path | None, log: str | Path | None) -> LossSeries | None:
    found = (read_lines(path, words=(b"loss",)) for path in _logs(folder, log))
    return scan_losses(line.text for line in chain.from_iterable(found))


def _logs(folder: Path | None, log: str | Path | None) -> list[Path]:
    return [place(log)] if log is not None else find_logs(folder) if folder is not None else []


def _claims(
    folder: Path | None, log: str | Path | None, calls: Sequence[str] = ()
) -> tuple[list[Claim], list[str]]:
    """Return what the logs and calls claim, and what of the logs was not read."""
    paths = _logs(folder, log)
    if not (paths or calls):
        return [], []
    from fp8verify.logs.claims import claim_of_call, read_claims  # its patterns take a while

    found: dict[tuple[str, str], Claim] = {}
    notes: list[str] = []
    for path in paths:
        with reading(str(path)):
            read = read_claims(path)
        notes += read.notes
        for claim in read.claims:
            found.setdefault((claim.framework, claim.text), claim)
    return [*found.values(), *map(claim_of_call, calls)], notes
