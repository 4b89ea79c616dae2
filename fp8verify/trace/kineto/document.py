"""Walk one JSON document: its metadata entries, and its list of events in blocks.

The document is never held whole. Events are cut at boundaries that cannot occur inside a valid JSON
string, learnt from the file itself: `}` `,` `{` `"first key":` with the file's own spaces.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.trace.source import BLOCK_SIZE

# Python objects take up to 25 times as much memory as their JSON.
MAX_WINDOW = 8 << 20


class Buffer:
    """The undecoded bytes at hand; `pos` is the first that was not used.

    Attributes:
        data: the window; everything before `pos` may go at the next `fill`.
    """

    def __init__(self, pieces: Iterable[bytes], name: str) -> None:
        self.data = b""
        self.pos = 0
        self._pieces: Iterator[bytes] = iter(pieces)
        self._name = name

    def fill(self, size: int) -> None:
        """Have at least `size` unused bytes in the window, or all that are left.

        Raises:
            InputError: `size` is beyond what a sound trace needs at once.
        """
        have = len(self.data) - self.pos
        if have >= size:
            return
        parts = [self.data[self.pos :]]
        while have < size and (piece := next(self._pieces, None)) is not None:
            if have >= MAX_WINDOW:
                raise InputError(
                    f"{self._name} has a single entry of more than {MAX_WINDOW >> 20} MB.",
                    "This is not how a profiler writes traces; record the trace again.",
                )
            parts.append(piece)
            have += len(piece)
        self.data = b"".join(parts)
        self.pos = 0

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

    def event(self, data: bytes, scanned: dict[str, Any]) -> None:
        """Take one event, given also as the standard library decoded it (text as Latin-1)."""

    def skip(self) -> None:
        """Count something that is not an event."""


_scan = json.JSONDecoder(strict=False).raw_decode


def skip_space(
    data: bytes,
    pos: int,
    end: int = sys.maxsize,
) -> int:
    """Return where the space and commas from `pos` on end."""
    match = _SPACE.match(data, pos, end)
    if match:
        return match.end()
    return pos


def scan(text: str, start: int) -> tuple[Any, int] | None:
    """Return the value that starts there and where it ends; None if it is damaged or cut."""
    try:
        return _scan(text, start)
    except (ValueError, RecursionError):
        return None


# What C++ prints for numbers that JSON does not have. A time of an event must be a number.
_BARE = lazy_pattern(rb'(?<!"ts)(?<!"dur)("[ \t]*:[ \t]*-?)(?:inf|nan)(?=\s*[,}])')

# Found in a tenth of the time: it begins with a byte, not with what must not stand before it.
_LIKELY_BARE = lazy_pattern(rb":[ \t]*-?(?:inf|nan)")


def _repaired(data: bytes) -> bytes:
    """Return as many bytes without bare infinities and NaN, which become zeros."""
    if _LIKELY_BARE.search(data) is None:
        return data
    return _BARE.sub(rb"\g<1>0e0", data)


_KEY = lazy_pattern(rb'"((?:[^"\\]|\\.)*)"\s*:\s*')
_EVENTS_KEY = lazy_pattern(rb'"traceEvents"\s*:\s*\[')
_BOM = b"\xef\xbb\xbf"


class Document:
    """One walk over the document at the start of a buffer.

    Args:
        buffer: the document.
        take: takes one top-level entry: its key, its value (text as Latin-1), and its JSON.
        sink: takes the events; without one they are not read.
        block_size: bytes of events to decode at once.

    Attributes:
        is_trace: whether a list of events was found.
        closed: whether the document ended as JSON does.
        resynced: how often damaged metadata had to be jumped over.
    """

    def __init__(
        self,
        buffer: Buffer,
        take: Callable[[str, Any, bytes], None],
        sink: EventSink | None = None,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.is_trace = False
        self.closed = False
        self.resynced = 0
        self._buffer = buffer
        self._take = take
        self._sink = sink
        self._block_size = block_size
        self._separator = b""
        self._events_end = False  # of the list of events that is being read

    def read(self) -> bool:
        """Read up to the end of the document, without a sink up to its first event.

        Returns:
            False if no JSON object or list starts here.
        """
        first = self._peek()
        if first not in (b"{", b"["):
            return False
        self._buffer.pos += 1
        if first == b"{":
            self._read_object()
            return True
        # The array form of the Trace Event Format, as nsys2json and scripts write it.
        self._buffer.fill(BLOCK_SIZE)
        if self._peek() == b"{" and b'"ph"' in self._buffer.data:
            self.closed = self._read_events()
        return True

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

    # -- metadata -------------------------------------------------------------------------------

    def _read_object(self) -> None:
        while (char := self._peek()) and char != b"}":
            if not self._read_entry() and not self._resync():
                return
        self.closed = bool(char)
        self._buffer.pos += len(char)

    def _read_entry(self) -> bool:
        """Read one `"key": value`; False if it is damaged or cut."""
        buffer = self._buffer
        buffer.fill(1 << 12)
        match = _KEY.match(buffer.data, buffer.pos)
        if not match:
            return False
        buffer.pos = match.end()
        key = match[1]
        if self._peek() == b"[" and key == b"traceEvents":
            buffer.pos += 1
            return self._read_events()
        while True:
            # Latin-1 keeps one character a byte, so positions agree.
            text = buffer.data[buffer.pos :].decode("latin-1")
            scanned = scan(text, 0)
            if scanned is None:
                if _EVENTS_KEY.search(buffer.data, buffer.pos) or not buffer.grow():
                    return False
                continue
            value, length = scanned
            # A number that ends with the window may go on.
            if length < len(text) or not buffer.grow():
                end = buffer.pos + length
                raw = buffer.data[buffer.pos : end]
                buffer.pos = end
                self._take(key.decode("latin-1"), value, raw)
                return True

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

    def _read_events(self) -> bool:
        """Read the events, if they are wanted; whether the end of their list was read."""
        self.is_trace = True
        self._events_end = False
        buffer = self._buffer
        while self._sink is not None and not self._events_end:
            buffer.fill(self._block_size)
            cut = self._cut()
            if cut > 0:
                buffer.pos = self._read_region(self._sink, buffer.pos, cut)
                continue
            before = buffer.pos
            buffer.pos = self._read_singly(self._sink, before, len(buffer.data))
            if buffer.pos == before and not buffer.grow():
                break
        return self._events_end

    def _cut(self) -> int:
        """Return where the last whole event of the window ends, 0 if no boundary is known."""
        data = self._buffer.data
        start = self._buffer.pos
        if self._separator:
            cut = data.rfind(self._separator, start) + 1
            if cut:
                return cut
        self._separator = self._learn()
        if not self._separator:
            return 0
        return data.rfind(self._separator, start) + 1

    def _learn(self) -> bytes:
        """Return the bytes between the next two events, from `}` to the colon of a key."""
        data = self._buffer.data
        start = skip_space(data, self._buffer.pos)
        scanned = scan(data[start:].decode("latin-1"), 0)
        match = None
        if scanned is not None:
            _, length = scanned
            match = _SEPARATOR.match(data, start + length - 1)
        if match is None:
            match = _LIKELY_SEPARATOR.search(data, start)
        if match is None:
            return b""
        return match[0]

    def _read_region(
        self,
        sink: EventSink,
        start: int,
        end: int,
    ) -> int:
        """Read whole events, halving a block until damage is alone; return where reading ended."""
        data = self._buffer.data
        start = skip_space(data, start, end)
        # Joined from a view: a block is copied once.
        events = memoryview(data)[start:end]
        if sink.block(b"".join((b"[", events, b"]"))):
            return end
        repaired = _repaired(data[start:end])
        if repaired != data[start:end]:
            self._buffer.data = data[:start] + repaired + data[end:]
            return self._read_region(sink, start, end)
        middle = (start + end) // 2
        boundary = data.find(self._separator, middle, end)
        if boundary < 0:
            boundary = data.rfind(self._separator, start, middle)
        if boundary >= 0:
            stop = self._read_region(sink, start, boundary + 1)
            if self._events_end:
                return stop
            return self._read_region(sink, stop, end)
        stop = self._read_singly(sink, start, end)
        if stop < end and not self._events_end:
            sink.skip()
            return end
        return stop

    def _read_singly(
        self,
        sink: EventSink,
        start: int,
        end: int,
    ) -> int:
        """Read event by event; return where reading stopped: `end`, or an event without one."""
        whole = self._buffer.data
        data = whole[:start] + _repaired(whole[start:end])
        text = data[start:].decode("latin-1")
        pos = start
        while (pos := skip_space(data, pos, end)) < end:
            char = data[pos]
            if char == _CLOSE:
                self._events_end = True
                return pos + 1
            stop = None
            if char == _OPEN:
                stop = scan(text, pos - start)
            if stop is not None:
                sink.event(data[pos : start + stop[1]], stop[0])
                pos = start + stop[1]
            elif match := _LIKELY_SEPARATOR.search(data, pos):
                sink.skip()
                pos = match.end(1)
            else:
                return pos
        return pos
