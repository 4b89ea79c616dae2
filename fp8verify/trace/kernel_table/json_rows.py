"""The tables of a JSON document: lists of rows, and the dispatches of rocprofv3's results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.kernel_table.empty_table import empty_table
from fp8verify.trace.kernel_table.table import Fit, Table, no_cells
from fp8verify.trace.source import Source

_MAX_JSON: Final = 8 << 20  # Python objects take up to 25 times as much memory
_JSON_START: Final = lazy_pattern(r"[\[{]")


def json_tables(source: Source) -> Iterator[Table]:
    """Yield the tables of a list of rows, as nsys prints it, or of rocprofv3's results."""
    data = source.whole(_MAX_JSON)
    text = data.decode("utf-8", "replace").lstrip("\ufeff")
    index = 0
    decoder = json.JSONDecoder()
    while True:
        start = _JSON_START.search(text, index)
        if start is None:
            return
        try:
            found, index = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            return
        rows: Any = found
        if isinstance(found, dict):
            rows = _rocprof_rows(found)
        if _are_rows(rows):
            table = _json_table(rows)
            if table is not None:
                yield table


def _are_rows(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return bool(value) and all(isinstance(row, dict) for row in value)


def _json_table(rows: Sequence[dict[str, Any]]) -> Table | None:
    """Return the table of a list of rows, None if it is none of kernels."""
    headings: dict[str, None] = {}
    for row in rows[:100]:
        headings.update(dict.fromkeys(row))
    table = empty_table(list(headings), no_cells)
    if table is None:
        return None
    for row in rows:
        cells = [str(row.get(heading, "")) for heading in headings]
        fit = table.add(cells)
        table.unread += fit is Fit.NOT
    return table


def _rocprof_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return name and duration of the dispatches in rocprofv3's JSON (rocprofiler-sdk 1.0)."""
    rows: list[dict[str, Any]] = []
    try:
        for run in results["rocprofiler-sdk-tool"]:
            rows.extend(_dispatches(run))
    except (KeyError, TypeError, AttributeError):
        return []
    return rows


def _dispatches(run: Any) -> Iterator[dict[str, Any]]:
    symbols = run["kernel_symbols"]
    if isinstance(symbols, dict):
        symbols = symbols.values()
    names = {}
    for symbol in symbols:
        number = symbol["kernel_id"]
        names[number] = symbol.get("formatted_kernel_name", "")
    for dispatch in run["buffer_records"]["kernel_dispatch"]:
        number = dispatch["dispatch_info"]["kernel_id"]
        time_ns = dispatch["end_timestamp"] - dispatch["start_timestamp"]
        yield {"kernel_name": names.get(number, ""), "DurationNs": time_ns}
