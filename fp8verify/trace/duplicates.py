"""Kernels that a trace holds twice, as joined or repaired files do: each counts once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import compress, islice
from operator import eq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns, KernelColumns

_SAME = ("start", "correlation", "duration", "name", "device", "stream", "op_id")


def drop_duplicates(columns: Columns) -> int:
    """Drop all but the first record of each launch; return how many were dropped.

    A launch is known by its correlation id: one of a graph makes many kernels, which start one
    after another.
    """
    kernels = columns.kernels
    again = _again(kernels, _together(kernels.start))
    if again:
        kept = array("b", [1]) * len(kernels.start)
        for row in again:
            kept[row] = 0
        for name in kernels.__struct_fields__:
            values: array[Any] = getattr(kernels, name)
            setattr(kernels, name, array(values.typecode, compress(values, kept)))
    return len(again)


def _together(starts: array[int]) -> Iterable[int]:
    """Return the rows of kernels that start when another one does, as hardly any do."""
    ordered = sorted(starts)
    shared = set(compress(ordered, map(eq, ordered, islice(ordered, 1, None))))
    return compress(range(len(starts)), map(shared.__contains__, starts)) if shared else ()


def _again(kernels: KernelColumns, rows: Iterable[int]) -> list[int]:
    """Return those of some rows that repeat another one."""
    found, seen = list[int](), set[tuple[int, ...]]()
    for row in rows:
        if kernels.correlation[row] < 0:
            continue
        key = tuple(getattr(kernels, column)[row] for column in _SAME)
        if key in seen:
            found.append(row)
        seen.add(key)
    return found
