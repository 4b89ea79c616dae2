"""Say a line on standard error, which may be closed, full, or without a reader."""

from __future__ import annotations

import sys
from contextlib import suppress


def log(text: str) -> None:
    """Write a line of ours; where that cannot be, the run goes on without it."""
    if sys.stderr is None:  # it is closed (`2>&-`)
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(f"fp8verify: {text}\n")
        sys.stderr.flush()
