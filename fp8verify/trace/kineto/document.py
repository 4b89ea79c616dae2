"""Walk one JSON document: its metadata entries, and its list of events in blocks.

The document is never held whole. Events are cut at boundaries that cannot occur inside a valid JSON
string, learnt from the file itself: `}` `,` `{` `"first key":` with the file's own spaces.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

from fp8verify.errors import InputError
from fp8verify.text import lazy_pattern
from fp8verify.trace.source import BLOCK_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Python objects take up to 25 times as much memory as their JSON.
MAX_WINDOW = 8 << 20


class Buffer:
    """The undecoded bytes at hand; `pos` is the first that was not used.

    Attributes:
        data: the window; everything before `pos` may go at the next `fill`.
        ended: whether the stream has no more.
    """

    def __init__(self, pieces: Iterable[bytes], name: str) -> None:
        self.data = b""
        self.pos = 0
        self.ended = False
        self._pieces: Iterator[bytes] = iter(pieces)
        self._name = name

    def fill(self, size: int) -> None:
        """Have at least `size` unused bytes in the window, or all that are left.

        Raises:
            InputError: `size` is beyond what a sound trace needs at once.
        """
        have = len(self.data) - self.pos
        if self.ended or have >= size:
            return
        if have >= MAX_WINDOW:
            raise InputError(
                f"{self._name} has a single entry of more than {MAX_WINDOW >> 20} MB.",
                "This is not how a profiler writes traces; record the trace again.",
            )
        parts = [self.data[self.pos :]]
        while have < size:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended = True
                break
            parts.append(piece)
            have += len(piece)
        self.data, self.pos = b"".join(parts), 0

    def grow(self) -> bool:
        """Double the unused bytes; False if there are no more."""
        have = len(self.data) - self.pos
        self.fill(min(max(2 * have, 1 << 12), max(have + 1, MAX_WINDOW)))
        return len(self.data) - self.pos > have


# Keys of the Trace Event Format with which an event can begin.
_FIRST_KEYS = rb"ph|cat|name|pid|tid|ts|dur|args|id|bp|s|tts|sf"
_SEPARATOR = lazy_pattern(rb'\}\s*,\s*\{\s*"[^"\\]*"\s*:')
_LIKELY_SEPARATOR = lazy_pattern(rb'(\}\s*,\s*)\{\s*"(?:' + _FIRST_KEYS + rb')"\s*:')
_OPEN, _CLOSE = b"{]"


_SPACE = lazy_pattern(rb"[\s,\0]*")


class EventSink(Protocol):
    """Takes the events of a document."""

    def block(self, data: bytes) -> bool:
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
            if start >= end or self._sink.block(b"[%b]" % buffer.data[start:end]):
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

    def _pass_over(self, end: int) -> None:
        """Count what could not be read before `end`, unless the list ended there."""
        if not self.closed and self._buffer.pos < end:
            self._sink.skip()
            self._buffer.pos = end

    def _read_singly(self, start: int, end: int) -> int:
        """Read event by event; return where reading stopped: `end`, or an event without one."""
        data = self._buffer.data[:end]
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
            elif match := _LIKELY_SEPARATOR.search(data, pos):
                self._sink.skip()
                pos = match.end(1)
            else:
                return pos
        return pos


scan = json.JSONDecoder(strict=False).raw_decode


def skip_space(data: bytes, pos: int, end: int = sys.maxsize) -> int:
    """Return where the space and commas from `pos` on end."""
    match = _SPACE.match(data, pos, end)
    return match.end() if match else pos


def end_of_event(text: str, start: int) -> tuple[Any, int] | None:
    """Return the value that starts there and where it ends; None if it is damaged or cut."""
    try:
        return scan(text, start)
    except (ValueError, RecursionError):
        return None


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
                return buffer.data[buffer.pos : buffer.pos + 1]
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
        self._buffer.fill(1 << 12)
        match = _KEY.match(self._buffer.data, self._buffer.pos)
        if not match:
            return False
        self._buffer.pos, key = match.end(), match[1]
        if key == b"traceEvents" and self._peek() == b"[":
            self._buffer.pos += 1
            return self._read_events()
        return self._read_value(key.decode("latin-1"))

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
                raw = buffer.data[buffer.pos : buffer.pos + end]
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
