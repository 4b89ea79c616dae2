"""Make the capture folder without touching what is there already."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fp8verify.errors import InputError

PRIVATE = 0o700


def make_capture_folder(wanted: Path | None) -> Path:
    """Return the absolute path of a folder for a new capture.

    Args:
        wanted: where; None makes `fp8verify-capture-<UTC time>-<pid>` in the current directory.

    Raises:
        InputError: if it cannot be made, or holds files already.
    """
    folder = (wanted or Path(_default_name())).absolute()
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        in_use = any(folder.iterdir())
    except OSError as error:
        raise InputError(
            f"Cannot make the capture folder {folder}: {error.strerror}.",
            "Name a folder that can be written with --trace-dir.",
        ) from None
    if in_use:
        raise InputError(
            f"The folder {folder} is not empty.",
            "Name a new one with --trace-dir: a capture is never overwritten.",
        )
    return folder


def _default_name() -> str:
    return f"fp8verify-capture-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
