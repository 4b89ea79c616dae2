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
from itertools import chain, compress, count
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.trace.columns import Columns
from fp8verify.trace.tables import Step


class _Range(NamedTuple):
    """A range on the CPU that may mark a step, and the number of its thread."""

    step: Step
    thread: int


# torch.profiler's `step` opens a range of this name on the CPU, whichever tool records it.
_PREFIX = "ProfilerStep#"
_MOST_SERIES = 64  # a profiler, and threads of a process; a trace may hold anything
_STEP = re.compile(_PREFIX + r"([0-9]{1,17})")


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
    ops = columns.ops
    ranges: list[_Range] = []
    for row in compress(count(), map(numbers.__contains__, ops.name)):
        step = Step(
            number=numbers[ops.name[row]],
            start_ns=ops.start[row],
            end_ns=ops.end[row],
        )
        ranges.append(_Range(step, ops.thread[row]))
    steps = max(_series(ranges), key=_covered, default=[])
    if len({step.number for step in steps}) < len(steps):
        steps = _numbered_on(_not_empty(columns, steps) or steps)
    if len(steps) > 1 and _is_empty(columns, steps[-1]):
        # The profiler's `step` after the last step of a loop begins one that never comes.
        steps.pop()
    columns.steps = steps


def _not_empty(columns: Columns, steps: list[Step]) -> list[Step]:
    """Return those steps of recordings that were joined in which something began."""
    ops = columns.ops
    names_of_starts = zip(ops.start, ops.name, strict=True)
    begun = (start for start, name in names_of_starts if name not in columns.step_names)
    busy = set(_step_indices(steps, chain(begun, columns.calls.start)))
    return [step for index, step in enumerate(steps) if index in busy]


def _series(ranges: Iterable[_Range]) -> list[list[Step]]:
    """Return series of ranges that follow one another: those of one owner never overlap.

    A range continues the series of its thread, or else of its number, of those that have ended.
    """
    every: list[_Series] = []
    for step, thread in sorted(ranges, key=lambda one: one.step.start_ns):
        best: _Series | None = None
        for series in every:
            if series.last.end_ns > step.start_ns:
                continue
            if best is None or series.fits(step, thread) > best.fits(step, thread):
                best = series
        if best is not None:
            best.steps.append(step)
        elif len(every) < _MOST_SERIES:
            every.append(_Series([step], thread))
    return [series.steps for series in every]


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
        return (self.thread == thread, self.last.number + 1 == step.number)


def _numbered_on(steps: Sequence[Step]) -> list[Step]:
    """Give each step of joined recordings a number of its own, so a sentence can name it."""
    numbered: list[Step] = []
    last = -1
    for step in steps:
        if step.number <= last:
            step = replace(step, number=last + 1)
        numbered.append(step)
        last = step.number
    return numbered


def _covered(steps: Sequence[Step]) -> int:
    return sum(step.end_ns - step.start_ns for step in steps)


def _is_empty(columns: Columns, step: Step) -> bool:
    """Whether nothing began in a step."""
    ops = columns.ops
    begin = step.start_ns
    end = step.end_ns
    # The last step is looked for from the end.
    from_end = zip(reversed(ops.name), reversed(ops.start), strict=True)
    for name, start in from_end:
        if begin <= start <= end and name not in columns.step_names:
            return False
    return not any(begin <= start <= end for start in reversed(columns.calls.start))


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
    called: dict[int, str] = {}
    for number, name in enumerate(columns.op_names):
        if _STEP_NAME.fullmatch(name):
            called[number] = name
    candidates: list[tuple[list[Step], str]] = []
    for kind, ranges in _ranges_by_kind(columns, called).items():
        candidates.extend((steps, kind) for steps in _series(ranges))
    if not candidates:
        return None
    steps, kind = max(candidates, key=lambda candidate: _covered(candidate[0]))
    numbers = {step.number for step in steps} - {-1}
    if len(numbers) < len(steps):
        steps = [replace(step, number=number) for number, step in enumerate(steps, 1)]
    columns.steps = steps
    for number, name in called.items():
        if _kind_of(name) == kind:
            columns.step_names.add(number)
    return kind


def _ranges_by_kind(
    columns: Columns,
    called: Mapping[int, str],
) -> dict[str, list[_Range]]:
    """Return the ranges that are called a step, by their names without numbers."""
    ops = columns.ops
    ranges: dict[str, list[_Range]] = defaultdict(list)
    for row in compress(count(), map(called.__contains__, ops.name)):
        if ops.inputs[row] >= 0:
            continue  # an operator
        name = called[ops.name[row]]
        number = _NUMBER.search(name)
        step = Step(
            number=int(number[0]) if number else -1,
            start_ns=ops.start[row],
            end_ns=ops.end[row],
        )
        ranges[_kind_of(name)].append(_Range(step, ops.thread[row]))
    return ranges


def _kind_of(name: str) -> str:
    return _DIGITS.sub("#", name)


_NO_OPERATOR: tuple[int, ...] = ()
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
    whole = [_all_threads_launched(columns, op_rows)] * len(columns.steps)
    for index in _cut_steps(columns, steps) if is_cut else ():
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


def _cut_steps(columns: Columns, steps: array[int]) -> list[int]:
    """Return the indices of the steps that the end of a cut file may be in."""
    ends = []
    if steps:
        ends.append(steps[-1])
    if columns.ops.start:
        # The cut may be in a step of which nothing else is there: its neighbor stands for it.
        starts = [step.start_ns for step in columns.steps]
        last_begun = bisect_right(starts, columns.ops.start[-1]) - 1
        ends.append(max(0, last_begun))
    return ends


def _all_threads_launched(columns: Columns, op_rows: array[int]) -> bool:
    ops = columns.ops
    operators = Counter(compress(ops.thread, map((0).__le__, ops.inputs)))
    launching = {ops.thread[row] for row in op_rows if row >= 0}
    many = _MANY * operators.total()
    for thread, operators_of_thread in operators.items():
        if thread not in launching and operators_of_thread >= many:
            return False
    return True


_Counts = Counter[tuple[tuple[int, ...], int]]


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
    keys: list[tuple[int, ...]] = list(zip(ops.name, ops.inputs, strict=True))
    rows: _Counts = Counter()
    for key, index in zip(keys, indices, strict=True):
        if index >= 0:
            rows[key, index] += 1
    for index in range(len(columns.steps)):
        rows[_NO_OPERATOR, index] += 1
    kernels: _Counts = Counter()
    for op_row, step in zip(op_rows, steps, strict=True):
        key = _NO_OPERATOR
        index = step
        if op_row >= 0:
            key = keys[op_row]
            index = indices[op_row]
        if index >= 0:
            kernels[key, index] += 1
    return rows, kernels
