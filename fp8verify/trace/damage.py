"""Which steps of a damaged trace are whole.

Kineto writes operators first and kernels behind them: those that one thread launched, then those of
the next, such as autograd's. So a step is whole if every thread that ran many operators is seen to
launch kernels, if the operators of the step launched as many as their like did in any other step,
and if the file did not end in the middle of it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from itertools import compress, repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns
    from fp8verify.trace.tables import Step

_NO_OPERATOR = (-1, -1)
# A thread with this share of the operators is one of the training's.
_MANY = 0.05


def whole_steps(
    columns: Columns, op_rows: array[int], steps: array[int], *, is_cut: bool
) -> list[bool]:
    """Say of each step whether all its kernels were read.

    Args:
        columns: of a damaged trace, with its steps.
        op_rows: for each kernel the row of its operator, or -1.
        steps: for each kernel the place of its step, or -1.
        is_cut: whether the file ends early, so the step of its last record is not whole.
    """
    whole = [_all_threads_launched(columns, op_rows)] * len(columns.steps)
    ends = [steps[-1]] if is_cut and steps else []
    if is_cut and columns.interleaved and columns.ops.start:
        # The cut may be in a step of which nothing else is there: its neighbor stands for it.
        ends.append(max(0, bisect_right(columns.steps, columns.ops.start[-1], key=_start) - 1))
    for place in ends:
        if 0 <= place < len(whole):
            whole[place] = False
    rows, kernels = _counted(columns, op_rows, steps)
    most: dict[tuple[int, int], float] = {}
    for (key, step), count in kernels.items():
        most[key] = max(most.get(key, 0), count / rows[key, step])
    for (key, step), count in rows.items():
        if kernels[key, step] < most.get(key, 0) * count:
            whole[step] = False
    return whole


def _start(step: Step) -> int:
    return step.start_ns


def _all_threads_launched(columns: Columns, op_rows: array[int]) -> bool:
    ops = columns.ops
    counts = Counter(compress(ops.thread, map((0).__le__, ops.inputs)))
    launching = {ops.thread[row] for row in op_rows if row >= 0}
    return all(
        thread in launching or count < _MANY * counts.total() for thread, count in counts.items()
    )


_Counts = Counter[tuple[tuple[int, int], int]]


def _counted(columns: Columns, op_rows: array[int], steps: array[int]) -> tuple[_Counts, _Counts]:
    """Count operators and their kernels by name and inputs, and by step.

    Kernels without an operator, as of a graph, are those of one operator a step.
    """
    ops = columns.ops
    places = _places(columns)
    keys = list(zip(ops.name, ops.inputs, strict=True))
    rows = Counter(pair for pair in zip(keys, places, strict=True) if pair[1] >= 0)
    kernels: _Counts = Counter()
    for op_row, step in zip(op_rows, steps, strict=True):
        place = places[op_row] if op_row >= 0 else step
        if place >= 0:
            kernels[keys[op_row] if op_row >= 0 else _NO_OPERATOR, place] += 1
    without = zip(repeat(_NO_OPERATOR), range(len(columns.steps)), strict=False)
    return rows + Counter(without), kernels


def _places(columns: Columns) -> list[int]:
    """Return for each operator the place of the step in which it began, or -1."""
    starts = [step.start_ns for step in columns.steps]
    found = []
    for start in columns.ops.start:
        place = bisect_right(starts, start) - 1
        found.append(place if place >= 0 and start <= columns.steps[place].end_ns else -1)
    return found
