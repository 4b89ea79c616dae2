"""The training's stdout and stderr: where it writes, and how that reaches ours and the log.

A regular file stays the training's own, and a thread reads it from where the training began to
write. For a pipe and a terminal the training gets one of ours, whose other end the relay reads.
"""

from __future__ import annotations

import fcntl
import os
import stat
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fp8verify.record.folder import writing_to
from fp8verify.record.log import LoggedFile
from fp8verify.record.output_relay import DRAIN, DRAINED, relay, spawn_relay

STDOUT, STDERR = 1, 2
ANSWER_S = 10.0  # longer than the relay takes, unless somebody has stopped it
MOST_RELAYS = 8  # one after the other: whatever kills them may kill each


class OutputPipe:
    """A pipe or pseudo-terminal that the training writes to instead of one of our descriptors.

    Attributes:
        target: our descriptor, to which all is forwarded.
        read_end: where the relay reads; -1 once no process reads any more.
        write_end: what the training gets.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._is_terminal = os.isatty(target)
        self.read_end, self.write_end = _pseudo_terminal(target) if self._is_terminal else os.pipe()

    def resize(self) -> bool:
        """Give the training's terminal the size of ours; return whether it had another one."""
        return self._is_terminal and _copy_window_size(self.target, self.write_end)

    def close_read_end(self) -> None:
        """Let the training see that it has no reader, once the relay has closed its end too."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1


class Output:
    """The streams of one run and, once it has started, what reads them.

    The ends that the relay reads stay open here too: a relay that is killed gets a successor, and
    the training always has a reader.
    """

    def __init__(self, log: Path) -> None:
        with writing_to(log.parent):
            self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._files: list[LoggedFile] = []
        self._pipes: dict[int, OutputPipe] = {}
        targets = [target for target in (STDOUT, STDERR) if _is_given(target)]
        self._are_one = len(targets) == 2 and os.path.sameopenfile(STDOUT, STDERR)
        for target in targets[:1] if self._are_one else targets:
            file = _open_file(target)
            if file is None:
                self._pipes[target] = OutputPipe(target)
            else:
                self._files.append(LoggedFile(file, os.dup(self._log)))
        self._boot: Path | None = None
        self._ask = -1
        self._lock = threading.Lock()  # of which relay there is, what it was asked, and the ends
        self._is_finishing = False
        self._drained = threading.Event()

    def start(self, boot: Path) -> None:
        """Start what reads, before the training starts."""
        self._boot = boot
        for file in self._files:
            file.start()
        threading.Thread(target=self._keep_relay, args=(self._start_relay(),), daemon=True).start()

    def stream(self, target: int) -> int | None:
        """Return what the run gets as its stdout (1) or stderr (2); None for our own."""
        pipe = self._pipes.get(STDOUT if self._are_one else target)
        return None if pipe is None else pipe.write_end

    def resize(self) -> bool:
        """Follow a change of our terminal's size; return whether there was one."""
        resized = [pipe.resize() for pipe in self._pipes.values()]
        return any(resized)

    def finish(self) -> None:
        """Return when all that the run has written is forwarded and logged.

        Children that it left behind still write; the relay stays for them.
        """
        self._close_write_ends()
        for file in self._files:
            if file.ident is not None:
                file.finish(ANSWER_S)
        if self._boot is not None:
            with self._lock:
                self._is_finishing = True
                self._ask_to_drain()
            self._drained.wait(ANSWER_S)
        with self._lock:
            for pipe in self._pipes.values():
                pipe.close_read_end()
            os.close(self._log)
            self._log = -1
            if self._ask >= 0:
                os.close(self._ask)

    def _close_write_ends(self) -> None:
        for pipe in self._pipes.values():
            os.close(pipe.write_end)

    def _ask_to_drain(self) -> None:
        with suppress(OSError):  # the relay was killed
            os.write(self._ask, DRAIN)

    def _start_relay(self, *, in_thread: bool = False) -> int | None:
        """Start a relay and return where it answers; None if there is nothing to read any more.

        Where no process can be started, a thread of ours does its work for as long as we live.
        """
        with self._lock:
            ends = [(p.read_end, p.target) for p in self._pipes.values() if p.read_end >= 0]
            if not ends or self._log < 0:
                return None
            asks, ask = os.pipe()
            answer, answers = os.pipe()
            try:
                if in_thread:
                    raise BlockingIOError
                spawn_relay([self._log, asks, answers], f"{self._boot}", ends)
            except OSError:
                own = [(os.dup(read_end), target) for read_end, target in ends]
                given = (asks, answers, os.dup(self._log), f"{self._boot}", own)
                threading.Thread(target=relay, args=given, daemon=True).start()
            else:
                os.close(asks)
                os.close(answers)
            if self._ask >= 0:
                os.close(self._ask)
            self._ask = ask
            if self._is_finishing:
                self._ask_to_drain()
        return answer

    def _keep_relay(self, answer: int | None) -> None:
        """Do what the relay says, and start another one where it was killed."""
        starts = 1
        while answer is not None:
            while said := os.read(answer, 1):
                if said == DRAINED:
                    self._drained.set()
                    os.close(answer)
                    return
                with self._lock:
                    self._pipes[said[0]].close_read_end()
            os.close(answer)
            starts += 1
            answer = self._start_relay(in_thread=starts > MOST_RELAYS)
        self._drained.set()


@contextmanager
def relayed_output(log: Path) -> Iterator[Output]:
    """Yield the streams for a run; what it has written by the end is forwarded and in the log."""
    output = Output(log)
    try:
        yield output
    finally:
        output.finish()


def reserve_closed_streams() -> None:
    """Keep files of ours from taking the places of standard streams that are closed (`>&-`).

    What takes them here is closed in the run, whose streams are then closed as without us.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)  # which `exec` closes
        if descriptor > STDERR:
            os.close(descriptor)
            return


def _is_given(descriptor: int) -> bool:
    """Whether a standard stream was open when we were started."""
    with suppress(OSError):
        return os.get_inheritable(descriptor)
    return False


def _open_file(target: int) -> int | None:
    """Open a regular file for reading, at the place where its next byte is written; else None."""
    try:
        found = os.fstat(target)
        if not stat.S_ISREG(found.st_mode):
            return None
        appends = fcntl.fcntl(target, fcntl.F_GETFL) & os.O_APPEND
        written = found.st_size if appends else os.lseek(target, 0, os.SEEK_CUR)
        descriptor = os.open(f"/proc/self/fd/{target}", os.O_RDONLY)
    except OSError:  # it may not be read, or there is no /proc
        return None
    os.lseek(descriptor, written, os.SEEK_SET)
    return descriptor


def _pseudo_terminal(terminal: int) -> tuple[int, int]:
    master, slave = os.openpty()
    with suppress(termios.error):
        attributes = termios.tcgetattr(terminal)
        attributes[1] &= ~termios.OPOST  # our own terminal turns \n into \r\n, once
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
    _copy_window_size(terminal, slave)
    return master, slave


def _copy_window_size(source: int, target: int) -> bool:
    with suppress(OSError):
        wanted, found = (
            fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)) for terminal in (source, target)
        )
        fcntl.ioctl(target, termios.TIOCSWINSZ, wanted)
        return wanted != found
    return False
