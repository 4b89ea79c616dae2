"""Which table begins below some headings: whose it is, and in which columns it has what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.kernel_table.cells import IN_CELLS, UNIT
from fp8verify.trace.kernel_table.column_names import (
    COUNTER,
    indices_of,
    spelled,
    time_column,
)
from fp8verify.trace.kernel_table.table import GUESSED, Table, no_cells

_MOST_COLUMNS: Final = 1 << 12
# Tables with these headings are of calls on the CPU or of ranges.
_OTHERS: Final = frozenset({"num calls", "range", "style", "pushpop id", "api name"})
_SELF: Final = lazy_pattern(r"self[ _]")
# Tables of scripts and reports have headings of their own: words for a total, and its unit.
_WORDS: Final = (
    "total|sum|self|gpu|cuda|hip|xpu|device|kernel|elapsed|time|duration|dur"
)
_ANY_TIME: Final = (
    lazy_pattern(rf"total(?:[ _]+(?:{_WORDS}))*[ _]*\(?{UNIT}\)?"),
    lazy_pattern(rf"(?:(?:{_WORDS})[ _]*)*\(?{UNIT}\)?"),
    # The cells have the unit.
    lazy_pattern(rf"(?:(?:{_WORDS})[ _]*)*(?:time|duration|dur|total)()"),
)


def empty_table(
    headings: Sequence[str],
    cells: Callable[[str], Sequence[str]],
) -> Table | None:
    """Return an empty table with these headings; None if they are none."""
    known = list(map(spelled, headings))
    if not 2 <= len(known) <= _MOST_COLUMNS:
        return None
    indices = indices_of(known)
    if "name" not in indices:
        return None
    if not _OTHERS.isdisjoint(known):  # its rows are not those of the table before it
        return Table(
            tool="",
            cells=no_cells,
            width=-1,
            indices=indices,
            unit="n",
        )
    if {"metric", "unit", "value"} <= indices.keys():
        return Table(
            tool="ncu",
            cells=cells,
            width=len(known),
            indices={**indices, "time": indices["value"]},
            unit="n",
        )
    indices.pop("metric", None)
    time = time_column(known, indices["name"])
    if time is None:
        return _guessed(known, indices, cells)
    counters = []
    for index, heading in enumerate(known):
        if COUNTER.search(heading[:200]):
            counters.append((index, heading))
    heading = known[time.column]
    is_of_torch = time.tool == "key_averages()"
    return Table(
        tool=time.tool,
        cells=cells,
        width=len(known),
        indices={**indices, "time": time.column},
        unit=time.unit,
        counters=tuple(counters),
        is_self_time=is_of_torch and _SELF.match(heading) is not None,
    )


def _guessed(
    known: Sequence[str],
    indices: dict[str, int],
    cells: Callable[[str], Sequence[str]],
) -> Table | None:
    """Return the table of a script or a report by the words and units of its headings."""
    for pattern in _ANY_TIME:
        for index, text in enumerate(known):
            match = pattern.fullmatch(text)
            if match is None or index in indices.values():
                continue
            read_as = [known[indices["name"]], text]
            if "calls" in indices:
                read_as.append(known[indices["calls"]])
            unit = match[1]
            if pattern is _ANY_TIME[-1]:
                unit = IN_CELLS
            return Table(
                tool=GUESSED,
                cells=cells,
                width=len(known),
                indices={**indices, "time": index},
                unit=unit,
                is_self_time=_SELF.match(text) is not None,
                read_as=", ".join(read_as),
            )
    return None
