"""Find the traces of the user's paths, and the rank of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, filterfalse
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fp8verify.capture.names import METAS
from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean
from fp8verify.trace.places import by_number, expand, is_pipe, is_remote, reading
from fp8verify.trace.readers import glance_at, suffixes
from fp8verify.trace.source import Glance

_RANK = lazy_pattern(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_PROBES_AT_ONCE = 16
# JSON files of a capture that are not traces; a hidden file is still being written.
_OURS = lazy_pattern(
    r"^\.|(\.meta|\.numerics|\.code|\.schema)\.json$|^expected\.json$|^report.*\.json$"
)
# The extra step that `fp8verify run --layers` records is not a training step.
_NO_RANKS = "layers"


class TraceFile(Struct, frozen=True):
    """A trace and the rank it belongs to, by its metadata, its name, or else its position.

    `name` is the file's own, with its folder's where several traces are called alike. `layers` is
    whether the layers have names in it, which take longer to read. `declared` is whether a record
    of `fp8verify run` says that it is a window of its rank; `guessed` whether the rank is its position
    alone. `blas_log` is what a BLAS library logged of the same window.
    """

    path: Path
    rank: int
    name: str
    layers: bool = False
    declared: bool = False
    guessed: bool = False
    blas_log: Path | None = None


def _rank_of_name(name: str) -> int | None:
    """Return the rank that a file name holds (`rank0`, `rank-0`, `rank_0`), if any."""
    match = _RANK.search(name)
    if match:
        return int(match[1])
    return None


def two_of_one_rank(
    rank: int,
    first: str,
    second: str,
) -> InputError:
    """Return the error of two unrelated traces that say to be of the same rank."""
    return InputError(
        f"Two traces are of rank {rank}: {first} and {second}.",
        "Give one of them, or a folder with one trace a rank; `fp8verify table` takes many runs.",
    )


class NoTraceError(InputError):
    """A folder without a trace."""


class TraceFiles(list[TraceFile]):
    """The traces of a path by rank, and the given files that hold none."""

    def __init__(
        self,
        files: Iterable[TraceFile] = (),
        skipped: Iterable[Path] = (),
    ) -> None:
        super().__init__(files)
        self.skipped = list(skipped)


def find_traces(
    *paths: str | Path,
    declared: Mapping[str, int] | None = None,
) -> TraceFiles:
    """Return the traces of `paths` (files, folders, patterns or URLs), by rank.

    A folder is searched itself; if it holds no trace, its direct subfolders are. A damaged file
    that is called like a rank's trace is returned too: leaving it out would hide a rank.

    Args:
        paths: what the user gave.
        declared: ranks of files by name, as the runner noted them; these may share a rank.

    Raises:
        InputError: nothing there, or no trace among it.
    """
    where: list[Path] = []
    for text in paths:
        where += expand(text)
    if len(where) == 1:
        label = str(where[0])
    else:
        label = f"What {paths[0]} matches"
    with reading(str(where[0])):
        if len(where) == 1 and where[0].is_file():
            # What is wrong with it is reported when it is read.
            file = _trace_file(where[0], _probe(where[0]))
            return TraceFiles([replace(file, guessed=False)])
        candidates: dict[Path, None] = {}
        empty = []
        named = set(map(str, paths))
        for path in dict.fromkeys(where):
            of_path = _candidates_in(path)
            candidates.update(dict.fromkeys(of_path))
            is_named = str(path) in named
            if not of_path and is_named and path.is_dir():
                empty.append(path)
    probes = _probe_all(list(candidates))
    found = [path for path, probe in probes.items() if _counts(path, probe)]
    logs = [path for path in found if probes[path].is_blas_log]
    # Logs alone are what there is to read.
    traces = [path for path in found if path not in logs] or logs
    declared = declared or {}
    are_named = any(path.name in declared for path in traces)
    is_sure = any(probes[path].is_trace for path in traces)
    if not are_named and not is_sure:
        raise _no_trace(label, probes)
    files = _files_of(traces, probes, declared)
    if traces is not logs:
        files_of_logs = [_trace_file(path, probes[path]) for path in logs]
        files = _with_logs(files, files_of_logs)
    read = {*traces, *(file.blas_log for file in files)}
    unread = [path for path in probes if path not in read]
    return TraceFiles(files, [*empty, *unread])


def _files_of(
    traces: Sequence[Path],
    probes: Mapping[Path, Glance],
    declared: Mapping[str, int],
) -> list[TraceFile]:
    """Return traces by rank, as `find_traces` does.

    Args:
        traces: their paths.
        probes: what their first bytes say.
        declared: ranks by name.
    """
    names = Counter(path.name for path in traces)
    files = []
    for path in traces:
        file = _trace_file(
            path,
            probes[path],
            declared.get(path.name),
            shares_name=names[path.name] > 1,
        )
        files.append(file)
    return _by_rank(files, list(declared))


def _no_trace(label: str, files: Iterable[Path]) -> NoTraceError:
    """Return the error of a path without a trace, which names some of its files."""
    what = "has no trace"
    names = list(dict.fromkeys(path.name for path in files))
    if names:
        what = f"has files, but no trace: {', '.join(names[:3])}"
    return NoTraceError(
        f"{label} {what}.",
        f"Traces end in {', '.join(suffixes())}; give the folder that the profiler wrote to.",
    )


def _trace_file(
    path: Path,
    glance: Glance,
    declared: int | None = None,
    *,
    shares_name: bool = False,
) -> TraceFile:
    if shares_name:
        name = f"{clean(path.parent.name)}/{clean(path.name)}"
    else:
        name = clean(path.name)
    if declared is not None:
        return TraceFile(path, declared, name, declared=True)
    if glance.rank is None:
        rank = _rank_of_name(path.name)
    else:
        rank = glance.rank
    return TraceFile(path, rank or 0, name, guessed=rank is None)


def _counts(path: Path, glance: Glance) -> bool:
    """Whether a file is a trace; a damaged one must be called like a rank's."""
    if not glance.is_damaged:
        return glance.is_trace
    has_rank = glance.rank is not None or _rank_of_name(path.name) is not None
    return glance.is_trace or has_rank


def _by_rank(files: list[TraceFile], order: list[str]) -> list[TraceFile]:
    """Return the files by rank; those of unknown rank get the free numbers in order.

    Windows that the runner noted come in its order.
    """
    taken = {file.rank for file in files if not file.guessed}
    free = filterfalse(taken.__contains__, count())
    numbered = []
    for file in files:
        if file.guessed:
            file = replace(file, rank=next(free))
        numbered.append(file)
    position = {name: index for index, name in enumerate(order)}
    last = len(position)

    def place_of(file: TraceFile) -> tuple[int, int]:
        index = position.get(file.path.name, last)
        return file.rank, index

    return sorted(numbered, key=place_of)


def _with_logs(files: list[TraceFile], logs: list[TraceFile]) -> list[TraceFile]:
    """Give each trace the BLAS log of its rank."""
    by_rank: dict[int, Path] = {}
    for log in logs:
        if not log.guessed or len(files) == 1:
            by_rank[log.rank] = log.path
    windows = Counter(file.rank for file in files)
    joined = []
    for file in files:
        if windows[file.rank] == 1:
            file = replace(file, blas_log=by_rank.get(file.rank))
        joined.append(file)
    return joined


def _probe_all(paths: list[Path]) -> dict[Path, Glance]:
    """Probe every file; remote ones at once, as each costs a journey to its storage."""
    if not any(map(is_remote, paths)):
        return {path: _probe(path) for path in paths}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        probes = pool.map(_probe, paths)
        return dict(zip(paths, probes, strict=True))


def _probe(path: Path) -> Glance:
    """Look at the start of a file; one that cannot be read counts as damaged."""
    try:
        _, glance = glance_at(path)
    except InputError:
        return Glance(is_damaged=True)
    return glance


def _candidates_in(path: Path) -> list[Path]:
    """Return the files of a path; of a folder without a trace its direct subfolders' as well."""
    if path.is_file():
        if _OURS.search(path.name):
            return []
        return [path]
    if is_pipe(path):
        raise InputError(
            f"{path} is a pipe, which can be read only once. Pass it alone.",
            "Write what comes through it into a file.",
        )
    with reading(str(path)):
        traces = _trace_files(path)
        for file in traces:
            if _counts(file, _probe(file)):
                return traces
        _refuse_captures(path)
        for child in _subfolders(path):
            if child.name != _NO_RANKS:
                traces += _trace_files(child)
        return traces


def _subfolders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir())


def _refuse_captures(folder: Path) -> None:
    """Refuse a folder whose subfolders are captures of several runs.

    Raises:
        NoTraceError: they have records of the same rank.
    """
    if is_remote(folder) or not folder.is_dir():
        return
    children = _subfolders(folder)
    records = Counter[str]()
    for child in children:
        records.update(record.name for record in child.glob(METAS))
    most_of_one_rank = max(records.values(), default=0)
    if most_of_one_rank > 1:
        runs = []
        for child in children:
            has_record = any(child.glob(METAS))
            if has_record or _trace_files(child):
                runs.append(child)
        raise NoTraceError(
            f"{folder} holds {len(runs)} captures.",
            f"Inspect one, such as {runs[0]}, or list all: fp8verify table {folder}/*/",
        )


def _trace_files(folder: Path) -> list[Path]:
    files = []
    for entry in folder.iterdir():
        has_suffix = entry.name.endswith(suffixes())
        is_ours = _OURS.search(entry.name) is not None
        if has_suffix and not is_ours and entry.is_file():
            files.append(entry)
    return sorted(files, key=lambda path: by_number(path.name))
