"""Read the list of events of a JSON document in blocks.

Events are cut at boundaries that cannot occur inside a valid JSON string, learnt from the file
itself: `}` `,` `{` `"first key":` with the file's own spaces.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

from fp8verify.text import lazy_pattern

if TYPE_CHECKING:
    from fp8verify.trace.kineto.buffer import Buffer

# Keys of the Trace Event Format with which an event can begin.
_FIRST_KEYS = rb"ph|cat|name|pid|tid|ts|dur|args|id|bp|s|tts|sf"
BOUNDARY = lazy_pattern(rb'\}\s*,\s*(?=\{\s*"(?:' + _FIRST_KEYS + rb')"\s*:)')
_SEPARATOR = lazy_pattern(rb'\}\s*,\s*\{\s*"[^"\\]*"\s*:')
_LIKELY_SEPARATOR = lazy_pattern(rb'\}\s*,\s*\{\s*"(?:' + _FIRST_KEYS + rb')"\s*:')
_OPEN, _OPEN_LIST, _CLOSE = b"{[]"


_SPACE = lazy_pattern(rb"[\s,\0]*")


class EventSink(Protocol):
    """Takes the events of a document."""

    def block(self, data: bytes | memoryview) -> bool:
        """Take a JSON list of whole events; False if it does not decode as such."""

    def event(self, data: bytes, scanned: Any) -> None:
        """Take one event, given also as the standard library decoded it (text as Latin-1)."""

    def skip(self) -> None:
        """Count something that is not an event."""


class EventList:
    """One walk over the events that begin at the start of a buffer.

    Attributes:
        closed: whether the end of the list was read.
    """

    def __init__(self, buffer: Buffer, sink: EventSink, block_size: int) -> None:
        self.closed = False
        self._buffer, self._sink = buffer, sink
        self._block_size = block_size
        self._separator = b""

    def read(self) -> None:
        """Read the events up to the end of their list, or of the file."""
        self.closed = False
        buffer = self._buffer
        while not self.closed:
            buffer.fill(self._block_size)
            cut = self._cut()
            if cut > 0:
                self._read_region(cut)
                continue
            before = buffer.pos
            buffer.pos = self._read_singly(before, len(buffer.data))
            if buffer.pos == before and not buffer.grow():
                return

    def _cut(self) -> int:
        """Return where the last whole event of the window ends, 0 if no boundary is known."""
        data, start = self._buffer.data, self._buffer.pos
        if self._separator and (cut := data.rfind(self._separator, start)) >= 0:
            return cut + 1
        self._separator = self._learn()
        return data.rfind(self._separator, start) + 1 if self._separator else 0

    def _learn(self) -> bytes:
        """Return the bytes between the next two events, from `}` to the colon of a key."""
        data, start = self._buffer.data, skip_space(self._buffer.data, self._buffer.pos)
        scanned = end_of_event(data[start:].decode("latin-1"), 0)
        if scanned and (match := _SEPARATOR.match(data, start + scanned[1] - 1)):
            return match[0]
        match = _LIKELY_SEPARATOR.search(data, start)
        return match[0] if match else b""

    def _read_region(self, cut: int) -> None:
        """Read the events of the window up to `cut`, halving a block until damage is alone."""
        buffer = self._buffer
        ends = [cut]
        while ends and not self.closed:
            start, end = skip_space(buffer.data, buffer.pos), ends[-1]
            buffer.pos = start
            if start >= end or self._take(start, end):
                buffer.pos = max(start, ends.pop())
                continue
            middle = buffer.data.find(self._separator, (start + end) // 2, end)
            if middle < 0:
                middle = buffer.data.rfind(self._separator, start, (start + end) // 2)
            if middle >= 0:
                ends.append(middle + 1)
            else:
                buffer.pos = self._read_singly(start, end)
                self._pass_over(end)
                ends.pop()

    def _take(self, start: int, end: int) -> bool:
        """Let the sink take events in place: meanwhile there are brackets around them.

        What comes before them is used, and what comes after is put back.
        """
        data = self._buffer.data
        if not start or end == len(data):
            return self._sink.block(b"".join((b"[", data[start:end], b"]")))
        after = data[end]
        data[start - 1], data[end] = _OPEN_LIST, _CLOSE
        try:
            return self._sink.block(memoryview(data)[start - 1 : end + 1])
        finally:
            data[end] = after

    def _pass_over(self, end: int) -> None:
        """Count what could not be read before `end`, unless the list ended there."""
        if not self.closed and self._buffer.pos < end:
            self._sink.skip()
            self._buffer.pos = end

    def _read_singly(self, start: int, end: int) -> int:
        """Read event by event; return where reading stopped: `end`, or an event without one."""
        data = bytes(memoryview(self._buffer.data)[:end])
        text = data[start:].decode("latin-1")
        pos = start
        while (pos := skip_space(data, pos, end)) < end:
            char = data[pos]
            if char == _CLOSE:
                self.closed = True
                return pos + 1
            stop = end_of_event(text, pos - start) if char == _OPEN else None
            if stop is not None:
                self._sink.event(data[pos : start + stop[1]], stop[0])
                pos = start + stop[1]
            elif match := BOUNDARY.search(data, pos):
                self._sink.skip()
                pos = match.end()
            else:
                return pos
        return pos


scan = json.JSONDecoder(strict=False).raw_decode


def skip_space(data: bytes | bytearray, pos: int, end: int = sys.maxsize) -> int:
    """Return where the space and commas from `pos` on end."""
    match = _SPACE.match(data, pos, end)
    return match.end() if match else pos


def end_of_event(text: str, start: int) -> tuple[Any, int] | None:
    """Return the value that starts there and where it ends; None if it is damaged or cut."""
    try:
        return scan(text, start)
    except (ValueError, RecursionError):
        return None
