"""rocprofv3: its CSV tables, and its database (rocpd), the default output since ROCm 7.0."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.build import main_device
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.rows import RowCollector, totals
from fp8verify.trace.source import Glance, Part, Reading, Source
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.database import Database


NAME = "rocprofv3"
ENDING = "_kernel_trace.csv"
_CALL = ("Correlation_Id", "Start_Timestamp", "End_Timestamp", "Thread_Id")


def glance(source: Source) -> Glance:
    """Look for the header of a CSV table; the file does not say of which rank it is."""
    return Glance(is_trace=_is_header(_Table(source)))


def read(source: Source, how: Reading) -> Trace:
    """Read the kernels of one process from CSV, and what else was recorded of it.

    Raises:
        InputError: it is not a kernel trace, or cannot be unpacked.
    """
    table = _Table(source)
    if not _is_header(table):
        raise InputError(
            f"{source.name} is not a kernel trace: no column Kernel_Name in it.",
            "Give what rocprofv3 --kernel-trace --output-format csv wrote.",
        )
    trace, rows = Trace(source=source.name), RowCollector()
    rows.kernels(_kernels(table))
    rows.calls(map(numbers, _neighbor(source, "_hip_api_trace.csv", *_CALL)))
    markers = _neighbor(source, "_marker_api_trace.csv", "Function", *_CALL[1:])
    rows.ranges((text, *numbers(rest)) for text, *rest in markers)
    copies = _neighbor(source, "_memory_copy_trace.csv", *_CALL[1:3])
    rows.copies("memcpy", totals(map(numbers, copies)))
    rows.skipped += table.skipped
    rows.fill(trace, NAME, layers=how.layers)
    trace.health.truncated = table.is_cut
    trace.gpu = _gpu(source, main_device(trace.kernels))
    return trace


def _is_header(table: _Table) -> bool:
    return {"kernel_name", "start_timestamp", "end_timestamp"} <= table.columns.keys()


def _kernels(table: _Table) -> Iterator[Sequence[Any]]:
    """Yield name, start, end, device, stream and correlation id of kernels."""
    stream = "Stream_Id" if "stream_id" in table.columns else "Queue_Id"
    wanted = ("Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp")
    for kind, name, *rest in table.rows(*wanted, "Agent_Id", stream, "Correlation_Id"):
        if kind in ("", "KERNEL_DISPATCH"):
            yield name, *numbers(rest)


def _gpu(source: Source, agent: int) -> str | None:
    columns = ("Agent_Type", "Logical_Node_Id", "Product_Name", "Name")
    agents = _neighbor(source, "_agent_info.csv", *columns)
    gpus = [row for row in agents if row[0].upper() == "GPU"]
    chosen = [row for row in gpus if row[1] == str(agent)] or gpus
    return gpu_name(*chosen[0][2:]) if chosen else None


def _neighbor(source: Source, ending: str, *wanted: str) -> Iterator[Sequence[str]]:
    """Yield the rows of another table of the same process; none if it was not recorded."""
    path = source.path
    if path is None or ENDING not in path.name:
        return
    other = path.with_name(path.name.replace(ENDING, ending))
    with reading(other):
        if other.is_file() and other.stat().st_size:
            with open_binary(other) as file:
                yield from _Table(Source(file, other.name, other)).rows(*wanted)


class _Table:
    """The rows of one file, to be iterated over once.

    Attributes:
        skipped: rows that could not be read so far.
        is_cut: whether the last line ends without a line break.
    """

    def __init__(self, source: Source) -> None:
        self.skipped, self.is_cut = 0, False
        self._source = source
        self._rows = csv.reader(self._lines())
        header = self._next() or []
        self._width = len(header)
        self.columns = {name.strip("\ufeff ").lower(): place for place, name in enumerate(header)}

    def rows(self, *wanted: str) -> Iterator[Sequence[str]]:
        """Yield the values of some columns, "" where the file has no such column.

        Raises:
            InputError: the file cannot be unpacked.
        """
        places = [self.columns.get(name.lower()) for name in wanted]
        while (row := self._next()) is not None:
            if len(row) == self._width:
                yield ["" if place is None else row[place] for place in places]
            elif row:
                self.skipped += 1

    def _next(self) -> list[str] | None:
        try:
            return next(self._rows, None)
        except csv.Error:
            self.skipped += 1
            return []

    def _lines(self) -> Iterator[str]:
        for line in self._source.lines():
            self.is_cut = not line.endswith("\n")
            yield line
        self.is_cut |= self._source.damage is not None


def numbers(values: Iterable[str]) -> list[int | None]:
    """Return whole numbers, None for what is none: "Agent 4" and "GPU 4" are 4."""
    return [
        int(text) if (text := value.rpartition(" ")[2]).isdecimal() else None for value in values
    ]


def gpu_name(*candidates: object) -> str | None:
    """Return the first that is a name: the product's, or the instruction set's (gfx942)."""
    names = (clean(name.strip()[:200]) for name in candidates if isinstance(name, str))
    return next(filter(None, names), None)


_KERNELS = "rocpd_kernel_dispatch"
_SYMBOLS, _AGENTS = "rocpd_info_kernel_symbol", "rocpd_info_agent"
_REGIONS, _COPIES = "rocpd_region", "rocpd_memory_copy"
_EVENTS, _STRINGS = "rocpd_event", "rocpd_string"
_TIMES, _TRACKS = "rocpd_timestamp", "rocpd_track"
_WANTED = (_KERNELS, _SYMBOLS, _AGENTS, _REGIONS, _COPIES, _EVENTS, _STRINGS, _TIMES, _TRACKS)
_MARKERS = ("roctxRange", "roctxThreadRange", "roctxProcessRange")

_extdata = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


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


def read_rocpd(database: Database, name: str, how: Reading) -> Trace:
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
    tables = _Rocpd(database, suffixes[how.part or 0], name)
    rows.kernels(tables.kernels())
    rows.calls(tables.calls())
    rows.ranges(tables.markers())
    rows.copies("memcpy", totals(tables.copies()))
    rows.fill(trace, NAME, layers=how.layers)
    trace.gpu = tables.gpu(main_device(trace.kernels))
    return trace


class _Rocpd:
    """The tables of one process, in either layout."""

    def __init__(self, database: Database, suffix: str, name: str) -> None:
        self._database, self._suffix = database, suffix
        self._times: dict[object, Any] | None = None
        if database.has(_KERNELS + suffix, "start_id", "end_id", "track_id"):
            self._times = self._by_id(_TIMES, "value")
            places = self._rows(_TRACKS, "id", "tid", "agent_id", "stream_id")
            self._tracks = {number: place for number, *place in places}
        elif not database.has(_KERNELS + suffix, "start", "end"):
            raise InputError(
                f"{name} is a rocprofv3 database in a layout that is not known.",
                "Export CSV: rocpd convert --output-format csv.",
            )
        self._stacks = self._by_id(_EVENTS, "stack_id")
        self._names = self._by_id(_STRINGS, "string")

    def kernels(self) -> Iterator[Sequence[Any]]:
        """Yield name, start, end, device, stream and correlation id of kernels."""
        columns = ("id", "display_name", "kernel_name")
        names = {number: shown or name for number, shown, name in self._rows(_SYMBOLS, *columns)}
        for (symbol, event), start, end, place in self._timed(_KERNELS, "kernel_id", "event_id"):
            yield names.get(symbol), start, end, *place[1:], self._stacks.get(event)

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

    def copies(self) -> Iterator[Sequence[Any]]:
        """Yield start, end and bytes of copies."""
        for (size,), start, end, _ in self._timed(_COPIES, "size"):
            yield start, end, size

    def gpu(self, agent: int) -> str | None:
        """Return the name of the GPU of an agent."""
        agents = self._rows(_AGENTS, "id", "product_name", "name")
        return next((gpu_name(*names) for number, *names in agents if number == agent), None)

    def _regions(self, *, markers: bool) -> Iterator[Sequence[Any]]:
        """Yield event, correlation id, start, end and thread of calls, or of roctx ranges."""
        kind = {n: str(name).startswith(_MARKERS) for n, name in self._names.items()}
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


def _text_of(extdata: object) -> str | None:
    """Return the message of a marker; the rest of what is noted with it is not looked at."""
    try:
        return _text.decode(_extdata.decode(str(extdata))["message"])
    except (ValueError, KeyError, RecursionError):
        return None
