"""The script's stdout and stderr: where it writes, and how that reaches ours and the log.

A regular file stays the script's own, and a thread reads it from where the script began to
write. For a pipe and a terminal the script gets one of ours, whose other end the relay reads.

The runner relays itself. Since those who hold the other ends may outlive it (a background child of
the script that still prints, and the script if the runner is killed), a standby waits: a small
process with the same ends, which takes over once the runner is gone, with a standby of its own.

In the standby only the standard library is imported, and of that little.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import sys
import termios
import threading
import time
from contextlib import suppress

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

STDOUT = 1
STDERR = 2
HEAD_BYTES = TAIL_BYTES = 8 << 20  # of a log
MAX_LINE = 64 << 10
CHUNK = 64 << 10
FILE_POLL_S = 0.25
FINISH_S = 10.0
DRAIN_S = 1.0  # for children of the script that print without a pause
TERMINAL_LAG_MS = 50  # what is written to a pseudo-terminal arrives a little later
MOST_STANDBYS = 8  # one after the other: whatever kills them may kill each
PACKAGE = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100
START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from fp8verify.record.output import main; main()"
)
# Sent to whole process groups and jobs; the standby has to see the others' last words.
NOT_FOR_STANDBY = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGPIPE,
)  # fmt: skip
ENDED = (
    b"e"  # what a runner that ends says to its standby; one that is killed says nothing
)


class Output:
    """The streams of one run and what reads them, before the script starts.

    Args:
        log: the file that gets all that the script writes.
        boot: the boot folder.

    Raises:
        OSError: the log cannot be written.
    """

    def __init__(self, log: Path, boot: Path) -> None:
        self._log = BoundedLog(
            os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        )
        self._files: list[LoggedFile] = []
        self._given: dict[int, int] = {}  # what the script gets for our descriptor
        ends = []  # where to read, and what to forward it to
        targets = [target for target in (STDOUT, STDERR) if _is_given(target)]
        self._are_one = len(targets) == 2 and os.path.sameopenfile(STDOUT, STDERR)
        for target in targets[:1] if self._are_one else targets:
            file = _open_file(target)
            if file is None:
                read_end, self._given[target] = _pipe_like(target)
                ends.append((read_end, target))
            else:
                self._files.append(LoggedFile(file, self._log))
                self._files[-1].start()
        self._relay = Relay(self._log, str(boot), ends)

    def stream(self, target: int) -> int | None:
        """Return what the run gets as its stdout (1) or stderr (2); None for our own."""
        return self._given.get(STDOUT if self._are_one else target)

    def resize(self) -> bool:
        """Follow a change of our terminal's size; return whether there was one."""
        resized = [
            _copy_window_size(ours, given) for ours, given in self._given.items()
        ]
        return any(resized)

    def close(self) -> None:
        """Return when all that the run has written is forwarded and logged.

        Children that it left behind may still write.
        """
        for given in self._given.values():
            os.close(given)
        for logged in self._files:
            logged.finish()
        self._relay.finish()
        self._log.close()


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
        written = status.st_size if appends else os.lseek(target, 0, os.SEEK_CUR)
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
        master, slave = os.openpty()
    except OSError:  # the system has no more of them
        return os.pipe()
    with suppress(termios.error):
        attributes = termios.tcgetattr(target)
        attributes[1] &= ~termios.OPOST  # our own terminal turns \n into \r\n, once
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
    _copy_window_size(target, slave)
    return master, slave


def _copy_window_size(source: int, target: int) -> bool:
    with suppress(OSError):
        wanted, current = (
            fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))
            for terminal in (source, target)
        )
        fcntl.ioctl(target, termios.TIOCSWINSZ, wanted)
        return wanted != current
    return False


# --- the log, and files of which it gets a copy


class BoundedLog:
    """The first and the last 8 MB of what is written to it; takes over an open file's descriptor.

    The head is on disk as soon as it is complete lines; the tail follows at the end, after a line
    that says how much is missing. What the file holds already counts as head.
    """

    def __init__(
        self, descriptor: int, head: int = HEAD_BYTES, tail: int = TAIL_BYTES
    ) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()
        self._is_open = True
        self._head_left = max(0, head - os.fstat(descriptor).st_size)
        self._tail_limit = tail
        self._tail = bytearray()
        self._left_out = 0

    def close(self) -> None:
        """Write the tail; what comes after that is not kept."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._shorten_tail()
            if self._left_out:
                self._append(
                    b"\n[fp8verify: %d bytes left out here]\n" % self._left_out
                )
            self._append(bytes(self._tail))
            os.close(self.descriptor)

    def write(self, data: bytes) -> None:
        """Append `data`; from whatever thread."""
        with self._lock:
            if not self._is_open:
                return
            head = data[: self._head_left]
            rest = data[self._head_left :]
            self._head_left -= len(head)
            self._append(head)
            self._tail += rest
            if len(self._tail) > 2 * self._tail_limit:  # seldom: all of it is moved
                self._shorten_tail()

    def _shorten_tail(self) -> None:
        excess = max(0, len(self._tail) - self._tail_limit)
        self._left_out += excess
        del self._tail[:excess]

    def _append(self, data: bytes) -> None:
        # If the disk is full, the rest of the log is lost and the run goes on.
        with suppress(OSError):
            while data:
                data = data[os.write(self.descriptor, data) :]


class LineAssembler:
    """Hand on the bytes of one stream in whole lines, so streams do not mix in one.

    A progress bar's carriage return ends a line too; one of more than 64 KB is broken.

    Args:
        take: gets the lines.
    """

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take
        self._partial = b""

    def write(self, data: bytes) -> None:
        """Append `data` to the stream."""
        data = self._partial + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > MAX_LINE:
            end = len(data)
        if end:
            self._take(data[:end])
        self._partial = data[end:]

    def flush(self) -> None:
        """Hand on what is left of an unfinished line."""
        if self._partial:
            self._take(self._partial + b"\n")
            self._partial = b""


class LoggedFile(threading.Thread):
    """Copies into a log what a regular file gets from now on; takes over its descriptor."""

    def __init__(self, file: int, log: BoundedLog) -> None:
        super().__init__(daemon=True)
        self._file = file
        self._log = log
        self._over = threading.Event()

    def run(self) -> None:
        """Read until `finish` is called, and then to the end of the file."""
        lines = LineAssembler(self._take)
        while True:
            is_over = self._over.is_set()
            with suppress(OSError):
                if data := self._read():
                    lines.write(data)
                    continue
            if is_over:
                break
            self._over.wait(FILE_POLL_S)
        lines.flush()
        os.close(self._file)

    def _read(self) -> bytes:
        data = os.read(self._file, CHUNK)
        if not data:
            at = os.lseek(self._file, 0, os.SEEK_CUR)
            size = os.fstat(self._file).st_size
            if size < at:  # somebody emptied it
                os.lseek(self._file, 0, os.SEEK_SET)
                data = os.read(self._file, CHUNK)
        return data

    def _take(self, lines: bytes) -> None:
        import re  # which a standby does not need

        self._log.write(
            re.sub(rb"(?m)^fp8verify: .*\n?", b"", lines)
        )  # the runner's own

    def finish(self) -> None:
        """Return when the file is read to its end, or a child that prints on takes too long."""
        self._over.set()
        self.join(FINISH_S)


# --- pipes and terminals


class Stream(threading.Thread):
    """Reads one end and writes to one target until no process holds the other end.

    Args:
        read_end: a pipe or pseudo-terminal, closed once there is nothing to read any more.
        target: where everything goes.
        log: gets the same.
        leave: closed on its other side when only what was written until now is wanted.
        on_broken: called where the target has no reader any more.

    Attributes:
        is_open: whether some process may still write.
        ends_line: whether what was written last ended a line.
    """

    def __init__(
        self,
        read_end: int,
        target: int,
        log: BoundedLog,
        leave: int,
        on_broken: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self.read_end = read_end
        self.target = target
        self.is_open = True
        self.ends_line = True
        self._is_terminal = os.isatty(target)
        self._log = LineAssembler(log.write)
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
    """Forwards and logs the streams of a run, once the standby is there.

    Args:
        log: the log.
        boot: the boot folder.
        ends: where to read, and what to forward it to.
    """

    def __init__(
        self, log: BoundedLog, boot: str, ends: Sequence[tuple[int, int]]
    ) -> None:
        self._log = log.descriptor
        self._boot = boot
        self._leave, self._wake = os.pipe()
        self._streams = [
            Stream(read_end, target, log, self._leave, self._restart_standby)
            for read_end, target in ends
        ]
        self._standby: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # of the standby, and whether there is to be one
        self._is_over = False
        self._start_standby()
        threading.Thread(target=self._keep_standby, daemon=True).start()
        for stream in self._streams:
            stream.start()

    def join(self) -> None:
        """Return when no process can write any more."""
        for stream in self._streams:
            stream.join()

    def finish(self) -> None:
        """Return when all that was written until now is forwarded.

        Children that the run left behind may still write; the standby stays for them.
        """
        os.close(self._wake)
        self.join()
        os.close(self._leave)
        for stream in self._streams:
            if not stream.ends_line:
                leave_open_line(stream.target)
        with self._lock:
            self._is_over = True
            left = [stream.read_end for stream in self._streams if stream.is_open]
            for read_end in left:
                os.close(read_end)
            if self._standby is None or self._standby.stdin is None:
                return
            if left:
                with suppress(OSError):  # it was killed
                    os.write(self._standby.stdin.fileno(), ENDED)
            else:
                self._standby.kill()
            self._standby.stdin.close()

    def _keep_standby(self) -> None:
        """Start another standby if one was killed."""
        for _ in range(MOST_STANDBYS):
            if self._standby is None:  # none is needed, or no process can be started
                return
            self._standby.wait()
            with self._lock:
                if self._is_over:
                    return
                self._start_standby()

    def _restart_standby(self) -> None:
        """Let no standby hold an end that the script is to see closed."""
        with self._lock:
            if self._standby is not None:
                self._standby.kill()

    def _start_standby(self) -> None:
        ends = [stream for stream in self._streams if stream.is_open]
        words = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            START,
            PACKAGE,
            str(self._log),
            self._boot,
        ]
        words += [f"{stream.read_end}:{stream.target}" for stream in ends]
        # In a session of its own: Ctrl-C, Ctrl-Z and a hang-up are not for it.
        how = {
            "pass_fds": [self._log, *(s.read_end for s in ends)],
            "start_new_session": True,
        }
        self._standby = start_helper(words, NOT_FOR_STANDBY, **how) if ends else None


def start_helper(
    words: Sequence[str], blocked: Sequence[signal.Signals], **how: Any
) -> subprocess.Popen[bytes] | None:
    """Start a process in which some signals stay pending, and which knows by its stdin that we end.

    None if no process can be started.
    """
    import subprocess  # which a standby seldom needs

    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        return subprocess.Popen(words, stdin=subprocess.PIPE, cwd="/", **how)  # noqa: S603 - ours
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    """Take over from the process that started us, as its command line says, once it is gone."""
    log, boot, *words = sys.argv[1:]
    has_ended = os.read(0, 1) == ENDED
    if has_ended:  # what comes after the end of the script is not logged
        os.dup2(os.open(os.devnull, os.O_WRONLY), int(log))
    bounded = BoundedLog(int(log))
    ends = [
        (int(read_end), int(target))
        for read_end, target in (w.split(":") for w in words)
    ]
    relay = Relay(bounded, boot, ends)
    relay.join()
    bounded.close()
    relay.finish()
    if not has_ended:
        import shutil  # seldom needed: the runner was killed and could not

        shutil.rmtree(boot, ignore_errors=True)


# --- lines of ours


# Whether the run ended amid a line on standard error, as a progress bar does.
_is_amid_line = [False]


def leave_open_line(target: int) -> None:
    """Note that what the run wrote to a descriptor does not end a line."""
    with suppress(OSError):  # one of them is closed
        alike = os.isatty(target) and os.isatty(STDERR)
        if target == STDERR or alike or os.path.sameopenfile(target, STDERR):
            _is_amid_line[0] = True


def own_line() -> str:
    """Return what begins a line of ours on standard error: once a line end if the run's is open."""
    is_amid = _is_amid_line[0]
    _is_amid_line[0] = False
    return "\n" if is_amid else ""


def say(text: str) -> None:
    """Write a line of ours; if that cannot be, the run goes on without it."""
    if sys.stderr is None:  # it is closed (`2>&-`)
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{own_line()}fp8verify: {text}\n")
        sys.stderr.flush()
