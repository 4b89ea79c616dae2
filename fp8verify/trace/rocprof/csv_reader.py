"""rocprofv3's kernel trace as CSV, with the calls and roctx ranges that lie beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fp8verify.errors import InputError
from fp8verify.trace.build import main_device
from fp8verify.trace.formats import Glance, Source
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.rocprof.csv_tables import Table, numbers
from fp8verify.trace.rocprof.file_formats import CSV_ENDING, NAME
from fp8verify.trace.rocprof.gpu import gpu_name
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import open_stream
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.formats import Reading


def glance(source: Source) -> Glance:
    """Look for the header; the file does not say of which rank it is."""
    return Glance(is_trace=_is_header(Table(source)))


def read(source: Source, how: Reading) -> Trace:
    """Read the kernels of one process, and what else was recorded of it."""
    table = Table(source)
    if not _is_header(table):
        raise InputError(
            f"{source.name} is not a kernel trace: no column Kernel_Name in it.",
            "Give what rocprofv3 --kernel-trace --output-format csv wrote.",
        )
    trace, rows = Trace(source=source.name), RowCollector()
    rows.kernels(_kernels(table))
    _read_neighbours(source, rows)
    rows.skipped += table.skipped
    rows.fill(trace, NAME, layers=how.layers)
    trace.health.truncated = table.is_cut
    trace.gpu = _gpu(source, main_device(trace.kernels))
    return trace


def _is_header(table: Table) -> bool:
    return {"kernel_name", "start_timestamp", "end_timestamp"} <= table.columns.keys()


def _kernels(table: Table) -> Iterator[Sequence[Any]]:
    """Yield name, start, end, device, stream and correlation id of kernels."""
    stream = "Stream_Id" if "stream_id" in table.columns else "Queue_Id"
    wanted = ("Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp")
    for kind, name, *rest in table.rows(*wanted, "Agent_Id", stream, "Correlation_Id"):
        if kind in ("", "KERNEL_DISPATCH"):
            yield name, *numbers(rest)


def _read_neighbours(source: Source, rows: RowCollector) -> None:
    """Read the other tables of the process, if they were recorded."""
    with _beside(source, "_hip_api_trace.csv") as table:
        if table is not None:
            rows.calls(map(numbers, table.rows(*_CALL)))
    with _beside(source, "_marker_api_trace.csv") as table:
        if table is not None:
            rows.ranges(
                (text, *numbers(rest)) for text, *rest in table.rows("Function", *_CALL[1:])
            )
    with _beside(source, "_memory_copy_trace.csv") as table:
        if table is not None:
            ends = map(numbers, table.rows("Start_Timestamp", "End_Timestamp"))
            times = [end - start for start, end in ends if start is not None and end is not None]
            rows.copies("memcpy", len(times), sum(time for time in times if time > 0), 0)


_CALL = ("Correlation_Id", "Start_Timestamp", "End_Timestamp", "Thread_Id")


def _gpu(source: Source, agent: int) -> str | None:
    with _beside(source, "_agent_info.csv") as table:
        if table is None:
            return None
        columns = ("Agent_Type", "Logical_Node_Id", "Product_Name", "Name")
        gpus = [row for row in table.rows(*columns) if row[0].upper() == "GPU"]
    chosen = [row for row in gpus if row[1] == str(agent)] or gpus
    return gpu_name(*chosen[0][2:]) if chosen else None


@contextmanager
def _beside(source: Source, ending: str) -> Iterator[Table | None]:
    """Open another table of the same process; None if it was not recorded."""
    path = source.path
    if path is None or CSV_ENDING not in path.name:
        yield None
        return
    other = path.with_name(path.name.replace(CSV_ENDING, ending))
    with reading(other):
        if not other.is_file() or not other.stat().st_size:
            yield None
            return
        with open_binary(other) as file:
            yield Table(Source(open_stream(file, other.name), other.name, other))
