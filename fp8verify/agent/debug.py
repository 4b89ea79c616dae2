"""The debug log of the agent in this process, with times and tracebacks: `run --debug`.

Every process that imports torch writes a file of its own. The file is opened for each line, so
a forked child writes into its own file and nothing is left open in its process.
"""

from __future__ import annotations

import os
import threading
import traceback
from datetime import datetime, timezone
from pathlib import Path

from .config import Config
from .guard import quietly
from .private import open_private

AGENT = Path(__file__).parent
MAX_BYTES = 1 << 20
MORE = "run --debug keeps the traceback"


class DebugLog:
    """The debug log of this process; until `open` is called with it wanted, it writes nothing."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._left = 0

    def open(self, config: Config) -> None:
        """Write from here on, if the boot folder's `config` wants it."""
        self._folder = Path(config["capture"]) if config["debug"] else None
        self._left = MAX_BYTES

    @property
    def name(self) -> str:
        """The name of this process's file in the capture."""
        return f"debug.{os.uname().nodename.split('.')[0]}-{os.getpid()}.log"

    def event(self, text: str) -> None:
        """Write a line about something that happens a few times in a run."""
        if self._folder is None or self._left <= 0:
            return
        now = datetime.now(timezone.utc)
        thread = threading.current_thread().name
        line = f"{now:%Y-%m-%d %H:%M:%S.%f} {thread}: {text.rstrip()}\n"
        data = line.encode(errors="backslashreplace")[: self._left]
        self._left -= len(data)
        if not self._left:
            data += b"\n(no more is written: the log is full)\n"
        with quietly(OSError), open_private(self._folder / self.name, "ab") as file:
            file.write(data)

    def error(self, what: str) -> None:
        """Write the traceback of the exception that is being handled."""
        self.event(f"{what} failed\n{traceback.format_exc()}")


debug = DebugLog()


def describe(error: BaseException) -> str:
    """Return an error's class, its message and the agent's line that met it."""
    where = "outside of fp8verify"
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).is_relative_to(AGENT):
            where = f"{Path(frame.filename).relative_to(AGENT)}:{frame.lineno}"
    return f"{type(error).__name__}: {error} ({where})"
