"""Find the traces that the user's paths stand for, and the rank of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from fp8verify.errors import InputError
from fp8verify.trace.formats import Glance, Part
from fp8verify.trace.places import expand, is_pipe, is_remote, reading
from fp8verify.trace.readers import glance_at, parts_of, suffixes

# JSON files of a capture that are no traces; a hidden file is still being written.
_OURS = re.compile(r"^\.|(\.meta|\.numerics|\.schema)\.json$|^expected\.json$|^report.*\.json$")
# The extra step that `fp8verify run --layers` records is no training step.
_NO_RANKS = "layers"
_RANK = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
# What `fp8verify run --profiler rocprofv3` has rocprofv3 call its files.
_PROCESS = re.compile(r"\.(\d{1,9})_(?:results|kernel_trace)\.")
_PROBES_AT_ONCE = 16

# The rank of a process, by how the names of its profiler's files begin and by its number.
Processes = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and the rank it belongs to, by its metadata, its name, or else its place.

    `name` is the file's own, with its folder's where several traces are called alike. `layers` is
    whether the layers have names in it, which take longer to read. `declared` is whether a record
    of `fp8verify run` says that it is a window of its rank; `guessed` whether the rank is its place
    alone. `part` is the process in a file that holds several.
    """

    path: Path
    rank: int
    name: str
    layers: bool = False
    declared: bool = False
    guessed: bool = False
    part: int | None = None


class _Found(NamedTuple):
    """A trace whose rank is not settled; `instead` is what to read for the file."""

    path: Path
    part: Part | None = None
    shares_file: bool = False
    instead: Path | None = None

    @property
    def process(self) -> int | None:
        """The number of the process that it is of, by its contents or its name."""
        if self.part is not None and self.part.process is not None:
            return self.part.process
        named = _PROCESS.search(self.path.name)
        return int(named[1]) if named else None

    def as_file(
        self, rank: int, name: str, *, declared: bool = False, guessed: bool = False
    ) -> TraceFile:
        told = f"{name} ({self.part.label})" if self.part and self.shares_file else name
        number = self.part.number if self.part else None
        return TraceFile(
            self.instead or self.path,
            rank,
            told,
            declared=declared,
            guessed=guessed,
            part=number,
        )


class NoTraceError(InputError):
    """A folder in which there is no trace."""


class TraceFiles(list[TraceFile]):
    """The traces of a path by rank, and what was given beside them and holds none."""

    def __init__(self, files: Iterable[TraceFile] = (), skipped: Iterable[Path] = ()) -> None:
        super().__init__(files)
        self.skipped = list(skipped)


def find_traces(
    *paths: str | Path,
    declared: Mapping[str, int] | None = None,
    processes: Processes | None = None,
) -> TraceFiles:
    """Return the traces that `paths` stand for: files, folders, patterns or URLs, by rank.

    A folder is searched itself; if it holds no trace, its direct subfolders are. A damaged file
    that is called like a rank's trace is returned too: leaving it out would hide a rank.

    Args:
        paths: what the user gave.
        declared: ranks of files by name, as the runner noted them; these may share a rank.
        processes: ranks of the processes in files that a profiler around the run wrote; what is in
            these of other processes is left out.

    Raises:
        InputError: nothing there, or no trace among it.
    """
    where = [path for text in paths for path in expand(text)]
    with reading(str(where[0])):
        if len(where) == 1 and where[0].is_file():
            return TraceFiles(_of_one_file(where[0]))
        held = {path: _candidates(path) for path in where}
        named = list(map(str, paths))
        empty = [path for path in held if str(path) in named and not held[path] and path.is_dir()]
    candidates = _one_form_each(list(dict.fromkeys(chain.from_iterable(held.values()))))
    label = str(where[0]) if len(where) == 1 else f"What {paths[0]} stands for"
    if not candidates:
        raise NoTraceError(f"{label} holds no trace.", _hint())
    declared = declared or {}
    probes = dict(zip(candidates, _probe_all(candidates), strict=True))
    found, skipped = _sort_out(probes)
    if not any(probes[one.path].is_trace or one.path.name in declared for one in found):
        names = ", ".join(file.name for file in candidates[:3])
        raise NoTraceError(f"{label} holds files, but no trace: {names}.", _hint())
    return TraceFiles(_numbered(found, declared, processes or {}), [*empty, *skipped])


def _of_one_file(path: Path) -> list[TraceFile]:
    """Return the ranks of a file; what is wrong with it is told when it is read."""
    try:
        glance = parts_of(path)
    except InputError:
        glance = Glance()
    found = _pieces(path, glance)
    if len(found) == 1:
        return [found[0].as_file(rank_of_name(path.name) or 0, path.name)]
    return [one.as_file(rank, path.name) for rank, one in enumerate(found)]


def _pieces(path: Path, glance: Glance) -> list[_Found]:
    shared = len(glance.parts) > 1
    return [_Found(path, part, shared, glance.instead) for part in glance.parts or (None,)]


# What rocprofv3 and nsys write of the same process in several forms, the best to read first.
_FORMS = ("_results.db", "_results.json", "_kernel_trace.csv", ".sqlite", ".nsys-rep")


def _one_form_each(paths: list[Path]) -> list[Path]:
    """Leave out files that hold the trace of another file in another form."""
    best: dict[tuple[str, str], int] = {}
    form_of = {path: _form(path) for path in paths}
    for stem, place in filter(None, form_of.values()):
        best[stem] = min(place, best.get(stem, place))
    return [path for path, form in form_of.items() if form is None or best[form[0]] == form[1]]


def _form(path: Path) -> tuple[tuple[str, str], int] | None:
    """Return folder and name without the ending, and the place of the ending in `_FORMS`."""
    for place, ending in enumerate(_FORMS):
        if path.name.endswith(ending):
            return (str(path.parent), path.name.removesuffix(ending)), place
    return None


def _hint() -> str:
    # What torch.profiler writes comes first: it is what most users have.
    *others, last = sorted(suffixes(), key=lambda suffix: not suffix.startswith(".json"))
    endings = f"{', '.join(others)} or {last}"
    return f"Traces end in {endings}; give the folder that the profiler wrote to."


def rank_of_name(name: str) -> int | None:
    """Return the rank that a file name holds (`rank0`, `rank-0`, `rank_0`), if any."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        return [] if _OURS.search(path.name) else [path]
    if not path.is_dir():
        raise _no_path(path)
    found = _trace_files(path)
    if not found:
        for child in sorted(entry for entry in path.iterdir() if entry.is_dir()):
            if child.name != _NO_RANKS:
                found += _trace_files(child)
    return found


def _no_path(path: Path) -> InputError:
    """Say what is wrong with a path that is neither a file nor a folder."""
    if is_pipe(path):
        return InputError(
            f"{path} is a pipe, which can be read only once, and only by itself.",
            "Write what comes through it into a file.",
        )
    if path.exists():
        return InputError(f"{path} is neither a file nor a folder.", "Give a trace.")
    return InputError(f"{path} does not exist.", "Give a trace or a folder of traces.")


def _trace_files(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.name.endswith(suffixes()) and not _OURS.search(entry.name) and entry.is_file()
    )


def _probe_all(paths: list[Path]) -> list[Glance]:
    """Probe every file; remote ones at once, as each costs a journey to its storage."""
    if not any(map(is_remote, paths)):
        return list(map(_probe, paths))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        return list(pool.map(_probe, paths))


def _probe(path: Path) -> Glance:
    """Look at the start of a file; one that cannot be read counts as damaged."""
    try:
        return glance_at(path)[1]
    except InputError:
        return Glance(is_damaged=True)


def _sort_out(probes: dict[Path, Glance]) -> tuple[dict[_Found, int | None], list[Path]]:
    """Split files into traces with their ranks, as far as known, and what is none."""
    found: dict[_Found, int | None] = {}
    skipped = []
    for path, probe in probes.items():
        rank = probe.rank if probe.rank is not None else rank_of_name(path.name)
        if probe.is_trace or (probe.is_damaged and rank is not None):
            for one in _pieces(path, probe):
                found[one] = None if one.shares_file else rank
        else:
            skipped.append(path)
    return found, skipped


def _numbered(
    ranks: dict[_Found, int | None], declared: Mapping[str, int], processes: Processes
) -> list[TraceFile]:
    """Give files of unknown rank the free numbers in order."""
    name_of = _names(dict.fromkeys(one.path for one in ranks))
    windows = [one for one in ranks if one.path.name in declared and not one.shares_file]
    place = {name: index for index, name in enumerate(declared)}
    windows.sort(key=lambda one: place[one.path.name])
    known: dict[_Found, int | None] = {one: declared[one.path.name] for one in windows}
    known |= _by_process(ranks, processes)
    files = [
        one.as_file(rank, name_of(one.path), declared=True)
        for one, rank in known.items()
        if rank is not None
    ]
    others = {one: rank for one, rank in ranks.items() if one not in known}
    taken = {file.rank for file in files} | set(others.values())
    free = (number for number in count() if number not in taken)
    for one, rank in others.items():
        number = next(free) if rank is None else rank
        files.append(one.as_file(number, name_of(one.path), guessed=rank is None))
    return sorted(files, key=lambda file: file.rank)


def _by_process(ranks: Iterable[_Found], processes: Processes) -> dict[_Found, int | None]:
    """Return the ranks of what a profiler around the run recorded; None for other processes.

    Where not one process is known, such as in a container whose numbers differ, all are ranks.
    """
    stems = tuple(dict.fromkeys(f"{stem}." for stem, _ in processes))
    recorded = [one for one in ranks if stems and one.path.name.startswith(stems)]
    found = {one: _rank_of_process(one, processes) for one in sorted(recorded, key=_in_windows)}
    return found if any(rank is not None for rank in found.values()) else {}


def _rank_of_process(one: _Found, processes: Processes) -> int | None:
    of = (rank for (stem, number), rank in processes.items()
          if number == one.process and one.path.name.startswith(f"{stem}."))  # fmt: skip
    return next(of, None)


def _in_windows(one: _Found) -> tuple[int, str]:
    """Return the order of a report among those of several windows: nsys.2 comes before nsys.10."""
    number = re.search(r"\.(\d{1,9})\.(?:nsys-rep|sqlite)$", one.path.name)
    return int(number[1]) if number else 0, one.path.name


def two_of_one_rank(rank: int, first: str, second: str) -> InputError:
    """Return the error of two unrelated traces that say to be of the same rank."""
    return InputError(
        f"Two traces are of rank {rank}: {first} and {second}.",
        "Give one of them, or a folder with one trace a rank; `fp8verify table` takes many runs.",
    )


def _names(paths: Iterable[Path]) -> Callable[[Path], str]:
    """Return the function that names a file so that it is told from the others."""
    counts = Counter(path.name for path in paths)
    return lambda path: path.name if counts[path.name] == 1 else f"{path.parent.name}/{path.name}"
