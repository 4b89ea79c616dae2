"""The script's stdout and stderr: where it writes, and how that reaches ours and the log.

A regular file stays the script's own, and a thread reads it from where the script began to write.
For a pipe the script gets one of ours, and for a terminal a pseudo-terminal; the relay reads their
other ends. Those who hold the script's side may outlive the runner (a background child of the
script that still prints, and the script if the runner is killed): the keeper has the same ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import termios
import threading
import time
from contextlib import suppress
from functools import partial

from fp8verify.record.lines import leave_open_line
from fp8verify.record.log import CHUNK, BoundedLog, LineAssembler, LoggedFile
from fp8verify.record.terminal import (
    STDERR,
    STDIN,
    STDOUT,
    Pty,
    Terminal,
    controlling_terminal,
    controls_us,
    copy_window_size,
)
from fp8verify.record.threads import start_deaf

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

DRAIN_S = 1.0  # for children of the script that print without a pause
TERMINAL_LAG_MS = 50  # what is written to a pseudo-terminal arrives a little later


class End:
    """The other end of an output of the script.

    Attributes:
        read_end: a pipe or pseudo-terminal, closed once there is nothing to read any more.
        target: where everything goes.
        makes_line_ends: whether a terminal makes each line end two bytes.
    """

    def __init__(
        self, read_end: int, target: int, *, makes_line_ends: bool = False
    ) -> None:
        self.read_end = read_end
        self.target = target
        self.makes_line_ends = makes_line_ends


class Output:
    """The streams of one run, and what reads them once it has begun.

    Args:
        log: the file that gets all that the script writes; None to leave it our own streams.

    Attributes:
        given: what the script gets for our standard streams, where it is not our own.
        ends: where to read, and what to forward it to.
        terminal: ours, where the script gets one that controls a session of its own.
        slave: that one.

    Raises:
        OSError: the log cannot be written.
    """

    def __init__(self, log: Path | None) -> None:
        self.log: BoundedLog | None = None
        self.given: dict[int, int] = {}
        self.ends: list[End] = []
        self.terminal: Terminal | None = None
        self.slave = -1
        self._files: list[LoggedFile] = []
        self._relay: Relay | None = None
        if log is None:
            return
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self.log = BoundedLog(os.open(log, new, 0o600))
        self._give_session()
        targets = [
            target
            for target in (STDOUT, STDERR)
            if target not in self.given and _is_given(target)
        ]
        if len(targets) == 2 and os.path.sameopenfile(STDOUT, STDERR):
            self._give(STDOUT, self.log)
            if STDOUT in self.given:
                self.given[STDERR] = self.given[STDOUT]
        else:
            for target in targets:
                self._give(target, self.log)

    def _give_session(self) -> None:
        """Give the script a terminal that controls a session, if one controls ours."""
        target = controlling_terminal()
        if target is None:
            return
        with suppress(OSError, termios.error):
            pty = Pty(target)
            self.terminal = Terminal(pty)
            self.slave = pty.slave
            self.ends.append(End(pty.master, target, makes_line_ends=True))
            for descriptor in filter(controls_us, (STDIN, STDOUT, STDERR)):
                self.given[descriptor] = pty.slave

    def give_up_session(self) -> None:
        """Leave the script our session, where no keeper can lead another."""
        if self.terminal is not None:
            self.terminal = None
            self.given.pop(STDIN, None)

    def _give(self, target: int, log: BoundedLog) -> None:
        file = _open_file(target)
        if file is None:
            read_end, self.given[target] = _pipe_like(target)
            self.ends.append(End(read_end, target))
        else:
            self._files.append(LoggedFile(file, log))

    def begin(self, on_broken: Callable[[int], object]) -> None:
        """Begin to read.

        Args:
            on_broken: called with the place of an end whose target has no reader any more.
        """
        for logged in self._files:
            start_deaf(logged)
        if self.log is not None:
            self._relay = Relay(self.log, self.ends, on_broken)

    def follow_size(self) -> None:
        """Give the script's terminals the size of ours."""
        if self.terminal is not None:
            self.terminal.follow_size()
        for target, given in self.given.items():
            if given != self.slave:
                copy_window_size(target, given)

    def close(self) -> bool:
        """Return when all that the run has written is forwarded and logged.

        Children that it left behind may still write: then the result is True.
        """
        for given in {self.slave, *self.given.values()} - {-1}:
            os.close(given)
        for logged in self._files:
            logged.finish()
        is_left = self._relay is not None and self._relay.finish()
        if self.terminal is not None:
            self.terminal.close()
        if self.log is not None:
            self.log.close()
        return is_left


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
        status = os.fstat(target)
        if not stat.S_ISREG(status.st_mode):
            return None
        appends = fcntl.fcntl(target, fcntl.F_GETFL) & os.O_APPEND
        if appends:
            written = status.st_size
        else:
            written = os.lseek(target, 0, os.SEEK_CUR)
        descriptor = os.open(f"/proc/self/fd/{target}", os.O_RDONLY)
    except OSError:  # it may not be read, or there is no /proc
        return None
    os.lseek(descriptor, written, os.SEEK_SET)
    return descriptor


def _pipe_like(target: int) -> tuple[int, int]:
    """Return the two ends of a terminal if the target is one, else of a pipe."""
    if not os.isatty(target):
        return os.pipe()
    try:
        pty = Pty(target)
    except OSError:  # the system has no more of them
        return os.pipe()
    pty.leave_line_ends()
    return pty.master, pty.slave


class Stream(threading.Thread):
    """Reads one end and writes to one target until no process holds the other end.

    Args:
        end: where to read, and where everything goes.
        log: gets the same.
        leave: closed on its other side when only what was written until now is wanted.
        on_broken: called where the target has no reader any more.

    Attributes:
        is_open: whether some process may still write.
        ends_line: whether what was written last ended a line.
    """

    def __init__(
        self,
        end: End,
        log: BoundedLog,
        leave: int,
        on_broken: Callable[[], object],
    ) -> None:
        super().__init__(daemon=True)
        self.read_end = end.read_end
        self.target = end.target
        self.is_open = True
        self.ends_line = True
        self._is_terminal = os.isatty(end.target)
        self._log = LineAssembler(log.write, of_terminal=end.makes_line_ends)
        self._leave = leave
        self._on_broken = on_broken

    def run(self) -> None:
        """Forward everything, or until there is nothing and we are to leave."""
        either = select.poll()
        either.register(self.read_end, select.POLLIN)
        either.register(self._leave, 0)
        deadline = None
        while self.is_open:
            if deadline is None and any(
                ready == self._leave for ready, _ in either.poll()
            ):
                deadline = time.monotonic() + DRAIN_S
            if deadline is not None and (
                time.monotonic() > deadline or self._is_empty()
            ):
                break
            self._forward_some()
        self._log.flush()

    def _is_empty(self) -> bool:
        lag = TERMINAL_LAG_MS if self._is_terminal else 0
        return not _wait_for(self.read_end, select.POLLIN, lag)

    def _forward_some(self) -> None:
        data = b""
        with suppress(
            OSError
        ):  # EIO on Linux: the other side of the terminal is closed
            data = os.read(self.read_end, CHUNK)
        self.ends_line = data.endswith(b"\n") if data else self.ends_line
        self._log.write(data)
        has_reader = self._write(data)
        if not data or not has_reader:
            # Without a reader the script gets an error when it writes, as it would without us.
            self.is_open = False
            os.close(self.read_end)
            if not has_reader:
                self._on_broken()

    def _write(self, data: bytes) -> bool:
        """Write what can be written; False if it has no reader any more."""
        try:
            while data:
                data = data[_write_some(self.target, data) :]
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


def _wait_for(descriptor: int, what: int, milliseconds: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, what)
    return bool(poll.poll(milliseconds))


class Relay:
    """Forwards and logs the streams of a run.

    Args:
        log: the log.
        ends: where to read, and what to forward it to.
        on_broken: called with the place of an end whose target has no reader any more.
    """

    def __init__(
        self,
        log: BoundedLog,
        ends: Sequence[End],
        on_broken: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._leave, self._wake = os.pipe()
        self._streams = [
            Stream(end, log, self._leave, partial(on_broken, place))
            for place, end in enumerate(ends)
        ]
        for stream in self._streams:
            start_deaf(stream)

    def join(self) -> None:
        """Return when no process can write any more."""
        for stream in self._streams:
            stream.join()

    def finish(self) -> bool:
        """Return when all that was written until now is forwarded.

        Children that the run left behind may still write: then the result is True.
        """
        os.close(self._wake)
        self.join()
        os.close(self._leave)
        left = [stream for stream in self._streams if stream.is_open]
        for stream in left:
            os.close(stream.read_end)
        for stream in self._streams:
            if not stream.ends_line:
                leave_open_line(stream.target)
        return bool(left)
