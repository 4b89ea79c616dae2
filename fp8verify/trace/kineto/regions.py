"""A stretch of a plain file in blocks of whole events, found without what comes before it.

Where one stretch ends and the next begins is the first boundary between events from an offset on,
which whoever reads either of them finds alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

_SPACE = re.compile(rb"[\s,\0]*")
_OPEN_LIST, _CLOSE = b"[]"
# So much is read after a stretch at first: an event is shorter as a rule.
_BEYOND = 1 << 12


class Extent(NamedTuple):
    """A stretch of a file, and how to read it.

    Attributes:
        descriptor: of the file.
        separator: the bytes between two events.
        size: of a block.
        start: an offset; if `is_exact`, where an event begins.
        end: the first boundary from here on ends the stretch.
    """

    descriptor: int
    separator: bytes
    size: int
    start: int
    end: int
    is_exact: bool


def buffer_size(extent: Extent) -> int:
    """Return the size of a `Region`'s buffer: a block and a byte on either side."""
    return extent.size + 2


class Region:
    """The blocks of a stretch, to be iterated over once.

    Attributes:
        begin: the offset of its first event, -1 if that is not found.
        taken: where the last block ended after which another one was asked for.
        stop: where the latest block ended.
        is_whole: whether `taken` is the end of the stretch.
    """

    def __init__(self, extent: Extent, buffer: bytearray | None = None) -> None:
        self._extent = extent
        self._data = bytearray(buffer_size(extent)) if buffer is None else buffer
        self._view = memoryview(self._data)
        self._have = 0
        self.begin = extent.start if extent.is_exact else -1
        self.taken = self.stop = extent.start
        self.is_whole = False

    def __iter__(self) -> Iterator[memoryview]:
        """Yield each block as a JSON list; it is gone when the next one is asked for."""
        if self.begin < 0 and not self._find_begin():
            return
        self.is_whole = self.begin > self._extent.end
        beyond = _BEYOND
        while not self.is_whole:
            more = self._fill(min(self._extent.size, self._extent.end - self.taken + beyond))
            cut, is_last = self._cut()
            if cut:
                after = self._data[1 + cut]
                self.stop = self.taken + cut
                yield self._as_list(cut)
                self._data[1 + cut] = after
                self._drop(cut)
                self.is_whole = is_last
            elif more and beyond < self._extent.size:
                beyond *= 2
            else:
                return

    def _find_begin(self) -> bool:
        self._fill(self._extent.size)
        found = self._data.find(self._extent.separator, 1, 1 + self._have)
        if found < 0:
            return False
        self._drop(found)
        self.begin = self.taken
        return True

    def _fill(self, size: int) -> bool:
        """Have so many bytes; False if the file has no more of them."""
        while self._have < size:
            place = self._view[1 + self._have : 1 + size]
            read = os.preadv(self._extent.descriptor, [place], self.taken + self._have)
            if not read:
                return False
            self._have += read
        return True

    def _cut(self) -> tuple[int, bool]:
        """Return how long the next block is, 0 if that is not known, and whether it is the last."""
        separator, stop = self._extent.separator, 1 + self._have
        last = self._data.find(separator, max(1, 1 + self._extent.end - self.taken), stop)
        if last >= 0:
            return last, True
        return max(0, self._data.rfind(separator, 1, stop)), False

    def _as_list(self, cut: int) -> memoryview:
        match = _SPACE.match(self._data, 1, 1 + cut)
        begin = match.end() if match else 1
        self._data[begin - 1], self._data[1 + cut] = _OPEN_LIST, _CLOSE
        return self._view[begin - 1 : 2 + cut]

    def _drop(self, cut: int) -> None:
        rest = self._have - cut
        self._view[1 : 1 + rest] = self._data[1 + cut : 1 + self._have]
        self._have, self.taken = rest, self.taken + cut
