"""Keep the output of a run as one text file of bounded size, and say lines of our own."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import suppress

HEAD_BYTES = TAIL_BYTES = 8 << 20
MAX_LINE = 64 << 10
CHUNK = 64 << 10
FILE_POLL_S = 0.25
FINISH_S = 10.0
STDERR = 2


class BoundedLog:
    """The first and the last 8 MB of what is written to it; takes over an open file's descriptor.

    The head is on disk as soon as it is complete lines; the tail follows at the end, after a line
    that says how much is missing. What the file holds already counts as head.
    """

    def __init__(self, descriptor: int, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()
        self._is_open = True
        self._head_left = max(0, head - os.fstat(descriptor).st_size)
        self._tail_limit = tail
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._left_out = 0

    def close(self) -> None:
        """Write the tail; what comes after that is not kept."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            if self._left_out:
                self._append(b"\n[fp8verify: %d bytes left out here]\n" % self._left_out)
            for chunk in self._tail:
                self._append(chunk)
            os.close(self.descriptor)

    def write(self, data: bytes) -> None:
        """Append `data`; from whatever thread."""
        with self._lock:
            if not self._is_open:
                return
            head, rest = data[: self._head_left], data[self._head_left :]
            self._head_left -= len(head)
            self._append(head)
            if rest:
                self._tail.append(rest)
                self._tail_size += len(rest)
            while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_limit:
                oldest = self._tail.popleft()
                self._tail_size -= len(oldest)
                self._left_out += len(oldest)

    def _append(self, data: bytes) -> None:
        # If the disk is full, the rest of the log is lost and the run goes on.
        with suppress(OSError):
            while data:
                data = data[os.write(self.descriptor, data) :]


class LineAssembler:
    """Hand the bytes of one stream to the log in whole lines, so streams do not mix in one.

    A progress bar's carriage return ends a line too; one of more than 64 KB is broken.

    Args:
        log: gets the lines.
        leaves_out: lines that begin so are not logged; b"" logs all.
    """

    def __init__(self, log: BoundedLog, leaves_out: bytes = b"") -> None:
        self._log = log
        self._leaves_out = leaves_out
        self._partial = b""

    def write(self, data: bytes) -> None:
        """Append `data` to the stream."""
        data = self._partial + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > MAX_LINE:
            end = len(data)
        if end:
            self._log.write(self._wanted(data[:end]))
        self._partial = data[end:]

    def _wanted(self, lines: bytes) -> bytes:
        if not self._leaves_out or self._leaves_out not in lines:
            return lines
        wanted = (x for x in lines.splitlines(keepends=True) if not x.startswith(self._leaves_out))
        return b"".join(wanted)

    def flush(self) -> None:
        """Write what is left of an unfinished line."""
        if self._partial:
            self._log.write(self._partial + b"\n")
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
        lines = LineAssembler(self._log, leaves_out=b"fp8verify: ")  # the runner's own
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
            at, size = os.lseek(self._file, 0, os.SEEK_CUR), os.fstat(self._file).st_size
            if size < at:  # somebody emptied it
                os.lseek(self._file, 0, os.SEEK_SET)
                data = os.read(self._file, CHUNK)
        return data

    def finish(self) -> None:
        """Return when the file is read to its end, or a child that prints on takes too long."""
        self._over.set()
        self.join(FINISH_S)


# The descriptors on which the run ended amid a line, as a progress bar does.
_open_lines: set[int] = set()


def leave_open_line(target: int) -> None:
    """Note that what the run wrote to a descriptor does not end a line."""
    _open_lines.add(target)


def own_line() -> str:
    """Return what begins a line of ours on standard error: once a line end if the run's is open."""
    targets = list(_open_lines)
    _open_lines.clear()
    return "\n" if any(map(_is_where_errors_go, targets)) else ""


def _is_where_errors_go(target: int) -> bool:
    with suppress(OSError):  # one of them is closed
        alike = os.isatty(target) and os.isatty(STDERR)
        return target == STDERR or alike or os.path.sameopenfile(target, STDERR)
    return False


def say(text: str) -> None:
    """Write a line of ours; if that cannot be, the run goes on without it."""
    if sys.stderr is None:  # it is closed (`2>&-`)
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{own_line()}fp8verify: {text}\n")
        sys.stderr.flush()
