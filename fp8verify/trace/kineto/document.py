"""Walk one JSON document: its metadata entries, and between them its list of events.

The document is never held whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fp8verify.text import lazy_pattern
from fp8verify.trace.formats import BLOCK_SIZE
from fp8verify.trace.kineto.event_list import EventList, EventSink, scan, skip_space

if TYPE_CHECKING:
    from fp8verify.trace.kineto.buffer import Buffer

_KEY = lazy_pattern(rb'"((?:[^"\\]|\\.)*)"\s*:\s*')
_EVENTS_KEY = lazy_pattern(rb'"traceEvents"\s*:\s*\[')
_BOM = b"\xef\xbb\xbf"


class MetadataSink(Protocol):
    """Takes the metadata of a document."""

    def take(self, key: str, value: Any, raw: bytes, /) -> None:
        """Take one top-level entry: its key, its value (text as Latin-1), and its JSON."""


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
        metadata: MetadataSink,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.is_trace = False
        self.closed = False
        self.resynced = 0
        self._buffer, self._metadata = buffer, metadata
        self._events = None if sink is None else EventList(buffer, sink, block_size)

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
            self.closed = self._read_events()

    def more(self) -> bool:
        """Whether anything but space follows the document."""
        return bool(self._peek())

    def _peek(self) -> bytes:
        """Return the next byte that is not space, leaving `pos` at it."""
        buffer = self._buffer
        while True:
            if buffer.data.startswith(_BOM, buffer.pos):
                buffer.pos += len(_BOM)
            buffer.pos = skip_space(buffer.data, buffer.pos)
            if buffer.pos < len(buffer.data):
                return bytes(buffer.data[buffer.pos : buffer.pos + 1])
            if not buffer.grow():
                return b""

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
            return self._read_events()
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
                value, end = scan(text)
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

    def _read_events(self) -> bool:
        """Read the events, if they are wanted; whether the end of their list was read."""
        self.is_trace = True
        if self._events is None:
            return False
        self._events.read()
        return self._events.closed
