"""A small process that forwards what the training writes to our stdout and stderr, and logs it.

It is a process of its own because those who hold the other ends may outlive us: a background child
of the training that still prints, and the training itself if we are killed. It ends when no process
holds them any more. If it is killed, the runner, which holds the ends that it reads, starts another
one. Once the runner is killed, the relay starts a standby that does the same.

In this process only the standard library is imported.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress

from fp8verify.record.log import CHUNK, BoundedLog, LineAssembler

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DRAIN_S = 1.0  # for children of the training that print without a pause
TERMINAL_LAG_S = 0.05  # what is written to a pseudo-terminal arrives a little later
POLL_S = 0.001
STANDBY = "standby"
PACKAGE = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100
START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from fp8verify.record.output_relay import main; main()"
)
# Sent to whole process groups and jobs; the relay has to see the others' last words.
NOT_FOR_RELAY = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGPIPE,
)  # fmt: skip
DRAIN = b"d"
DRAINED = b"d"  # all other answers are the target of a stream that is closed


class Stream(threading.Thread):
    """Reads one end and writes to one target until no process holds the other end.

    Args:
        read_end: a pipe or pseudo-terminal.
        target: where everything goes.
        log: gets the same.
        on_closed: called with the target before `read_end` is closed.
    """

    def __init__(
        self, read_end: int, target: int, log: BoundedLog, on_closed: Callable[[int], object]
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
        """Forward what is there; False at the end, or if it has no reader any more."""
        data = self._read()
        self._log.write(data)
        if data and self._write(data):
            return True
        # Without a reader the training gets an error when it writes, as it would without us.
        self._on_closed(self._target)
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
        """Write what can be written; False if it has no reader any more."""
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


def relay(
    asks: int,
    answers: int,
    log: int,
    boot: str,
    ends: Sequence[tuple[int, int]],
    *,
    standby: bool = False,
) -> bool:
    """Forward until no process can write any more; return whether our runner is still there.

    Args:
        asks: where the runner writes `DRAIN`.
        answers: where it is answered.
        log: descriptor of the log, which is closed once the runner has asked to drain.
        boot: the boot folder.
        ends: where to read, and what to forward it to.
        standby: whether to begin only when the relay that started this one is killed.
    """
    if standby:
        os.read(asks, 1)
    kept = BoundedLog(log)
    successors: list[int] = []

    def on_closed(target: int) -> None:
        with suppress(OSError):  # the runner is gone
            os.write(answers, bytes([target]))
        for process in successors:  # which holds the end that the training is to see closed
            os.kill(process, signal.SIGKILL)

    pipes = [Stream(read_end, target, kept, on_closed) for read_end, target in ends]
    for pipe in pipes:
        pipe.start()
    is_asked = not standby and os.read(asks, 1) == DRAIN
    if is_asked:
        deadline = time.monotonic() + DRAIN_S
        for pipe in pipes:
            pipe.drain(deadline)
        kept.close()
        with suppress(OSError):
            os.write(answers, DRAINED)
    else:
        with suppress(OSError):  # no process is left
            successors.append(_start_standby(log, boot, ends))
    for pipe in pipes:
        pipe.join()
    kept.close()
    for process in successors:
        os.kill(process, signal.SIGKILL)
    return is_asked


def _start_standby(log: int, boot: str, ends: Sequence[tuple[int, int]]) -> int:
    """Start a relay that begins when this one is killed; return its process id."""
    life, _alive = os.pipe()  # whose other end this process holds
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        return spawn_relay([log, life, nowhere], boot, ends, STANDBY)
    finally:
        os.close(life)
        os.close(nowhere)


def spawn_relay(
    given: Sequence[int], boot: str, ends: Sequence[tuple[int, int]], role: str = "first"
) -> int:
    """Start a relay as a process and return its id.

    Args:
        given: descriptors of the log, of what asks and of what is answered.
        boot: the boot folder.
        ends: where to read, and what to forward it to.
        role: `STANDBY` for one that waits.

    Raises:
        OSError: no process can be started.
    """
    import subprocess  # which a relay seldom needs

    words = [sys.executable, "-I", "-S", "-c", START, PACKAGE, *map(str, given), boot, role]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_RELAY)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own Python
            [*words, *(f"{read_end}:{target}" for read_end, target in ends)],
            stdin=subprocess.DEVNULL,
            pass_fds=[*given, *(read_end for read_end, _ in ends)],
            cwd="/",
            start_new_session=True,  # Ctrl-C, Ctrl-Z and a terminal that hangs up are not for it
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.returncode = 0  # no one waits for it
    return process.pid


def main() -> None:
    """Do what the command line says, as `spawn_relay` wrote it."""
    log, asks, answers = map(int, sys.argv[1:4])
    boot, role, *words = sys.argv[4:]
    ends = [(int(read_end), int(target)) for read_end, target in (w.split(":") for w in words)]
    if not relay(asks, answers, log, boot, ends, standby=role == STANDBY):
        import shutil  # seldom needed: the runner was killed and could not

        shutil.rmtree(boot, ignore_errors=True)
