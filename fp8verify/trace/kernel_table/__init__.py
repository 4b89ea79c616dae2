"""Read tables of kernels: a column of names, one of times, perhaps one of calls, in any layout.

torch's key_averages(), `nsys stats`, ncu, rocprof, CUTLASS's profiler, TraceLens and HTA print them
aligned by spaces or dashes, in boxes, as Markdown, CSV, TSV or JSON, in a file or within a log. A
table does not say when kernels ran, nor which operator launched them; rows of operators show at
least that there was a backward pass.

`lines` and `json_rows` find the tables of a file, `headings` and `empty_table` tell which columns a
table has, `table` sums its rows; here the last table becomes a trace.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import COUNTED
from fp8verify.text import clean, counted
from fp8verify.trace.columns import SEPARATOR
from fp8verify.trace.kernel_table.json_rows import json_tables
from fp8verify.trace.kernel_table.lines import text_tables
from fp8verify.trace.kernel_table.table import GUESSED, MOST_NAMES, Sum, Table
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import Glance, Reading, Source, not_a_trace
from fp8verify.trace.tables import Health, Trace
from fp8verify.trace.unknown import unknown_file

_JSON_ROWS: Final = lazy_pattern(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{")
# Calls that each become a row of the trace; of more, rows stand for several, with their time.
_MAX_CALLS: Final = 200_000
_SCALED_CALLS: Final = 20_000
# What operators multiply, whose rows do not say it: nothing else is allowed (or FP4, which counts as
# low, too).
_FP8_PAIR: Final = b'["c10::Float8_e4m3fn","c10::Float8_e4m3fn"]'
_TAKES: Final = dict.fromkeys(
    ("aten::_scaled_mm", "aten::_scaled_grouped_mm", "aten::_scaled_mm_v2"), _FP8_PAIR
)


def glance(source: Source) -> Glance:
    """Look for the first row of a kernel; text without a table may be a damaged trace."""
    tables = _tables(source, is_glance=True)
    has_table = any(table.launches for table in tables)
    return Glance(is_trace=has_table, is_damaged=not has_table)


def read(source: Source, how: Reading) -> Trace:
    """Read the last table that has kernels.

    Raises:
        InputError: there is none.
    """
    table, earlier = _last_table(source)
    trace = Trace(source=source.name)
    rows = RowCollector()
    rows.launches(_launches(table.launches))
    operators: dict[str, str] = {}
    if table.has_kernels:
        for name, kind in table.counted.items():
            operators[name] = f"{COUNTED}{kind}"
        for name in table.products:
            operators[name] = name
    else:
        for name in table.launches:
            operators[name] = name
    _add_operators(rows, operators)
    rows.fill(trace, table.tool, layers=how.layers)
    trace.health.skipped_events += table.unread + table.left_out
    trace.health.rows_are_sums = True
    trace.health.truncated = source.damage is not None
    trace.seen = table.operators
    if earlier:
        trace.remarks.append(f"of its {earlier + 1} tables of kernels the last is read")
    trace.remarks += _limits(table)
    calls = sum(row.calls for row in table.launches.values())
    if calls > _MAX_CALLS:  # first: every count that the report has is of these
        said = f"its {calls:,} calls are counted as {_SCALED_CALLS:,}, with their time"
        trace.remarks.insert(0, said)
    _say_what_is_missing(trace.health, table)
    return trace


def _tables(source: Source, *, is_glance: bool = False) -> Iterator[Table]:
    """Yield each table with its rows; for a glance it is done after its first kernel."""
    if _JSON_ROWS.match(source.head):
        return json_tables(source)
    return text_tables(source, is_glance=is_glance)


def _last_table(source: Source) -> tuple[Table, int]:
    """Return the last table that has kernels, or operators with their own times.

    How many such tables come before it is told, too.

    Raises:
        InputError: there is none.
    """
    found = 0
    last = None
    unread = 0
    has_table = False
    for table in _tables(source):
        has_table = True
        unread += table.unread
        if table.launches:
            found += 1
            last = table
    if last is not None:
        return last, found - 1
    if unread:
        raise InputError(
            f"{source.name} holds a table of kernels, but {counted(unread, 'row')} cannot be read "
            "as a name and a time.",
            "Write one line a kernel: its name, a time, and a unit there or in the heading, such as "
            "kernel,total_ms,calls.",
        )
    if has_table:
        raise InputError(
            f"{source.name} holds a table, but no row of a GPU kernel with a time.",
            "Print the kernels too: key_averages() of a profile with ProfilerActivity.CUDA, nsys "
            "stats --report cuda_gpu_kern_sum, ncu --csv --metrics gpu__time_duration.sum.",
        )
    if _JSON_ROWS.match(source.head) is None:
        raise unknown_file(source)
    raise not_a_trace(source, "a trace: no list of events in it")


def _limits(table: Table) -> Iterator[str]:
    """Yield what a table cannot say, and what was guessed."""
    yield "the table does not say when kernels ran: idle time is unknown"
    if table.read_as:
        yield f"read as: {clean(table.read_as)}"
    if table.products:
        yield "its products are by operator: no kernel in it looks like one"
    elif not table.has_kernels:
        yield "its rows are of operators: the share is by operator, not by kernel"


def _say_what_is_missing(health: Health, table: Table) -> None:
    """Note whether a table lists all kernels."""
    if table.left_out:
        health.notes.append(
            f"{table.left_out:,} of its rows are left out: no run has more than {MOST_NAMES:,} "
            "kernels"
        )
    if table.is_whole:
        return
    if table.tool == GUESSED:
        health.truncated = True
        health.notes.append("the table does not say that it lists all kernels")
    elif table.tool == "key_averages()":
        health.truncated = True
        health.notes.append(
            "the table does not list all kernels: print it with row_limit=-1 and "
            "max_name_column_width=None"
        )
    else:
        health.records_lost = True
        health.notes.append(f"its rows add up to {table.shares:.1f}%, not to 100%")


def _launches(rows: dict[str, Sum]) -> Iterator[tuple[str, int, int, int, int, None]]:
    """Yield the kernels one after another, each call with the mean time of its row."""
    calls = sum(row.calls for row in rows.values())
    kept = calls
    if calls > _MAX_CALLS:
        kept = _SCALED_CALLS
    begin = 0
    row_begin = 0
    for name, row in rows.items():
        count = max(1, row.calls * kept // calls)
        for number in range(1, count + 1):
            end = row_begin + row.ns * number // count
            yield name, begin, end, 0, 0, None
            begin = end
        row_begin = begin


def _add_operators(rows: RowCollector, operators: dict[str, str]) -> None:
    """Give the kernels of some names an operator, such as one that says what was counted."""
    columns = rows.columns
    number_of: dict[int, int] = {}
    for number, (name, operator) in enumerate(operators.items()):
        if name in columns.names:
            name_id = columns.names[name]
            number_of[name_id] = number
            types = _TAKES.get(operator, b"")
            columns.add_operator(number, operator, types + SEPARATOR * 2)
    columns.op_ids = array("q")
    for name_id in columns.kernels.name:
        number = number_of.get(name_id, -1)
        columns.op_ids.append(number)
