"""Read the table that `profiler.key_averages().table()` prints, in a file or within a log.

It holds the names, total times and numbers of calls of kernels, and nothing of when they ran or of
which operator launched them. torch (2.13, `profiler_util._build_table`) cuts names at 55 characters
and prints the first 100 rows by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from fp8verify.text import lazy_pattern
from fp8verify.trace.kineto.reader import not_a_trace
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import Glance, Reading, Source
from fp8verify.trace.tables import Trace

_RULE: Final = lazy_pattern(r"(?<!-)-{5,}(?:  -{5,}){4,}")
_DASHES: Final = lazy_pattern(r"-+")
# The GPU's own column: "Self CUDA", "Self XPU", "Self HIP"; not "Self CUDA %" nor "Self CUDA Mem".
_DEVICE: Final = lazy_pattern(r"Self (?!CPU$)([A-Z][A-Z0-9]*)")
_TOTAL: Final = lazy_pattern(r"Self (?!CPU )[A-Z][A-Z0-9]* time total: ([0-9.]+)(us|ms|s)\b")
_TIME: Final = lazy_pattern(r"(\d{1,18}(?:\.\d{0,9})?)(us|ms|s)")
_NS: Final = {"us": 10**3, "ms": 10**6, "s": 10**9}
# Ranges of user annotations have rows of the GPU, too.
_RANGE: Final = lazy_pattern(r"ProfilerStep|## Call |nccl:|Optimizer\.|FSDP::|DistributedData")
_COPY: Final = lazy_pattern(r"Mem(cpy|set) ")
# Rows of the trace that all calls become; more are counted as so many, with their time.
_MAX_CALLS: Final = 200_000
_WHOLE: Final = 0.98


class _Row(NamedTuple):
    name: str
    cpu_ns: int
    gpu_ns: int
    calls: int


class _Table(NamedTuple):
    rows: list[_Row]
    total_ns: int | None


def glance(source: Source) -> Glance:
    """Look for a table; text without one may be a damaged trace."""
    found = next(_tables(source), None) is not None
    return Glance(is_trace=found, is_damaged=not found)


def read(source: Source, how: Reading) -> Trace:
    """Read the last table.

    Raises:
        InputError: there is none.
    """
    table = None
    for found in _tables(source):
        table = found
    if table is None:
        raise not_a_trace(source, "JSON")
    kernels = _kernels(table)
    trace, rows = Trace(source=source.name), RowCollector()
    rows.kernels(_launches([row for row in kernels if not _COPY.match(row.name)]))
    for kind in ("memcpy", "memset"):
        copies = [row for row in kernels if row.name.lower().startswith(f"{kind} ")]
        sums = sum(row.calls for row in copies), sum(row.gpu_ns for row in copies)
        rows.copies(kind, (*sums, 0))
    rows.fill(trace, "key_averages()", layers=how.layers)
    trace.remarks.append("the printed table does not say when kernels ran: idle time is unknown")
    shown = sum(row.gpu_ns for row in kernels)
    if table.total_ns is None or shown < _WHOLE * table.total_ns:
        trace.health.truncated = True
        trace.health.notes.append(
            "the table does not list all kernels: print it with row_limit=-1 and "
            "max_name_column_width=1000"
        )
    return trace


def _kernels(table: _Table) -> list[_Row]:
    """Return the rows of kernels and copies; annotations have rows on both sides."""
    on_cpu = {row.name for row in table.rows if row.cpu_ns}
    return [
        row
        for row in table.rows
        if row.gpu_ns and not row.cpu_ns and row.name not in on_cpu and not _RANGE.match(row.name)
    ]


def _launches(rows: list[_Row]) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Yield the kernels one after another, each call with the mean time of its row."""
    calls = sum(row.calls for row in rows)
    begin = 0
    for row in rows:
        count = row.calls if calls <= _MAX_CALLS else max(1, row.calls * _MAX_CALLS // calls)
        for number in range(min(count, _MAX_CALLS)):
            end = begin + row.gpu_ns * (number + 1) // count - row.gpu_ns * number // count
            yield row.name, begin, end, 0, 0, -1
            begin = end


def _tables(source: Source) -> Iterator[_Table]:
    """Yield each table of a text."""
    columns: list[slice] = []
    header: list[str] = []
    rows: list[_Row] = []
    for line in source.lines():
        if rule := _RULE.search(line):
            if rows:
                columns, header = [], []
            elif not header:
                columns = [slice(*found.span()) for found in _DASHES.finditer(line, rule.start())]
        elif columns and not header:
            header = _header(line[columns[0].start :], len(columns))
            columns = columns if header else []
        elif columns:
            row = _row(dict(zip(header, (line[column].strip() for column in columns), strict=True)))
            rows += [row] if row is not None else []
        elif rows and "time total:" in line:
            total = _TOTAL.search(line)
            if total or not any(row.gpu_ns for row in rows):
                yield _Table(rows, _nanoseconds(total[0].split()[-1]) if total else None)
                rows = []
    if rows:
        yield _Table(rows, None)


def _header(line: str, columns: int) -> list[str]:
    """Return the names of the columns, [] if this is another table."""
    # "CUDA time avg" is wider than its column, and moves what follows it in this line alone.
    names = re.split(r" {2,}", line.strip())
    known = names[:2] == ["Name", "Self CPU %"] and "# of Calls" in names
    return names if known and len(names) == columns else []


def _row(cells: dict[str, str]) -> _Row | None:
    device = next((name for name in cells if _DEVICE.fullmatch(name)), "")
    calls = cells["# of Calls"]
    if not cells["Name"] or not calls.isdecimal() or len(calls) > 15:
        return None
    return _Row(
        cells["Name"],
        _nanoseconds(cells.get("CPU total", "")),
        _nanoseconds(cells.get(device, "")),
        max(1, int(calls)),
    )


def _nanoseconds(text: str) -> int:
    found = _TIME.fullmatch(text)
    return round(float(found[1]) * _NS[found[2]]) if found else 0
