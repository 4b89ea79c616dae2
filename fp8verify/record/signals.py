"""Pass signals on to the run that it has not got itself, and end by the signal that ended it.

Ctrl-C, `timeout`, `kill -- -PGID`, Slurm and `pkill -f train.py` send a signal to the run as well
as to us; `kill PID` and a scheduler that knows only us do not. A witness tells them apart: it is a
process of our group, with the run's command in its arguments, in which signals stay pending.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

from fp8verify.record.output import start_helper

FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT,
    signal.SIGALRM, signal.SIGXCPU,
)  # fmt: skip
PATIENCE_S, POLL_S = 0.1, 0.005  # for senders that go from process to process
PENDING = re.compile(r"^ShdPnd:\s*([0-9a-f]+)$", re.MULTILINE)


class Witness:
    """Shows who else got a signal that we got.

    Args:
        command: the run's.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._words = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import os; os.read(0, 1)",
            *command,
        ]
        self._start()

    def _start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = start_helper(self._words, FORWARDED, **quiet)

    def has_got(self, number: int) -> bool:
        """Whether the signal was for all; without a witness what a terminal sends is."""
        if self._process is None or self._process.poll() is not None:
            return number == signal.SIGINT and os.isatty(0)
        until = time.monotonic() + PATIENCE_S
        while (
            not (seen := self._pending() >> (number - 1) & 1)
            and time.monotonic() < until
        ):
            time.sleep(POLL_S)
        if seen:
            self.close()
            self._start()
        return bool(seen)

    def _pending(self) -> int:
        with suppress(OSError, AttributeError):
            status = Path(f"/proc/{self._process.pid}/status").read_text("ascii")  # type: ignore[union-attr]
            return int(PENDING.search(status)[1], 16)  # type: ignore[index]
        return 0

    def close(self) -> None:
        """End the witness."""
        if self._process is not None and self._process.stdin is not None:
            self._process.kill()
            self._process.stdin.close()
            self._process.wait()


class SignalForwarder:
    """Forward what arrives to the child; before there is one, as soon as there is."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._witness: Witness | None = None
        self._arrived: SimpleQueue[int | None] = SimpleQueue()
        self._on_resize: Callable[[], bool] = lambda: False

    @contextmanager
    def with_witness(self, command: Sequence[str]) -> Iterator[None]:
        """Have a witness while inside, if signals are forwarded at all."""
        if signal.getsignal(signal.SIGTERM) == self.take:
            self._witness = Witness(command)
        try:
            yield
        finally:
            witness = self._witness
            self._witness = None
            if witness is not None:
                witness.close()

    def watch(
        self, child: subprocess.Popen[bytes], on_resize: Callable[[], bool] | None
    ) -> None:
        """Begin to forward to `child`; once it has ended, nothing is forwarded any more."""
        self._on_resize = on_resize or self._on_resize
        early = self._arrived.qsize()
        self._child = child
        threading.Thread(target=self._forward, args=(early,), daemon=True).start()

    def take(self, number: int, _: FrameType | None = None) -> None:
        """Handle a signal; what is done about it takes a moment."""
        self._arrived.put(number)

    def stop(self) -> None:
        """Ask the run to stop, as a scheduler does."""
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def leave(self) -> None:
        """Forward nothing any more."""
        self._arrived.put(None)

    def _forward(self, early: int) -> None:
        while (number := self._arrived.get()) is not None:
            early -= 1
            witness = self._witness
            # The first ones came before the run was there to get them.
            if self._child is not None and (
                early >= 0 or witness is None or not witness.has_got(number)
            ):
                self._child.send_signal(number)

    def resize(self, _: int, __: FrameType | None) -> None:
        """Handle a change of the terminal's size."""
        if self._on_resize():
            # The run got the signal before its own terminal had the new size.
            os.killpg(os.getpgrp(), signal.SIGWINCH)


@contextmanager
def forwarded_signals() -> Iterator[SignalForwarder]:
    """Forward signals while inside. Those that are ignored (nohup) stay so, for the run as well."""
    forwarder = SignalForwarder()
    if threading.current_thread() is not threading.main_thread():
        yield forwarder
        return
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys(FORWARDED, forwarder.take),
        signal.SIGWINCH: forwarder.resize,
    }
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield forwarder
    finally:
        forwarder.leave()
        for number, handler in before.items():
            signal.signal(number, handler)


def end_by(number: int) -> None:
    """End this process by a signal, as the run did: a shell's loop ends only so on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the run has left its own
    with suppress(OSError, ValueError):  # SIGKILL has no action to restore
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
