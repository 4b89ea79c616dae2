"""What ends a window early: limits in seconds and bytes, and SIGTERM.

SIGTERM ends a Python process at once where the script has no handler. While a window is open there
is one of ours: it closes the window and then lets the signal do what it would have done. A process
that hangs in C runs no handler of Python's; a thread then ends it all the same.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..debug import debug
from ..observe import call_on_main_thread

# Bytes of JSON for one autograd node: the operators and kernels of its forward and backward pass.
# 1.7 KB an operator with its shapes (torch 2.13, CPU), some five events a node.
BYTES_PER_NODE = 8 << 10
PATIENCE_S = 5.0  # for a main thread that runs no Python after SIGTERM


class WindowLimits:
    """How long a window may last and how large its trace may become; 0 is without a limit.

    The size is not known before the trace is written. What is known is how many autograd nodes the
    script has made since, and by how much the memory of the process has grown.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._seconds = float(config["max_window_seconds"])
        self._megabytes = int(config["max_trace_mb"])
        self._began = 0.0
        self._nodes = self._memory = 0

    def begin(self, nodes: int) -> None:
        """Note that a window begins."""
        self._began, self._nodes, self._memory = time.monotonic(), nodes, _resident()

    def exceeded(self, nodes: int) -> str | None:
        """Return which limit the window has passed."""
        if 0 < self._seconds < time.monotonic() - self._began:
            return f"it had lasted {self._seconds:g} seconds (--max-window-seconds)"
        if self._megabytes:
            limit = self._megabytes << 20
            made = max(0, nodes - self._nodes) * BYTES_PER_NODE
            if made > limit or _resident() - self._memory > limit:
                return f"its trace would exceed {self._megabytes} MB (--max-trace-mb)"
        return None


def _resident() -> int:
    with suppress(OSError, ValueError, IndexError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


class TerminationGuard:
    """Calls `close` on SIGTERM, and then lets the process end by it if `close` says so."""

    def __init__(self, close: Callable[[], bool]) -> None:
        self._close = close
        self._alarm: int | None = None

    def arm(self) -> None:
        """Begin, if SIGTERM would end the process; Python allows this on the main thread only."""
        if self._alarm is not None or not _on_main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        signal.signal(signal.SIGTERM, self._terminate)
        reader, self._alarm = os.pipe()
        # Its handler runs in C as soon as the signal arrives, also while no Python can.
        faulthandler.register(signal.SIGTERM, self._alarm, all_threads=False, chain=True)
        threading.Thread(
            target=_end_if_it_hangs, args=(reader,), name="fp8verify-term", daemon=True
        ).start()

    def disarm(self) -> None:
        """Put back what was there, or what the script has put there meanwhile."""
        if self._alarm is None:
            return
        self._silence()
        if _on_main_thread():
            self._put_back()
        else:
            call_on_main_thread(self._put_back)

    def _silence(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            faulthandler.unregister(signal.SIGTERM)
            os.close(alarm)  # the thread reads its end

    def _put_back(self) -> None:
        if self._alarm is None:  # else armed again meanwhile
            found = signal.getsignal(signal.SIGTERM)
            ours = found == self._terminate
            signal.signal(signal.SIGTERM, signal.SIG_DFL if ours else found)

    def _terminate(self, *_: Any) -> None:
        self._silence()  # the main thread has moved
        ends = True
        try:
            ends = self._close()
        except Exception:
            debug.error("closing the window on SIGTERM")
        if ends:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end_if_it_hangs(reader: int) -> None:
    """Wait for the signal; end the process by it if the main thread then makes no move."""
    until: float | None = None
    with open(reader, "rb", buffering=0) as alarm:
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([alarm], [], [], left)[0]:
                ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)  # Python's needs the main thread
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if not alarm.read(4096):
                return
            until = until or time.monotonic() + PATIENCE_S
