"""The training steps of a trace, and the step in which each kernel was launched."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, compress, count
from typing import TYPE_CHECKING

from fp8verify.text import lazy_pattern
from fp8verify.trace.tables import Step

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns

# torch.profiler's `step` opens a range of this name on the CPU, whichever tool records it.
_PREFIX = "ProfilerStep#"
_STRETCH = 256
_STEP = lazy_pattern(_PREFIX + r"([0-9]{1,17})")


def mark_profiler_steps(columns: Columns) -> None:
    """Fill in the steps from torch.profiler's ranges: of those that overlap, the longest.

    Threads and processes write a range of their own for a step. Ranges of one number that are
    apart are of recordings that were joined, and each is a step.
    """
    columns.step_names = {i for name, i in columns.op_names.items() if name.startswith(_PREFIX)}
    names = list(columns.op_names)
    numbers = {i: int(m[1]) for i in columns.step_names if (m := _STEP.fullmatch(names[i]))}
    ops = columns.ops
    found: dict[int, list[Step]] = defaultdict(list)
    for row in _rows_with(set(numbers), ops.name):
        number = numbers[ops.name[row]]
        found[number].append(Step(number, ops.start[row], ops.end[row]))
    columns.steps = sorted(_apart(columns, found), key=_start)
    if len(columns.steps) > 1 and _is_empty(columns, columns.steps[-1]):
        # The profiler's `step` after the last step of a loop begins one that never comes.
        columns.steps.pop()


def _rows_with(wanted: set[int], column: array[int]) -> Iterator[int]:
    """Yield the rows that hold one of the numbers, which most stretches of the column do not."""
    for first in range(0, len(column), _STRETCH):
        part = column[first : first + _STRETCH]
        if not wanted.isdisjoint(part):
            yield from compress(count(first), map(wanted.__contains__, part))


def step_number(name: str) -> int | None:
    """Return the number of a step by the name of its range, None for other ranges."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def _is_empty(columns: Columns, step: Step) -> bool:
    """Whether nothing began in a step."""
    ops, calls = columns.ops, columns.calls
    # The last step is looked for from the end.
    inside = (
        name not in columns.step_names
        for name, start in zip(reversed(ops.name), reversed(ops.start), strict=True)
        if step.start_ns <= start <= step.end_ns
    )
    return not any(inside) and not any(
        step.start_ns <= t <= step.end_ns for t in reversed(calls.start)
    )


def _start(step: Step) -> tuple[int, int]:
    return step.start_ns, step.number


def _length(step: Step) -> tuple[int, int]:
    return step.end_ns - step.start_ns, -step.start_ns


def _apart(columns: Columns, ranges: dict[int, list[Step]]) -> list[Step]:
    """Return the longest range of each number, and others far from it in which something began."""
    found = {number: _longest(same) for number, same in ranges.items()}
    longest = {number: max(same, key=_length) for number, same in found.items()}
    more = sorted((step for same in found.values() for step in same), key=_start)
    if len(more) == len(longest):
        return more
    always = {index for index, step in enumerate(more) if step == longest[step.number]}
    busy = _busy(columns, [step.start_ns for step in more])
    return [
        step
        for index, step in enumerate(more)
        if index in always or busy.get(index, step.end_ns + 1) <= step.end_ns
    ]


def _longest(ranges: list[Step]) -> list[Step]:
    """Return the longest of each group of ranges that overlap."""
    groups: list[list[Step]] = []
    reached = 0
    for step in sorted(ranges, key=_start):
        if groups and step.start_ns <= reached:
            groups[-1].append(step)
            reached = max(reached, step.end_ns)
        else:
            groups.append([step])
            reached = step.end_ns
    return [max(group, key=_length) for group in groups]


def _busy(columns: Columns, starts: list[int]) -> dict[int, int]:
    """Return for each of the ranges that start then when anything first began in or behind it."""
    ops, first = columns.ops, dict[int, int]()
    names = zip(ops.start, ops.name, strict=True)
    begun = (start for start, name in names if name not in columns.step_names)
    for start in chain(begun, columns.calls.start):
        index = bisect_right(starts, start) - 1
        first[index] = min(start, first.get(index, start))
    return first


def steps_of_kernels(columns: Columns, op_rows: array[int], launch_rows: array[int]) -> array[int]:
    """Return for each kernel the last step that began before its launch, if not over by then."""
    starts = [step.start_ns for step in columns.steps]
    ends = [step.end_ns for step in columns.steps]
    found = array("i")
    for op_row, launch_row in zip(op_rows, launch_rows, strict=True):
        if launch_row >= 0:
            time = columns.calls.start[launch_row]
        elif op_row >= 0:
            time = columns.ops.start[op_row]
        else:
            found.append(-1)
            continue
        index = bisect_right(starts, time) - 1
        found.append(index if index >= 0 and time <= ends[index] else -1)
    return found
