"""Read one process of Nsight Systems' SQLite export into a `Trace`.

Schema 3.25 (nsys 2026.2) and older ones; 3.11 (nsys 2024.2) was recorded and read. Tables exist
only if they have rows, and columns come and go, so each is looked for. META_DATA_CAPTURE and
TARGET_INFO_SYSTEM_ENV hold the whole environment of the run, tokens included: they are never
opened. Tables are read one by one: ids in a foreign file need not be unique, and a join of such
tables multiplies their rows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.build import main_device
from fp8verify.trace.columns import Columns
from fp8verify.trace.database import Database, open_database, unread_wal
from fp8verify.trace.rows import RowCollector, totals
from fp8verify.trace.source import Glance, Part, Reading, Source
from fp8verify.trace.tables import Trace

# Texts of nsys 2024.2.3's libraries: "CUPTI dropped 7 records. …", "Number of incomplete CUPTI
# events dropped: 7. …", "7 CUPTI events were detected incomplete …", "Couldn't allocate CUPTI
# buffers 3 times. …", "CUPTI buffer allocation limit of … bytes is exceeded.", "7 GPU events were
# discarded …", "Connection to session is lost, …". Others are of samples of the CPU: "Some events
# (7) were lost. Certain charts (including CPU utilization) …", or of NVTX alone.
_LOST: Final = re.compile(
    r"\b(?:CUPTI|CUDA|GPU)\b[^.]{0,60}\b(?:dropped|lost|discarded|incomplete|exceeded)\b|"
    r"\ballocate CUPTI buffer|\bConnection to session is lost\b",
    re.IGNORECASE,
)
_NOTHING: Final = re.compile(r"\bdropped(?::\s*0\b| 0 records)|(?:^|: )0 (?:CUPTI|CUDA|GPU) events")
# Buffers that were still with CUPTI: the work at the end may be missing.
_OUTSTANDING: Final = re.compile(r"CUPTI buffers: \d+ of \d+")
_GRAPHS_ALONE: Final = (
    "{} CUDA graphs, {:.1f} ms, were recorded without their kernels; "
    "nsys profile --cuda-graph-trace=node records these"
)
_FOREVER: Final = 1 << 62
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_STRINGS: Final = "StringIds"
_RANGES: Final = "NVTX_EVENTS"
_DIAGNOSTICS: Final = "DIAGNOSTIC_EVENT"
_GPUS: Final = "TARGET_INFO_GPU"
_DEVICES: Final = "TARGET_INFO_CUDA_DEVICE"
_COPIES: Final = {"memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY", "memset": "CUPTI_ACTIVITY_KIND_MEMSET"}
# Any of them, together with the strings, identifies the export.
_SIGNS: Final = (
    *(_KERNELS, _CALLS, _RANGES, _GRAPHS),
    *("ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT"),
)
_WANTED: Final = frozenset({*_SIGNS, _STRINGS, _DIAGNOSTICS, _GPUS, _DEVICES, *_COPIES.values()})

# Serialized ids hold the process in bits 24 to 47, and the thread below (documentation of nsys,
# "SQLite Schema Reference"). Everything but the thread identifies a process.
_THREAD_BITS: Final = 0xFFFFFF
# NVTX_EVENTS.eventType (ENUM_NSYS_EVENT_TYPE).
_PUSH_POP, _START_END = 59, 60
# A helper process that ran a kernel or two is not a rank.
_LEAST_SHARE: Final = 0.01
_LAUNCH: Final = re.compile(r"cu.*Launch.*Kernel", re.IGNORECASE)
_CAPTURE: Final = re.compile(r"cu.*Stream(Begin|End)Capture", re.IGNORECASE)


def glance(source: Source) -> Glance:
    """Look for the tables of an export, and the processes in it."""
    with open_database(source, _WANTED) as database:
        return Glance(is_trace=True, parts=_parts(database)) if _is_export(database) else Glance()


def read(source: Source, how: Reading) -> Trace:
    """Read one process of an export, all if none is named.

    Raises:
        InputError: the file is damaged, or no export.
    """
    with open_database(source, _WANTED) as database:
        if not _is_export(database):
            raise InputError(
                f"{source.name} is a SQLite file, but no trace.",
                "Give what nsys export --type sqlite wrote; of a database of rocprofv3 the CSV: "
                "rocpd convert --output-format csv.",
            )
        trace = _read(database, source.name, how)
    if unread_wal(source):
        trace.health.truncated = True
        trace.health.notes.append("what is in the write-ahead log next to it was not read")
    return trace


def _is_export(database: Database) -> bool:
    return _STRINGS in database.tables and any(sign in database.tables for sign in _SIGNS)


def _parts(database: Database) -> tuple[Part, ...]:
    """Return the processes of an export that are ranks: those that ran more than a few kernels."""
    counts: dict[int, list[int]] = {}
    for table in (_KERNELS, _GRAPHS):
        if not database.has(table, "globalPid", "deviceId"):
            continue
        query = f"SELECT globalPid, count(*), min(deviceId) FROM {table} GROUP BY 1"
        for process, count, device in database.rows(query):
            if isinstance(process, int):
                known = counts.setdefault(process & ~_THREAD_BITS, [0, _number(device)])
                known[0] += count
    most = max((count for count, _ in counts.values()), default=0)
    ordered = sorted(counts, key=lambda process: (counts[process][1], process))
    busy = [process for process in ordered if counts[process][0] >= _LEAST_SHARE * most]
    return tuple(Part(process, f"process {_system_number(process)}") for process in busy)


def _system_number(process: int) -> int:
    """Return the number that the operating system gave a process."""
    return process >> 24 & 0xFFFFFF


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _read(database: Database, name: str, how: Reading) -> Trace:
    rows, tables = RowCollector(), _Tables(database, how.part)
    rows.kernels(tables.kernels())
    rows.calls(tables.calls())
    rows.ranges(tables.ranges())
    for kind, table in _COPIES.items():
        rows.copies(kind, totals(tables.spans(table, "bytes")))
    trace = Trace(source=name)
    graphs, graphs_ns, _ = totals(tables.spans(_GRAPHS, "start"))
    texts = tables.remarks()  # they hold paths, and nothing of them is kept
    outstanding = any(map(_OUTSTANDING.search, texts))
    missing = _missing_kernels(tables, rows.columns, outstanding=outstanding)
    if graphs:
        trace.health.notes.append(_GRAPHS_ALONE.format(graphs, graphs_ns / 1e6))
    if any(_LOST.search(text) and not _NOTHING.search(text) for text in texts):
        trace.health.notes.append("Nsight Systems says that events were lost")
    if missing:
        trace.health.notes.append(f"{missing} kernels were launched that are not in the trace")
    trace.health.records_lost = bool(trace.health.notes)
    rows.fill(trace, "Nsight Systems", layers=how.layers)
    trace.gpu, trace.compute_capability = tables.gpu(main_device(trace.kernels))
    return trace


class _Tables:
    """The rows of one process.

    Attributes:
        launches: correlation id and start of what `calls` found that launches a kernel.
        captures: when captures of graphs begin (True) and end, as `calls` found.
    """

    def __init__(self, database: Database, process: int | None) -> None:
        self._database, self._process = database, process
        self._strings: dict[object, str] = {}
        for number, value in database.table(_STRINGS, "id", "value"):
            if isinstance(value, str):
                self._strings.setdefault(number, value)
        self.launches: list[tuple[Any, Any]] = []
        self.captures: list[tuple[Any, bool]] = []

    def kernels(self) -> Iterator[Sequence[Any]]:
        """Yield name, start, end, device, stream and correlation id of kernels."""
        text = self._strings.get
        for demangled, mangled, short, *rest in self._mine(
            _KERNELS,
            *("demangledName", "mangledName", "shortName"),
            *("start", "end", "deviceId", "streamId", "correlationId"),
        ):
            # The demangled name is whole; the mangled one may be cut, the short one has no types.
            yield text(demangled) or text(mangled) or text(short), *rest

    def calls(self) -> Iterator[Sequence[Any]]:
        """Yield correlation id, start, end and thread of calls into CUDA, and note launches."""
        launching = {number for number, text in self._strings.items() if _LAUNCH.match(text)}
        capturing = {
            number: mark[1].lower() == "begin"
            for number, text in self._strings.items()
            if (mark := _CAPTURE.match(text))
        }
        columns = ("nameId", "returnValue", "correlationId", "start", "end", "globalTid")
        for name, result, *row in self._mine(_CALLS, *columns):
            if name in launching and not result:
                self.launches.append((row[0], row[1]))
            elif name in capturing:
                self.captures.append((row[1], capturing[name]))
            yield row

    def ranges(self) -> Iterator[Sequence[Any]]:
        """Yield text, start, end and thread of NVTX ranges of the default domain.

        That is the run's and torch's; libraries have their own. A range that was still open
        has no end, and gets the trace's.
        """
        last = max(map(self._last_end, (_KERNELS, _CALLS)))
        for event, domain, text, number, start, end, thread in self._mine(
            _RANGES, "eventType", "domainId", "text", "textId", "start", "end", "globalTid"
        ):
            name = text or self._strings.get(number)
            if event in (_PUSH_POP, _START_END) and not domain and name is not None:
                # A range that one thread starts and another may end belongs to none.
                owner = thread if event == _PUSH_POP else None
                yield name, start, last if end is None else end, owner

    def spans(self, table: str, size: str) -> Iterator[Sequence[Any]]:
        """Yield start, end and another column of a table."""
        return self._mine(table, "start", "end", size)

    def remarks(self) -> list[str]:
        """Return what the profiler remarked of the process or of none; the texts hold paths."""
        diagnostics = self._database.table(_DIAGNOSTICS, "text", "globalPid")
        anyone = (None, self._process)
        return [
            text
            for text, process in diagnostics
            if isinstance(text, str)
            and (_number(process) <= 0 or _number(process) & ~_THREAD_BITS in anyone)
        ]

    def gpu(self, device: int) -> tuple[str | None, str | None]:
        """Return name and compute capability of the GPU that the process calls `device`."""
        wanted = device
        if self._process is not None:
            # CUDA_VISIBLE_DEVICES may have changed the number.
            mine = (device, _system_number(self._process))
            gpus = self._database.table(_DEVICES, "cudaId", "pid", "gpuId")
            wanted = next((gpu for *place, gpu in gpus if tuple(place) == mine), device)
        columns = ("id", "name", "computeMajor", "computeMinor")
        known = {number: rest for number, *rest in self._database.table(_GPUS, *columns)}
        if not known:
            return None, None
        name, major, minor = known.get(wanted, next(iter(known.values())))
        has_capability = 0 < _number(major) < 100 and 0 <= _number(minor) < 100
        return (
            clean(name[:200]) if isinstance(name, str) and name else None,
            f"{major}.{minor}" if has_capability else None,
        )

    def _mine(self, table: str, *columns: str) -> Iterator[Sequence[Any]]:
        """Yield the rows of the process; old exports do not say whose they are."""
        said = [name for name in ("globalPid", "globalTid") if self._database.has(table, name)]
        if self._process is None or not said:
            return self._database.table(table, *columns)
        of_process = f"({said[0]} & ~{_THREAD_BITS}) = {self._process}"
        return self._database.table(table, *columns, where=of_process)

    def _last_end(self, table: str) -> int:
        if not self._database.has(table, "end"):
            return 0
        [row] = self._database.rows(f"SELECT max(end) FROM {table}")
        return _number(row[0])


def _missing_kernels(tables: _Tables, columns: Columns, *, outstanding: bool) -> int:
    """Return the number of launches without their kernel.

    What was launched last may still have waited for the GPU when the recording ended. It is only
    missed where the profiler says that buffers did not come back (`outstanding`).
    """
    kernels, calls = columns.kernels, columns.calls
    started = dict(zip(columns.correlations, kernels.start_ns, strict=True))
    lone = [
        start
        for correlation, start in tables.launches
        if isinstance(start, int) and isinstance(correlation, int) and correlation not in started
    ]
    if not started or not lone:
        return 0
    until = _FOREVER
    if not outstanding:
        # From here on, a launch may have waited longer than the recording went on.
        calls_of_kernels = zip(calls.correlation, calls.start, strict=True)
        waits = (started[c] - start for c, start in calls_of_kernels if c in started)
        until = max(kernels.start_ns) - max(waits, default=_FOREVER)
    begins, ends = _captured(tables.captures)
    return sum(
        start < until and bisect_right(begins, start) <= bisect_left(ends, start) for start in lone
    )


def _captured(marks: Iterable[tuple[Any, bool]]) -> tuple[list[int], list[int]]:
    """Return when CUDA graphs were being captured: what is launched then does not run.

    Args:
        marks: when captures begin (True) and end, on any thread. One whose begin or end was not
            recorded lasts from or to the trace's.

    Returns:
        Begins and ends of the times, which do not overlap.
    """
    timed = sorted(mark for mark in marks if isinstance(mark[0], int))
    begins, ends, captures = list[int](), list[int](), 0
    if timed and not timed[0][1]:
        timed.insert(0, (-_FOREVER, True))
    for time, is_begin in timed:
        if is_begin and not captures:
            begins.append(time)
        captures = max(0, captures + (1 if is_begin else -1))
        if not captures and len(ends) < len(begins):
            ends.append(time)
    return begins, [*ends, _FOREVER]
