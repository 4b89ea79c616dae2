"""The training steps of a trace, and the step in which each kernel was launched."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, count, pairwise
from typing import TYPE_CHECKING, NamedTuple

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
    apart are of recordings that were joined, and each is a step if something began in it.
    """
    columns.step_names = {i for name, i in columns.op_names.items() if name.startswith(_PREFIX)}
    names = list(columns.op_names)
    numbers = {i: int(m[1]) for i in columns.step_names if (m := _STEP.fullmatch(names[i]))}
    ops = columns.ops
    found: dict[int, list[Step]] = defaultdict(list)
    for row in _rows_with(set(numbers), ops.name):
        number = numbers[ops.name[row]]
        found[number].append(Step(number, ops.start[row], ops.end[row]))
    apart = {number: _longest(ranges) for number, ranges in found.items()}
    steps = sorted(chain.from_iterable(apart.values()), key=_start)
    if len(steps) > len(apart):
        always = {max(ranges, key=_length) for ranges in apart.values()}
        begun = _first_begun(columns, [step.start_ns for step in steps])
        steps = [
            step
            for index, step in enumerate(steps)
            if step in always or begun.get(index, step.end_ns + 1) <= step.end_ns
        ]
    if len(steps) > 1 and _is_empty(columns, steps[-1]):
        # The profiler's `step` after the last step of a loop begins one that never comes.
        steps.pop()
    columns.steps = steps


def _rows_with(wanted: set[int], column: array[int]) -> Iterator[int]:
    """Yield the rows that hold one of the numbers, which most stretches of the column do not."""
    for first in range(0, len(column), _STRETCH):
        part = column[first : first + _STRETCH]
        if not wanted.isdisjoint(part):
            yield from compress(count(first), map(wanted.__contains__, part))


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


def _first_begun(columns: Columns, starts: list[int]) -> dict[int, int]:
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


# How training loops call a step: Megatron-LM "iteration", Lightning "run_training_batch", Hugging
# Face "train_step", nanoGPT and the like "step 12".
_STEP_NAME = lazy_pattern(
    r"(?:(?:global|train(?:ing)?|profiler|run_training)[ _-]?)?"
    r"(?:step|iter(?:ation)?|batch)s?[ _:#=-]*(?:\d{1,9})?",
    re.IGNORECASE,
)
_NUMBER = lazy_pattern(r"\d{1,9}(?!.*\d)")
_DIGITS = lazy_pattern(r"\d+")


class _Range(NamedTuple):
    name: str
    start: int
    end: int
    op_name: int


def mark_steps(columns: Columns, process_ranges: Iterable[tuple[str, int, int]] = ()) -> str | None:
    """Fill in the steps: torch.profiler's, or ranges called a step.

    Args:
        columns: of one process.
        process_ranges: text, start and end of ranges that belong to no thread.

    Returns:
        What the ranges are called that count as steps; None for torch.profiler's, or none.
    """
    mark_profiler_steps(columns)
    if columns.steps:
        return None
    series = _series(columns, process_ranges)
    best = max(
        series, key=lambda key: sum(one.end - one.start for one in series[key]), default=None
    )
    if best is None:
        return None
    chosen = series[best]
    columns.steps = [Step(n, r.start, r.end) for n, r in zip(_numbers(chosen), chosen, strict=True)]
    columns.step_names |= {found.op_name for found in chosen if found.op_name >= 0}
    return None if best[1].startswith(_PREFIX) else best[1]


def _series(
    columns: Columns, process_ranges: Iterable[tuple[str, int, int]]
) -> dict[tuple[int, str], list[_Range]]:
    """Return the ranges called a step, by thread and name, if none of those overlap."""
    found: dict[tuple[int, str], list[_Range]] = defaultdict(list)
    ops, names = columns.ops, list(columns.op_names)
    steps = {number for number, name in enumerate(names) if _STEP_NAME.fullmatch(name)}
    for row in columns.annotations:
        if ops.name[row] in steps:
            name = names[ops.name[row]]
            one = _Range(name, ops.start[row], ops.end[row], ops.name[row])
            found[ops.thread[row], _DIGITS.sub("#", name)].append(one)
    for name, start, end in process_ranges:
        if _STEP_NAME.fullmatch(name):
            found[-1, _DIGITS.sub("#", name)].append(_Range(name, start, end, -1))
    for members in found.values():
        members.sort(key=lambda one: one.start)
    return {
        key: members
        for key, members in found.items()
        if all(before.end <= after.start for before, after in pairwise(members))
    }


def _numbers(members: Sequence[_Range]) -> list[int]:
    """Return the numbers in the names if all differ, else count from 1."""
    found = [_NUMBER.search(one.name) for one in members]
    numbers = [int(match[0]) for match in found if match]
    if len(set(numbers)) == len(members):
        return numbers
    return list(range(1, len(members) + 1))
