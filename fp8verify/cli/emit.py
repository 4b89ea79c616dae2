"""Where finished text goes: standard output, or a file."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

from fp8verify.errors import UsageError


def emit(text: str, file: Path | None) -> None:
    """Write text whole; a reader that goes away is no error.

    Raises:
        UsageError: the file cannot be written.
    """
    if file is not None:
        write_file(file, text)
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every sign
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
