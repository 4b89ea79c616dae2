"""The pipes and pseudo-terminals into which the run writes instead of our stdout and stderr."""

from __future__ import annotations

import fcntl
import os
import termios
from contextlib import suppress

STDOUT, STDERR = 1, 2


class Channel:
    """Carries what the run writes to one of our own descriptors.

    Attributes:
        target: that descriptor.
        read_end: where a `Carrier` reads.
        write_end: what the run gets as its stdout or stderr.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.is_terminal = os.isatty(target)
        self.read_end, self.write_end = _pseudo_terminal(target) if self.is_terminal else os.pipe()

    def resize(self) -> bool:
        """Give the run's terminal the size of ours; return whether it had another one."""
        return self.is_terminal and _copy_window_size(self.target, self.write_end)


def open_channels() -> dict[int, Channel]:
    """Return a channel for each of stdout and stderr that is open, the same one for one file."""
    targets = [target for target in (STDOUT, STDERR) if is_given(target)]
    channels = {target: Channel(target) for target in targets[:1]}
    if len(targets) > 1:
        same = os.path.sameopenfile(STDOUT, STDERR)
        channels[STDERR] = channels[STDOUT] if same else Channel(STDERR)
    return channels


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
