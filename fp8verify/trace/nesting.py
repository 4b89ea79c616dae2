"""Which operator encloses which operator and which launch, thread by thread."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from itertools import compress, count, tee
from operator import eq, ge, gt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fp8verify.trace.columns import Columns, OpColumns


def nest(
    columns: Columns, threads: Iterable[int], launches: Iterable[int]
) -> tuple[array[int], dict[int, int]]:
    """Nest the ranges of some threads.

    Args:
        columns: what was read.
        threads: their numbers; those of the launches are added.
        launches: rows of calls.

    Returns:
        The row that encloses each row of `ops`, and each of the launches by its row; or -1.
    """
    ops, calls = columns.ops, columns.calls
    instants: dict[int, list[int]] = defaultdict(list)
    for launch in sorted(launches, key=lambda row: (calls.start[row], row)):
        instants[calls.thread[launch]].append(launch)
    members: dict[int, array[int]] = {one: array("i") for one in {*threads, *instants}}
    annotations: dict[int, list[int]] = defaultdict(list)
    thread_of = ops.thread[:]
    for row in sorted(columns.annotations, key=ops.start.__getitem__):
        annotations[thread_of[row]].append(row)
    for row in columns.annotations:
        thread_of[row] = -1
    for row, thread in enumerate(thread_of):
        if thread in members:
            members[thread].append(row)
    parent, enclosing = array("i", [-1]) * len(ops.name), dict[int, int]()
    for thread, rows in members.items():
        times = [calls.start[launch] for launch in instants[thread]]
        around = link_thread(rows, annotations[thread], ops, parent, times)
        enclosing.update(zip(instants[thread], around, strict=True))
    return parent, enclosing


def start_order(
    rows: array[int], start: array[int], end: array[int], inputs: array[int]
) -> array[int]:
    """Return `rows` by start, an enclosing range before what it encloses.

    Of ranges that are equal, annotations (`inputs` < 0) enclose operators.
    """
    if next(_places(gt, rows, start), None) is not None:
        rows = array("i", sorted(rows, key=start.__getitem__))
    done = 0
    for place in _places(eq, rows, start):
        if place < done:
            continue
        first, time = place - 1, start[rows[place]]
        done = next((n for n in range(place, len(rows)) if start[rows[n]] != time), len(rows))
        tied = sorted(rows[first:done], key=lambda row: (-end[row], inputs[row] >= 0))
        rows[first:done] = array("i", tied)
    return rows


def _places(
    relation: Callable[[int, int], bool], rows: array[int], start: array[int]
) -> Iterator[int]:
    """Yield the places of rows whose predecessor's start has the relation to their own."""
    starts, following = tee(map(start.__getitem__, rows))
    next(following, None)
    return compress(count(1), map(relation, starts, following))


def _merge(merged: array[int], run: array[int], start: array[int]) -> None:
    """Merge a sorted run into another that it mostly follows, or that is much longer."""
    taken = bisect_right(merged, start[run[0]], key=start.__getitem__)
    tail = merged[taken:]
    del merged[taken:]
    taken = 0
    for index, row in enumerate(run):
        place = bisect_right(tail, start[row], taken, key=start.__getitem__)
        merged.extend(tail[taken:place])
        taken = place
        if taken == len(tail):
            merged.extend(run[index:])
            return
        merged.append(row)
    merged.extend(tail[taken:])


def link_thread(
    rows: array[int],
    annotations: Sequence[int],
    ops: OpColumns,
    parent: array[int],
    instants: Sequence[int],
) -> list[int]:
    """Link the ranges of one thread as `link_parents` does, whatever their order is.

    Kineto writes operators in order and annotations after them, and seldom do two begin in the
    same nanosecond: only what proves otherwise is sorted.

    Args:
        rows: the operators of the thread, as they came.
        annotations: of the thread, in the order of time.
        ops: all ranges.
        parent: filled in for `rows` and `annotations`.
        instants: times in ascending order.

    Returns:
        What `link_parents` found.
    """
    ordered = rows[:]
    if annotations:
        _merge(ordered, array("i", annotations), ops.start)
    if next(_places(ge, ordered, ops.start), None) is not None:
        ordered = start_order(ordered, ops.start, ops.end, ops.inputs)
    return link_parents(ordered, ops.start, ops.end, parent, instants)


def link_parents(
    rows: Sequence[int],
    start: array[int],
    end: array[int],
    parent: array[int],
    instants: Sequence[int],
) -> list[int]:
    """Set `parent` of each of one thread's `rows`, and find what encloses each of `instants`.

    A range is inside another that it overlaps and that began before it: whole-microsecond traces
    round an inner range to end after its outer one, and ranges of one thread never truly overlap
    otherwise. Back-to-back ranges that share an end point are neighbours, except that one of no
    length belongs to the earlier.

    Args:
        rows: in `start_order`.
        start: of all ranges.
        end: of all ranges.
        parent: of all ranges; filled in for `rows`, -1 for outermost ones.
        instants: times in ascending order.

    Returns:
        For each instant the innermost enclosing row, or -1.
    """
    # The innermost open range, and when it ends; `parent` leads from it to those around it, whose
    # ends are kept. Where none is open, -1 is a range without end.
    inner, until = -1, _FOREVER
    ends: list[float] = []
    found: list[int] = []
    waiting = iter((*instants, _FOREVER))
    instant = next(waiting)
    begins, finishes = map(start.__getitem__, rows), map(end.__getitem__, rows)
    for row, begin, finish in zip(rows, begins, finishes, strict=True):
        while instant < begin:
            while until < instant:
                inner, until = parent[inner], ends.pop()
            found.append(inner)
            instant = next(waiting)
        while until < begin or (until == begin < finish):
            inner, until = parent[inner], ends.pop()
        parent[row] = inner
        ends.append(until)
        inner, until = row, finish
    while instant < _FOREVER:
        while until < instant:
            inner, until = parent[inner], ends.pop()
        found.append(inner)
        instant = next(waiting)
    return found


_FOREVER = float("inf")
