"""Kernels that a trace holds twice, as joined or repaired files do: each counts once."""

from __future__ import annotations

from array import array
from dataclasses import fields
from itertools import compress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns


def drop_duplicates(columns: Columns) -> int:
    """Drop all but the first record of each launch; return how many were dropped.

    A launch is known by its correlation id: one of a graph makes many kernels, which start one
    after another.
    """
    kernels = columns.kernels
    if len(set(kernels.start)) == len(kernels.start):
        return 0
    seen: set[tuple[int, ...]] = set()
    kept = array("b")
    for key in zip(
        kernels.start, kernels.correlation, kernels.duration, kernels.name, kernels.device,
        kernels.stream, kernels.op_id, strict=True,
    ):  # fmt: skip
        kept.append(key[1] < 0 or key not in seen)
        seen.add(key)
    dropped = kept.count(0)
    for column in fields(kernels) if dropped else ():
        values: array[Any] = getattr(kernels, column.name)
        setattr(kernels, column.name, array(values.typecode, compress(values, kept)))
    return dropped
