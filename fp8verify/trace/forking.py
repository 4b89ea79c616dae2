"""Share the work on one big trace with forked copies of this process.

A copy starts in milliseconds and has everything that was read so far without a transfer. That is
safe only where no other thread can hold a lock that the copy would wait for: elsewhere, and on
systems other than Linux, the work is done alone.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# A copy that ended before its time is noticed after so long.
PATIENCE_MS = 200


def may_fork() -> bool:
    """Whether this process has no other thread, of Python's or of a library's."""
    if sys.platform != "linux":
        return False
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class Child:
    """A copy of this process that does one thing and ends.

    Raises:
        OSError: there can be no further process.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.pid = os.fork()
        if not self.pid:
            _work_and_end(work)

    def wait(self) -> bool:
        """Wait for its end; whether it did its work."""
        if not self.pid:
            return False
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return status == 0

    def has_ended(self) -> bool:
        """Whether it is over, which is not waited for."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
        return not self.pid

    def kill(self) -> None:
        """End it, if it has not ended; `wait` for that."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)


def end_all(children: Sequence[Child]) -> None:
    """End copies, all at the same time: each one gives back as much memory as it has."""
    for child in children:
        child.kill()
    for child in children:
        child.wait()


def _work_and_end(work: Callable[[], None]) -> None:
    """Do the work, and leave everything that the process would do at its end to the parent."""
    status = 1
    try:
        # An interrupt reaches the parent as well, which reports it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.disable()  # a collection would touch, and so copy, all memory that is shared
        work()
        status = 0
    finally:
        os._exit(status)
