"""Where finished text goes: standard output, or a file."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from fp8verify.errors import UsageError


def emit(text: str, file: Path | None, stream: TextIO | None = None) -> None:
    """Write text whole to `file`, or else to `stream`; a reader that goes away is no error.

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
