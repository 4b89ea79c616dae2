"""What encloses each operator and each launch, found in parts of the file by several processes.

A part links what began and ended in it. What it leaves open reaches into the parts after it, and
its outermost ranges may lie in what earlier ones left open: these few are linked at the end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, pairwise
from operator import lt
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.trace.nesting import link_parents, link_thread

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns
    from fp8verify.trace.team import Team

Instants = Mapping[int, Sequence[int]]
_ALWAYS = float("inf")


class Nesting(NamedTuple):
    """The row that encloses each row of `ops`, and each launch asked for, by its row; or -1."""

    parent: array[int]
    enclosing: dict[int, int]


class _Thread(NamedTuple):
    """One thread in all parts: its annotations and launches by time, and when its parts begin."""

    annotations: array[int]
    launches: Sequence[int]
    begins: list[float]


class _Linked(NamedTuple):
    """What a part found out of one thread.

    `order` is by time: `outer` ranges lie in no other of the part, of which `still_open` may reach
    beyond it. `known` are the launches inside of a range of the part.
    """

    first: int
    last: int
    outer: array[int]
    still_open: list[int]
    annotations: list[tuple[int, int]]
    launches: list[tuple[int, int]]


class _Part(NamedTuple):
    """What a part found out: the parents of its rows of the file, and all threads."""

    parent: array[int]
    threads: dict[int, _Linked]


def nest(
    columns: Columns, threads: Iterable[int], instants: Instants, team: Team[Columns], parts: int
) -> Nesting:
    """Nest the ranges of some threads.

    Args:
        columns: what was read.
        threads: their numbers.
        instants: rows of launches by thread, in the order of time.
        team: with these columns.
        parts: how many of them to do at once.
    """
    bounds = split(len(columns.ops.name), parts)
    plan = _plan(columns, sorted({*threads, *instants}), instants, bounds)
    linked = team.map(_link, plan, [*enumerate(pairwise(bounds))])
    if not all(_follow_in_time(linked, thread, plan[thread].begins) for thread in plan):
        return nest(columns, threads, instants, team, 1)
    return _joined(columns, plan, linked)


def split(count: int, workers: int) -> list[int]:
    """Return the bounds of as many equal parts of a column."""
    return [count * part // workers for part in range(workers + 1)]


def _plan(
    columns: Columns, threads: Sequence[int], instants: Instants, bounds: Sequence[int]
) -> dict[int, _Thread]:
    annotations: dict[int, list[int]] = defaultdict(list)
    ops = columns.ops
    for row in columns.annotations:
        annotations[ops.thread[row]].append(row)
    found = {}
    for thread in threads:
        members = array("i", sorted(annotations[thread], key=ops.start.__getitem__))
        others = set(members)
        begins = [-_ALWAYS, *(_begin(columns, thread, bound, others) for bound in bounds[1:-1])]
        found[thread] = _Thread(members, instants.get(thread, ()), [*begins, _ALWAYS])
    return found


def _begin(columns: Columns, thread: int, bound: int, annotations: set[int]) -> float:
    """Return when the first operator of a thread from a row on began."""
    column = columns.ops.thread
    try:
        row = column.index(thread, bound)
        while row in annotations:
            row = column.index(thread, row + 1)
    except ValueError:
        return _ALWAYS
    return columns.ops.start[row]


def _link(
    columns: Columns, plan: Mapping[int, _Thread], part: tuple[int, tuple[int, int]]
) -> _Part:
    """Link the rows of one part, and the annotations and launches of its time."""
    number, (begin, end) = part
    ops, calls = columns.ops, columns.calls
    parent = array("i", [-1]) * len(ops.name)
    found = {}
    for thread, rows in _rows(columns, plan, begin, end).items():
        since, until = plan[thread].begins[number : number + 2]
        annotations = _between(plan[thread].annotations, ops.start, since, until)
        launches = _between(plan[thread].launches, calls.start, since, until)
        times = [calls.start[launch] for launch in launches]
        order, inner = link_thread(rows, annotations, ops, parent, times)
        found[thread] = _Linked(
            first=ops.start[order[0]] if order else 0,
            last=ops.start[order[-1]] if order else 0,
            outer=array("i", compress(order, map((0).__gt__, map(parent.__getitem__, order)))),
            still_open=_chain(parent, order[-1]) if order else [],
            annotations=[(row, parent[row]) for row in annotations],
            launches=[*zip(launches, inner, strict=True)],
        )
    return _Part(parent[begin:end], found)


def _rows(
    columns: Columns, plan: Mapping[int, _Thread], begin: int, end: int
) -> dict[int, array[int]]:
    """Return the operators of each thread among some rows of the file."""
    column = columns.ops.thread[begin:end]
    for row in columns.annotations:
        if begin <= row < end:
            column[row - begin] = -1
    rows = {thread: array("i") for thread in plan}
    for row, thread in enumerate(column, begin):
        if thread in rows:
            rows[thread].append(row)
    return rows


def _reaching(columns: Columns, linked: Sequence[_Linked]) -> list[int]:
    """Return the rows of a thread that reach beyond their part, and those that may lie in one."""
    start, end = columns.ops.start, columns.ops.end
    rows: list[int] = []
    until = -_ALWAYS
    for one in linked:
        near = bisect_right(one.outer, until, key=start.__getitem__)
        rows += one.outer[:near]
        # The outermost one that is still open is the last outer one.
        rows += one.still_open[1 if near == len(one.outer) else 0 :]
        until = max([until, *map(end.__getitem__, one.still_open)])
    return rows


def _between(rows: Sequence[int], start: array[int], since: float, until: float) -> Sequence[int]:
    """Return those of rows in the order of time that began in a time."""
    key = start.__getitem__
    return rows[bisect_left(rows, since, key=key) : bisect_left(rows, until, key=key)]


def _chain(parent: array[int], row: int) -> list[int]:
    """Return a row and what is around it, the outermost first."""
    found = []
    while row >= 0:
        found.append(row)
        row = parent[row]
    return found[::-1]


def _follow_in_time(parts: Sequence[_Part], thread: int, begins: Sequence[float]) -> bool:
    """Whether no part of a thread begins before its time, or before the one before it is over."""
    timed = zip(begins, (part.threads[thread] for part in parts), strict=False)
    linked = [(begin, one) for begin, one in timed if one.still_open]
    ones = [one for _, one in linked]
    return all(begin <= one.first for begin, one in linked) and all(
        map(lt, (one.last for one in ones), (one.first for one in ones[1:]))
    )


def _joined(columns: Columns, plan: Mapping[int, _Thread], parts: Sequence[_Part]) -> Nesting:
    parent, ops, calls = array("i"), columns.ops, columns.calls
    enclosing: dict[int, int] = {}
    for part in parts:
        parent += part.parent
    for thread in plan:
        linked = [part.threads[thread] for part in parts]
        for one in linked:
            enclosing.update(one.launches)
            for row, around in one.annotations:
                parent[row] = around
        if len(parts) > 1:
            rows = _reaching(columns, linked)
            launches = [launch for one in linked for launch, row in one.launches if row < 0]
            times = [calls.start[launch] for launch in launches]
            inner = link_parents(rows, ops.start, ops.end, parent, times) or []
            enclosing.update(zip(launches, inner, strict=True))
    return Nesting(parent, enclosing)
