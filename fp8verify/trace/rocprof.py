"""rocprofv3's CSV tables of one process: kernels, calls, markers, copies.

Since ROCm 7.0 it writes a database by default, of which `rocpd convert` makes these.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.build import main_device
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.rows import RowCollector, totals
from fp8verify.trace.source import Glance, Reading, Source
from fp8verify.trace.tables import Trace

_ENDING = "_kernel_trace.csv"
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
    rows.calls(map(_numbers, _neighbor(source, "_hip_api_trace.csv", *_CALL)))
    markers = _neighbor(source, "_marker_api_trace.csv", "Function", *_CALL[1:])
    rows.ranges((text, *_numbers(rest)) for text, *rest in markers)
    copies = _neighbor(source, "_memory_copy_trace.csv", *_CALL[1:3])
    rows.copies("memcpy", totals(map(_numbers, copies)))
    rows.skipped += table.skipped
    rows.fill(trace, "rocprofv3", layers=how.layers)
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
            yield name, *_numbers(rest)


def _gpu(source: Source, agent: int) -> str | None:
    columns = ("Agent_Type", "Logical_Node_Id", "Product_Name", "Name")
    agents = _neighbor(source, "_agent_info.csv", *columns)
    gpus = [row for row in agents if row[0].upper() == "GPU"]
    chosen = [row for row in gpus if row[1] == str(agent)] or gpus
    # The product's name, or the instruction set's (gfx942).
    names = (clean(name.strip()[:200]) for name in (chosen[0][2:] if chosen else ()))
    return next(filter(None, names), None)


def _neighbor(source: Source, ending: str, *wanted: str) -> Iterator[Sequence[str]]:
    """Yield the rows of another table of the same process; none if it was not recorded."""
    path = source.path
    if path is None or _ENDING not in path.name:
        return
    other = path.with_name(path.name.replace(_ENDING, ending))
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


def _numbers(values: Iterable[str]) -> list[int | None]:
    """Return whole numbers, None for what is none: "Agent 4" and "GPU 4" are 4."""
    return [
        int(text) if (text := value.rpartition(" ")[2]).isdecimal() else None for value in values
    ]
