"""Kernels that a trace holds twice, as joined or repaired files do: each counts once."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import fields
from itertools import compress
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
    if len(set(kernels.start)) == len(kernels.start):
        return 0
    again = _again(kernels)
    if again:
        kept = array("b", [1]) * len(kernels.start)
        for row in again:
            kept[row] = 0
        for column in fields(kernels):
            values: array[Any] = getattr(kernels, column.name)
            setattr(kernels, column.name, array(values.typecode, compress(values, kept)))
    return len(again)


def _again(kernels: KernelColumns) -> list[int]:
    """Return the rows that repeat another one, looking only at those that start together."""
    count = Counter(kernels.start)
    found, seen = list[int](), set[tuple[int, ...]]()
    for row, start in enumerate(kernels.start):
        if count[start] == 1 or kernels.correlation[row] < 0:
            continue
        key = tuple(getattr(kernels, column)[row] for column in _SAME)
        if key in seen:
            found.append(row)
        seen.add(key)
    return found
