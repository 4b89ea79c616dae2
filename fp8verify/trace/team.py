"""Jobs in parts, which copies of this process do; a copy stays for the next job.

Parts and results lie in files in memory. The number of a part goes through a pipe to whichever
copy is free, and comes back through another one.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from struct import Struct
from typing import Any, Generic, TypeVar

from fp8verify.trace.forking import PATIENCE_MS, Child, end_all

SharedT = TypeVar("SharedT")
JobT = TypeVar("JobT")
PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")

_NUMBER = Struct("=i")


class Team(Generic[SharedT]):
    """This process and copies of it, which are forked for the first job.

    Args:
        shared: what every job may use; a copy keeps it as it was when it was forked.
        workers: how many processes there may be, of which this is one.
    """

    def __init__(self, shared: SharedT, workers: int) -> None:
        self._shared, self._copies = shared, workers - 1
        self._children: list[Child] = []
        self._closing = ExitStack()

    def __enter__(self) -> Team[SharedT]:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def map(
        self, work: Callable[[SharedT, JobT, PartT], ResultT], job: JobT, parts: Sequence[PartT]
    ) -> list[ResultT]:
        """Return `work` of what is shared, of the job and of each part; the last is done here.

        What a copy could not do, as its end by the kernel for want of memory, is done here too.

        Args:
            work: a function of a module: copies are told its name.
            job: the same for all parts.
            parts: one or more, and no more than there are workers.
        """
        *away, here = parts
        handed_out = self._hand_out((work, job), away)
        last = work(self._shared, job, here)
        found = self._results(handed_out)
        return [
            *(
                found[number] if number in found else work(self._shared, job, part)
                for number, part in enumerate(away)
            ),
            last,
        ]

    def _hand_out(self, task: Any, parts: Sequence[Any]) -> int:
        """Have copies begin; return how many parts they were given: all or none."""
        if not parts or not self._copies:
            return 0
        try:
            if not self._children:
                self._open()
            self._task.write(task)
            for number, part in enumerate(parts):
                self._parts[number].write(part)
                os.write(self._put_number, _NUMBER.pack(number))
            # One that is forked begins while the next one is.
            while len(self._children) < self._copies:
                self._children.append(Child(self._serve))
        except OSError:  # no further process, or too many open files
            self._end()
            return 0
        return len(parts)

    def _open(self) -> None:
        self._task, *self._parts = (_Sheet(self._closing) for _ in range(1 + self._copies))
        self._numbers, self._put_number = self._pipe()
        self._done, self._put_done = self._pipe()

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        for end in ends:
            self._closing.callback(os.close, end)
        return ends

    def _results(self, count: int) -> dict[int, Any]:
        """Return what copies made of so many parts, by number; those that are lost are missing."""
        found: dict[int, Any] = {}
        poll = select.poll()
        if count:
            poll.register(self._done, select.POLLIN)
        while len(found) < count:
            if poll.poll(PATIENCE_MS):
                number = _NUMBER.unpack(os.read(self._done, _NUMBER.size))[0]
                found[number] = self._parts[number].read()
            elif any(child.has_ended() for child in self._children):
                self._end()
                break
        return found

    def _end(self) -> None:
        """End the copies for good."""
        end_all(self._children)
        self._children, self._copies = [], 0
        self._closing.close()

    def _serve(self) -> None:
        """Do parts in a copy until there are no more, or nobody who wants them."""
        os.close(self._put_number)
        while number := os.read(self._numbers, _NUMBER.size):
            sheet = self._parts[_NUMBER.unpack(number)[0]]
            work, job = self._task.read()
            sheet.write(work(self._shared, job, sheet.read()))
            os.write(self._put_done, number)


class _Sheet:
    """A file in memory that holds one object."""

    def __init__(self, closing: ExitStack) -> None:
        self._file = os.memfd_create("fp8verify")
        closing.callback(os.close, self._file)

    def write(self, value: Any) -> None:
        with open(self._file, "wb", closefd=False) as file:
            file.seek(0)
            file.truncate()
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)

    def read(self) -> Any:
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as memory:
            return pickle.loads(memory)  # noqa: S301 - our own


def call_all(calls: Sequence[Callable[[], Any]], *, workers: int) -> list[Any]:
    """Return what each function returns; all but the last are called by copies of this process.

    One of `workers` calls all of them here.
    """
    if workers == 1:
        return [call() for call in calls]
    with Team(calls, len(calls)) as team:
        return team.map(_call, None, range(len(calls)))


def _call(calls: Sequence[Callable[[], Any]], _: None, number: int) -> Any:
    return calls[number]()
