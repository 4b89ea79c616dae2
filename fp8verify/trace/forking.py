"""Share the work on one big trace with forked copies of this process.

A copy starts in milliseconds and has everything that was read so far without a transfer. That is
safe only where no other thread can hold a lock that the copy would wait for: elsewhere, and on
systems other than Linux, the work is done alone.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")


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

    def end(self) -> None:
        """End it, if it has not ended."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


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


def fork_map(
    work: Callable[[PartT], ResultT], parts: Sequence[PartT], *, workers: int
) -> list[ResultT]:
    """Return `work` of each part; all but the last are done by copies of this process.

    What a copy could not do, as its end by the kernel for want of memory, is done here. One of
    `workers` does everything here.
    """
    if workers == 1:
        return list(map(work, parts))
    with ExitStack() as closing:
        away = [closing.enter_context(_Away(partial(work, part))) for part in parts[:-1]]
        last = work(parts[-1])
        return [*(one.result() for one in away), last]


class _Away(Generic[ResultT]):
    """Work in a copy, whose result comes back pickled through a file in memory."""

    def __init__(self, work: Callable[[], ResultT]) -> None:
        self._work = work
        self._child: Child | None = None
        self._file = -1

    def __enter__(self) -> _Away[ResultT]:
        with suppress(OSError):
            self._file = os.memfd_create("fp8verify")
            self._child = Child(self._put)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._child is not None:
            self._child.end()
        if self._file >= 0:
            os.close(self._file)

    def result(self) -> ResultT:
        if self._child is None or not self._child.wait():
            return self._work()
        with open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            found: ResultT = pickle.load(file)  # noqa: S301 - our own
        return found

    def _put(self) -> None:
        with open(self._file, "wb", closefd=False) as file:
            pickle.dump(self._work(), file, pickle.HIGHEST_PROTOCOL)
