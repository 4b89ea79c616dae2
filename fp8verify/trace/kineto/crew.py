"""Forked processes that decode blocks of events, and reply in memory that all of them share.

The memory is cut into slots. The reader writes into one which blocks of a file are meant, or the
blocks themselves, and writes its number into a pipe; whichever helper is free reads it there,
replaces the task by its reply, and writes the number into a second pipe.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
from collections import deque
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from fp8verify.trace.columns import Columns
from fp8verify.trace.forking import PATIENCE_MS, Child, end_all
from fp8verify.trace.joining import Names, Numberings, interners
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.packing import Reply, pack, unpack
from fp8verify.trace.waiting import import_next

# The blocks of one task; the reply takes a tenth of that, unless events are very short.
SLOT_SIZE = 3 << 20
_NUMBER = Struct("=i")


class LostError(Exception):
    """A helper ended, by the kernel for want of memory or by somebody's hand."""


class Decoded(NamedTuple):
    """Where the blocks of a task begin, how far they decoded, and whether that is all of them."""

    begin: int
    taken: int
    is_whole: bool


# Lets a collector take the blocks of a task, which may lie in the memory of its slot.
Decode = Callable[[Collector, Any, memoryview], Decoded]


class Crew:
    """Helpers that decode as a collector does now, and the slots for their work.

    Attributes:
        state: of the collector when they began.
        free: the numbers of the slots that are.
        numberings: what each helper's numbers of names are in the collector.

    Raises:
        OSError: there can be no further process, or not as much memory.
    """

    def __init__(self, collector: Collector, helpers: int, decode: Decode) -> None:
        slots = 2 * helpers + 2
        self.state = collector.state
        self.free = deque(range(slots))
        self._map = mmap.mmap(-1, 2 * SLOT_SIZE * slots)
        self._memory = memoryview(self._map)
        self._finished: set[int] = set()
        self._children: list[Child] = []
        known = interners(collector.columns, collector.inputs)
        self.numberings = [Numberings(known) for _ in range(helpers)]
        self._tasks, self._put_task = os.pipe()
        self._done, self._put_done = os.pipe()
        try:
            for number in range(helpers):
                self._children.append(
                    Child(partial(self._serve, _Helper(number, collector, decode)))
                )
        except OSError:
            self.end()
            raise
        os.close(self._tasks)
        os.close(self._put_done)
        self._tasks = self._put_done = -1
        self._poll = select.poll()
        self._poll.register(self._done, select.POLLIN)

    def end(self) -> None:
        """End the helpers; what lies in the slots stays."""
        end_all(self._children)
        self._children = []
        for pipe in (self._tasks, self._put_task, self._done, self._put_done):
            if pipe >= 0:
                os.close(pipe)
        self._tasks = self._put_task = self._done = self._put_done = -1

    def blocks(self, slot: int) -> memoryview:
        """The memory for the blocks of a slot, which only the reader writes."""
        start = 2 * SLOT_SIZE * slot
        return self._memory[start : start + SLOT_SIZE]

    def last(self, part: bytes, slot: int, start: int, end: int) -> int:
        """Return where bytes last occur among those of a slot's blocks, -1 if nowhere."""
        base = 2 * SLOT_SIZE * slot
        return max(-1, self._map.rfind(part, base + start, base + end) - base)

    def _reply(self, slot: int) -> memoryview:
        start = 2 * SLOT_SIZE * slot + SLOT_SIZE
        return self._memory[start : start + SLOT_SIZE]

    # -- the reader ------------------------------------------------------------------------------

    def hand_out(self, slot: int, task: object) -> None:
        """Have a task done, whose blocks may lie in the memory of the slot."""
        packed = pickle.dumps(task)
        self._reply(slot)[: len(packed)] = packed
        os.write(self._put_task, _NUMBER.pack(slot))

    def is_over(self, slot: int) -> bool:
        """Whether there is a reply, or will be none."""
        try:
            return self._has_done(slot)
        except LostError:
            return True

    def _has_done(self, slot: int) -> bool:
        while slot not in self._finished and self._poll.poll(0):
            self._note_done()
        return slot in self._finished

    def reply(self, slot: int) -> Reply:
        """Wait for the reply.

        Raises:
            LostError: there will be none.
        """
        while not self._has_done(slot):
            if import_next() or self._poll.poll(PATIENCE_MS):
                continue
            if any(child.has_ended() for child in self._children):
                raise LostError
        self._finished.discard(slot)
        return unpack(self._reply(slot))

    def _note_done(self) -> None:
        number = os.read(self._done, _NUMBER.size)
        if not number:
            raise LostError
        self._finished.add(*_NUMBER.unpack(number))

    # -- a helper --------------------------------------------------------------------------------

    def _serve(self, helper: _Helper) -> None:
        """Decode until there are no more tasks, or no reader."""
        os.close(self._put_task)
        os.close(self._done)
        helper.begin()
        while found := os.read(self._tasks, _NUMBER.size):
            slot = _NUMBER.unpack(found)[0]
            memory = self._reply(slot)
            helper.work(pickle.loads(memory), self.blocks(slot), memory)  # noqa: S301 - our own
            os.write(self._put_done, found)


class _Helper:
    """Decodes blocks in a process of its own; its names stay from one task to the next."""

    def __init__(self, number: int, collector: Collector, decode: Decode) -> None:
        self._number, self._collector, self._decode = number, collector, decode

    def begin(self) -> None:
        """Begin in the process."""
        self._collector = Collector.resume(self._collector)
        self._known = interners(self._collector.columns, self._collector.inputs)
        self._at_first = self._told = list(map(len, self._known))

    def work(self, task: object, blocks: memoryview, memory: memoryview) -> None:
        """Decode the blocks of a task, up to the first that needs more care, and pack the reply."""
        decoded = self._decode(self._collector, task, blocks)
        columns, events = self._collector.take()
        nothing = Reply(self._number)
        if not self._collector.changed:
            counts = list(map(len, self._known))
            pairs = zip(self._known, self._told, strict=True)
            new = Names(*([*known][told:] for known, told in pairs))
            reply = Reply(self._number, *decoded, events, new)
            if pack(reply, columns, self._at_first, counts, memory):
                self._told = counts
                return
        pack(nothing, Columns(), self._at_first, self._at_first, memory)
