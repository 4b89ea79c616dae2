"""Join columns that were filled apart, as if one reader had filled them one after another."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.trace.columns import Columns, Interner

if TYPE_CHECKING:
    from fp8verify.trace.columns import CallColumns, KernelColumns, OpColumns


class Names(NamedTuple):
    """Whatever columns number: the names themselves, or the new ones, or their numbers."""

    names: list[object]
    op_names: list[object]
    threads: list[object]
    collectives: list[object]
    inputs: list[object]


def interners(columns: Columns, inputs: Interner) -> tuple[Interner, ...]:
    """Return what numbers the columns, in the order of `Names`."""
    return columns.names, columns.op_names, columns.threads, columns.collectives, inputs


def with_names(
    names: Interner, op_names: Interner, threads: Interner, collectives: Interner
) -> Columns:
    """Return columns without rows whose numbers go on where these are."""
    return Columns(names=names, op_names=op_names, threads=threads, collectives=collectives)


class Numbering:
    """The numbers that another reader's names have here.

    It began with the names known here at that time, and tells of each further one once.
    """

    def __init__(self, known: Interner) -> None:
        self._table = [*range(len(known)), -1]  # -1, which says that there is none, stays
        self._same = len(known)

    def extend(self, numbers: Sequence[int]) -> None:
        """Take the numbers here of the next names."""
        for number in numbers:
            if number == self._same == len(self._table) - 1:
                self._same += 1
            self._table.insert(-1, number)

    def applied(self, column: array[int]) -> array[int]:
        """Return a column in the numbers used here."""
        if not column or max(column) < self._same:
            return column
        return array(column.typecode, map(self._table.__getitem__, column))


class Numberings:
    """The `Numbering` of everything that a reader numbers."""

    def __init__(self, known: Sequence[Interner]) -> None:
        self.names, self.op_names, self.threads, self.collectives, self.inputs = found = tuple(
            map(Numbering, known)
        )
        self._all = found

    def extend(self, known: Sequence[Interner], new: Names) -> None:
        """Take the names that are new, in the order of their first use."""
        for numbering, interner, keys in zip(self._all, known, new, strict=True):
            numbering.extend([interner[key] for key in keys])


def join_columns(columns: Columns, part: Columns, numbers: Numberings) -> None:
    """Add the rows of `part`, which comes next in the file and has numbers of its own."""
    known = len(columns.ops.name)
    columns.annotations.extend(row + known for row in part.annotations)
    _join_ops(columns.ops, part.ops, numbers)
    _join_calls(columns.calls, part.calls, numbers)
    _join_kernels(columns.kernels, part.kernels, numbers)
    for kind, sums in part.copies.items():
        before = columns.copies.get(kind, (0, 0, 0))
        columns.copies[kind] = (before[0] + sums[0], before[1] + sums[1], before[2] + sums[2])
    columns.last_end = max(columns.last_end, part.last_end)


def _join_ops(ops: OpColumns, part: OpColumns, numbers: Numberings) -> None:
    ops.start += part.start
    ops.end += part.end
    ops.op_id += part.op_id
    ops.sequence += part.sequence
    ops.name += numbers.op_names.applied(part.name)
    ops.thread += numbers.threads.applied(part.thread)
    ops.inputs += numbers.inputs.applied(part.inputs)


def _join_calls(calls: CallColumns, part: CallColumns, numbers: Numberings) -> None:
    calls.correlation += part.correlation
    calls.start += part.start
    calls.thread += numbers.threads.applied(part.thread)


def _join_kernels(kernels: KernelColumns, part: KernelColumns, numbers: Numberings) -> None:
    kernels.start += part.start
    kernels.duration += part.duration
    kernels.op_id += part.op_id
    kernels.correlation += part.correlation
    kernels.device += part.device
    kernels.stream += part.stream
    kernels.name += numbers.names.applied(part.name)
    kernels.collective += numbers.collectives.applied(part.collective)
