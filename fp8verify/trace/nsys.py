"""Read one process of Nsight Systems' SQLite export into a `Trace`.

Schema 3.25 (nsys 2026.2) and older ones; 3.11 (nsys 2024.2) was recorded and read. Tables exist
only if they have rows, and columns come and go, so each is looked for. META_DATA_CAPTURE and
TARGET_INFO_SYSTEM_ENV hold the whole environment of the run, tokens included: they are never
opened. Tables are read one by one: ids in a foreign file need not be unique, and a join of such
tables multiplies their rows.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property, partial
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec.structs import replace

from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean
from fp8verify.trace.build import main_device
from fp8verify.trace.columns import Columns
from fp8verify.trace.places import is_remote
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import Glance, Reading, Source
from fp8verify.trace.tables import Trace

# Texts of nsys 2024.2.3's libraries: "CUPTI dropped 7 records. …", "Number of incomplete CUPTI
# events dropped: 7. …", "7 CUPTI events were detected incomplete …", "Couldn't allocate CUPTI
# buffers 3 times. …", "CUPTI buffer allocation limit of … bytes is exceeded.", "7 GPU events were
# discarded …", "Connection to session is lost, …". Others are of samples of the CPU: "Some events
# (7) were lost. Certain charts (including CPU utilization) …", or of NVTX alone.
_LOST: Final = lazy_pattern(
    r"\b(?:CUPTI|CUDA|GPU)\b[^.]{0,60}\b(?:dropped|lost|discarded|incomplete|exceeded)\b|"
    r"\ballocate CUPTI buffer|\bConnection to session is lost\b",
    re.IGNORECASE,
)
_NOTHING: Final = lazy_pattern(
    r"\bdropped(?::\s*0\b| 0 records)|(?:^|: )0 (?:CUPTI|CUDA|GPU) events"
)
# Buffers that were still with CUPTI: the work at the end may be missing.
_OUTSTANDING: Final = lazy_pattern(r"CUPTI buffers: \d+ of \d+")
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
_COPIES: Final = {
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
}
_WANTED: Final = frozenset(
    {
        _KERNELS,
        _CALLS,
        _RANGES,
        _GRAPHS,
        _STRINGS,
        _DIAGNOSTICS,
        _GPUS,
        _DEVICES,
        *_COPIES.values(),
    }
)

# Serialized ids hold the process in bits 24 to 47, and the thread below (documentation of nsys,
# "SQLite Schema Reference"). Everything but the thread identifies a process.
_THREAD_BITS: Final = 0xFFFFFF
# NVTX_EVENTS.eventType (ENUM_NSYS_EVENT_TYPE).
_PUSH_POP = 59
_START_END = 60
# A helper process that ran a kernel or two is not a rank.
_LEAST_SHARE: Final = 0.01
_LAUNCH: Final = lazy_pattern(r"cu.*Launch.*Kernel", re.IGNORECASE)
_CAPTURE_BEGIN: Final = lazy_pattern(r"cu.*StreamBeginCapture", re.IGNORECASE)
_CAPTURE_END: Final = lazy_pattern(r"cu.*StreamEndCapture", re.IGNORECASE)

# Steps of SQLite's machine: a query takes some 20 a row, and a row some bytes.
_STEPS_AT_ONCE = 100_000
_STEPS_FREE = 10_000_000
_STEPS_A_BYTE = 50


def glance(source: Source) -> Glance:
    """Look for the tables of an export."""
    with open_export(source) as export:
        return Glance(is_trace=_STRINGS in export.columns)


def read(source: Source, how: Reading) -> Trace:
    """Read all processes of an export, or each for itself.

    Raises:
        InputError: the file is damaged, or no export.
    """
    with open_export(source) as export:
        if _STRINGS not in export.columns:
            raise InputError(
                f"{source.name} is a SQLite file, but no trace.",
                "Give what nsys export --type sqlite wrote; of a database of rocprofv3 the CSV: "
                "rocpd convert --output-format csv.",
            )
        processes = export.processes()
        if len(processes) == 1:
            export.process = processes[0]
        if len(processes) < 2 or not how.split:
            return _read(export, source.name, how)
        traces = []
        for export.process in processes:
            name = f"{source.name} (process {_system_number(export.process)})"
            traces.append(_read(export, name, how))
        return replace(traces[0], others=traces[1:])


def _system_number(process: int) -> int:
    """Return the number that the operating system gave a process."""
    return process >> 24 & 0xFFFFFF


def _number(value: object) -> int:
    if isinstance(value, int):
        return value
    return -1


@contextmanager
def open_export(source: Source) -> Iterator[Export]:
    """Open the database that a source holds, as a copy if it is packed, remote or piped.

    Raises:
        InputError: it is damaged.
    """
    try:
        with ExitStack() as stack:
            path = source.path
            if path is None or is_remote(path) or source.is_packed:
                folder = stack.enter_context(TemporaryDirectory(prefix="fp8verify-"))
                path = Path(folder) / "copy.sqlite"
                with path.open("wb") as file:
                    file.writelines(source)
                if source.damage:
                    raise InputError(
                        f"{source.name} cannot be read: {source.damage}.",
                        "Pack it again.",
                    )
            yield stack.enter_context(closing(Export(path)))
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        reason = clean(str(error))[:200].rstrip(".") or type(error).__name__
        raise InputError(
            f"{source.name} cannot be read as a SQLite file: {reason}.",
            "It is damaged or was not finished: export it again with the tool that made it.",
        ) from None


class Export:
    """An open database of which the wanted tables are read, one by one.

    Attributes:
        columns: of each table that is wanted and there; views are not followed.
        process: whose rows are read; None for all.
    """

    def __init__(self, path: Path) -> None:
        # immutable: neither locks nor a WAL file are looked at, and none is made.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        # A damaged tree of pages may name a page many times: rows then are as many as one likes.
        self._left = _STEPS_FREE + _STEPS_A_BYTE * path.stat().st_size
        self._connection.set_progress_handler(self._is_too_much, _STEPS_AT_ONCE)
        self._connection.execute("PRAGMA trusted_schema = OFF")
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        self.columns: dict[str, set[str]] = {}
        for (table,) in self.rows(tables):
            if table in _WANTED:
                infos = self.rows(f"PRAGMA table_info({table})")
                self.columns[table] = {name for _, name, *_ in infos}
        self.process: int | None = None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, query: str) -> Iterator[Sequence[Any]]:
        """Return the rows of a query."""
        return self._connection.execute(query)

    def table(self, table: str, *columns: str) -> Iterator[Sequence[Any]]:
        """Return the rows of a table, None for columns that it does not have.

        A table that is not there has no rows. Old exports do not say of which process rows are.
        """
        known = self.columns.get(table, set())
        if not known:
            return iter(())
        chosen = [name if name in known else "NULL" for name in columns]
        query = f"SELECT {', '.join(chosen)} FROM {table}"
        if self.process is None or table == _DIAGNOSTICS:
            return self.rows(query)
        for owner in ("globalPid", "globalTid"):
            if owner in known:
                return self.rows(
                    f"{query} WHERE ({owner} & ~{_THREAD_BITS}) = {self.process}"
                )
        return self.rows(query)

    def processes(self) -> list[int]:
        """Return the processes that ran more than a few kernels by their GPUs: the ranks."""
        columns = self.columns.get(_KERNELS, set())
        if not columns >= {"globalPid", "deviceId"}:
            return []
        query = (
            f"SELECT globalPid & ~{_THREAD_BITS}, count(*) FROM {_KERNELS} "
            "WHERE typeof(globalPid) = 'integer' GROUP BY 1 ORDER BY min(deviceId), 1"
        )
        kernels = list(self.rows(query))
        most = max((count for _, count in kernels), default=0)
        ranks = []
        for process, count in kernels:
            if count >= _LEAST_SHARE * most:
                ranks.append(process)
        return ranks

    @cached_property
    def _strings(self) -> dict[object, str]:
        texts: dict[object, str] = {}
        for number, text in self.table(_STRINGS, "id", "value"):
            if isinstance(text, str):
                texts.setdefault(
                    number, text
                )  # of strings with one number the first counts
        return texts

    def kernels(self) -> Iterator[Sequence[Any]]:
        """Yield name, start, end, device, stream and correlation id of kernels."""
        text = self._strings.get
        rows = self.table(
            _KERNELS,
            "demangledName",
            "mangledName",
            "shortName",
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
        )
        for demangled, mangled, short, *rest in rows:
            # The demangled name is whole; the mangled one may be cut, the short one has no types.
            yield text(demangled) or text(mangled) or text(short), *rest

    def called(self, name: re.Pattern[str], *, failed: bool) -> list[tuple[int, int]]:
        """Return start and correlation id of the calls of functions, by start."""
        wanted = set()
        for number, text in self._strings.items():
            if name.match(text):
                wanted.add(number)
        if not wanted:
            return []
        calls = []
        columns = ("start", "correlationId", "nameId", "returnValue")
        for start, number, called, result in self.table(_CALLS, *columns):
            has_failed = bool(result)
            if called not in wanted or (has_failed and not failed):
                continue
            if isinstance(start, int) and isinstance(number, int):
                calls.append((start, number))
        return sorted(calls)

    def ranges(self, last: int) -> Iterator[Sequence[Any]]:
        """Yield text, start, end and thread of NVTX ranges of the default domain.

        That is the run's and torch's; libraries have their own.

        Args:
            last: the end of ranges that were still open.
        """
        rows = self.table(
            _RANGES,
            "eventType",
            "domainId",
            "text",
            "textId",
            "start",
            "end",
            "globalTid",
        )
        for event, domain, text, number, start, end, thread in rows:
            name = text or self._strings.get(number)
            if domain or name is None:
                continue
            if end is None:
                end = last
            if event == _PUSH_POP:
                yield name, start, end, thread
            elif event == _START_END:
                # A range that one thread starts and another may end belongs to none.
                yield name, start, end, None

    def remarks(self) -> list[str]:
        """Return what the profiler remarked of the process or of none; the texts hold paths."""
        anyone = (None, self.process)
        texts = []
        for text, process in self.table(_DIAGNOSTICS, "text", "globalPid"):
            number = _number(process)
            owner = number & ~_THREAD_BITS
            is_own = number <= 0 or owner in anyone
            if isinstance(text, str) and is_own:
                texts.append(text)
        return texts

    def gpu(self, device: int) -> tuple[str | None, str | None]:
        """Return name and compute capability of the GPU that the process calls `device`."""
        rows = self.table(_GPUS, "id", "name", "computeMajor", "computeMinor")
        gpus = {number: rest for number, *rest in rows}
        first = next(iter(gpus.values()), [None, None, None])
        number = self._machine_number(device)
        name, major, minor = gpus.get(number, first)
        capability = None
        if isinstance(major, int) and isinstance(minor, int):
            capability = f"{major}.{minor}"
        if not isinstance(name, str) or not name:
            return None, capability
        return clean(name[:200]), capability

    def _machine_number(self, device: int) -> object:
        """Return the machine's number of a GPU; CUDA_VISIBLE_DEVICES may have changed it."""
        if self.process is None:
            return device
        process = _system_number(self.process)
        for number, owner, gpu in self.table(_DEVICES, "cudaId", "pid", "gpuId"):
            if (number, owner) == (device, process):
                return gpu
        return device

    def _is_too_much(self) -> bool:
        self._left -= _STEPS_AT_ONCE
        return self._left < 0


def _read(export: Export, name: str, how: Reading) -> Trace:
    rows = RowCollector()
    columns = rows.columns
    kernels = rows.columns.kernels
    rows.kernels(export.kernels())
    rows.calls(export.table(_CALLS, "correlationId", "start", "end", "globalTid"))
    ends = map(add, kernels.start_ns, kernels.duration_ns)
    last_of_kernels = max(ends, default=0)
    last = max(columns.last_end, last_of_kernels)
    rows.ranges(export.ranges(last))
    for kind, table in _COPIES.items():
        rows.copies(kind, export.table(table, "start", "end", "bytes"))
    trace = Trace(source=name)
    notes = trace.health.notes
    texts = export.remarks()  # they hold paths, and nothing of them is kept
    graphs = 0
    graphs_ns = 0
    for start, end in export.table(_GRAPHS, "start", "end"):
        graphs += 1
        graphs_ns += _number(end) - _number(start)
    if graphs:
        notes.append(_GRAPHS_ALONE.format(graphs, graphs_ns / 1e6))
    if any(map(_says_that_events_were_lost, texts)):
        notes.append("Nsight Systems says that events were lost")
    outstanding = any(map(_OUTSTANDING.search, texts))
    missing = _missing_kernels(export, columns, outstanding=outstanding)
    if missing:
        notes.append(f"{missing} kernels were launched that are not in the trace")
    trace.health.records_lost = bool(notes)
    rows.fill(trace, "Nsight Systems", layers=how.layers)
    trace.gpu, trace.compute_capability = export.gpu(main_device(trace.kernels))
    return trace


def _says_that_events_were_lost(text: str) -> bool:
    return _LOST.search(text) is not None and _NOTHING.search(text) is None


def _missing_kernels(
    export: Export,
    columns: Columns,
    *,
    outstanding: bool,
) -> int:
    """Return the number of launches without their kernel.

    What was launched last may still have waited for the GPU when the recording ended. It is only
    missed where the profiler says that buffers did not come back (`outstanding`). What is launched
    while a CUDA graph is captured, on any thread, does not run.
    """
    starts = columns.kernels.start_ns
    started = dict(zip(columns.correlations, starts, strict=True))
    launches = export.called(_LAUNCH, failed=False)
    if not started:
        return 0
    until = _FOREVER
    if not outstanding:
        # From here on, a launch may have waited longer than the recording went on.
        calls = columns.calls
        waits = []
        for correlation, start in zip(calls.correlation, calls.start, strict=True):
            if correlation in started:
                waits.append(started[correlation] - start)
        longest_wait = max(waits, default=_FOREVER)
        until = max(starts) - longest_wait
    begin_calls = export.called(_CAPTURE_BEGIN, failed=True)
    end_calls = export.called(_CAPTURE_END, failed=True)
    begins = [start for start, _ in begin_calls]
    ends = [start for start, _ in end_calls]
    missing = 0
    for start, number in launches:
        if number in started or start >= until:
            continue
        begun = bisect_right(begins, start)
        ended = bisect_left(ends, start)
        is_captured = begun > ended
        missing += not is_captured
    return missing
