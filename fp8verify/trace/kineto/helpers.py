"""Decode the blocks of one big trace on all cores; order and result are as with one process.

A `Crew` decodes stretches of the trace into columns of their own, which are joined in the order of
the file. A block that does not decode at once (damage, halves of events, a new category) is left to
the reader. If that changes how it decodes, a new crew is forked, and what was not joined yet is
read again. Helpers read a plain file themselves (`file_helpers`); of anything else the reader cuts
blocks as always and copies them into the memory of slots (`stream_helpers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fp8verify.trace.kineto.buffer import Buffer
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.crew import Crew, Decode

_MOST_CREWS = 4
# Blocks to read before: most names get the same numbers everywhere then.
WARM_UP = 8


class Helpers(Protocol):
    """Hands out blocks and puts what comes back into the reader's columns."""

    def fill(self, separator: bytes, size: int) -> bool:
        """Hand out the next blocks; False if the next one is to be read here."""

    def settled(self, *, everything: bool) -> Iterator[bytes]:
        """Join what is decoded, in order; yield the blocks that the reader has to read itself.

        Args:
            everything: wait for all that was handed out, not only for what is done.
        """

    def take_back(self) -> bytes:
        """Return what comes before the buffer's bytes and is neither joined nor yielded."""

    def close(self) -> None:
        """End the worker processes, and the thread if there is one."""


class Hiring:
    """Has a crew forked that decodes as the reader does by now.

    Attributes:
        crew: the latest one, None if there is none now.
    """

    def __init__(self, collector: Collector, workers: int, decode: Decode) -> None:
        self.crew: Crew | None = None
        self._collector, self._workers, self._decode = collector, workers, decode
        self._crews = self._asked = 0

    def is_due(self) -> bool:
        """Whether enough was read; to be asked once a block."""
        self._asked += 1
        return self._collector.has_base and self._asked >= WARM_UP

    def fits(self, crew: Crew | None) -> bool:
        """Whether a crew is the latest one, and decodes as the reader does."""
        return crew is not None and crew is self.crew and crew.state == self._collector.state

    def begin(self) -> Crew | None:
        """Fork a crew, None if there may be no further one; no thread may run."""
        self.end()
        if self._crews < _MOST_CREWS:
            self._crews += 1
            try:
                self.crew = Crew(self._collector, self._workers, self._decode)
            except OSError:
                self._crews = _MOST_CREWS
        return self.crew

    def end(self, *, for_good: bool = False) -> None:
        """End the helpers."""
        if for_good:
            self._crews = _MOST_CREWS
        if self.crew is not None:
            self.crew.end()
            self.crew = None


def helpers_of(
    collector: Collector, buffer: Buffer, workers: int, descriptor: int | None
) -> Helpers:
    """Return helpers for a reader.

    Args:
        collector: of the reader.
        buffer: of the reader.
        workers: how many processes may work at once.
        descriptor: of the file, if it holds the very bytes of the trace.
    """
    from fp8verify.trace.kineto.file_helpers import FileHelpers
    from fp8verify.trace.kineto.stream_helpers import StreamHelpers

    if descriptor is not None:
        return FileHelpers(collector, buffer, workers, descriptor)
    return StreamHelpers(collector, buffer, workers)
