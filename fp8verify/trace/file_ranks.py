"""Which rank each trace of a capture belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from fp8verify.errors import InputError
from fp8verify.text import clean, lazy_pattern
from fp8verify.trace.formats import Part

_RANK = lazy_pattern(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)


class TraceFile(Struct, frozen=True):
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

    def as_file(
        self, rank: int, name: str, *, declared: bool = False, guessed: bool = False
    ) -> TraceFile:
        """Return it as the trace of a rank; one of several in a file is named by its process."""
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
    ranks: Mapping[FoundTrace, int | None], declared: Mapping[str, int]
) -> list[TraceFile]:
    """Return the files by rank; those of unknown rank get the free numbers in order."""
    name_of = _names(dict.fromkeys(one.path for one in ranks))
    known = _windows(ranks, declared)
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


def _names(paths: Iterable[Path]) -> Callable[[Path], str]:
    """Return the function that names a file so that the name differs from all others."""
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
