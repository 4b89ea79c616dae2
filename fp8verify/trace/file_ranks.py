"""Which rank each trace of a capture belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.formats import Part

_RANK = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
# What `fp8verify run --profiler rocprofv3` has rocprofv3 call its files.
_PROCESS = re.compile(r"\.(\d{1,9})_(?:results|kernel_trace)\.")

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


class FoundTrace(NamedTuple):
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
        """Return it as the trace of a rank; one of several in a file is told by its process."""
        shown = clean(name)
        if self.part and self.shares_file:
            shown = f"{shown} ({self.part.label})"
        number = self.part.number if self.part else None
        return TraceFile(
            self.instead or self.path,
            rank,
            shown,
            declared=declared,
            guessed=guessed,
            part=number,
        )


def with_ranks(
    ranks: Mapping[FoundTrace, int | None], declared: Mapping[str, int], processes: Processes
) -> list[TraceFile]:
    """Return the files by rank; those of unknown rank get the free numbers in order."""
    name_of = _names(dict.fromkeys(one.path for one in ranks))
    known = _windows(ranks, declared) | _by_process(ranks, processes)
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


def _windows(
    ranks: Iterable[FoundTrace], declared: Mapping[str, int]
) -> dict[FoundTrace, int | None]:
    """Return the ranks of the windows that the runner noted, in its order."""
    windows = [one for one in ranks if one.path.name in declared and not one.shares_file]
    place = {name: index for index, name in enumerate(declared)}
    windows.sort(key=lambda one: place[one.path.name])
    return {one: declared[one.path.name] for one in windows}


def _by_process(ranks: Iterable[FoundTrace], processes: Processes) -> dict[FoundTrace, int | None]:
    """Return the ranks of what a profiler around the run recorded; None for other processes.

    Where not one process is known, such as in a container whose numbers differ, all are ranks.
    """
    stems = tuple(dict.fromkeys(f"{stem}." for stem, _ in processes))
    recorded = [one for one in ranks if stems and one.path.name.startswith(stems)]
    found = {one: _rank_of_process(one, processes) for one in sorted(recorded, key=_in_windows)}
    return found if any(rank is not None for rank in found.values()) else {}


def _rank_of_process(one: FoundTrace, processes: Processes) -> int | None:
    of = (rank for (stem, number), rank in processes.items()
          if number == one.process and one.path.name.startswith(f"{stem}."))  # fmt: skip
    return next(of, None)


def _in_windows(one: FoundTrace) -> tuple[int, str]:
    """Return the order of a report among those of several windows: nsys.2 comes before nsys.10."""
    number = re.search(r"\.(\d{1,9})\.(?:nsys-rep|sqlite)$", one.path.name)
    return int(number[1]) if number else 0, one.path.name


def _names(paths: Iterable[Path]) -> Callable[[Path], str]:
    """Return the function that names a file so that it is told from the others."""
    counts = Counter(path.name for path in paths)
    return lambda path: path.name if counts[path.name] == 1 else f"{path.parent.name}/{path.name}"


def rank_of_name(name: str) -> int | None:
    """Return the rank that a file name holds (`rank0`, `rank-0`, `rank_0`), if any."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def two_of_one_rank(rank: int, first: str, second: str) -> InputError:
    """Return the error of two unrelated traces that say to be of the same rank."""
    return InputError(
        f"Two traces are of rank {rank}: {first} and {second}.",
        "Give one of them, or a folder with one trace a rank; `fp8verify table` takes many runs.",
    )
