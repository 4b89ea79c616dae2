"""The script's stdout and stderr: where it writes, and how that reaches ours and the log.

A regular file stays the script's own, and a thread reads it from where the script began to
write. For a pipe and a terminal the script gets one of ours, whose other end the relay reads.
"""

from __future__ import annotations

import fcntl
import os
import stat
import termios
from contextlib import suppress
from pathlib import Path

from fp8verify.record.folder import writing_to
from fp8verify.record.log import BoundedLog, LoggedFile
from fp8verify.record.output_relay import Relay

STDOUT, STDERR = 1, 2


class Output:
    """The streams of one run and what reads them, before the script starts.

    Args:
        log: the file that gets all that the script writes.
        boot: the boot folder.

    Raises:
        InputError: the log cannot be written.
    """

    def __init__(self, log: Path, boot: Path) -> None:
        with writing_to(log.parent):
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._log = BoundedLog(descriptor)
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
        for logged in self._files:
            logged.start()
        self._relay = Relay(self._log, str(boot), ends)

    def stream(self, target: int) -> int | None:
        """Return what the run gets as its stdout (1) or stderr (2); None for our own."""
        return self._given.get(STDOUT if self._are_one else target)

    def resize(self) -> bool:
        """Follow a change of our terminal's size; return whether there was one."""
        resized = [_copy_window_size(ours, given) for ours, given in self._given.items()]
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
        wanted, found = (
            fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)) for terminal in (source, target)
        )
        fcntl.ioctl(target, termios.TIOCSWINSZ, wanted)
        return wanted != found
    return False
