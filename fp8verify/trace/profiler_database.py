"""Databases of profilers, by their tables: Nsight Systems' exports and rocprofv3's databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fp8verify.errors import InputError
from fp8verify.trace import nsys, rocprof
from fp8verify.trace.database import Database, open_database, unread_wal
from fp8verify.trace.source import Glance, Reading, Source
from fp8verify.trace.tables import Trace


def glance(source: Source) -> Glance:
    """Look for the tables of either profiler, and the processes in it."""
    with _open(source) as database:
        if nsys.is_export(database):
            return nsys.parts(database)
        return rocprof.parts(database) if rocprof.is_rocpd(database) else Glance()


def read(source: Source, how: Reading) -> Trace:
    """Read one process of a database.

    Raises:
        InputError: it is damaged, or neither profiler's.
    """
    with _open(source) as database:
        if nsys.is_export(database):
            found = nsys.read_export(database, source.name, how)
        elif rocprof.is_rocpd(database):
            found = rocprof.read_rocpd(database, source.name, how)
        else:
            raise InputError(
                f"{source.name} is a SQLite file, but no trace.",
                "Give what nsys export --type sqlite or rocprofv3 wrote.",
            )
    if unread_wal(source):
        found.health.truncated = True
        found.health.notes.append("what is in the write-ahead log next to it was not read")
    return found


@contextmanager
def _open(source: Source) -> Iterator[Database]:
    wanted = nsys.WANTED
    with open_database(source, lambda t: t in wanted or rocprof.is_wanted(t)) as database:
        yield database
