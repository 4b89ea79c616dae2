"""Which operator encloses which operator and which launch, thread by thread."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from itertools import compress, count, islice
from operator import eq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fp8verify.trace.columns import Columns


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
    members = {one: array("i") for one in {*threads, *instants}}
    for row, thread in enumerate(ops.thread):
        if thread in members:
            members[thread].append(row)
    parent, enclosing = array("i", [-1]) * len(ops.name), dict[int, int]()
    for thread, rows in members.items():
        times = [calls.start[launch] for launch in instants[thread]]
        ordered = start_order(rows, ops.start, ops.end, ops.inputs)
        around = link_parents(ordered, ops.start, ops.end, parent, times)
        enclosing.update(zip(instants[thread], around, strict=True))
    return parent, enclosing


def start_order(
    rows: array[int], start: array[int], end: array[int], inputs: array[int]
) -> array[int]:
    """Return one thread's `rows` by start, an enclosing range before what it encloses.

    Of ranges that are equal, annotations (`inputs` < 0) enclose operators.
    """
    ordered = array("i", sorted(rows, key=start.__getitem__))
    times = map(start.__getitem__, ordered)
    following = map(start.__getitem__, islice(ordered, 1, None))
    done = 0
    for place in compress(count(1), map(eq, times, following)):
        if place >= done:
            done = bisect_right(ordered, start[ordered[place]], place, key=start.__getitem__)
            tied = ordered[place - 1 : done]
            in_order = sorted(tied, key=lambda row: (-end[row], inputs[row] >= 0))
            ordered[place - 1 : done] = array("i", in_order)
    return ordered


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
    otherwise. Back-to-back ranges that share an end point are neighbors, except that one of no
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
    # ends are kept. If none is open, -1 is a range without end.
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
