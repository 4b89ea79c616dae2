"""A window that slides over a stream of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fp8verify.trace.kineto.ahead import Ahead

# Python objects take up to 25 times as much memory as their JSON.
MAX_WINDOW = 8 << 20


class Buffer:
    """The undecoded bytes at hand; `pos` is the first that was not used.

    Attributes:
        data: the window; everything before `pos` may go at the next `fill`.
        ended: whether the stream has no more.
    """

    def __init__(self, pieces: Iterable[bytes], name: str) -> None:
        self.data = bytearray()
        self.pos = 0
        self.ended = False
        self._pieces: Iterator[bytes] = iter(pieces)
        self._ahead: Ahead | None = None
        self._name = name
        self._received = 0

    @property
    def unused(self) -> int:
        """How many bytes of the window are."""
        return len(self.data) - self.pos

    @property
    def offset(self) -> int:
        """Where in the stream the first unused byte stands."""
        return self._received - self.unused

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
        parts: list[bytes | bytearray] = [self.data[self.pos :]]
        while have < size:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended = True
                break
            parts.append(piece)
            have += len(piece)
            self._received += len(piece)
        self.data, self.pos = bytearray().join(parts), 0

    def move(self, memory: memoryview, size: int) -> int:
        """Write to memory what `fill` would have in the window; return its length.

        What does not fit stays unused.
        """
        part, have = bytes(self.data[self.pos :]), 0
        self.data, self.pos = bytearray(), 0
        while True:
            fits = min(len(part), len(memory) - have)
            memory[have : have + fits] = part[:fits]
            have += fits
            if fits < len(part):
                self.data += part[fits:]
                return have
            if have >= size or self.ended:
                return have
            piece = next(self._pieces, None)
            self.ended, part = piece is None, piece or b""
            self._received += len(part)

    def go_on(self, pieces: Iterable[bytes], offset: int) -> None:
        """Take what follows from somewhere else, and from another place of the stream."""
        self.data, self.pos, self.ended = bytearray(), 0, False
        self._pieces, self._received = iter(pieces), offset

    def read_ahead(self) -> None:
        """Have a thread read the stream."""
        from fp8verify.trace.kineto.ahead import Ahead  # small traces need no threads

        self._pieces = self._ahead = Ahead(self._pieces)

    def read_here(self) -> None:
        """End the thread that reads the stream, if there is one."""
        if self._ahead is not None:
            self._pieces, self._ahead = self._ahead.stop(), None

    def put_back(self, data: bytes) -> None:
        """Have bytes before the unused ones that were taken from there."""
        self.data, self.pos = bytearray(data) + self.data[self.pos :], 0

    def grow(self) -> bool:
        """Double the unused bytes; False if there are no more."""
        have = len(self.data) - self.pos
        self.fill(min(max(2 * have, 1 << 12), max(have + 1, MAX_WINDOW)))
        return len(self.data) - self.pos > have
