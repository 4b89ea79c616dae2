"""Read and unpack a stream in a thread, ahead of its reader; inflating lets go of Python's lock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from queue import Queue
from threading import Thread

# A hand-over wakes a thread, so that several pieces go at once.
_HAND_OVER = 1 << 20
_MOST = 8


class Ahead(Iterator[bytes]):
    """The pieces of a stream, read by a thread until `stop`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._ready: Queue[list[bytes] | None] = Queue(_MOST)
        self._current: Iterator[bytes] = iter(())
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def __next__(self) -> bytes:
        piece = next(self._current, None)
        while piece is None:
            found = None if self._stopped else self._ready.get()
            if found is None:
                self._end()
                return next(self._pieces)
            self._current = iter(found)
            piece = next(self._current, None)
        return piece

    def stop(self) -> Iterator[bytes]:
        """End the thread; return what follows, which is read by whoever asks for it."""
        ended, self._stopped = self._stopped, True
        left: list[bytes] = []
        while not ended and (found := self._ready.get()) is not None:
            left += found
        self._thread.join()
        return chain(self._current, left, self._rest())

    def _rest(self) -> Iterator[bytes]:
        self._end()
        yield from self._pieces

    def _end(self) -> None:
        self._stopped = True
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        found: list[bytes] = []
        size = 0
        try:
            for piece in self._pieces:
                found.append(piece)
                size += len(piece)
                if size >= _HAND_OVER:
                    self._ready.put(found)
                    found, size = [], 0
                    if self._stopped:
                        break
        except BaseException as error:  # is raised where the piece is asked for
            self._error = error
        self._ready.put(found)
        self._ready.put(None)
