"""Columns as bytes in memory that processes share."""

from __future__ import annotations

import pickle
from array import array
from itertools import accumulate, compress, count, pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.trace.joining import NUMBERED, Names, Part, arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fp8verify.trace.columns import Columns

_LENGTH = Struct("=q")
_STRETCH = 256
# To renumber some rows takes the reader as long as so many rows one after another.
_FEW = 4


class Reply(NamedTuple):
    """What a helper made of a task.

    Attributes:
        helper: its number.
        begin: where the first block began.
        taken: where the last block ended that decoded.
        is_whole: whether that was the last one of the task.
        events: how many there are in the blocks that decoded.
        new: the names that the helper has not told of before.
        part: the columns of these blocks, which lie in the shared memory.
    """

    helper: int
    begin: int = -1
    taken: int = -1
    is_whole: bool = False
    events: int = 0
    new: Names = Names([], [], [], [], [])
    part: Part | None = None


def pack(
    reply: Reply, columns: Columns, known: Sequence[int], now: Sequence[int], memory: memoryview
) -> bool:
    """Write a reply; False if there is too little room.

    Args:
        reply: without its part.
        columns: of that part.
        known: how many names of each kind the reader numbers as the helper does.
        now: how many the helper has numbered.
        memory: for the reply.
    """
    found = arrays(columns)
    late = [
        array("i") if kind is None or known[kind] == now[kind] else _late(column, known[kind])
        for kind, column in zip(NUMBERED, found, strict=True)
    ]
    sums = columns.copies, columns.first_start, columns.last_end
    extremes = _extremes(columns.ops.op_id), _extremes(columns.calls.correlation)
    sizes = [len(column) * column.itemsize for column in found]
    head = pickle.dumps((reply, sizes, late, sums, extremes), pickle.HIGHEST_PROTOCOL)
    end = _LENGTH.size + len(head)
    if end + sum(sizes) > len(memory):
        return False
    _LENGTH.pack_into(memory, 0, len(head))
    memory[_LENGTH.size : end] = head
    for column, size in zip(found, sizes, strict=True):
        start, end = end, end + size
        memory[start:end] = memoryview(column).cast("B")
    return True


def unpack(memory: memoryview) -> Reply:
    """Read a reply, whose columns stay where they are."""
    end = _LENGTH.size + _LENGTH.unpack_from(memory)[0]
    reply, sizes, late, sums, extremes = pickle.loads(  # noqa: S301 - our own
        memory[_LENGTH.size : end]
    )
    views = [memory[a:b] for a, b in pairwise(accumulate(sizes, initial=end))]
    found: Reply = reply
    return found._replace(part=Part(views, late, *sums, *extremes))


def _late(column: array[int], known: int) -> array[int] | None:
    """Return the rows that hold a number from `known` on, None if they are not few."""
    found = array("i")
    for first in range(0, len(column), _STRETCH):
        part = column[first : first + _STRETCH]
        if max(part) >= known:
            found.extend(compress(count(first), map(known.__le__, part)))
            if _FEW * len(found) > len(column):
                return None
    return found


def _extremes(column: array[int]) -> tuple[int, int]:
    ordered = sorted(column)  # ascends as a rule: that is seen at once
    return (ordered[0], ordered[-1]) if ordered else (0, -1)
