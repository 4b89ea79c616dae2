"""Join columns that were filled apart, as if one reader had filled them one after another."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from fp8verify.trace.columns import (
    CallColumns,
    Columns,
    Interner,
    KernelColumns,
    OpColumns,
    Stretch,
)


class Names(NamedTuple):
    """Whatever columns number: the names themselves, or the new ones, or their numbers."""

    names: list[object]
    op_names: list[object]
    threads: list[object]
    collectives: list[object]
    inputs: list[object]


class Part(NamedTuple):
    """Rows that were filled apart.

    Attributes:
        views: the bytes of each of `arrays`.
        late: for each of them, its rows that hold the number of a name that was not known when
            the parts began; None for many.
        copies: as in `Columns`.
        first_start: as in `Columns`.
        last_end: as in `Columns`.
        op_ids: the least and the greatest of `ops.op_id`.
        correlations: the least and the greatest of `calls.correlation`.
    """

    views: list[memoryview]
    late: list[array[int] | None]
    copies: dict[str, tuple[int, int, int]]
    first_start: int | None
    last_end: int
    op_ids: tuple[int, int]
    correlations: tuple[int, int]


def interners(columns: Columns, inputs: Interner) -> tuple[Interner, ...]:
    """Return what numbers the columns, in the order of `Names`."""
    return columns.names, columns.op_names, columns.threads, columns.collectives, inputs


def with_names(
    names: Interner, op_names: Interner, threads: Interner, collectives: Interner
) -> Columns:
    """Return columns without rows whose numbers go on where these are."""
    return Columns(names=names, op_names=op_names, threads=threads, collectives=collectives)


_GROUPS: dict[str, type] = {"ops": OpColumns, "calls": CallColumns, "kernels": KernelColumns}
_COLUMNS = [(group, column.name) for group, kind in _GROUPS.items() for column in fields(kind)]
_NUMBERED = {
    ("kernels", "name"): "names",
    ("ops", "name"): "op_names",
    ("ops", "thread"): "threads",
    ("calls", "thread"): "threads",
    ("kernels", "collective"): "collectives",
    ("ops", "inputs"): "inputs",
}
# For each of `arrays`, the place in `Names` of what numbers it, if it holds such numbers.
NUMBERED = [
    *(Names._fields.index(_NUMBERED[key]) if key in _NUMBERED else None for key in _COLUMNS),
    None,
]


def arrays(columns: Columns) -> list[array[Any]]:
    """Return all columns, the rows of annotations at last."""
    found = [getattr(getattr(columns, group), name) for group, name in _COLUMNS]
    return [*found, columns.annotations]


class Numbering:
    """The numbers that another reader's names have here.

    It began with the names known here at that time, and tells of each further one once.
    """

    def __init__(self, known: Interner) -> None:
        self._table = list(range(len(known)))

    def extend(self, numbers: Sequence[int]) -> None:
        """Take the numbers here of the next names."""
        self._table += numbers

    def apply(self, column: array[int], rows: Sequence[int] | None, before: int) -> None:
        """Put the numbers used here into rows of a column, which are counted from one on.

        Without rows, into all of them, of which some may be -1.
        """
        if rows is None:
            numbers = [*self._table, -1]
            column[before:] = array("i", map(numbers.__getitem__, column[before:]))
            return
        for row in map(before.__add__, rows):
            column[row] = self._table[column[row]]


class Numberings:
    """The `Numbering` of everything that a reader numbers, in the order of `Names`."""

    def __init__(self, known: Sequence[Interner]) -> None:
        self._all = list(map(Numbering, known))

    def extend(self, known: Sequence[Interner], new: Names) -> None:
        """Take the names that are new, in the order of their first use."""
        for numbering, interner, keys in zip(self._all, known, new, strict=True):
            numbering.extend([interner[key] for key in keys])

    def apply(self, kind: int, column: array[int], rows: Sequence[int] | None, before: int) -> None:
        """Put the numbers used here into rows of a column of that kind of names."""
        self._all[kind].apply(column, rows, before)


def join_columns(columns: Columns, part: Part, numbers: Numberings) -> None:
    """Add the rows of `part`, which comes next in the file and has numbers of its own."""
    ops, calls = len(columns.ops.name), len(columns.calls.thread)
    for column, view, late, kind in zip(
        arrays(columns), part.views, part.late, NUMBERED, strict=True
    ):
        before = len(column)
        column.frombytes(view)
        if column is columns.annotations:
            column[before:] = array("i", map(ops.__add__, column[before:]))
        elif kind is not None and (late is None or late):
            numbers.apply(kind, column, late, before)
    columns.op_ids.append(Stretch(ops, len(columns.ops.name), *part.op_ids))
    columns.correlations.append(Stretch(calls, len(columns.calls.thread), *part.correlations))
    for name, sums in part.copies.items():
        known = columns.copies.get(name, (0, 0, 0))
        columns.copies[name] = (known[0] + sums[0], known[1] + sums[1], known[2] + sums[2])
    if part.first_start is not None:
        columns.note_times([part.first_start], [part.last_end])
