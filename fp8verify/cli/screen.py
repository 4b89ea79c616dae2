"""Where text goes: how wide it is, and whether it shows colours."""

from __future__ import annotations

import os
import sys
from typing import IO, NamedTuple

from fp8verify.cli.option import LEAST_WIDTH, MOST_WIDTH


class Screen(NamedTuple):
    """What the text is for.

    Attributes:
        terminal: whether it shows colours.
        width: its columns, None for the terminal's own.
    """

    terminal: bool
    width: int | None


def screen(file: object, width: int | None = None, stream: IO[str] | None = None) -> Screen:
    """Say what the text of a command is for.

    Colours are for terminals, and for pipes where FORCE_COLOR is set (force-color.org); a pipe is
    as wide as COLUMNS says.

    Args:
        file: the file that -o names; None for `stream`.
        width: what --width says.
        stream: where text without a file goes, standard output by default.
    """
    stream = stream or sys.stdout
    # Python has no stream where the descriptor is closed.
    terminal = file is None and stream is not None and stream.isatty()
    forced = file is None and bool(os.environ.get("FORCE_COLOR"))
    return Screen(terminal or forced, width or _columns() or (None if terminal else 80))


def _columns() -> int | None:
    """Return what COLUMNS says, if it says a width that text can have."""
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() and LEAST_WIDTH <= int(said) <= MOST_WIDTH else None
