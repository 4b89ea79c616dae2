"""Threads of the runner that leave its signals to the main thread.

Python handles signals in the main thread alone. While it has one to take, the kernel gives the next
to any other thread that takes it, and that one waits until the main thread wakes: the SIGTERM that
Slurm sends right behind a SIGCONT did, until the run was killed.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator

# What the main thread has blocked, and so the processes that it starts.
_blocked_in_main: set[int] = set()


def start_deaf(thread: threading.Thread) -> None:
    """Start a thread that takes no signals, so that each interrupts what the main thread waits for."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if threading.current_thread() is threading.main_thread():
        _blocked_in_main.clear()
        _blocked_in_main.update(before)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def hearing() -> Iterator[None]:
    """Start processes inside as the main thread does: a process has the mask of what starts it."""
    deaf = signal.pthread_sigmask(signal.SIG_SETMASK, _blocked_in_main)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, deaf)
