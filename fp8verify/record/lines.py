"""Lines of ours on standard error, between what the script prints there."""

from __future__ import annotations

import os
import sys
import termios
from contextlib import suppress

STDERR = 2

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
    if is_amid:
        return "\n"
    return ""


def say(text: str) -> None:
    """Write a line of ours; if that cannot be, the run goes on without it."""
    if sys.stderr is None:  # it is closed (`2>&-`)
        return
    line = f"{own_line()}fp8verify: {text}\n"
    if _is_raw_terminal(STDERR):
        line = line.replace("\n", "\r\n")
    with suppress(OSError, ValueError):
        sys.stderr.write(line)
        sys.stderr.flush()


def _is_raw_terminal(descriptor: int) -> bool:
    """Whether it is a terminal that leaves line ends to whoever writes there."""
    with suppress(termios.error):
        output_flags = termios.tcgetattr(descriptor)[1]
        return not output_flags & termios.OPOST
    return False
