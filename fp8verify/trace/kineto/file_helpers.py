"""Helpers that read their stretches of a plain file themselves."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from fp8verify.trace.kineto import crew as crews
from fp8verify.trace.kineto.buffer import Buffer
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.crew import Crew, Decoded, LostError
from fp8verify.trace.kineto.helpers import Hiring
from fp8verify.trace.kineto.packing import Reply
from fp8verify.trace.kineto.regions import Extent, Region, buffer_size
from fp8verify.trace.source import READ_SIZE


class Batch(NamedTuple):
    """A stretch that a helper decodes."""

    crew: Crew
    slot: int
    extent: Extent


class FileHelpers:
    """Hands out stretches of the file; all before `_settled` is joined or yielded.

    Args:
        collector: of the reader.
        buffer: of the reader, which is put to the right place when it is to be read from.
        workers: how many processes may work at once.
        descriptor: of the file.
    """

    def __init__(self, collector: Collector, buffer: Buffer, workers: int, descriptor: int) -> None:
        self._collector, self._buffer, self._descriptor = collector, buffer, descriptor
        self._hiring = Hiring(collector, workers, _Decoder())
        self._waiting: deque[Batch] = deque()
        self._settled: int | None = None

    def close(self) -> None:
        """End the worker processes."""
        self._hiring.end()

    def fill(self, separator: bytes, size: int) -> bool:
        """Hand out the next stretch; False if there is no further one."""
        crew = self._ready_crew()
        if crew is None:
            return False
        if self._settled is None:
            self._settled = self._buffer.offset
        start = self._waiting[-1].extent.end if self._waiting else self._settled
        end = min(start + crews.SLOT_SIZE, os.fstat(self._descriptor).st_size)
        if end - start <= size:
            return False
        extent = Extent(self._descriptor, separator, size, start, end, not self._waiting)
        batch = Batch(crew, crew.free.popleft(), extent)
        self._waiting.append(batch)
        crew.hand_out(batch.slot, extent)
        return True

    def settled(self, *, everything: bool) -> Iterator[bytes]:
        """Join what is decoded, in order; yield the blocks that the reader has to read itself."""
        while self._waiting and (everything or self._is_due(self._waiting[0])):
            batch = self._waiting[0]
            if not self._hiring.fits(batch.crew):
                self._drop()
                break
            reply = self._reply(batch)
            if reply.part is not None:
                self._collector.join(reply, batch.crew.numberings[reply.helper])
                self._settled = reply.taken
            if not reply.is_whole:
                yield from self._by_the_reader(batch.extent)
            if self._waiting:
                self._waiting.popleft()
                batch.crew.free.append(batch.slot)
        if everything:
            self.take_back()

    def take_back(self) -> bytes:
        """Have the reader's buffer go on where nothing is joined or yielded yet."""
        self._drop()
        if self._settled is not None:
            pieces = _pieces(self._descriptor, self._settled)
            self._buffer.go_on(pieces, self._settled)
            self._settled = None
        return b""

    def _ready_crew(self) -> Crew | None:
        """Return a crew that decodes as the reader does by now, if there may be one."""
        hiring = self._hiring
        if not hiring.is_due():
            return None
        if not hiring.fits(hiring.crew):
            self._drop()
            hiring.begin()
        return hiring.crew

    def _is_due(self, batch: Batch) -> bool:
        crew = batch.crew
        return not self._hiring.fits(crew) or not crew.free or crew.is_over(batch.slot)

    def _reply(self, batch: Batch) -> Reply:
        """Return what a helper made of a stretch, nothing if that cannot be used."""
        nothing = Reply(-1)
        try:
            reply = batch.crew.reply(batch.slot)
        except LostError:
            self._hiring.end(for_good=True)
            return nothing
        if reply.part is None or reply.begin == self._settled:
            return reply
        # The stretch before it has no end, or the file was changed.
        self._hiring.end()
        return nothing

    def _by_the_reader(self, extent: Extent) -> Iterator[bytes]:
        """Yield what is left of a stretch, up to where no boundary between events is found."""
        if self._settled is None:
            return
        region = Region(extent._replace(start=self._settled, is_exact=True))
        for block in region:
            self._settled = region.stop
            yield bytes(block[1:-1])

    def _drop(self) -> None:
        """Forget what was handed out; the helpers told of names that will be missed."""
        if self._waiting:
            self._hiring.end()
            self._waiting.clear()


def _pieces(descriptor: int, offset: int) -> Iterator[bytes]:
    while data := os.pread(descriptor, READ_SIZE, offset):
        yield data
        offset += len(data)


class _Decoder:
    """Decodes stretches in a helper, all in the same memory."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __call__(self, collector: Collector, extent: Extent, _: memoryview) -> Decoded:
        if len(self._buffer) != buffer_size(extent):
            self._buffer = bytearray(buffer_size(extent))
        region = Region(extent, self._buffer)
        for block in region:
            if collector.changed or not collector.block(block):
                break
        return Decoded(region.begin, region.taken, region.is_whole)
