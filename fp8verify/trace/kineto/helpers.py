"""Decode the blocks of one big trace on all cores; order and result are as with one process.

The reader cuts the file into blocks as always. Batches of them are decoded by a `Crew` into columns
of their own, which are joined in the order of the file. A block that does not decode at once
(damage, halves of events, a new category) is left to the reader. If that changes how it decodes,
everything that a helper decoded since is read again, and a new crew is forked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from fp8verify.trace.kineto.buffer import Buffer
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.crew import Crew, LostError
from fp8verify.trace.kineto.packing import Reply
from fp8verify.trace.source import READ_SIZE

_MOST_CREWS = 4
# Blocks to read before: most names get the same numbers everywhere then.
WARM_UP = 16


class Batch(NamedTuple):
    """Consecutive blocks in a slot."""

    crew: Crew
    slot: int
    lengths: list[int]

    def blocks(self) -> Iterator[bytes]:
        """Yield each block."""
        memory = self.crew.blocks(self.slot)
        for start, end in pairwise(accumulate(self.lengths, initial=0)):
            yield bytes(memory[start:end])


class Helpers:
    """Hands out blocks and puts what comes back into the reader's columns.

    Args:
        collector: of the reader.
        buffer: of the reader, whose stream a thread reads ahead from then on.
        workers: how many processes may work at once.
    """

    def __init__(self, collector: Collector, buffer: Buffer, workers: int) -> None:
        self._collector, self._buffer, self._workers = collector, buffer, workers
        self._crew: Crew | None = None
        self._crews = self._asked = 0
        self._waiting: deque[Batch] = deque()
        self._left: list[bytes] = []

    def close(self) -> None:
        """End the worker processes, and the thread."""
        self._buffer.read_here()
        if self._crew is not None:
            self._crew.end()
            self._crew = None

    def fill(self, separator: bytes, size: int) -> bool:
        """Hand out the next blocks, cut as always; False if the next one cannot be."""
        if not self._is_ready():
            return False
        batch = self._empty_batch()
        buffer, memory = self._buffer, batch.crew.blocks(batch.slot)
        at = 0
        while max(size, buffer.unused) + READ_SIZE < len(memory) - at:
            end = at + buffer.move(memory[at:], size)
            cut = batch.crew.last(separator, batch.slot, at, end) + 1
            buffer.put_back(bytes(memory[max(cut, at) : end]))
            if not cut:
                break
            batch.lengths.append(cut - at)
            at = cut
        if not batch.lengths:
            batch.crew.free.append(batch.slot)
            return False
        self._waiting.append(batch)
        batch.crew.hand_out(batch.slot, batch.lengths)
        return True

    def settled(self, *, everything: bool) -> Iterator[bytes]:
        """Join what is decoded, in order; yield the blocks that the reader has to read itself.

        Args:
            everything: wait for all that was added, not only for what is done.
        """
        while self._waiting:
            batch = self._waiting[0]
            if not (everything or self._is_due(batch)):
                return
            reply = self._reply(batch)
            self._waiting.popleft()
            yield from self._join(batch, reply)
            batch.crew.free.append(batch.slot)

    def take_back(self) -> bytes:
        """Return the bytes of everything that is neither joined nor yielded, in order."""
        later = [block for batch in self._waiting for block in batch.blocks()]
        self._waiting.clear()
        found = b"".join([*self._left, *later])
        self._left = []
        return found

    def _is_ready(self) -> bool:
        """Whether there is a crew that decodes as the reader does by now, or may be forked."""
        self._asked += 1
        if not self._collector.has_base or self._asked < WARM_UP:
            return False
        if self._crew is None or self._crew.state != self._collector.state:
            self.close()
            self._begin()
        return self._crew is not None

    def _begin(self) -> None:
        if self._crews < _MOST_CREWS:
            self._crews += 1
            try:
                self._crew = Crew(self._collector, self._workers)
            except OSError:
                self._crews = _MOST_CREWS
            else:
                self._buffer.read_ahead()  # no thread may run while a process is forked

    def _empty_batch(self) -> Batch:
        if self._crew is None:
            raise RuntimeError("there is no crew to fill a slot for")
        return Batch(self._crew, self._crew.free.popleft(), [])

    def _is_due(self, batch: Batch) -> bool:
        if batch.crew is not self._crew or not batch.crew.free:
            return True
        try:
            return batch.crew.has_done(batch.slot)
        except LostError:
            return True

    def _reply(self, batch: Batch) -> Reply:
        """Return what a helper made of a batch, nothing if it decoded as the reader did before."""
        nothing = Reply(-1)
        if batch.crew is not self._crew or batch.crew.state != self._collector.state:
            return nothing
        try:
            return batch.crew.reply(batch.slot)
        except LostError:
            self._crews = _MOST_CREWS
            self.close()
            return nothing

    def _join(self, batch: Batch, reply: Reply) -> Iterator[bytes]:
        if reply.helper >= 0:
            self._collector.join(reply, batch.crew.numberings[reply.helper])
        self._left = [*batch.blocks()][reply.taken :]
        while self._left:
            yield self._left.pop(0)
