"""A window that slides over a stream of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.errors import InputError

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
        self.data = bytearray()
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
        parts: list[bytes | bytearray] = [self.data[self.pos :]]
        while have < size:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended = True
                break
            parts.append(piece)
            have += len(piece)
        self.data, self.pos = bytearray().join(parts), 0

    def grow(self) -> bool:
        """Double the unused bytes; False if there are no more."""
        have = len(self.data) - self.pos
        self.fill(min(max(2 * have, 1 << 12), max(have + 1, MAX_WINDOW)))
        return len(self.data) - self.pos > have
