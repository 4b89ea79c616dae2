"""A small process that forwards what the training writes to our stdout and stderr, and logs it.

It is a process of its own because those who hold the other ends may outlive us: a background child
of the training that still prints, and the training itself if we are killed. It ends when nobody
holds them any more. If it is killed, the runner, which holds the ends that it reads, starts another
one. Regular files are not forwarded, only read into the log.

In this process only the standard library is imported.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from contextlib import suppress
from functools import partial

from fp8verify.record.log import BoundedLog, LineAssembler

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHUNK = 64 << 10
DRAIN_S = 1.0  # for children of the training that print without a pause
TERMINAL_LAG_S = 0.05  # what is written to a pseudo-terminal arrives a little later
POLL_S = 0.001
FILE_POLL_S = 0.25
CHILD_POLL_S = 1.0
STDERR = 2
A_FILE = -1  # in place of the target of a stream that is only read
DRAIN = b"drain\n"
DRAINED = b"d"  # all other answers are the index of a stream that is closed


class Stream(threading.Thread):
    """Reads one end and writes to one target until nobody holds the other end.

    Args:
        read_end: a pipe or pseudo-terminal.
        target: where everything goes.
        log: gets the same.
        on_closed: called before `read_end` is closed.
    """

    def __init__(
        self, read_end: int, target: int, log: BoundedLog, on_closed: Callable[[], object]
    ) -> None:
        super().__init__(daemon=True)
        self._read_end = read_end
        self._target = target
        self._is_terminal = os.isatty(target)
        self._log = LineAssembler(log)
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._ended = False

    def run(self) -> None:
        """Forward everything."""
        while not self._ended:
            _wait_for(self._read_end, select.POLLIN, None)
            with self._lock:
                self._ended = not self._forward_some()

    def _forward_some(self) -> bool:
        """Forward what is there; False at the end, or if nobody will ever read it."""
        data = self._read()
        self._log.write(data)
        if data and self._write(data):
            return True
        # Without a reader the training gets an error when it writes, as it would without us.
        self._on_closed()
        os.close(self._read_end)
        self._log.flush()
        return False

    def drain(self, deadline: float) -> None:
        """Return when all is forwarded that was written until now, or at the deadline."""
        lag = TERMINAL_LAG_S if self._is_terminal else 0
        while not self._ended and (left := deadline - time.monotonic()) > 0:
            if self._lock.acquire(timeout=left):
                try:
                    if self._is_empty(lag):
                        break
                finally:
                    self._lock.release()
                time.sleep(POLL_S)
        if self._lock.acquire(timeout=POLL_S):
            self._log.flush()
            self._lock.release()

    def _is_empty(self, lag: float) -> bool:
        return self._ended or not _wait_for(self._read_end, select.POLLIN, lag)

    def _read(self) -> bytes:
        try:
            return os.read(self._read_end, CHUNK)
        except OSError:  # EIO on Linux: the other side of the terminal is closed
            return b""

    def _write(self, data: bytes) -> bool:
        """Write what can be written; False if nobody will ever read it."""
        try:
            while data:
                data = data[_write_some(self._target, data) :]
        except BrokenPipeError:
            return False
        except OSError:
            # The disk is full: the run goes on, and prints again when there is room.
            return not self._is_terminal
        return True


class LoggedFile(threading.Thread):
    """Copies into the log what a regular file gets from now on."""

    def __init__(self, read_end: int, log: BoundedLog) -> None:
        super().__init__(daemon=True)
        self._read_end = read_end
        self._log = LineAssembler(log, leaves_out=b"fp8verify: ")  # the runner writes there too
        self._over = threading.Event()

    def run(self) -> None:
        """Read until `drain` is called, and then to the end of the file."""
        while True:
            is_over = self._over.is_set()
            with suppress(OSError):
                if data := self._read():
                    self._log.write(data)
                    continue
            if is_over:
                break
            self._over.wait(FILE_POLL_S)
        self._log.flush()

    def _read(self) -> bytes:
        data = os.read(self._read_end, CHUNK)
        if not data:
            at, size = os.lseek(self._read_end, 0, os.SEEK_CUR), os.fstat(self._read_end).st_size
            if size < at:  # somebody emptied it
                os.lseek(self._read_end, 0, os.SEEK_SET)
                data = os.read(self._read_end, CHUNK)
        return data

    def drain(self, deadline: float) -> None:
        """Return when the file is read to its end, or at the deadline."""
        self._over.set()
        self.join(max(0.0, deadline - time.monotonic()))


def _write_some(target: int, data: bytes) -> int:
    try:
        return os.write(target, data)
    except BlockingIOError:  # whoever made our stdout non-blocking does not read yet
        _wait_for(target, select.POLLOUT, None)
        return 0


def _wait_for(descriptor: int, what: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, what)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))


def relay(control: tuple[int, int], ends: Sequence[tuple[int, int]], descriptor: int) -> bool:
    """Forward until nobody writes any more; return whether our runner is still there.

    Args:
        control: where the runner writes the training's process id and then `DRAIN`, each a line,
            and where it is answered.
        ends: where to read, and what to forward it to: `A_FILE` for a file that is only read.
        descriptor: of the log, which is closed once the runner has asked to drain.
    """
    asks, answers = control
    log = BoundedLog(descriptor)

    def answer(what: bytes) -> None:
        with suppress(OSError):  # the runner is gone
            os.write(answers, what)

    pipes = [
        Stream(read_end, target, log, partial(answer, bytes([index])))
        for index, (read_end, target) in enumerate(ends)
        if target != A_FILE
    ]
    files = [LoggedFile(read_end, log) for read_end, target in ends if target == A_FILE]
    streams: list[Stream | LoggedFile] = [*pipes, *files]
    for stream in streams:
        stream.start()
    child, is_asked = _requests(asks)
    if is_asked:
        deadline = time.monotonic() + DRAIN_S
        for stream in streams:
            stream.drain(deadline)
        log.close()
        answer(DRAINED)
    for pipe in pipes:
        pipe.join()
    if not is_asked:
        while not pipes and _is_alive(child):  # of files nobody sees who has them open
            time.sleep(CHILD_POLL_S)
        for file in files:
            file.drain(time.monotonic() + DRAIN_S)
    log.close()
    return is_asked


def _requests(asks: int) -> tuple[int, bool]:
    """Return the training's process id, 0 if it is unknown, and whether the runner wants a drain.

    Without that it is gone.
    """
    child = 0
    with os.fdopen(asks, "rb") as requests:
        for line in iter(requests.readline, b""):
            if line == DRAIN:
                return child, True
            child = int(line)
    return child, False


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return process > 0


def _detach(kept: set[int]) -> None:
    """Keep nothing of where the run was started but its standard streams and what is given."""
    os.setsid()  # Ctrl-C, Ctrl-Z and a terminal that hangs up are not for this process
    os.chdir("/")
    for name in _open_descriptors():
        if int(name) > STDERR and int(name) not in kept:
            with suppress(OSError):  # the one that listed them
                os.close(int(name))


def _open_descriptors() -> list[str]:
    with suppress(OSError):
        return os.listdir("/dev/fd")  # noqa: PTH208 - pathlib takes longer to import
    return []


def main() -> None:
    """Do what the command line says, as `fp8verify.record.output` wrote it."""
    boot, *given = sys.argv[1:]
    log, asks, answers = map(int, given[:3])
    ends = [(int(read_end), int(target)) for read_end, target in (e.split(":") for e in given[3:])]
    _detach({log, asks, answers, *(read_end for read_end, _ in ends)})
    if not relay((asks, answers), ends, log):
        import shutil  # seldom needed: the runner was killed and could not

        shutil.rmtree(boot, ignore_errors=True)
