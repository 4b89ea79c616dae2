"""The training steps of a trace, and the step in which each kernel was launched."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, compress, count, pairwise
from typing import TYPE_CHECKING

from fp8verify.text import lazy_pattern
from fp8verify.trace.tables import Step

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns


# torch.profiler's `step` opens a range of this name on the CPU, whichever tool records it.
_PREFIX = "ProfilerStep#"
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
    for row in compress(count(), map(numbers.__contains__, ops.name)):
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


def mark_steps(columns: Columns) -> str | None:
    """Fill in the steps of one process: torch.profiler's, or ranges called a step.

    Of several such ranges those that hold the most time count, by thread and name.

    Returns:
        What the ranges are called that count as steps; None for torch.profiler's, or none.
    """
    mark_profiler_steps(columns)
    if columns.steps:
        return None
    ops, names = columns.ops, list(columns.op_names)
    called = {number for number, name in enumerate(names) if _STEP_NAME.fullmatch(name)}
    series: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in sorted(columns.annotations, key=ops.start.__getitem__):
        if ops.name[row] in called:
            series[ops.thread[row], _DIGITS.sub("#", names[ops.name[row]])].append(row)
    lengths = {
        key: sum(ops.end[row] - ops.start[row] for row in rows)
        for key, rows in series.items()
        if all(ops.end[before] <= ops.start[after] for before, after in pairwise(rows))
    }
    if not lengths:
        return None
    best = max(lengths, key=lengths.__getitem__)
    rows = series[best]
    numbers = _numbers([names[ops.name[row]] for row in rows])
    columns.steps = [
        Step(number, ops.start[row], ops.end[row])
        for number, row in zip(numbers, rows, strict=True)
    ]
    columns.step_names |= {ops.name[row] for row in rows}
    return best[1]


def _numbers(names: Sequence[str]) -> list[int]:
    """Return the numbers in the names if all differ, else count from 1."""
    numbers = [int(match[0]) for match in map(_NUMBER.search, names) if match]
    if len(set(numbers)) == len(names):
        return numbers
    return list(range(1, len(names) + 1))
