"""rocprofv3's SQLite database, its default output since ROCm 7.0.

Every table's name ends in the id of the process that wrote it, and a merged database holds the
tables of several. The views that hide this go through rocpd_info_process, which holds the whole
environment of the training and is never opened; so the tables are read. Schema 3 exists in two
layouts: with times in the rows (rocprofiler-sdk 50c89cb), and in rocpd_timestamp and rocpd_track
(19d33bb).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fp8verify.errors import InputError
from fp8verify.trace.build import main_device
from fp8verify.trace.formats import Glance, Part
from fp8verify.trace.rocprof.file_formats import NAME
from fp8verify.trace.rocprof.gpu import gpu_name
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.database import Database
    from fp8verify.trace.formats import Reading

_KERNELS = "rocpd_kernel_dispatch"
_WANTED = (
    _KERNELS,
    "rocpd_string",
    "rocpd_info_kernel_symbol",
    "rocpd_info_agent",
    "rocpd_event",
    "rocpd_region",
    "rocpd_memory_copy",
    "rocpd_timestamp",
    "rocpd_track",
)
_MARKERS = ("roctxRange", "roctxThreadRange", "roctxProcessRange")

_extdata = msgspec.json.Decoder(dict[str, msgspec.Raw])
_message = msgspec.json.Decoder(str)


def is_wanted(table: str) -> bool:
    """Whether a table is read at all."""
    return table.startswith(_WANTED)


def is_rocpd(database: Database) -> bool:
    """Whether this is what rocprofv3 writes."""
    return any(table.startswith("rocpd_") for table in database.tables)


def parts(database: Database) -> Glance:
    """Return the processes of a database, each of which wrote tables of its own."""
    found = _suffixes(database)
    labels = tuple(Part(place, f"process {place + 1}") for place in range(len(found)))
    return Glance(is_trace=True, parts=labels if len(found) > 1 else ())


def _suffixes(database: Database) -> list[str]:
    """Return what the names of the tables of each process end in."""
    return sorted(t.removeprefix(_KERNELS) for t in database.tables if t.startswith(_KERNELS))


def read(database: Database, name: str, how: Reading) -> Trace:
    """Read the kernels, calls and roctx ranges of one process.

    Raises:
        InputError: a layout that is not known, or several processes and none is named.
    """
    suffixes = _suffixes(database)
    if len(suffixes) > 1 and how.part is None:
        raise InputError(
            f"{name} holds the traces of {len(suffixes)} processes.", "Give it as a file."
        )
    trace, rows = Trace(source=name), RowCollector()
    if not suffixes:
        return trace
    tables = _Tables(database, suffixes[how.part or 0], name)
    rows.kernels(tables.kernels())
    rows.calls(tables.calls())
    rows.ranges(tables.markers())
    rows.copies("memcpy", *tables.copies())
    rows.fill(trace, NAME, layers=how.layers)
    trace.gpu = tables.gpu(main_device(trace.kernels))
    return trace


class _Tables:
    """The tables of one process, in either layout."""

    def __init__(self, database: Database, suffix: str, name: str) -> None:
        self._database, self._suffix = database, suffix
        if self._has(_KERNELS, "start", "end"):
            self._start, self._end, self._place = "{0}.start", "{0}.end", "{0}"
        elif self._has(_KERNELS, "start_id", "end_id", "track_id"):
            self._start, self._end, self._place = "ts.value", "te.value", "tr"
        else:
            raise InputError(
                f"{name} is a rocprofv3 database in a layout that is not known.",
                "Export CSV or JSON: rocpd convert --output-format csv.",
            )

    def kernels(self) -> Iterator[Sequence[Any]]:
        """Yield name, start, end, device, stream and correlation id of kernels."""
        if not self._has("rocpd_info_kernel_symbol", "id"):
            return
        names = [
            f"nullif(s.{column}, '')"
            for column in ("display_name", "kernel_name")
            if self._has("rocpd_info_kernel_symbol", column)
        ]
        place = self._place.format("k")
        correlation, join = self._correlation("k")
        yield from self._database.rows(
            f"SELECT coalesce({', '.join(names)}, NULL), {self._times('k')}, {place}.agent_id, "
            f"{place}.stream_id, {correlation} FROM {self._named(_KERNELS)} k "
            f"LEFT JOIN {self._named('rocpd_info_kernel_symbol')} s ON s.id = k.kernel_id "
            f"{self._joins('k')} {join} ORDER BY k.rowid"
        )

    def calls(self) -> Iterator[Sequence[Any]]:
        """Yield correlation id, start, end and thread of calls into HIP."""
        if self._has("rocpd_region", "name_id") and self._has("rocpd_event", "stack_id"):
            yield from self._database.rows(
                f"SELECT e.stack_id, {self._times('r')}, {self._place.format('r')}.tid "
                f"{self._regions()} AND NOT ({_is_marker('n.string')}) ORDER BY r.rowid"
            )

    def markers(self) -> Iterator[Sequence[Any]]:
        """Yield text, start, end and thread of roctx ranges, whose text is in the event."""
        if self._has("rocpd_region", "name_id") and self._has("rocpd_event", "extdata"):
            query = (
                f"SELECT e.extdata, {self._times('r')}, {self._place.format('r')}.tid "
                f"{self._regions()} AND {_is_marker('n.string')} ORDER BY r.rowid"
            )
            for extdata, *rest in self._database.rows(query):
                yield _text_of(extdata), *rest

    def copies(self) -> Sequence[Any]:
        """Return how many copies there were, their time and their bytes."""
        if not self._has("rocpd_memory_copy", "size"):
            return (0, 0, 0)
        times = f"sum(max({self._end.format('m')} - {self._start.format('m')}, 0))"
        return self._database.one(
            f"SELECT count(*), {times}, sum(m.size) FROM {self._named('rocpd_memory_copy')} m "
            f"{self._joins('m')}"
        )

    def gpu(self, agent: int) -> str | None:
        """Return the name of the GPU of an agent."""
        table = "rocpd_info_agent"
        columns = [c for c in ("product_name", "name") if self._has(table, c)]
        if not columns:
            return None
        query = f"SELECT {', '.join(columns)} FROM {self._named(table)} WHERE id = ?"
        return gpu_name(*self._database.one(query, (agent,)))

    def _named(self, table: str) -> str:
        quoted = (table + self._suffix).replace('"', '""')
        return f'"{quoted}"'

    def _has(self, table: str, *columns: str) -> bool:
        return self._database.has(table + self._suffix, *columns)

    def _times(self, row: str) -> str:
        return f"{self._start.format(row)}, {self._end.format(row)}"

    def _joins(self, row: str) -> str:
        """Return the joins to where the newer layout keeps times, threads and streams."""
        if self._place != "tr":
            return ""
        times = self._named("rocpd_timestamp")
        return (
            f"LEFT JOIN {times} ts ON ts.id = {row}.start_id "
            f"LEFT JOIN {times} te ON te.id = {row}.end_id "
            f"LEFT JOIN {self._named('rocpd_track')} tr ON tr.id = {row}.track_id"
        )

    def _correlation(self, row: str) -> tuple[str, str]:
        """Return column and join for the id that a kernel shares with the call that launched it."""
        if not self._has("rocpd_event", "stack_id"):
            return "-1", ""
        return "e.stack_id", f"LEFT JOIN {self._named('rocpd_event')} e ON e.id = {row}.event_id"

    def _regions(self) -> str:
        return (
            f"FROM {self._named('rocpd_region')} r "
            f"JOIN {self._named('rocpd_string')} n ON n.id = r.name_id "
            f"JOIN {self._named('rocpd_event')} e ON e.id = r.event_id {self._joins('r')} "
            "WHERE e.stack_id NOT NULL"
        )


def _is_marker(column: str) -> str:
    return "(" + " OR ".join(f"{column} LIKE '{prefix}%'" for prefix in _MARKERS) + ")"


def _text_of(extdata: object) -> str | None:
    """Return the message of a marker; the rest of what is noted with it is not looked at."""
    try:
        return _message.decode(_extdata.decode(str(extdata))["message"])
    except (ValueError, KeyError, RecursionError):
        return None
