"""The training's stdout and stderr: what it writes is forwarded to ours, and into the log."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fp8verify.record.folder import writing_to
from fp8verify.record.output_relay import A_FILE, DRAIN, DRAINED, relay, spawn_relay
from fp8verify.record.streams import OutputStream, open_streams

ANSWER_S = 10.0  # longer than the relay takes, unless somebody has stopped it
MOST_RELAYS = 8  # one after the other: whatever kills them may kill each


class Output:
    """The streams of one run and, once it has started, the process that reads them.

    The ends that the relay reads stay open here too: a relay that is killed gets a successor, and
    the training always has a reader.
    """

    def __init__(self, log: Path) -> None:
        self._log = _create(log)
        self._streams = open_streams()
        self._each = list(dict.fromkeys(self._streams.values()))
        self._closed: set[int] = set()
        self._boot: Path | None = None
        self._ask = -1
        self._child = b""
        self._lock = threading.Lock()  # which relay there is, and what it was asked
        self._finishing = False
        self._drained = threading.Event()

    def start(self, boot: Path) -> None:
        """Start the relay, before the training starts."""
        self._boot = boot
        threading.Thread(target=self._keep_relay, args=(self._start(),), daemon=True).start()

    def started(self, child: int) -> None:
        """Let the relay know the training's process id."""
        with self._lock:
            self._child = b"%d\n" % child
            _write(self._ask, self._child)

    def stream(self, target: int) -> int | None:
        """Return what the run gets as its stdout (1) or stderr (2); None for our own."""
        stream = self._streams.get(target)
        return None if stream is None else stream.write_end

    def resize(self) -> bool:
        """Follow a change of our terminal's size; return whether there was one."""
        resized = [stream.resize() for stream in self._each]
        return any(resized)

    def finish(self) -> None:
        """Return when all that the run has written is forwarded and logged.

        Children that it left behind still write; the relay stays for them.
        """
        for stream in self._each:
            if stream.write_end is not None:
                os.close(stream.write_end)
        if self._boot is not None:
            with self._lock:
                self._finishing = True
                _write(self._ask, DRAIN)
            self._drained.wait(ANSWER_S)
        with self._lock:
            for index, stream in enumerate(self._each):
                self._close(index, stream)
            os.close(self._log)
            self._log = -1
            if self._ask >= 0:
                os.close(self._ask)

    def _close(self, index: int, stream: OutputStream) -> None:
        if index not in self._closed:
            self._closed.add(index)
            os.close(stream.read_end)

    def _start(self, *, in_thread: bool = False) -> int:
        """Start a relay and return where it answers.

        Where no process can be started, a thread of ours does its work for as long as we live.

        Raises:
            OSError: the run is over, or no descriptor is left.
        """
        with self._lock:
            if self._log < 0:
                raise OSError(errno.EBADF, "the run is over")
            asks, ask = os.pipe()
            answer, answers = os.pipe()
            ends = [
                (stream.read_end, A_FILE if stream.is_file else stream.target)
                for index, stream in enumerate(self._each)
                if index not in self._closed
            ]
            try:
                if in_thread:
                    raise BlockingIOError
                spawn_relay([self._log, asks, answers], f"{self._boot}", ends)
            except OSError:
                _relay_in_thread(self._log, (asks, answers), ends)
            else:
                os.close(asks)
                os.close(answers)
            if self._ask >= 0:
                os.close(self._ask)
            self._ask = ask
            _write(ask, self._child + DRAIN * self._finishing)
        return answer

    def _keep_relay(self, answer: int) -> None:
        """Do what the relay says, and start another one where it was killed."""
        starts = 1
        while True:
            open_before = [i for i in range(len(self._each)) if i not in self._closed]
            while said := _read(answer):
                if said == DRAINED:
                    self._drained.set()
                    os.close(answer)
                    return
                index = open_before[said[0]]
                with self._lock:
                    self._close(index, self._each[index])
            os.close(answer)
            try:
                answer = self._start(in_thread=starts == MOST_RELAYS)
            except OSError:
                break
            starts += 1
        self._drained.set()


def _read(descriptor: int) -> bytes:
    with suppress(OSError):
        return os.read(descriptor, 1)
    return b""


def _write(descriptor: int, data: bytes) -> None:
    with suppress(OSError):  # the relay was killed
        os.write(descriptor, data)


def _relay_in_thread(log: int, control: tuple[int, int], ends: Sequence[tuple[int, int]]) -> None:
    own = [(os.dup(read_end), target) for read_end, target in ends]
    threading.Thread(target=relay, args=(control, own, os.dup(log)), daemon=True).start()


def _create(log: Path) -> int:
    with writing_to(log.parent):
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


@contextmanager
def relayed_output(log: Path) -> Iterator[Output]:
    """Yield the streams for a run; what it has written by the end is forwarded and in the log."""
    output = Output(log)
    try:
        yield output
    finally:
        output.finish()
