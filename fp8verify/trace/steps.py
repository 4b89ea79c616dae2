"""The training steps of a trace, the step of each kernel, and which steps are whole.

Kineto writes operators first and kernels behind them: those that one thread launched, then those of
the next, such as autograd's. So a step of a damaged trace is whole if every thread that ran many
operators is seen to launch kernels, if the operators of the step launched as many as their like did
in any other step, and if the file did not end in the middle of it.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, compress, count, repeat

from msgspec.structs import replace

from fp8verify.trace.columns import Columns
from fp8verify.trace.tables import Step

# torch.profiler's `step` opens a range of this name on the CPU, whichever tool records it.
_PREFIX = "ProfilerStep#"
_MOST_SERIES = 64  # a profiler, and threads of a process; a trace may hold anything
_STEP = re.compile(_PREFIX + r"([0-9]{1,17})")


def mark_profiler_steps(columns: Columns) -> None:
    """Fill in the steps from torch.profiler's ranges, those of one owner: the longest series.

    A script's own profiler marks steps beside those of `fp8verify run`, and threads and processes
    may write a range of their own for a step.
    """
    columns.step_names = {
        i for name, i in columns.op_names.items() if name.startswith(_PREFIX)
    }
    names = list(columns.op_names)
    numbers = {
        i: int(m[1]) for i in columns.step_names if (m := _STEP.fullmatch(names[i]))
    }
    ops = columns.ops
    ranges: list[tuple[Step, int]] = []
    for row in compress(count(), map(numbers.__contains__, ops.name)):
        step = Step(numbers[ops.name[row]], ops.start[row], ops.end[row])
        ranges.append((step, ops.thread[row]))
    steps = max(_series(ranges), key=_covered, default=[])
    if len({step.number for step in steps}) < len(steps):
        # Of recordings that were joined, each is a step if something began in it.
        names_of_starts = zip(ops.start, ops.name, strict=True)
        begun = (
            start for start, name in names_of_starts if name not in columns.step_names
        )
        busy = set(_step_indices(steps, chain(begun, columns.calls.start)))
        steps = _numbered_on(
            [step for at, step in enumerate(steps) if at in busy] or steps
        )
    if len(steps) > 1 and _is_empty(columns, steps[-1]):
        # The profiler's `step` after the last step of a loop begins one that never comes.
        steps.pop()
    columns.steps = steps


def _series(ranges: Iterable[tuple[Step, int]]) -> list[list[Step]]:
    """Return series of ranges that follow one another: those of one owner never overlap.

    A range continues the series of its thread, or else of its number, of those that have ended.
    """
    series: list[tuple[list[Step], int]] = []
    for step, thread in sorted(ranges, key=lambda one: one[0].start_ns):
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


def _numbered_on(steps: Sequence[Step]) -> list[Step]:
    """Give each step of joined recordings a number of its own, so a sentence can name it."""
    numbered: list[Step] = []
    for step in steps:
        last = numbered[-1].number if numbered else -1
        numbered.append(step if step.number > last else replace(step, number=last + 1))
    return numbered


def _covered(steps: Sequence[Step]) -> int:
    return sum(step.end_ns - step.start_ns for step in steps)


def _is_empty(columns: Columns, step: Step) -> bool:
    """Whether nothing began in a step."""
    ops = columns.ops
    calls = columns.calls
    # The last step is looked for from the end.
    inside = (
        name not in columns.step_names
        for name, start in zip(reversed(ops.name), reversed(ops.start), strict=True)
        if step.start_ns <= start <= step.end_ns
    )
    return not any(inside) and not any(
        step.start_ns <= t <= step.end_ns for t in reversed(calls.start)
    )


def steps_of_kernels(
    columns: Columns, op_rows: array[int], launch_rows: array[int]
) -> array[int]:
    """Return for each kernel the index of the step in which it was launched, or -1."""
    calls = columns.calls.start
    ops = columns.ops.start
    rows = zip(op_rows, launch_rows, strict=True)
    times = (calls[c] if c >= 0 else ops[o] if o >= 0 else _NEVER for o, c in rows)
    return _step_indices(columns.steps, times)


_NEVER = -(1 << 63)


def _step_indices(steps: Sequence[Step], times: Iterable[int]) -> array[int]:
    """Return for each time the index of the last step that had begun, or -1 if it was over."""
    starts = [step.start_ns for step in steps]
    ends = [step.end_ns for step in steps]
    indices = array("i")
    for time in times:
        index = bisect_right(starts, time) - 1
        indices.append(index if index >= 0 and time <= ends[index] else -1)
    return indices


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

    Of several kinds of such ranges those count that hold the most time.

    Returns:
        What the ranges are called that count as steps; None for torch.profiler's, or none.
    """
    mark_profiler_steps(columns)
    if columns.steps:
        return None
    names = enumerate(columns.op_names)
    called = {number: name for number, name in names if _STEP_NAME.fullmatch(name)}
    ops = columns.ops
    ranges = defaultdict[str, list[tuple[Step, int]]](list)
    for row in compress(count(), map(called.__contains__, ops.name)):
        if ops.inputs[row] < 0:
            name = called[ops.name[row]]
            number = _NUMBER.search(name)
            step = Step(int(number[0]) if number else -1, ops.start[row], ops.end[row])
            ranges[_DIGITS.sub("#", name)].append((step, ops.thread[row]))
    series = [
        (steps, kind) for kind, alike in ranges.items() for steps in _series(alike)
    ]
    if not series:
        return None
    steps, kind = max(series, key=lambda one: _covered(one[0]))
    if len({step.number for step in steps} - {-1}) < len(steps):
        steps = [replace(step, number=number) for number, step in enumerate(steps, 1)]
    columns.steps = steps
    columns.step_names |= {
        n for n, name in called.items() if _DIGITS.sub("#", name) == kind
    }
    return kind


_NO_OPERATOR: tuple[int, ...] = ()
# A thread with this share of the operators is one of the run's.
_MANY = 0.05


def whole_steps(
    columns: Columns, op_rows: array[int], steps: array[int], *, is_cut: bool
) -> list[bool]:
    """Say of each step whether all its kernels were read.

    Args:
        columns: of a damaged trace, with its steps.
        op_rows: for each kernel the row of its operator, or -1.
        steps: for each kernel the index of its step, or -1.
        is_cut: whether the file ends early, so the step of its last record is not whole.
    """
    whole = [_all_threads_launched(columns, op_rows)] * len(columns.steps)
    ends = [steps[-1]] if is_cut and steps else []
    if is_cut and columns.ops.start:
        # The cut may be in a step of which nothing else is there: its neighbor stands for it.
        starts = [step.start_ns for step in columns.steps]
        ends.append(max(0, bisect_right(starts, columns.ops.start[-1]) - 1))
    for index in ends:
        if 0 <= index < len(whole):
            whole[index] = False
    rows, kernels = _counted(columns, op_rows, steps)
    most: dict[tuple[int, ...], float] = {}
    for (key, step), launched in kernels.items():
        most[key] = max(most.get(key, 0), launched / rows[key, step])
    for (key, step), called in rows.items():
        if kernels[key, step] < most.get(key, 0) * called:
            whole[step] = False
    return whole


def _all_threads_launched(columns: Columns, op_rows: array[int]) -> bool:
    ops = columns.ops
    counts = Counter(compress(ops.thread, map((0).__le__, ops.inputs)))
    launching = {ops.thread[row] for row in op_rows if row >= 0}
    return all(
        thread in launching or count < _MANY * counts.total()
        for thread, count in counts.items()
    )


_Counts = Counter[tuple[tuple[int, ...], int]]


def _counted(
    columns: Columns, op_rows: array[int], steps: array[int]
) -> tuple[_Counts, _Counts]:
    """Count operators and their kernels by name and inputs, and by step.

    Kernels without an operator, as of a graph, are those of one operator a step.
    """
    ops = columns.ops
    indices = _step_indices(columns.steps, ops.start)
    keys: list[tuple[int, ...]] = list(zip(ops.name, ops.inputs, strict=True))
    rows = Counter(pair for pair in zip(keys, indices, strict=True) if pair[1] >= 0)
    kernels: _Counts = Counter()
    for op_row, step in zip(op_rows, steps, strict=True):
        index = indices[op_row] if op_row >= 0 else step
        if index >= 0:
            kernels[keys[op_row] if op_row >= 0 else _NO_OPERATOR, index] += 1
    without = zip(repeat(_NO_OPERATOR), range(len(columns.steps)), strict=False)
    return rows + Counter(without), kernels
