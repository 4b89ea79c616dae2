"""The training steps of a trace, and the step in which each kernel was launched."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from itertools import compress, count
from typing import TYPE_CHECKING

from fp8verify.trace.tables import Step

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns

# torch.profiler's `step` opens a range of this name on the CPU, whichever tool records it.
_PREFIX = "ProfilerStep#"
_STEP = re.compile(_PREFIX + r"([0-9]{1,17})")


def mark_profiler_steps(columns: Columns) -> None:
    """Fill in the steps from torch.profiler's ranges: the longest range of each number."""
    columns.step_names = {i for name, i in columns.op_names.items() if name.startswith(_PREFIX)}
    names = list(columns.op_names)
    numbers = {i: int(m[1]) for i in columns.step_names if (m := _STEP.fullmatch(names[i]))}
    longest: dict[int, Step] = {}
    ops = columns.ops
    for row in compress(count(), map(numbers.__contains__, ops.name)):
        found = Step(numbers[ops.name[row]], ops.start[row], ops.end[row])
        known = longest.get(found.number)
        if known is None or _longer(found, known):
            longest[found.number] = found
    columns.steps = sorted(longest.values(), key=lambda s: (s.start_ns, s.number))
    if len(columns.steps) > 1 and _is_empty(columns, columns.steps[-1]):
        # The profiler's `step` after the last step of a loop begins one that never comes.
        columns.steps.pop()


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


def _longer(a: Step, b: Step) -> bool:
    return (a.end_ns - a.start_ns, -a.start_ns) > (b.end_ns - b.start_ns, -b.start_ns)


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
