"""The training steps of a trace, and the step in which each kernel was launched."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, compress, count, pairwise
from typing import TYPE_CHECKING

from fp8verify.trace.tables import Step

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns


# torch.profiler's `step` opens a range of this name on the CPU, whichever tool records it.
_PREFIX = "ProfilerStep#"
_MOST_SERIES = 64  # a profiler, and threads of a process; a trace may hold anything
_STEP = re.compile(_PREFIX + r"([0-9]{1,17})")


def mark_profiler_steps(columns: Columns) -> None:
    """Fill in the steps from torch.profiler's ranges, those of one owner: the longest series.

    A script's own profiler marks steps beside those of `fp8verify run`, and threads and processes
    may write a range of their own for a step.
    """
    columns.step_names = {i for name, i in columns.op_names.items() if name.startswith(_PREFIX)}
    names = list(columns.op_names)
    numbers = {i: int(m[1]) for i in columns.step_names if (m := _STEP.fullmatch(names[i]))}
    ops = columns.ops
    found: list[tuple[Step, int]] = []
    for row in compress(count(), map(numbers.__contains__, ops.name)):
        step = Step(numbers[ops.name[row]], ops.start[row], ops.end[row])
        found.append((step, ops.thread[row]))
    steps = max(_series(found), key=_covered, default=[])
    if len({step.number for step in steps}) < len(steps):
        # Of recordings that were joined, each is a step if something began in it.
        begun = _first_begun(columns, [step.start_ns for step in steps])
        ran = [s for i, s in enumerate(steps) if begun.get(i, s.end_ns + 1) <= s.end_ns]
        steps = ran or steps
    if len(steps) > 1 and _is_empty(columns, steps[-1]):
        # The profiler's `step` after the last step of a loop begins one that never comes.
        steps.pop()
    columns.steps = steps


def _series(found: Iterable[tuple[Step, int]]) -> list[list[Step]]:
    """Return series of ranges that follow one another: those of one owner never overlap.

    A range continues the series of its thread, or else of its number, of those that have ended.
    """
    series: list[tuple[list[Step], int]] = []
    for step, thread in sorted(found, key=lambda one: (one[0].start_ns, -one[0].end_ns)):
        ended = [one for one in series if one[0][-1].end_ns <= step.start_ns]
        best = max(
            ended,
            key=lambda one: (one[1] == thread, one[0][-1].number + 1 == step.number),
            default=None,
        )
        if best is None and len(series) < _MOST_SERIES:
            series.append(([step], thread))
        elif best is not None:
            best[0].append(step)
    return [steps for steps, _ in series]


def _covered(steps: Sequence[Step]) -> int:
    return sum(step.end_ns - step.start_ns for step in steps)


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
_STEP_NAME = re.compile(
    r"(?:(?:global|train(?:ing)?|profiler|run_training)[ _-]?)?"
    r"(?:step|iter(?:ation)?|batch)s?[ _:#=-]*(?:\d{1,9})?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,9}(?!.*\d)")
_DIGITS = re.compile(r"\d+")


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
