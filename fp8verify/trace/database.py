"""Open a SQLite file that others wrote: read only, table by table, nothing else of it touched."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fp8verify.errors import InputError
from fp8verify.trace.places import is_remote
from fp8verify.trace.source import Source

MAGIC = b"SQLite format 3\0"
# What is packed, remote or piped is copied first; a day of training is a few gigabytes.
MAX_COPY = 32 << 30
# A name as long as this is damage.
_MAX_TEXT = 1 << 20
# The schemas that profilers write have some hundred tables.
_MAX_TABLES = 10_000
_WAL_HEADER = 32

# Steps of SQLite's machine: a query takes some 20 a row, and a row some bytes.
_STEPS_AT_ONCE = 100_000
_STEPS_FREE = 10_000_000
_STEPS_A_BYTE = 50


class Database:
    """One open file; only tables that the reader wants can be read, whatever a query names."""

    def __init__(self, path: Path, name: str, wanted: Collection[str]) -> None:
        self._name = name
        # immutable: neither locks nor a WAL file are looked at, and none is made.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        if hasattr(self._connection, "setlimit"):  # Python 3.11
            self._connection.setlimit(_SQLITE_LIMIT_LENGTH, _MAX_TEXT)
        # A damaged tree of pages may name a page many times: rows then are as many as one likes.
        self._left = _STEPS_FREE + _STEPS_A_BYTE * path.stat().st_size
        self._connection.set_progress_handler(self._is_too_much, _STEPS_AT_ONCE)
        with self._reading():
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self.tables = {
                str(row[0]): self._columns(str(row[0]))
                for row in self._connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 LIMIT ?",
                    (_MAX_TABLES,),
                ).fetchall()
                if row[0] in wanted
            }
            self._connection.set_authorizer(self._authorize)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is a table with these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def rows(self, query: str) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query.

        Raises:
            InputError: the file is damaged.
        """
        with self._reading():
            yield from self._connection.execute(query)

    def table(self, table: str, *columns: str, where: str = "TRUE") -> Iterator[Sequence[Any]]:
        """Yield the rows of a table in their order, None for columns that it does not have.

        Raises:
            InputError: the file is damaged.
        """
        known = self.tables.get(table)
        if known is None:
            return
        wanted = ", ".join(name if name in known else "NULL" for name in columns)
        quoted = table.replace('"', '""')
        yield from self.rows(f'SELECT {wanted} FROM "{quoted}" WHERE {where}')  # noqa: S608 - ours

    def _is_too_much(self) -> bool:
        self._left -= _STEPS_AT_ONCE
        return self._left < 0

    def _columns(self, table: str) -> frozenset[str]:
        quoted = table.replace('"', '""')
        rows = self._connection.execute(f'PRAGMA table_info("{quoted}")')
        return frozenset(str(row[1]) for row in rows)

    def _authorize(self, action: int, table: str | None, *_: object) -> int:
        if action in _HARMLESS or (action == sqlite3.SQLITE_READ and table in self.tables):
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            reason = re.sub(r"\s+", " ", str(error))[:200].rstrip(".") or type(error).__name__
            raise InputError(
                f"{self._name} cannot be read as a SQLite file: {reason}.",
                "It is damaged or was not finished: export it again with the tool that made it.",
            ) from None


# Numbers of sqlite3.h that the module has no names for in every Python.
_SQLITE_FUNCTION, _SQLITE_LIMIT_LENGTH = 31, 0
_HARMLESS = frozenset({sqlite3.SQLITE_SELECT, _SQLITE_FUNCTION})


@contextmanager
def open_database(source: Source, wanted: Collection[str]) -> Iterator[Database]:
    """Open the database that a source holds, as a copy if it is packed, remote or piped.

    Raises:
        InputError: it is not a database, is damaged, or too large to be copied.
    """
    if not source.head.startswith(MAGIC):
        raise InputError(f"{source.name} is not a SQLite file.", "Export the trace again.")
    with _local(source) as path:
        database = Database(path, source.name, wanted)
        try:
            yield database
        finally:
            database.close()


def unread_wal(source: Source) -> bool:
    """Whether there is a write-ahead log next to the file, which is not read."""
    path = source.path
    if path is None or is_remote(path):
        return False
    with suppress(OSError):
        return path.with_name(f"{path.name}-wal").stat().st_size > _WAL_HEADER
    return False


@contextmanager
def _local(source: Source) -> Iterator[Path]:
    path = source.path
    if path is not None and not is_remote(path) and not source.is_packed:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fp8verify-") as folder:
        copy, size = Path(folder) / "copy.sqlite", 0
        with copy.open("wb") as file:
            for piece in source:
                size += len(piece)
                if size > MAX_COPY:
                    raise InputError(
                        f"{source.name} has more than {MAX_COPY >> 30} GB, too many to be copied.",
                        "Unpack or download it, and give the file.",
                    )
                file.write(piece)
        if source.damage:
            raise InputError(f"{source.name} cannot be read: {source.damage}.", "Pack it again.")
        yield copy
