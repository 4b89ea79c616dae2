"""Read `rankR.numerics.json` and the series of a long run beside it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from fp8verify.capture.names import NUMERICS, NUMERICS_SUFFIX, SERIES_SUFFIX
from fp8verify.capture.numerics import NumericsRecord, RankNumerics, SeriesRecord
from fp8verify.errors import InputError
from fp8verify.text import clean_json

SCHEMA = 1
MAX_BYTES = 64 << 20
MAX_LINES = 4096  # of a series; of a longer one every n-th is read
_MAX_LINE = 8 << 20


def read_numerics(folder: Path) -> dict[int, RankNumerics]:
    """Return the numerics of a capture by rank; of two processes of a rank the first's.

    Raises:
        InputError: a file cannot be read.
    """
    found: dict[int, RankNumerics] = {}
    paths = folder.glob(NUMERICS) if folder.is_dir() else ()
    for path in sorted(paths, key=lambda path: path.name.removesuffix(NUMERICS_SUFFIX)):
        record = _decode(path, path.read_bytes()[: MAX_BYTES + 1])
        series = path.with_name(path.name.removesuffix(NUMERICS_SUFFIX) + SERIES_SUFFIX)
        lines = tuple(_series(series)) if series.is_file() else ()
        found.setdefault(record.rank, RankNumerics(record=record, series=lines))
    return found


def _decode(path: Path, data: bytes) -> NumericsRecord:
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MB")
        record = msgspec.json.decode(clean_json(data), type=NumericsRecord)
        if record.schema != SCHEMA:
            raise ValueError(f"it has schema {record.schema}, this version reads {SCHEMA}")
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} holds no numerics: {str(error)[:200]}.",
            "It is damaged or was not written by fp8verify run; move it out of the capture folder.",
        ) from None
    return record


def _series(path: Path) -> Iterator[SeriesRecord]:
    """Yield the lines of a series; one that was cut by a killed process is left out."""
    with path.open("rb") as file:
        every = 1 + sum(1 for _ in file) // MAX_LINES
        file.seek(0)
        for line in islice(file, 0, None, every):
            record = _line(line) if len(line) <= _MAX_LINE else None
            if record is not None:
                yield record


def _line(line: bytes) -> SeriesRecord | None:
    try:
        return msgspec.json.decode(clean_json(line), type=SeriesRecord)
    except (ValueError, RecursionError):
        return None
