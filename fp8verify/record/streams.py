"""What the training gets as stdout and stderr, and where what it writes there is read.

A regular file stays the training's own, and is read from where the training began to write. For a
pipe and a terminal the training gets one of ours, whose other end the relay reads.
"""

from __future__ import annotations

import fcntl
import os
import stat
import termios
from contextlib import suppress

STDOUT, STDERR = 1, 2


class OutputStream:
    """Where the training writes instead of one of our own descriptors.

    Attributes:
        target: that descriptor.
        is_file: whether it is a regular file, which the training gets as it is.
        read_end: where the relay reads.
        write_end: what the training gets; None for the target itself.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.is_terminal = os.isatty(target)
        self.write_end: int | None = None
        found = _open_file(target)
        self.is_file = found is not None
        if found is not None:
            self.read_end = found
        elif self.is_terminal:
            self.read_end, self.write_end = _pseudo_terminal(target)
        else:
            self.read_end, self.write_end = os.pipe()

    def resize(self) -> bool:
        """Give the training's terminal the size of ours; return whether it had another one."""
        if not self.is_terminal or self.write_end is None:
            return False
        return _copy_window_size(self.target, self.write_end)


def open_streams() -> dict[int, OutputStream]:
    """Return a stream for each of stdout and stderr that is open, the same one for one file."""
    targets = [target for target in (STDOUT, STDERR) if is_given(target)]
    streams = {target: OutputStream(target) for target in targets[:1]}
    if len(targets) > 1:
        same = os.path.sameopenfile(STDOUT, STDERR)
        streams[STDERR] = streams[STDOUT] if same else OutputStream(STDERR)
    return streams


def reserve_closed_streams() -> None:
    """Keep files of ours from taking the places of standard streams that are closed (`>&-`).

    What takes them here is closed in the run, whose streams are then closed as without us.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)  # which `exec` closes
        if descriptor > STDERR:
            os.close(descriptor)
            return


def is_given(descriptor: int) -> bool:
    """Return whether a standard stream was open when we were started."""
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
