"""A small process between the run and our stdout and stderr: it carries bytes on, and logs them.

It is a process of its own because those who hold the other ends may outlive us: a background child
of the training that still prints, and the training itself if we are killed. It ends when nobody
holds them any more. What keeps it from that is what would keep the run's own stdout open.

In this process only the standard library is imported.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from contextlib import suppress

from fp8verify.record.log import BoundedLog, LineAssembler

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK = 64 << 10
DRAIN_S = 1.0  # for children of the training that print without a pause
TERMINAL_LAG_S = 0.05  # what is written to a pseudo-terminal arrives a little later
POLL_S = 0.001
STDERR = 2
ASKS_TO_DRAIN = b"d"
GIVEN_UP = "given-up"  # as in `boot/_fp8verify_boot.py`


class Stream(threading.Thread):
    """Reads one end and writes to one target until nobody holds the other end."""

    def __init__(self, read_end: int, target: int, log: BoundedLog) -> None:
        super().__init__()
        self._read_end = read_end
        self._target = target
        self._is_terminal = os.isatty(target)
        self._log = LineAssembler(log)
        self._lock = threading.Lock()
        self._ended = False

    def run(self) -> None:
        """Carry everything on."""
        while not self._ended:
            _wait_for(self._read_end, select.POLLIN, None)
            with self._lock:
                self._ended = not self._carry_some()

    def _carry_some(self) -> bool:
        """Carry what is there; False at the end, or if nobody will ever read it."""
        data = self._read()
        self._log.write(data)
        if data and self._write(data):
            return True
        # Without a reader, the run is told as it would be without us: by an error when it writes.
        os.close(self._read_end)
        self._log.flush()
        return False

    def drain(self, deadline: float) -> None:
        """Return when all is carried that was written until now, or at the deadline."""
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


def carry(
    control: tuple[int, int],
    streams: list[Stream],
    log: BoundedLog,
    boot: str | None = None,
) -> bool:
    """Carry until nobody writes any more; return whether our runner is still there to ask.

    Args:
        control: where the runner asks, and where it is answered.
        streams: what to carry.
        log: what to close once the runner has asked for all that was written.
        boot: where no Python is to wait any more for a runner that was killed.
    """
    asks, answers = control
    for stream in streams:
        stream.start()
    asked = os.read(asks, 1) == ASKS_TO_DRAIN
    if asked:
        deadline = time.monotonic() + DRAIN_S
        for stream in streams:
            stream.drain(deadline)
        log.close()
        with suppress(OSError):
            os.write(answers, ASKS_TO_DRAIN)
    elif boot is not None:
        with suppress(OSError):
            os.close(os.open(f"{boot}/{GIVEN_UP}", os.O_WRONLY | os.O_CREAT, 0o600))
    os.close(asks)
    os.close(answers)
    for stream in streams:
        stream.join()
    log.close()
    return asked


def carry_in_thread(log: int, control: tuple[int, int], ends: list[tuple[int, int]]) -> None:
    """Carry in this process, as `main` does in its own."""
    streams = _streams(ends, bounded := BoundedLog(log))
    for stream in streams:
        stream.daemon = True
    threading.Thread(target=carry, args=(control, streams, bounded), daemon=True).start()


def _streams(ends: Iterable[tuple[int, int]], log: BoundedLog) -> list[Stream]:
    return [Stream(read_end, target, log) for read_end, target in ends]


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
    bounded = BoundedLog(log)
    if not carry((asks, answers), _streams(ends, bounded), bounded, boot):
        import shutil  # seldom needed: the runner was killed and could not

        shutil.rmtree(boot, ignore_errors=True)
