"""The training steps of a trace, and the step in which each kernel was launched."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, count, pairwise
from statistics import median
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


# How training loops call a step: Megatron-LM "iteration", Lightning "run_training_batch", Hugging
# Face "train_step", nanoGPT and the like "step 12".
_STEP_NAME = lazy_pattern(
    r"(?:(?:global|train(?:ing)?|profiler|run_training)[ _-]?)?"
    r"(?:step|iter(?:ation)?|batch)s?[ _:#=-]*(?:\d{1,9})?",
    re.IGNORECASE,
)
_NUMBER = lazy_pattern(r"\d{1,9}(?!.*\d)")
_DIGITS = lazy_pattern(r"\d+")
# Ranges that are not called a step must repeat, hold what runs, and hold it evenly.
_LEAST_REPEATS = 3
_LEAST_COVERED = 0.9
_UNEVEN = 0.25


class _Range(NamedTuple):
    name: str
    start: int
    end: int
    op_name: int


def mark_steps(columns: Columns, process_ranges: Iterable[tuple[str, int, int]] = ()) -> str | None:
    """Fill in the steps: torch.profiler's, ranges called a step, or the most regular ones.

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
    named = [key for key in series if _STEP_NAME.fullmatch(series[key][0].name)]
    best = max(named, key=lambda key: _total(series[key]), default=None)
    if best is None:
        best = _most_regular(series, array("q", sorted(columns.calls.start)))
    if best is None:
        return None
    chosen = series[best]
    columns.steps = [Step(n, r.start, r.end) for n, r in zip(_numbers(chosen), chosen, strict=True)]
    columns.step_names |= {found.op_name for found in chosen if found.op_name >= 0}
    return None if best[1].startswith(_PREFIX) else best[1]


_Series = dict[tuple[int, str], list[_Range]]


def _series(columns: Columns, process_ranges: Iterable[tuple[str, int, int]]) -> _Series:
    """Return the annotations that never overlap others of their name and thread, by both."""
    found: _Series = defaultdict(list)
    ops, names = columns.ops, list(columns.op_names)
    for row in columns.annotations:
        name = names[ops.name[row]]
        one = _Range(name, ops.start[row], ops.end[row], ops.name[row])
        found[ops.thread[row], _DIGITS.sub("#", name)].append(one)
    for name, start, end in process_ranges:
        found[-1, _DIGITS.sub("#", name)].append(_Range(name, start, end, -1))
    for members in found.values():
        members.sort(key=lambda one: one.start)
    return {key: members for key, members in found.items() if _never_overlap(members)}


def _never_overlap(members: Sequence[_Range]) -> bool:
    return all(before.end <= after.start for before, after in pairwise(members))


def _total(members: Iterable[_Range]) -> int:
    return sum(one.end - one.start for one in members)


def _most_regular(series: _Series, launches: array[int]) -> tuple[int, str] | None:
    """Return the ranges that hold nearly all launches, and as many each; the most, if several."""
    if not launches:
        return None
    regular: dict[tuple[int, str], int] = {}
    for key, members in series.items():
        if len(members) < _LEAST_REPEATS:
            continue
        counts = [
            bisect_right(launches, one.end) - bisect_right(launches, one.start) for one in members
        ]
        usual = median(counts)
        even = all(abs(count - usual) <= _UNEVEN * usual for count in counts)
        if even and sum(counts) >= _LEAST_COVERED * len(launches):
            regular[key] = sum(counts)
    return max(regular, key=lambda key: (regular[key], -len(series[key])), default=None)


def _numbers(members: Sequence[_Range]) -> list[int]:
    """Return the numbers in the names if all differ, else count from 1."""
    found = [_NUMBER.search(one.name) for one in members]
    numbers = [int(match[0]) for match in found if match]
    if len(set(numbers)) == len(members):
        return numbers
    return list(range(1, len(members) + 1))
