"""rocprofv3's SQLite database, its default output since ROCm 7.0.

Every table's name ends in the id of the process that wrote it, and a merged database holds the
tables of several. The views that hide this go through rocpd_info_process, which holds the whole
environment of the training and is never opened; so the tables are read, one by one: ids in a
foreign file need not be unique, and a join of such tables multiplies their rows. Schema 3 exists
in two layouts: with times in the rows (rocprofiler-sdk 50c89cb), and in rocpd_timestamp and
rocpd_track (19d33bb).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fp8verify.errors import InputError
from fp8verify.trace.build import main_device
from fp8verify.trace.formats import Glance, Part
from fp8verify.trace.rocprof_csv import NAME, gpu_name
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.database import Database
    from fp8verify.trace.formats import Reading

_KERNELS = "rocpd_kernel_dispatch"
_SYMBOLS, _AGENTS = "rocpd_info_kernel_symbol", "rocpd_info_agent"
_REGIONS, _COPIES = "rocpd_region", "rocpd_memory_copy"
_EVENTS, _STRINGS = "rocpd_event", "rocpd_string"
_TIMES, _TRACKS = "rocpd_timestamp", "rocpd_track"
_WANTED = (_KERNELS, _SYMBOLS, _AGENTS, _REGIONS, _COPIES, _EVENTS, _STRINGS, _TIMES, _TRACKS)
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
    """Return the processes of a database, each with tables of its own."""
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
        self._times: dict[object, Any] | None = None
        if self._has(_KERNELS, "start_id", "end_id", "track_id"):
            self._times = self._by_id(_TIMES, "value")
            places = self._rows(_TRACKS, "id", "tid", "agent_id", "stream_id")
            self._tracks = {number: place for number, *place in places}
        elif not self._has(_KERNELS, "start", "end"):
            raise InputError(
                f"{name} is a rocprofv3 database in a layout that is not known.",
                "Export CSV: rocpd convert --output-format csv.",
            )
        self._stacks = self._by_id(_EVENTS, "stack_id")
        strings = self._by_id(_STRINGS, "string")
        self._names = {number: name for number, name in strings.items() if isinstance(name, str)}

    def kernels(self) -> Iterator[Sequence[Any]]:
        """Yield name, start, end, device, stream and correlation id of kernels."""
        if not self._has(_SYMBOLS, "id"):
            return
        columns = ("id", "display_name", "kernel_name")
        names = {number: shown or name for number, shown, name in self._rows(_SYMBOLS, *columns)}
        has_stacks = self._has(_EVENTS, "stack_id")
        for (symbol, event), start, end, place in self._timed(_KERNELS, "kernel_id", "event_id"):
            stack = self._stacks.get(event) if has_stacks else -1
            yield names.get(symbol), start, end, *place[1:], stack

    def calls(self) -> Iterator[Sequence[Any]]:
        """Yield correlation id, start, end and thread of calls into HIP."""
        for _, stack, start, end, thread in self._regions(markers=False):
            yield stack, start, end, thread

    def markers(self) -> Iterator[Sequence[Any]]:
        """Yield text, start, end and thread of roctx ranges, whose text is in the event."""
        regions = list(self._regions(markers=True))
        wanted = {event for event, *_ in regions}
        texts = {
            event: _text_of(extdata)
            for event, extdata in self._rows(_EVENTS, "id", "extdata")
            if event in wanted
        }
        for event, _, *rest in regions:
            yield texts.get(event), *rest

    def copies(self) -> Sequence[int]:
        """Return how many copies there were, their time and their bytes."""
        count = time_ns = total = 0
        if self._has(_COPIES, "size"):
            for (size,), start, end, _ in self._timed(_COPIES, "size"):
                count += 1
                if isinstance(start, int) and isinstance(end, int):
                    time_ns += max(0, end - start)
                total += size if isinstance(size, int) else 0
        return count, time_ns, total

    def gpu(self, agent: int) -> str | None:
        """Return the name of the GPU of an agent."""
        agents = self._rows(_AGENTS, "id", "product_name", "name")
        return next((gpu_name(*names) for number, *names in agents if number == agent), None)

    def _regions(self, *, markers: bool) -> Iterator[Sequence[Any]]:
        """Yield event, correlation id, start, end and thread of calls, or of roctx ranges."""
        if not (self._has(_REGIONS, "name_id") and self._has(_EVENTS, "stack_id")):
            return
        kind = {n: name.startswith(_MARKERS) for n, name in self._names.items()}
        for (name, event), start, end, place in self._timed(_REGIONS, "name_id", "event_id"):
            stack = self._stacks.get(event)
            if stack is not None and kind.get(name) is markers:
                yield event, stack, start, end, place[0]

    def _timed(self, table: str, *columns: str) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Yield columns, start, end and (thread, agent, stream) of the rows of a table."""
        width = len(columns)
        if self._times is None:
            for row in self._rows(table, *columns, "start", "end", "tid", "agent_id", "stream_id"):
                yield row[:width], row[width], row[width + 1], row[width + 2 :]
            return
        nowhere = (None, None, None)
        for row in self._rows(table, *columns, "start_id", "end_id", "track_id"):
            start, end, track = row[width:]
            times = self._times.get(start), self._times.get(end)
            yield row[:width], *times, self._tracks.get(track, nowhere)

    def _by_id(self, table: str, column: str) -> dict[object, Any]:
        """Return a column by the ids of its rows, as far as it has values."""
        found: dict[object, Any] = {}
        for number, value in self._rows(table, "id", column):
            if value is not None:
                found.setdefault(number, value)
        return found

    def _rows(self, table: str, *columns: str) -> Iterator[Sequence[Any]]:
        return self._database.table(table + self._suffix, *columns)

    def _has(self, table: str, *columns: str) -> bool:
        return self._database.has(table + self._suffix, *columns)


def _text_of(extdata: object) -> str | None:
    """Return the message of a marker; the rest of what is noted with it is not looked at."""
    try:
        return _message.decode(_extdata.decode(str(extdata))["message"])
    except (ValueError, KeyError, RecursionError):
        return None
