"""Walk one JSON document: its metadata entries, and its events in blocks.

The document is never held whole. Events are cut at boundaries that cannot occur inside a valid
JSON string, learnt from the file itself: `}` `,` `{` `"first key":` with the file's own spaces.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Protocol

from fp8verify.trace.formats import BLOCK_SIZE
from fp8verify.trace.kineto.buffer import Buffer

if TYPE_CHECKING:
    from fp8verify.trace.kineto.helpers import Helpers
    from fp8verify.trace.kineto.metadata import Metadata

_SPACE = re.compile(rb"[\s,\0]*")
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:\s*')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Keys of the Trace Event Format with which an event can begin.
_FIRST_KEYS = rb"ph|cat|name|pid|tid|ts|dur|args|id|bp|s|tts|sf"
BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:' + _FIRST_KEYS + rb')"\s*:)')
_SEPARATOR = re.compile(rb'\}\s*,\s*\{\s*"[^"\\]*"\s*:')
_LIKELY_SEPARATOR = re.compile(rb'\}\s*,\s*\{\s*"(?:' + _FIRST_KEYS + rb')"\s*:')
_BOM = b"\xef\xbb\xbf"

_scan = json.JSONDecoder(strict=False).raw_decode


class EventSink(Protocol):
    """Takes the events of a document."""

    def block(self, data: bytes | memoryview) -> bool:
        """Take a JSON list of whole events; False if it does not decode as such."""

    def event(self, data: bytes, scanned: Any) -> None:
        """Take one event, given also as the standard library decoded it (text as Latin-1)."""

    def skip(self) -> None:
        """Count something that is no event."""


class Document:
    """One walk over the document at the start of a buffer.

    Attributes:
        is_trace: whether a list of events was found.
        closed: whether the document ended as JSON does.
        resynced: how often damaged metadata had to be jumped over.
    """

    def __init__(
        self,
        buffer: Buffer,
        sink: EventSink | None,
        metadata: Metadata,
        block_size: int = BLOCK_SIZE,
        helpers: Helpers | None = None,
    ) -> None:
        self.is_trace = False
        self.closed = False
        self.resynced = 0
        self._buffer, self._sink, self._metadata = buffer, sink, metadata
        self._block_size = block_size
        self._helpers = helpers
        self._separator = self._block_separator = b""
        self._list_closed = False

    def read(self) -> bool:
        """Read up to the end of the document, without a sink up to its first event.

        Returns:
            False if no JSON object or list starts here.
        """
        first = self._peek()
        if first not in (b"{", b"["):
            return False
        self._buffer.pos += 1
        if first == b"[":
            self._read_list()
        else:
            self._read_object()
        return True

    def _read_list(self) -> None:
        """Read the array form of the Trace Event Format, as nsys2json and scripts write it."""
        buffer = self._buffer
        buffer.fill(BLOCK_SIZE)
        if self._peek() == b"{" and b'"ph"' in buffer.data:
            self._read_events()
            self.closed = self._list_closed

    def more(self) -> bool:
        """Whether anything but space follows the document."""
        return bool(self._peek())

    def _peek(self) -> bytes:
        """Return the next byte that is not space, leaving `pos` at it."""
        buffer = self._buffer
        while True:
            if buffer.data.startswith(_BOM, buffer.pos):
                buffer.pos += len(_BOM)
            buffer.pos = self._skip_space(buffer.pos)
            if buffer.pos < len(buffer.data):
                return bytes(buffer.data[buffer.pos : buffer.pos + 1])
            if not buffer.grow():
                return b""

    # -- metadata -------------------------------------------------------------------------------

    def _read_object(self) -> None:
        while (char := self._peek()) and char != b"}":
            if not self._read_entry() and not self._resync():
                return
        self.closed = bool(char)
        self._buffer.pos += len(char)

    def _read_entry(self) -> bool:
        """Read one `"key": value`; False if it is damaged or cut."""
        key = self._read_key()
        if key is None:
            return False
        if key == b"traceEvents" and self._peek() == b"[":
            self._buffer.pos += 1
            self._read_events()
            return self._list_closed
        return self._read_value(key.decode("latin-1"))

    def _read_key(self) -> bytes | None:
        self._buffer.fill(1 << 12)
        match = _KEY.match(self._buffer.data, self._buffer.pos)
        if not match:
            return None
        self._buffer.pos = match.end()
        return match[1]

    def _read_value(self, key: str) -> bool:
        buffer = self._buffer
        self._peek()
        while True:
            # Latin-1 keeps one character a byte, so that positions agree.
            text = buffer.data[buffer.pos :].decode("latin-1")
            try:
                value, end = _scan(text)
            except (ValueError, RecursionError):
                end = -1
            if 0 < end < len(text) or (end > 0 and buffer.ended):
                raw = bytes(buffer.data[buffer.pos : buffer.pos + end])
                buffer.pos += end
                self._metadata.take(key, value, raw)
                return True
            if _EVENTS_KEY.search(buffer.data, buffer.pos) or not buffer.grow():
                return False

    def _resync(self) -> bool:
        """Jump over damaged metadata to the events; False if none follow."""
        buffer = self._buffer
        while not self.is_trace:
            match = _EVENTS_KEY.search(buffer.data, buffer.pos)
            if match:
                buffer.pos = match.start()
                self.resynced += 1
                return True
            if not buffer.grow():
                return False
        return False

    # -- events ---------------------------------------------------------------------------------

    def _read_events(self) -> None:
        """Read the events up to the end of their list, or of the file."""
        self.is_trace = True
        self._list_closed = False
        buffer = self._buffer
        while self._sink and not self._list_closed:
            if self._hand_out(self._sink):
                continue
            buffer.fill(self._block_size)
            cut = self._cut()
            if cut > 0:
                self._read_region(cut, self._sink)
                continue
            before = buffer.pos
            buffer.pos = self._read_singly(before, len(buffer.data), self._sink)
            if buffer.pos == before and not buffer.grow():
                return

    # -- with helpers -----------------------------------------------------------------------------

    def _hand_out(self, sink: EventSink) -> bool:
        """Let helpers read the next blocks; False if the next one is to be read here."""
        helpers = self._helpers
        if helpers is None or not self._separator:
            return False
        if self._separator != self._block_separator:
            if self._settle(sink, everything=True):
                return True
            self._block_separator = self._separator
        done = helpers.fill(self._separator, self._block_size)
        return self._settle(sink, everything=not done) or done

    def _settle(self, sink: EventSink, *, everything: bool) -> bool:
        """Read what helpers could not; whether the list of events ended there."""
        for block in self._helpers.settled(everything=everything) if self._helpers else ():
            rest = self._read_block(block, sink)
            if self._list_closed and self._helpers:
                self._buffer.put_back(rest + self._helpers.take_back())
                return True
        return False

    def _read_block(self, block: bytes, sink: EventSink) -> bytes:
        """Read one block by itself; return what follows the end of the list, if that is in it."""
        outer, self._buffer = self._buffer, Buffer((), "")
        latest, self._separator = self._separator, self._block_separator
        self._buffer.data, self._buffer.ended = bytearray(block), True
        try:
            self._read_region(len(block), sink)
            return bytes(self._buffer.data[self._buffer.pos :])
        finally:
            self._buffer, self._separator = outer, latest

    def _cut(self) -> int:
        """Return where the last whole event of the window ends, 0 if no boundary is known."""
        data, start = self._buffer.data, self._buffer.pos
        if self._separator and (cut := data.rfind(self._separator, start)) >= 0:
            return cut + 1
        self._separator = self._learn()
        return data.rfind(self._separator, start) + 1 if self._separator else 0

    def _learn(self) -> bytes:
        """Return the bytes between the next two events, from `}` to the colon of a key."""
        data, start = self._buffer.data, self._skip_space(self._buffer.pos)
        scanned = _end_of_event(data[start:].decode("latin-1"), 0)
        if scanned and (match := _SEPARATOR.match(data, start + scanned[1] - 1)):
            return match[0]
        match = _LIKELY_SEPARATOR.search(data, start)
        return match[0] if match else b""

    def _read_region(self, cut: int, sink: EventSink) -> None:
        """Read the events of the window up to `cut`, halving a block until damage is alone."""
        buffer = self._buffer
        ends = [cut]
        while ends and not self._list_closed:
            start, end = self._skip_space(buffer.pos), ends[-1]
            buffer.pos = start
            if start >= end or self._take(start, end, sink):
                buffer.pos = max(start, ends.pop())
                continue
            middle = buffer.data.find(self._separator, (start + end) // 2, end)
            if middle < 0:
                middle = buffer.data.rfind(self._separator, start, (start + end) // 2)
            if middle >= 0:
                ends.append(middle + 1)
            else:
                buffer.pos = self._read_singly(start, end, sink)
                self._pass_over(end, sink)
                ends.pop()

    def _take(self, start: int, end: int, sink: EventSink) -> bool:
        """Let the sink take events where they lie: for that long, brackets stand around them.

        What comes before them is used, and what comes after is put back.
        """
        data = self._buffer.data
        if not start or end == len(data):
            return sink.block(b"".join((b"[", data[start:end], b"]")))
        after = data[end]
        data[start - 1], data[end] = _OPEN_LIST, _CLOSE
        try:
            return sink.block(memoryview(data)[start - 1 : end + 1])
        finally:
            data[end] = after

    def _pass_over(self, end: int, sink: EventSink) -> None:
        """Count what could not be read before `end`, unless the list ended there."""
        if not self._list_closed and self._buffer.pos < end:
            sink.skip()
            self._buffer.pos = end

    def _read_singly(self, start: int, end: int, sink: EventSink) -> int:
        """Read event by event; return where reading stopped: `end`, or an event without one."""
        data = bytes(memoryview(self._buffer.data)[:end])
        text = data[start:].decode("latin-1")
        pos = start
        while (pos := self._skip_space(pos, end)) < end:
            char = data[pos]
            if char == _CLOSE:
                self._list_closed = True
                return pos + 1
            stop = _end_of_event(text, pos - start) if char == _OPEN else None
            if stop is not None:
                sink.event(data[pos : start + stop[1]], stop[0])
                pos = start + stop[1]
            elif match := BOUNDARY.search(data, pos):
                sink.skip()
                pos = match.end()
            else:
                return pos
        return pos

    def _skip_space(self, pos: int, end: int = sys.maxsize) -> int:
        match = _SPACE.match(self._buffer.data, pos, end)
        return match.end() if match else pos


_OPEN, _OPEN_LIST, _CLOSE = b"{[]"


def _end_of_event(text: str, start: int) -> tuple[Any, int] | None:
    try:
        return _scan(text, start)
    except (ValueError, RecursionError):
        return None
