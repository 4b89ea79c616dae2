"""rocprofv3's kernel trace as CSV, and the tables of calls and roctx ranges next to it."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.build import main_device
from fp8verify.trace.formats import Glance, Source
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.source import open_stream
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.formats import Reading
    from fp8verify.trace.rows import RowCollector

NAME = "rocprofv3"
ENDING = "_kernel_trace.csv"
_SIGNS = (b"kernel_name", b"start_timestamp", b"end_timestamp")
_CALL = ("Correlation_Id", "Start_Timestamp", "End_Timestamp", "Thread_Id")
_MAX_LINE = 1 << 20


class RocprofCsvFormat:
    """`rocprofv3 --kernel-trace --output-format csv`."""

    name = NAME
    suffixes = (ENDING, f"{ENDING}.gz")

    def probe(self, head: bytes, name: str) -> bool:
        """Whether the header of a kernel trace begins, or a file is called like one."""
        header = head.partition(b"\n")[0].lower()
        return all(sign in header for sign in _SIGNS) or name.endswith(self.suffixes)

    def glance(self, source: Source) -> Glance:
        """Look for the header; the file does not say of which rank it is."""
        return Glance(is_trace=_is_header(_Table(source)))

    def read(self, source: Source, how: Reading) -> Trace:
        """Read the kernels of one process, and what else was recorded of it."""
        table = _Table(source)
        if not _is_header(table):
            raise InputError(
                f"{source.name} is not a kernel trace: no column Kernel_Name in it.",
                "Give what rocprofv3 --kernel-trace --output-format csv wrote.",
            )
        from fp8verify.trace.rows import RowCollector  # takes a while to import

        trace, rows = Trace(source=source.name), RowCollector()
        rows.kernels(_kernels(table))
        _read_neighbours(source, rows)
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


def _read_neighbours(source: Source, rows: RowCollector) -> None:
    """Read the other tables of the process, if they were recorded."""
    with _neighbour(source, "_hip_api_trace.csv") as table:
        if table is not None:
            rows.calls(map(numbers, table.rows(*_CALL)))
    with _neighbour(source, "_marker_api_trace.csv") as table:
        if table is not None:
            rows.ranges(
                (text, *numbers(rest)) for text, *rest in table.rows("Function", *_CALL[1:])
            )
    with _neighbour(source, "_memory_copy_trace.csv") as table:
        if table is not None:
            ends = map(numbers, table.rows("Start_Timestamp", "End_Timestamp"))
            times = [end - start for start, end in ends if start is not None and end is not None]
            rows.copies("memcpy", len(times), sum(time for time in times if time > 0), 0)


def _gpu(source: Source, agent: int) -> str | None:
    with _neighbour(source, "_agent_info.csv") as table:
        if table is None:
            return None
        columns = ("Agent_Type", "Logical_Node_Id", "Product_Name", "Name")
        gpus = [row for row in table.rows(*columns) if row[0].upper() == "GPU"]
    chosen = [row for row in gpus if row[1] == str(agent)] or gpus
    return gpu_name(*chosen[0][2:]) if chosen else None


@contextmanager
def _neighbour(source: Source, ending: str) -> Iterator[_Table | None]:
    """Open another table of the same process; None if it was not recorded."""
    path = source.path
    if path is None or ENDING not in path.name:
        yield None
        return
    other = path.with_name(path.name.replace(ENDING, ending))
    with reading(other):
        if not other.is_file() or not other.stat().st_size:
            yield None
            return
        with open_binary(other) as file:
            yield _Table(Source(open_stream(file, other.name), other.name, other))


class _Table:
    """The rows of one file, to be iterated over once.

    Attributes:
        skipped: rows that could not be read so far.
        is_cut: whether the last line ends without a line break.
    """

    def __init__(self, source: Source) -> None:
        import csv  # few traces are tables

        self.skipped, self.is_cut = 0, False
        self._source, self._error = source, csv.Error
        self._rows = csv.reader(self._lines())
        header = self._next() or []
        self._width = len(header)
        self.columns = {name.strip().lower(): place for place, name in enumerate(header)}

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
        except self._error:
            self.skipped += 1
            return []

    def _lines(self) -> Iterator[str]:
        decode = getincrementaldecoder("utf-8-sig")("replace").decode
        rest = ""
        for piece in self._source:
            *lines, rest = (rest + decode(piece)).split("\n")
            if len(rest) > _MAX_LINE:
                raise InputError(
                    f"{self._source.name} has a line of more than {_MAX_LINE >> 20} MB.",
                    "This is not a table of rocprofv3.",
                )
            yield from (line + "\n" for line in lines)
        self.is_cut = bool(rest) or self._source.damage is not None
        if rest:
            yield rest


def numbers(values: Iterable[str]) -> list[int | None]:
    """Return whole numbers, None for what is none: "Agent 4" and "GPU 4" are 4."""
    return [
        int(text) if (text := value.rpartition(" ")[2]).isdecimal() else None for value in values
    ]


def gpu_name(*candidates: object) -> str | None:
    """Return the first that is a name: the product's, or the instruction set's (gfx942)."""
    names = (clean(name.strip()[:200]) for name in candidates if isinstance(name, str))
    return next(filter(None, names), None)
