"""Find the traces that a path stands for, one a rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.errors import InputError
from fp8verify.trace.buffer import Buffer
from fp8verify.trace.document import Document
from fp8verify.trace.metadata import Metadata
from fp8verify.trace.source import open_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

_SUFFIXES = (".json", ".json.gz", ".json.zst")
# What stands beside traces in a capture, and is none.
_OURS = re.compile(r"(\.meta|\.schema)\.json$|^expected\.json$|^report.*\.json$")
_RANK = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and the rank it belongs to, by its metadata, its name, or else its place."""

    path: Path
    rank: int


class TraceFiles(list[TraceFile]):
    """The traces of a path by rank, and the JSON files beside them that are none."""

    def __init__(self, files: Iterable[TraceFile] = (), skipped: Iterable[Path] = ()) -> None:
        super().__init__(files)
        self.skipped = list(skipped)


def find_traces(path: Path) -> TraceFiles:
    """Return the traces that `path`, a file or a folder, stands for, by rank.

    A folder is searched itself; if it holds no JSON, its direct subfolders are.

    Raises:
        InputError: nothing there, no trace among it, or two traces of one rank.
    """
    if path.is_file():
        return TraceFiles([TraceFile(path, rank_of_name(path.name) or 0)])
    if not path.is_dir():
        raise InputError(f"{path} does not exist.", "Give a trace or a folder of traces.")
    candidates = _candidates(path)
    if not candidates:
        raise InputError(f"{path} holds no trace.", _HINT)
    ranks: dict[Path, int | None] = {}
    skipped = []
    for candidate in candidates:
        is_trace, rank = _probe(candidate)
        if is_trace:
            ranks[candidate] = rank
        else:
            skipped.append(candidate)
    if not ranks:
        names = ", ".join(file.name for file in skipped[:3])
        raise InputError(f"{path} holds JSON, but no trace: {names}.", _HINT)
    return TraceFiles(_numbered(ranks), skipped)


_HINT = "Traces end in .json, .json.gz or .json.zst; give the folder that the profiler wrote to."


def rank_of_name(name: str) -> int | None:
    """Return the rank that a file name holds (`rank0`, `rank-0`, `rank_0`), if any."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def _candidates(folder: Path) -> list[Path]:
    try:
        found = _json_files(folder)
        if not found:
            for child in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
                found += _json_files(child)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{folder} cannot be read: {reason}.", "Check the path.") from None
    return found


def _json_files(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIXES) and not _OURS.search(entry.name) and entry.is_file()
    )


def _numbered(ranks: dict[Path, int | None]) -> list[TraceFile]:
    """Give files of unknown rank the free numbers in order; refuse two files of one rank."""
    owner: dict[int, Path] = {}
    for path, rank in ranks.items():
        if rank is not None and owner.setdefault(rank, path) != path:
            raise InputError(
                f"Two traces are of rank {rank}: {owner[rank].name} and {path.name}.",
                "Give one of them, or a folder with one trace a rank.",
            )
    free = 0
    for path in (path for path, rank in ranks.items() if rank is None):
        while free in owner:
            free += 1
        owner[free] = path
    return [TraceFile(owner[rank], rank) for rank in sorted(owner)]


def _probe(path: Path) -> tuple[bool, int | None]:
    """Read the start of a file: whether it is a trace, and its rank if it is known there."""
    metadata = Metadata()
    try:
        with path.open("rb") as file:
            buffer = Buffer(open_stream(file, path.name), path.name)
            document = Document(buffer, None, metadata)
            document.read()
    except (InputError, OSError):
        return False, None
    rank = metadata.rank if metadata.rank is not None else rank_of_name(path.name)
    return document.is_trace, rank
