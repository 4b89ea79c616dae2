"""End all that a command started, and keep the end of what it printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

GRACE_S = 3.0
_POLL_S = 0.05
_TAIL = 64 << 10


class Tail:
    """The last bytes of an output, read as they come: a script may print without end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._bytes = b""
        self._thread = threading.Thread(target=self._follow, args=(stream,), daemon=True)
        self._thread.start()

    def _follow(self, stream: IO[bytes]) -> None:
        with stream:
            while some := os.read(stream.fileno(), _TAIL):
                self._bytes = (self._bytes + some)[-_TAIL:]

    def text(self) -> str:
        """Return the end of the output, once nobody writes to it any more."""
        self._thread.join(timeout=1.0)
        return self._bytes.decode("utf-8", "replace")


def end_all(child: subprocess.Popen[bytes], mark: str) -> None:
    """End a command, its session, and the processes that carry its mark in their environment.

    torchrun's workers and data loaders have sessions of their own; on Linux the mark finds them.
    """
    for number in (int(signal.SIGTERM), int(signal.SIGKILL)):
        deadline = time.monotonic() + GRACE_S
        while _signal(child, mark, number) and time.monotonic() < deadline:
            child.poll()  # else the command itself would stay in its session as a zombie
            time.sleep(_POLL_S)
            number = 0
    child.wait()


def _signal(child: subprocess.Popen[bytes], mark: str, number: int) -> bool:
    """Send a signal to all of them; False where none is left."""
    left = False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
        left = True
    for pid in marked(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            left = True
    return left


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that were started with the variable `mark`, given as NAME=value."""
    wanted = b"\0" + os.fsencode(mark) + b"\0"
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in b"\0" + (folder / "environ").read_bytes() + b"\0":
                yield int(folder.name)


@contextmanager
def ended_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as an exception, so that it can clean up.

    Elsewhere than in the main thread Python handles no signals, and they do what they did.
    """
    before = {}
    with suppress(ValueError):
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
