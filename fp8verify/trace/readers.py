"""Which format a file is in, by its first bytes; reading it."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from fp8verify.trace.formats import BLOCK_SIZE, Format, Glance, Reading, Source
from fp8verify.trace.kineto.reader import KinetoFormat
from fp8verify.trace.nsys_report import NsysReportFormat
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.profiler_table import ProfilerTableFormat
from fp8verify.trace.rocprof_csv import RocprofCsvFormat
from fp8verify.trace.source import open_stream
from fp8verify.trace.sqlite_format import SqliteFormat

if TYPE_CHECKING:
    from pathlib import Path

    from fp8verify.trace.tables import Trace

KINETO = KinetoFormat()


def format_of(source: Source) -> Format:
    """Return the format of a file; Kineto's reader says best what is wrong with a broken one."""
    found = (known for known in FORMATS if known.probe(source.head, source.name))
    return next(found, KINETO)


def suffixes() -> tuple[str, ...]:
    """Return the suffixes of the files that are traces in a folder."""
    return tuple(dict.fromkeys(suffix for known in FORMATS for suffix in known.suffixes))


def open_source(file: IO[bytes], name: str, path: Path | None = None) -> Source:
    """Return the unpacked bytes of an open file.

    Raises:
        InputError: the file is empty, or packed in a way that cannot be read here.
    """
    return Source(open_stream(file, name), name, path)


def glance_at(path: Path) -> tuple[Format, Glance]:
    """Return the format of a file and what its start shows.

    Raises:
        InputError: the file cannot be read.
    """
    with reading(path), open_binary(path) as file:
        source = open_source(file, path.name, path)
        found = format_of(source)
        return found, found.glance(source)


def parts_of(path: Path) -> Glance:
    """Return what the start of a file shows, if the format may keep several ranks in one file.

    Raises:
        InputError: the file cannot be read.
    """
    with reading(path), open_binary(path) as file:
        source = open_source(file, path.name, path)
        found = format_of(source)
        return Glance() if found is KINETO else found.glance(source)


def read_trace(
    path: Path,
    *,
    name: str | None = None,
    layers: bool = False,
    block_size: int = BLOCK_SIZE,
    part: int | None = None,
) -> Trace:
    """Read a trace in any known format, packed or not.

    Damage is confined to the events it hits and counted in `Trace.health`.

    Args:
        path: the file, of `fp8verify.trace.places` if it is remote.
        name: what errors and reports call it; the file's own name if not given.
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
        block_size: bytes decoded at once.
        part: the process to read of a file that holds several.

    Raises:
        InputError: the file cannot be read, or is not a trace.
    """
    with reading(path), open_binary(path) as file:
        source = open_source(file, name or path.name, path)
        return format_of(source).read(source, Reading(layers, block_size, part))


def read_open_trace(file: IO[bytes], name: str, *, block_size: int = BLOCK_SIZE) -> Trace:
    """Read a trace as `read_trace` does, from a file or pipe that is open already."""
    source = open_source(file, name)
    return format_of(source).read(source, Reading(block_size=block_size))


# One row a format; the first whose probe agrees reads the file.
FORMATS: tuple[Format, ...] = (
    SqliteFormat(),
    NsysReportFormat(glance_at, read_trace),
    RocprofCsvFormat(),
    ProfilerTableFormat(),
    KINETO,
)
