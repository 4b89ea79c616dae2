"""The log of a run: bounded, in whole lines, of pipes, terminals and regular files."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_BYTES = TAIL_BYTES = 8 << 20  # of a log
MAX_LINE = 64 << 10
CHUNK = 64 << 10
FILE_POLL_S = 0.25
FINISH_S = 10.0
OWN_LINE = re.compile(rb"(?m)^fp8verify: .*\n?")


class BoundedLog:
    """The first and the last 8 MB of what is written to it; takes over an open file's descriptor.

    The head is on disk as soon as it is complete lines; the tail follows at the end, after a line
    that says how much is missing. What the file holds already counts as head.
    """

    def __init__(
        self, descriptor: int, head: int = HEAD_BYTES, tail: int = TAIL_BYTES
    ) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()
        self._is_open = True
        self._head_left = max(0, head - os.fstat(descriptor).st_size)
        self._tail_limit = tail
        self._tail = bytearray()
        self._left_out = 0

    def close(self) -> None:
        """Write the tail; what comes after that is not kept."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._shorten_tail()
            if self._left_out:
                self._append(
                    b"\n[fp8verify: %d bytes left out here]\n" % self._left_out
                )
            self._append(bytes(self._tail))
            os.close(self.descriptor)

    def write(self, data: bytes) -> None:
        """Append `data`; from whatever thread."""
        with self._lock:
            if not self._is_open:
                return
            head = data[: self._head_left]
            rest = data[self._head_left :]
            self._head_left -= len(head)
            self._append(head)
            self._tail += rest
            if len(self._tail) > 2 * self._tail_limit:  # seldom: all of it is moved
                self._shorten_tail()

    def _shorten_tail(self) -> None:
        excess = max(0, len(self._tail) - self._tail_limit)
        self._left_out += excess
        del self._tail[:excess]

    def _append(self, data: bytes) -> None:
        # If the disk is full, the rest of the log is lost and the run goes on.
        with suppress(OSError):
            while data:
                data = data[os.write(self.descriptor, data) :]


class LineAssembler:
    """Hand on the bytes of one stream in whole lines, so streams do not mix in one.

    A progress bar's carriage return ends a line too; one of more than 64 KB is broken.

    Args:
        take: gets the lines.
        of_terminal: whether a terminal has made each line end two bytes, which are one again here.
    """

    def __init__(
        self, take: Callable[[bytes], object], *, of_terminal: bool = False
    ) -> None:
        self._take = take
        self._of_terminal = of_terminal
        self._partial = b""

    def write(self, data: bytes) -> None:
        """Append `data` to the stream."""
        data = self._partial + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > MAX_LINE:
            end = len(data)
        if self._of_terminal and data.endswith(b"\r"):  # its other half may follow
            end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        lines = data[:end]
        if self._of_terminal:
            lines = lines.replace(b"\r\n", b"\n")
        if lines:
            self._take(lines)
        self._partial = data[end:]

    def flush(self) -> None:
        """Hand on what is left of an unfinished line."""
        if self._partial:
            self._take(self._partial + b"\n")
            self._partial = b""


class LoggedFile(threading.Thread):
    """Copies into a log what a regular file gets from now on; takes over its descriptor."""

    def __init__(self, file: int, log: BoundedLog) -> None:
        super().__init__(daemon=True)
        self._file = file
        self._log = log
        self._over = threading.Event()

    def run(self) -> None:
        """Read until `finish` is called, and then to the end of the file."""
        lines = LineAssembler(self._take)
        while True:
            is_over = self._over.is_set()
            with suppress(OSError):
                if data := self._read():
                    lines.write(data)
                    continue
            if is_over:
                break
            self._over.wait(FILE_POLL_S)
        lines.flush()
        os.close(self._file)

    def _read(self) -> bytes:
        data = os.read(self._file, CHUNK)
        if not data:
            at = os.lseek(self._file, 0, os.SEEK_CUR)
            size = os.fstat(self._file).st_size
            if size < at:  # somebody emptied it
                os.lseek(self._file, 0, os.SEEK_SET)
                data = os.read(self._file, CHUNK)
        return data

    def _take(self, lines: bytes) -> None:
        self._log.write(OWN_LINE.sub(b"", lines))

    def finish(self) -> None:
        """Return when the file is read to its end, or a child that prints on takes too long."""
        self._over.set()
        self.join(FINISH_S)
