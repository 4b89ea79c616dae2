"""Where finished text goes, in which form, how wide, and with colours or without."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from io import TextIOWrapper
from pathlib import Path
from typing import IO, NamedTuple, TextIO

from fp8verify.cli.option import LEAST_WIDTH, MOST_WIDTH
from fp8verify.errors import UsageError

# As `report.forms.NAMES`, which a run would have to wait for.
REPORT_FORMS = ("text", "json", "html", "markdown", "github", "junit", "csv")
_BY_SUFFIX = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".xml": "junit",
}


def form_of(given: str | None, output: Path | None, known: Collection[str]) -> str:
    """Return the form to write: `given`, else that of the suffix of `output`, else text.

    Raises:
        UsageError: the suffix is that of a form of other results.
    """
    if given is not None or output is None:
        return given or "text"
    by_suffix = _BY_SUFFIX.get(output.suffix.lower(), "text")
    if by_suffix in known:
        return by_suffix
    suffixes = [suffix for suffix, form in _BY_SUFFIX.items() if form in known]
    raise UsageError(
        f"{output} would be {by_suffix}, which this result has no form of.",
        f"Let the file end in {' '.join(suffixes)}, or pass --format.",
    )


def emit(text: str, file: Path | None, stream: TextIO | None = None) -> None:
    """Write text whole to `file`, or else to `stream`; a reader that goes away is not an error.

    Args:
        text: what to write.
        file: where to.
        stream: standard output if None; a stream that is closed gets nothing. What standard error
            cannot take, on a full disk, is lost: there is nowhere left to say so.

    Raises:
        UsageError: the file cannot be written.
    """
    if file is not None:
        write_file(file, text)
        return
    stream = stream or sys.stdout
    if stream is None:  # as Python has it where the descriptor is closed
        return
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")  # a terminal may not know every sign
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and stream is not sys.stderr:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_file(path: Path, text: str, mode: str = "w") -> None:
    """Write or append to a file.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write the report to {path}: {error.strerror}",
            "Pass -o a file in a folder that exists and may be written.",
        ) from None


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
