"""Columns as bytes in memory that processes share."""

from __future__ import annotations

import pickle
from array import array
from dataclasses import fields
from struct import Struct
from typing import Any, NamedTuple

from fp8verify.trace.columns import Columns
from fp8verify.trace.joining import Names

_LENGTH = Struct("=q")


class Reply(NamedTuple):
    """What a helper made of a batch: the columns of its first `taken` blocks.

    Attributes:
        helper: its number.
        taken: the next block did not decode.
        events: how many there are in the blocks that did.
        new: the names that the helper has not told of before.
        columns: of these blocks.
    """

    helper: int
    taken: int = 0
    events: int = 0
    new: Names = Names([], [], [], [], [])
    columns: Columns = Columns()


def pack(reply: Reply, memory: memoryview) -> bool:
    """Write a reply; False if there is too little room."""
    columns = reply.columns
    arrays = _arrays(columns)
    told = (reply[:-1], list(map(len, arrays)), columns.copies, columns.last_end)
    head = pickle.dumps(told, pickle.HIGHEST_PROTOCOL)
    end = _LENGTH.size + len(head)
    if end + sum(len(column) * column.itemsize for column in arrays) > len(memory):
        return False
    _LENGTH.pack_into(memory, 0, len(head))
    memory[_LENGTH.size : end] = head
    for column in arrays:
        start, end = end, end + len(column) * column.itemsize
        memory[start:end] = memoryview(column).cast("B")
    return True


def unpack(memory: memoryview) -> Reply:
    """Read a reply."""
    end = _LENGTH.size + _LENGTH.unpack_from(memory)[0]
    told, lengths, copies, last_end = pickle.loads(memory[_LENGTH.size : end])  # noqa: S301 - our own
    columns = Columns(copies=copies, last_end=last_end)
    for column, length in zip(_arrays(columns), lengths, strict=True):
        start, end = end, end + length * column.itemsize
        column.frombytes(memory[start:end])
    return Reply(*told)._replace(columns=columns)


def _arrays(columns: Columns) -> list[array[Any]]:
    groups = (columns.ops, columns.calls, columns.kernels)
    found = [getattr(group, column.name) for group in groups for column in fields(group)]
    return [*found, columns.annotations]
