"""Find and read the files of a capture folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.json import encode
from msgspec.structs import replace

from fp8verify.capture.names import (
    LOG,
    LOGS,
    META_SUFFIX,
    METAS,
    NUMERICS,
    NUMERICS_SUFFIX,
    SERIES_SUFFIX,
)
from fp8verify.capture.schema import (
    SCHEMA,
    MeasuredRecord,
    NumericsRecord,
    RankMeta,
    RankNumerics,
)
from fp8verify.errors import InputError
from fp8verify.text import clean_json

MAX_BYTES = 64 << 20
MAX_SERIES, MAX_LINES = 128 << 20, 1 << 16  # bytes and lines of a series that are read
_MAX_LINE = 8 << 20

Record = TypeVar("Record", RankMeta, NumericsRecord)


def find_logs(capture: Path) -> list[Path]:
    """Return the logs of a capture: the run's own, other nodes', and ranks' that went to files."""
    try:
        logs = sorted(path for path in capture.glob(LOGS) if path.is_file())
    except OSError:
        return []
    return sorted(logs, key=lambda path: path.name != LOG)


def find_metas(folder: Path) -> list[Path]:
    """Return the meta files of a capture, first those of each rank's first process."""
    found = folder.glob(METAS) if folder.is_dir() else ()
    return sorted(found, key=lambda path: path.name.removesuffix(META_SUFFIX))


def read_meta(path: Path) -> RankMeta:
    """Return the meta file at `path`; fields that this version does not know are ignored.

    Raises:
        InputError: if it cannot be read, or is not such a file.
    """
    return _read(path, RankMeta, "is not a module list")


def _read(path: Path, kind: type[Record], is_not: str) -> Record:
    """Return the record in a file of a rank.

    Raises:
        InputError: it cannot be read, or is not such a file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"Cannot read {path}: {error.strerror}.", "Check the name and the permissions."
        ) from None
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MB")
        record = msgspec.json.decode(clean_json(data), type=kind)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} {is_not}: {str(error)[:200]}.",
            "It is damaged or was not written by fp8verify run; move it out of the capture folder.",
        ) from None
    if record.schema != SCHEMA:
        raise InputError(
            f"{path} has schema {record.schema}; this version reads {SCHEMA}.",
            "Inspect it with the version of fp8verify that made it.",
        )
    return record


def read_ranks(folder: Path) -> dict[int, RankMeta]:
    """Return the records of a capture folder by rank; other paths have none.

    Raises:
        InputError: one cannot be read.
    """
    records: dict[int, list[RankMeta]] = {}
    for path in find_metas(folder):
        meta = read_meta(path)
        records.setdefault(meta.rank, []).append(meta)
    joined = {rank: reduce(_join, found) for rank, found in records.items()}
    for rank, found in records.items():
        if len(found) > 1:
            told = f"{len(found)} processes of this rank were recorded; their windows are together"
            joined[rank] = replace(joined[rank], notes=(told, *joined[rank].notes))
    return joined


def _join(first: RankMeta, second: RankMeta) -> RankMeta:
    """Join what two processes of one rank noted, as when a shell script trains twice."""
    return replace(
        first,
        windows=tuple(dict.fromkeys((*first.windows, *second.windows))),
        steps_seen=max(first.steps_seen, second.steps_seen),
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
        modules=tuple({encode(one): one for one in first.modules + second.modules}.values()),
        api_calls=tuple(dict.fromkeys((*first.api_calls, *second.api_calls))),
        naming=first.naming or second.naming,
        versions={**second.versions, **first.versions},
        steps_outside=first.steps_outside or second.steps_outside,
    )


def read_numerics(folder: Path) -> dict[int, RankNumerics]:
    """Return the numerics of a capture by rank; of two processes of a rank the first's.

    Raises:
        InputError: a file cannot be read.
    """
    found: dict[int, RankNumerics] = {}
    paths = folder.glob(NUMERICS) if folder.is_dir() else ()
    for path in sorted(paths, key=lambda path: path.name.removesuffix(NUMERICS_SUFFIX)):
        record = _read(path, NumericsRecord, "has no numerics")
        series = path.with_name(path.name.removesuffix(NUMERICS_SUFFIX) + SERIES_SUFFIX)
        lines = tuple(_series(series)) if series.is_file() else ()
        found.setdefault(record.rank, RankNumerics(record=record, series=lines))
    return found


def _series(path: Path) -> Iterator[MeasuredRecord]:
    """Yield the lines of a series, without a line that a killed process left incomplete.

    Only every n-th line of a very large file is read.
    """
    with path.open("rb") as file:
        size, first = path.stat().st_size, len(file.readline(_MAX_LINE)) or 1
        every = 1 + max(size // MAX_SERIES, size // first // MAX_LINES)
        file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b"")):
            if number % every == 0:
                with suppress(ValueError, RecursionError):
                    yield msgspec.json.decode(clean_json(line), type=MeasuredRecord)
