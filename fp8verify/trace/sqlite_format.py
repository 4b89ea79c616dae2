"""SQLite files: Nsight Systems' exports and rocprofv3's databases, by their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.errors import InputError
from fp8verify.trace.formats import Glance

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fp8verify.trace.database import Database
    from fp8verify.trace.formats import Reading, Source
    from fp8verify.trace.tables import Trace

_MAGIC = b"SQLite format 3\0"


class SqliteFormat:
    """A database of a profiler."""

    name = "a profiler's database"
    suffixes = (".sqlite", ".sqlite.gz", ".sqlite.zst", ".db")

    def probe(self, head: bytes, name: str) -> bool:
        """Whether a SQLite file begins, or an export that is empty or no database at all."""
        is_json = head.lstrip()[:1] in (b"{", b"[")
        return head.startswith(_MAGIC) or (name.endswith(self.suffixes) and not is_json)

    def glance(self, source: Source) -> Glance:
        """Look for the tables of either profiler, and the processes in it."""
        from fp8verify.trace import nsys_sqlite as nsys
        from fp8verify.trace import rocpd

        with _open(source) as database:
            if nsys.is_export(database):
                return nsys.parts(database)
            return rocpd.parts(database) if rocpd.is_rocpd(database) else Glance()

    def read(self, source: Source, how: Reading) -> Trace:
        """Read one process of it."""
        from fp8verify.trace import nsys_sqlite as nsys
        from fp8verify.trace import rocpd
        from fp8verify.trace.database import unread_wal

        with _open(source) as database:
            if nsys.is_export(database):
                found = nsys.read(database, source.name, how)
            elif rocpd.is_rocpd(database):
                found = rocpd.read(database, source.name, how)
            else:
                raise InputError(
                    f"{source.name} is a SQLite file, but no trace.",
                    "Give what nsys export --type sqlite or rocprofv3 wrote.",
                )
        if unread_wal(source):
            found.health.truncated = True
            found.health.notes.append("what is in the write-ahead log next to it was not read")
        return found


def _open(source: Source) -> AbstractContextManager[Database]:
    # sqlite3 takes a while to import, and most traces are not in it.
    from fp8verify.trace import nsys_sqlite as nsys
    from fp8verify.trace import rocpd
    from fp8verify.trace.database import open_database

    return open_database(source, lambda table: table in nsys.WANTED or rocpd.is_wanted(table))
