"""Files that only their user may read, whatever the umask: others work on the machine too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

MODE = 0o600
FLAGS = {
    "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
}


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file to write ("wb") or append to ("ab"); a new one is for its user alone.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, FLAGS[mode], MODE)
    return os.fdopen(descriptor, mode)
