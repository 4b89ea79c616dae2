"""The training steps of a trace without torch.profiler, by the ranges that repeat once a step."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.text import lazy_pattern
from fp8verify.trace.steps import mark_profiler_steps, step_number
from fp8verify.trace.tables import Step

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns

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
    columns.steps = _own_steps(process_ranges)
    columns.steps_bound = bool(columns.steps)
    if columns.steps:
        return None
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
    return best[1]


def _own_steps(process_ranges: Iterable[tuple[str, int, int]]) -> list[Step]:
    """Return the steps marked by ranges that belong to no thread, as fp8verify 0.2 recorded them.

    One that the end of the recording cut is the shorter of two of its number, if there are two.
    """
    longest: dict[int, Step] = {}
    for name, start, end in process_ranges:
        number = step_number(name)
        if number is not None and end - start > _length(longest.get(number)):
            longest[number] = Step(number, start, end)
    return sorted(longest.values(), key=lambda step: step.start_ns)


def _length(step: Step | None) -> int:
    return -1 if step is None else step.end_ns - step.start_ns


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
    return {key: members for key, members in found.items() if _apart(members)}


def _apart(members: Sequence[_Range]) -> bool:
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
    """Return the numbers in the names, if they tell the steps apart; else count from 1."""
    found = [_NUMBER.search(one.name) for one in members]
    numbers = [int(match[0]) for match in found if match]
    if len(set(numbers)) == len(members):
        return numbers
    return list(range(1, len(members) + 1))
