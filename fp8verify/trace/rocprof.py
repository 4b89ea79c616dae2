"""rocprofv3's CSV tables of one process: kernels, calls, markers, copies.

Since ROCm 7.0 it writes a database by default, of which `rocpd convert` makes these.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from fp8verify.text import clean
from fp8verify.trace.build import main_device
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import Glance, Reading, Source
from fp8verify.trace.tables import Trace

_ENDING = "_kernel_trace.csv"
_SPAN = ("Start_Timestamp", "End_Timestamp")


def glance(source: Source) -> Glance:
    """Take the file for a trace: its header is that of one; it does not say of which rank."""
    del source
    return Glance(is_trace=True)


def read(source: Source, how: Reading) -> Trace:
    """Read the kernels of one process from CSV, and what else was recorded of it.

    Raises:
        InputError: it cannot be unpacked.
    """
    trace = Trace(source=source.name)
    rows = RowCollector()
    table = _Table(source)
    rows.kernels(table.kernels())
    of_call = ("Correlation_Id", *_SPAN, "Thread_Id")
    calls = _neighbor(source, "_hip_api_trace.csv", *of_call)
    rows.calls(map(_numbers, calls))
    of_marker = ("Function", *_SPAN, "Thread_Id")
    markers = _neighbor(source, "_marker_api_trace.csv", *of_marker)
    rows.ranges(map(_named_numbers, markers))
    copies = _neighbor(source, "_memory_copy_trace.csv", *_SPAN, "Bytes")
    rows.copies("memcpy", map(_numbers, copies))
    rows.skipped += table.skipped
    rows.fill(trace, "rocprofv3", layers=how.layers)
    trace.health.truncated = table.is_cut
    trace.gpu = _gpu(source, main_device(trace.kernels))
    return trace


def _gpu(source: Source, agent: int) -> str | None:
    """Return the name of a GPU, of the first one if none has the number."""
    columns = ("Agent_Type", "Logical_Node_Id", "Product_Name", "Name")
    agents = _neighbor(source, "_agent_info.csv", *columns)
    chosen: list[str] = []
    for kind, number, *names in agents:
        if kind.upper() != "GPU":
            continue
        if number == str(agent):
            chosen = names
            break
        chosen = chosen or names
    # The product's name, or the instruction set's (gfx942).
    for name in chosen:
        cleaned = clean(name.strip()[:200])
        if cleaned:
            return cleaned
    return None


def _neighbor(
    source: Source,
    ending: str,
    *wanted: str,
) -> Iterator[Sequence[str]]:
    """Yield the rows of another table of the same process; none if it was not recorded."""
    path = source.path
    if path is None or _ENDING not in path.name:
        return
    other = path.with_name(path.name.replace(_ENDING, ending))
    with reading(other):
        if not other.is_file() or not other.stat().st_size:
            return
        with open_binary(other) as file:
            neighbor = Source(file, other.name, other)
            yield from _Table(neighbor).rows(*wanted)


class _Table:
    """The rows of one file, to be iterated over once.

    Attributes:
        skipped: rows of another width.
        is_cut: whether the file ends within a line, or cannot be read to its end.
    """

    def __init__(self, source: Source) -> None:
        self.skipped = 0
        self.is_cut = False
        self._source = source

    def kernels(self) -> Iterator[Sequence[Any]]:
        """Yield name, start, end, device, stream and correlation id of kernels."""
        ids = ("Agent_Id", "Stream_Id", "Queue_Id", "Correlation_Id")
        for row in self.rows("Kind", "Kernel_Name", *_SPAN, *ids):
            kind, name, start, end, agent, stream, queue, number = row
            if kind in ("", "KERNEL_DISPATCH"):
                numbers = (start, end, agent, stream or queue, number)
                yield name, *_numbers(numbers)

    def rows(self, *wanted: str) -> Iterator[Sequence[str]]:
        """Yield the values of some columns, "" where the file has no such column.

        Raises:
            InputError: the file cannot be unpacked.
        """
        rows = csv.reader(self._lines())
        try:
            header = next(rows, [])
            indices = []
            for name in wanted:
                index = -1  # what is not there is behind the last column
                if name in header:
                    index = header.index(name)
                indices.append(index)
            chosen = itemgetter(*indices)
            for row in rows:
                if len(row) == len(header):
                    yield chosen([*row, ""])
                else:
                    self.skipped += bool(row)
        except csv.Error:
            self.is_cut = True

    def _lines(self) -> Iterator[str]:
        for line in self._source.lines():
            self.is_cut = not line.endswith("\n")
            yield line
        self.is_cut |= self._source.damage is not None


def _numbers(values: Iterable[str]) -> list[int | None]:
    """Return whole numbers, None for what is none: "Agent 4" and "GPU 4" are 4."""
    numbers: list[int | None] = []
    for value in values:
        number = None
        _, _, text = value.rpartition(" ")
        if text.isdecimal():
            number = int(text)
        numbers.append(number)
    return numbers


def _named_numbers(values: Sequence[str]) -> tuple[str | int | None, ...]:
    """Return whole numbers as `_numbers` does, behind a name that stays as it is."""
    name, *rest = values
    return name, *_numbers(rest)
