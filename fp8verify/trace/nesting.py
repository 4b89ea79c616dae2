"""Which operator encloses which, on one CPU thread."""

from __future__ import annotations

from array import array
from itertools import groupby, tee
from operator import lt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def start_order(
    rows: array[int], start: array[int], end: array[int], shape: array[int]
) -> array[int]:
    """Return `rows` by start, an enclosing range before what it encloses.

    Of ranges that are equal, annotations (`shape` < 0) enclose operators. The usual input is
    sorted already and is only looked through, not copied.
    """
    if _ascend(rows, start):
        return rows
    rows = array("i", sorted(rows, key=start.__getitem__))
    if not _ascend(rows, start):
        for _, run in groupby(range(len(rows)), key=lambda index: start[rows[index]]):
            first, *rest = run
            if rest:
                tied = slice(first, rest[-1] + 1)
                rows[tied] = array(
                    "i", sorted(rows[tied], key=lambda row: (-end[row], shape[row] >= 0))
                )
    return rows


def _ascend(rows: array[int], start: array[int]) -> bool:
    """Whether each range starts after the one before it, none at the same time."""
    starts, following = tee(map(start.__getitem__, rows))
    next(following, None)
    return all(map(lt, starts, following))


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
    # The outermost place is held by no range, without end.
    stack, ends = [-1], [_FOREVER]
    found: list[int] = []
    waiting = iter((*instants, _FOREVER))
    instant = next(waiting)
    begins, finishes = map(start.__getitem__, rows), map(end.__getitem__, rows)
    for row, begin, finish in zip(rows, begins, finishes, strict=True):
        while instant < begin:
            found.append(_enclosing(stack, ends, instant))
            instant = next(waiting)
        while ends[-1] < begin or (ends[-1] == begin < finish):
            stack.pop()
            ends.pop()
        parent[row] = stack[-1]
        stack.append(row)
        ends.append(finish)
    while instant < _FOREVER:
        found.append(_enclosing(stack, ends, instant))
        instant = next(waiting)
    return found


def _enclosing(stack: list[int], ends: list[float], instant: float) -> int:
    while ends[-1] < instant:
        stack.pop()
        ends.pop()
    return stack[-1]


_FOREVER = float("inf")
