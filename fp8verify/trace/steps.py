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
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, count
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.columns import Columns
from fp8verify.trace.tables import Step


class _Range(NamedTuple):
    """A range on the CPU that may mark a step, and the number of its thread."""

    step: Step
    thread: int


# torch.profiler's `step` opens a range of this name on the CPU, whichever tool records it.
_PREFIX = "ProfilerStep#"
_MOST_SERIES = 64  # a profiler, and threads of a process; a trace may hold anything
_STEP = lazy_pattern(_PREFIX + r"([0-9]{1,17})")


def mark_profiler_steps(columns: Columns) -> None:
    """Fill in the steps from torch.profiler's ranges, those of one owner: the longest series.

    A script's own profiler marks steps beside those of `fp8verify run`, and threads and processes
    may write a range of their own for a step.
    """
    numbers: dict[int, int] = {}
    columns.step_names = set()
    for name, name_id in columns.op_names.items():
        if name.startswith(_PREFIX):
            columns.step_names.add(name_id)
            match = _STEP.fullmatch(name)
            if match is not None:
                numbers[name_id] = int(match[1])
    ranges: list[_Range] = []
    for row in _rows_called(columns, numbers):
        number = numbers[columns.ops.name[row]]
        ranges.append(_range_of(columns, row, number))
    steps = max(_series(ranges), key=_covered, default=[])
    if not _have_own_numbers(steps):
        busy = _not_empty(columns, steps)
        steps = _numbered_on(busy or steps)
    if len(steps) > 1 and _is_empty(columns, steps[-1]):
        # The profiler's `step` after the last step of a loop begins one that never comes.
        steps.pop()
    columns.steps = steps


def _rows_called(columns: Columns, names: Mapping[int, object]) -> Iterable[int]:
    """Return the rows of operators and ranges with one of these names."""
    is_called = map(names.__contains__, columns.ops.name)
    return compress(count(), is_called)


def _range_of(columns: Columns, row: int, number: int) -> _Range:
    ops = columns.ops
    step = Step(
        number=number,
        start_ns=ops.start[row],
        end_ns=ops.end[row],
    )
    return _Range(step, ops.thread[row])


def _have_own_numbers(steps: Sequence[Step]) -> bool:
    numbers = {step.number for step in steps}
    return len(numbers) == len(steps)


def _not_empty(columns: Columns, steps: list[Step]) -> list[Step]:
    """Return those steps of recordings that were joined in which something began."""
    ops = columns.ops
    busy = set(_step_indices(steps, columns.calls.start))
    indices = _step_indices(steps, ops.start)
    for name, index in zip(ops.name, indices, strict=True):
        if name not in columns.step_names:
            busy.add(index)
    found = []
    for index, step in enumerate(steps):
        if index in busy:
            found.append(step)
    return found


def _series(ranges: Iterable[_Range]) -> list[list[Step]]:
    """Return series of ranges that follow one another: those of one owner never overlap.

    A range continues the series of its thread, or else of its number, of those that have ended.
    """
    every: list[_Series] = []
    for step, thread in sorted(ranges, key=_start_of):
        over = [series for series in every if series.last.end_ns <= step.start_ns]
        fitting = partial(_Series.fits, step=step, thread=thread)
        best = max(over, key=fitting, default=None)
        if best is not None:
            best.steps.append(step)
        elif len(every) < _MOST_SERIES:
            every.append(_Series([step], thread))
    return [series.steps for series in every]


def _start_of(step_range: _Range) -> int:
    return step_range.step.start_ns


class _Series(NamedTuple):
    """Steps of one owner, and the thread of the first."""

    steps: list[Step]
    thread: int

    @property
    def last(self) -> Step:
        """The newest step."""
        return self.steps[-1]

    def fits(self, step: Step, thread: int) -> tuple[bool, bool]:
        """Return how well a step continues the series: by its thread, then by its number."""
        is_of_thread = self.thread == thread
        is_next = self.last.number + 1 == step.number
        return is_of_thread, is_next


def _numbered_on(steps: Sequence[Step]) -> list[Step]:
    """Give each step of joined recordings a number of its own, so a sentence can name it."""
    numbered: list[Step] = []
    last = -1
    for step in steps:
        last = max(step.number, last + 1)
        numbered.append(replace(step, number=last))
    return numbered


def _covered(steps: Sequence[Step]) -> int:
    return sum(step.end_ns - step.start_ns for step in steps)


def _is_empty(columns: Columns, step: Step) -> bool:
    """Whether nothing began in a step."""
    ops = columns.ops
    begin = step.start_ns
    end = step.end_ns
    # The last step is looked for from the end.
    for name, start in zip(reversed(ops.name), reversed(ops.start), strict=True):
        is_inside = begin <= start <= end
        if is_inside and name not in columns.step_names:
            return False
    calls_from_end = reversed(columns.calls.start)
    return not any(begin <= start <= end for start in calls_from_end)


def steps_of_kernels(
    columns: Columns,
    op_rows: array[int],
    launch_rows: array[int],
) -> array[int]:
    """Return for each kernel the index of the step in which it was launched, or -1."""
    calls = columns.calls.start
    ops = columns.ops.start
    times = array("q")
    for op_row, launch_row in zip(op_rows, launch_rows, strict=True):
        if launch_row >= 0:
            times.append(calls[launch_row])
        elif op_row >= 0:
            times.append(ops[op_row])
        else:
            times.append(_NEVER)
    return _step_indices(columns.steps, times)


# Before and after every time.
_NEVER = -(1 << 63)
_AFTER_ALL = 1 << 63


def _step_indices(steps: Sequence[Step], times: Iterable[int]) -> array[int]:
    """Return for each time the index of the last step that had begun, or -1 if it was over."""
    starts = [step.start_ns for step in steps]
    ends = [step.end_ns for step in steps]
    following = [*starts[1:], _AFTER_ALL]
    indices = array("i")
    # The step of the time before, which most times are in too.
    index = -1
    begin = _AFTER_ALL
    until = _AFTER_ALL
    for time in times:
        if not begin <= time < until:
            index = bisect_right(starts, time) - 1
            if index >= 0 and time > ends[index]:
                index = -1
            begin = _AFTER_ALL
            if index >= 0:
                begin = starts[index]
                until = min(following[index], ends[index] + 1)
        indices.append(index)
    return indices


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

    Of several kinds of such ranges those count that hold the most time.

    Returns:
        What the ranges are called that count as steps; None for torch.profiler's, or none.
    """
    mark_profiler_steps(columns)
    if columns.steps:
        return None
    called: dict[int, str] = {}
    for number, name in enumerate(columns.op_names):
        if _STEP_NAME.fullmatch(name):
            called[number] = name
    longest: list[Step] = []
    kind = None
    for kind_of_ranges, ranges in _ranges_by_kind(columns, called).items():
        for steps in _series(ranges):
            if kind is None or _covered(steps) > _covered(longest):
                longest = steps
                kind = kind_of_ranges
    if kind is None:
        return None
    columns.steps = _with_numbers(longest)
    for number, name in called.items():
        if _kind_of(name) == kind:
            columns.step_names.add(number)
    return kind


def _with_numbers(steps: list[Step]) -> list[Step]:
    """Count the steps, unless each has a number of its own (-1 is for none)."""
    has_number = all(step.number >= 0 for step in steps)
    if has_number and _have_own_numbers(steps):
        return steps
    counted = []
    for number, step in enumerate(steps, 1):
        counted.append(replace(step, number=number))
    return counted


def _ranges_by_kind(
    columns: Columns,
    called: Mapping[int, str],
) -> dict[str, list[_Range]]:
    """Return the ranges that are called a step, by their names without numbers."""
    ops = columns.ops
    ranges: dict[str, list[_Range]] = defaultdict(list)
    for row in _rows_called(columns, called):
        if ops.inputs[row] >= 0:
            continue  # an operator
        name = called[ops.name[row]]
        number = -1
        digits = _NUMBER.search(name)
        if digits is not None:
            number = int(digits[0])
        step_range = _range_of(columns, row, number)
        ranges[_kind_of(name)].append(step_range)
    return ranges


def _kind_of(name: str) -> str:
    return _DIGITS.sub("#", name)


# The numbers of the name and of the inputs.
_Operator = tuple[int, ...]
_NO_OPERATOR: _Operator = ()
# A thread with this share of the operators is one of the run's.
_MANY = 0.05


def whole_steps(
    columns: Columns,
    op_rows: array[int],
    steps: array[int],
    *,
    is_cut: bool,
) -> list[bool]:
    """Say of each step whether all its kernels were read.

    Args:
        columns: of a damaged trace, with its steps.
        op_rows: for each kernel the row of its operator, or -1.
        steps: for each kernel the index of its step, or -1.
        is_cut: whether the file ends early, so the step of its last record is not whole.
    """
    has_all_threads = _all_threads_launched(columns, op_rows)
    whole = [has_all_threads] * len(columns.steps)
    if is_cut:
        for index in _cut_steps(columns, steps):
            if 0 <= index < len(whole):
                whole[index] = False
    calls, kernels = _counted(columns, op_rows, steps)
    most_per_call: dict[_Operator, float] = defaultdict(float)
    for key, launched in kernels.items():
        operator, _ = key
        per_call = launched / calls[key]
        most_per_call[operator] = max(most_per_call[operator], per_call)
    for key, called in calls.items():
        operator, step = key
        if kernels[key] < most_per_call[operator] * called:
            whole[step] = False
    return whole


def _cut_steps(columns: Columns, steps: array[int]) -> list[int]:
    """Return the indices of the steps that the end of a cut file may be in."""
    ends = []
    if steps:
        ends.append(steps[-1])
    if columns.ops.start:
        # The cut may be in a step of which nothing else is there: its neighbor stands for it.
        starts = [step.start_ns for step in columns.steps]
        last_start = columns.ops.start[-1]
        last_begun = bisect_right(starts, last_start) - 1
        ends.append(max(0, last_begun))
    return ends


def _all_threads_launched(columns: Columns, op_rows: array[int]) -> bool:
    ops = columns.ops
    are_operators = map((0).__le__, ops.inputs)
    operators = Counter(compress(ops.thread, are_operators))
    launching = {ops.thread[row] for row in op_rows if row >= 0}
    many = _MANY * operators.total()
    for thread, operators_of_thread in operators.items():
        if thread not in launching and operators_of_thread >= many:
            return False
    return True


# Counts by operator and step.
_Counts: TypeAlias = "Counter[tuple[_Operator, int]]"


def _counted(
    columns: Columns,
    op_rows: array[int],
    steps: array[int],
) -> tuple[_Counts, _Counts]:
    """Count operators and their kernels by name and inputs, and by step.

    Kernels without an operator, as of a graph, are those of one operator a step.
    """
    ops = columns.ops
    indices = _step_indices(columns.steps, ops.start)
    operators: list[_Operator] = list(zip(ops.name, ops.inputs, strict=True))
    calls: _Counts = Counter()
    for operator, index in zip(operators, indices, strict=True):
        if index >= 0:
            calls[operator, index] += 1
    for index in range(len(columns.steps)):
        calls[_NO_OPERATOR, index] += 1
    kernels: _Counts = Counter()
    for op_row, step in zip(op_rows, steps, strict=True):
        operator = _NO_OPERATOR
        index = step
        if op_row >= 0:
            operator = operators[op_row]
            index = indices[op_row]
        if index >= 0:
            kernels[operator, index] += 1
    return calls, kernels
