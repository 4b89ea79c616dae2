"""Follow each kernel back to its launch, its operator and its step."""

from __future__ import annotations

from array import array
from itertools import compress, count
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.trace.columns import Columns
from fp8verify.trace.contexts import Contexts
from fp8verify.trace.layers import NamedOps
from fp8verify.trace.nesting import nest
from fp8verify.trace.steps import steps_of_kernels
from fp8verify.trace.tables import Launch

if TYPE_CHECKING:
    from fp8verify.terms import OpContext


class Correlation(NamedTuple):
    """The columns that correlation adds to the kernels, and what they index.

    `start_ns` are the starts of the kernels in absolute time.
    """

    start_ns: array[int]
    op: array[int]
    launch: array[int]
    step: array[int]
    ops: list[OpContext]
    layer: array[int]
    layers: list[str]


def correlate(columns: Columns, *, layers: bool = False) -> Correlation:
    """Follow every kernel back, whatever the order of the events in the file was.

    An operator is found by the `op_id` of the kernel; if that names none, by the launch with the
    kernel's correlation id and the innermost operator that encloses it on its thread. The step is
    the one in which the launch happened, on any thread.

    Args:
        columns: what a reader took out of the trace.
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
    """
    ops = columns.ops
    op_rows, launch_rows = _rows_by_op_id(columns), _launch_rows(columns)
    pairs = zip(op_rows, launch_rows, strict=True)
    unplaced = {launch for op, launch in pairs if launch >= 0 and (op < 0 or layers)}
    threads = set(ops.thread) if layers else {ops.thread[row] for row in op_rows if row >= 0}
    parent, enclosing = nest(columns, threads, unplaced)
    for kernel, launch in enumerate(launch_rows):
        if op_rows[kernel] < 0 <= launch:
            op_rows[kernel] = _operator_around(columns, parent, enclosing[launch])
    contexts = Contexts(columns, parent)
    op = array("i", (contexts.of(row) if row >= 0 else -1 for row in op_rows))
    named = NamedOps(columns, parent) if layers else None
    return Correlation(
        start_ns=array("q", map(columns.base_ns.__add__, columns.kernels.start)),
        op=op,
        launch=array("b", map(_launch, op_rows, launch_rows)),
        step=steps_of_kernels(columns, op_rows, launch_rows),
        ops=contexts.ops,
        layer=named.of_launches(op_rows, map(enclosing.get, launch_rows)) if named else array("i"),
        layers=named.names if named else [],
    )


def _launch(op_row: int, launch_row: int) -> int:
    return _OP if op_row >= 0 else _NO_OP if launch_row >= 0 else _NONE


# Plain integers: looking up a member of an enumeration costs more than the rest of the row.
_NONE, _NO_OP, _OP = map(int, Launch)


def _rows_by_op_id(columns: Columns) -> array[int]:
    """Return for each kernel the row of the last operator with its `op_id`, or -1."""
    ops, ids = columns.ops, columns.kernels.op_id
    found = dict.fromkeys(ids, -1)
    found.pop(-1, None)
    for row in compress(count(), map(found.__contains__, ops.op_id)):
        if ops.inputs[row] >= 0 and ops.name[row] not in columns.step_names:
            found[ops.op_id[row]] = row
    found[-1] = -1
    return array("i", map(found.__getitem__, ids))


def _launch_rows(columns: Columns) -> array[int]:
    """Return for each kernel the row of the first call with its correlation id, or -1."""
    correlations, ids = columns.calls.correlation, columns.kernels.correlation
    found = dict.fromkeys(ids, -1)
    found.pop(-1, None)
    for row in compress(count(), map(found.__contains__, correlations)):
        if found[correlations[row]] < 0:
            found[correlations[row]] = row
    found[-1] = -1
    return array("i", map(found.__getitem__, ids))


def _operator_around(columns: Columns, parent: array[int], row: int) -> int:
    """Return the innermost operator from a row outwards, or -1."""
    ops = columns.ops
    while row >= 0 and (ops.inputs[row] < 0 or ops.name[row] in columns.step_names):
        row = parent[row]
    return row
