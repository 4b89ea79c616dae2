"""Helpers that decode what the reader unpacks: it cuts the blocks and copies them into slots."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from fp8verify.trace.kineto.buffer import Buffer
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.crew import Crew, Decoded, LostError
from fp8verify.trace.kineto.helpers import Hiring
from fp8verify.trace.kineto.packing import Reply
from fp8verify.trace.source import READ_SIZE

_SPACE = re.compile(rb"[\s,\0]*")


class Batch(NamedTuple):
    """Consecutive blocks in a slot."""

    crew: Crew
    slot: int
    lengths: list[int]

    def blocks(self, taken: int = 0) -> Iterator[bytes]:
        """Yield each block after those that were taken."""
        memory = self.crew.blocks(self.slot)
        for start, end in pairwise(accumulate(self.lengths, initial=0)):
            if start >= taken:
                yield bytes(memory[start:end])


class StreamHelpers:
    """Has a thread read and unpack ahead, and helpers decode.

    Args:
        collector: of the reader.
        buffer: of the reader, whose stream the thread reads.
        workers: how many processes may work at once.
    """

    def __init__(self, collector: Collector, buffer: Buffer, workers: int) -> None:
        self._collector, self._buffer = collector, buffer
        self._hiring = Hiring(collector, workers, _decode)
        self._waiting: deque[Batch] = deque()
        self._left: list[bytes] = []

    def close(self) -> None:
        """End the worker processes, and the thread."""
        self._buffer.read_here()
        self._hiring.end()

    def fill(self, separator: bytes, size: int) -> bool:
        """Hand out the next blocks, cut as always; False if the next one cannot be."""
        crew = self._ready_crew()
        if crew is None:
            return False
        batch = Batch(crew, crew.free.popleft(), [])
        buffer, memory = self._buffer, crew.blocks(batch.slot)
        at = 0
        while max(size, buffer.unused) + READ_SIZE < len(memory) - at:
            end = at + buffer.move(memory[at:], size)
            cut = crew.last(separator, batch.slot, at, end) + 1
            buffer.put_back(bytes(memory[max(cut, at) : end]))
            if not cut:
                break
            batch.lengths.append(cut - at)
            at = cut
        if not batch.lengths:
            crew.free.append(batch.slot)
            return False
        self._waiting.append(batch)
        crew.hand_out(batch.slot, tuple(batch.lengths))
        return True

    def settled(self, *, everything: bool) -> Iterator[bytes]:
        """Join what is decoded, in order; yield the blocks that the reader has to read itself."""
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

    def _ready_crew(self) -> Crew | None:
        """Return a crew that decodes as the reader does by now, if there may be one."""
        hiring = self._hiring
        if not hiring.is_due():
            return None
        if not hiring.fits(hiring.crew):
            self.close()
            if hiring.begin() is not None:
                self._buffer.read_ahead()  # no thread may run while a process is forked
        return hiring.crew

    def _is_due(self, batch: Batch) -> bool:
        crew = batch.crew
        return crew is not self._hiring.crew or not crew.free or crew.is_over(batch.slot)

    def _reply(self, batch: Batch) -> Reply:
        """Return what a helper made of a batch, nothing if it decoded as the reader did before."""
        nothing = Reply(-1)
        if not self._hiring.fits(batch.crew):
            return nothing
        try:
            return batch.crew.reply(batch.slot)
        except LostError:
            self._buffer.read_here()
            self._hiring.end(for_good=True)
            return nothing

    def _join(self, batch: Batch, reply: Reply) -> Iterator[bytes]:
        if reply.part is not None:
            self._collector.join(reply, batch.crew.numberings[reply.helper])
        self._left = list(batch.blocks(max(0, reply.taken)))
        while self._left:
            yield self._left.pop(0)


def _decode(collector: Collector, lengths: Sequence[int], memory: memoryview) -> Decoded:
    taken = 0
    for start, end in pairwise(accumulate(lengths, initial=0)):
        if collector.changed or not _take(collector, memory, start, end):
            break
        taken = end
    return Decoded(0, taken, taken == sum(lengths))


def _take(collector: Collector, data: memoryview, start: int, end: int) -> bool:
    """Let the collector take a copy of a block: the reader gets to see what lies in a slot.

    A helper may be killed at any moment, so that it must not even write brackets there.
    """
    match = _SPACE.match(data, start, end)
    begin = match.end() if match else start
    if begin == end:
        return False
    return collector.block(b"".join((b"[", data[begin:end], b"]")))
