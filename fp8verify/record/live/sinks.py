"""Where lines of metrics go: files and functions. `fp8verify.integrations` has other places."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from fp8verify.errors import InputError
from fp8verify.record.live.line import Line


@runtime_checkable
class Sink(Protocol):
    """Takes the line of each window, in their order."""

    def write(self, line: Line) -> None:
        """Take a line."""

    def close(self) -> None:
        """Finish: no more lines come."""


def prepare_folder(folder: Path) -> None:
    """Make a folder into which metrics can be written.

    Raises:
        InputError: they cannot.
    """
    with _told_at_once(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


@contextmanager
def _told_at_once(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Cannot write metrics to {path}: {error.strerror}.",
            "Name a file in a folder that can be written.",
        ) from None


class JsonLines:
    """Appends each line to a file as a JSON object."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with _told_at_once(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()

    def write(self, line: Line) -> None:
        """Append a line; the file is whole after each, and may be moved away between two."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Nothing is left open."""


class Call:
    """Hands each line to a function."""

    def __init__(self, function: Callable[[Line], object]) -> None:
        self._function = function

    def write(self, line: Line) -> None:
        """Call it."""
        self._function(line)

    def close(self) -> None:
        """Nothing to do."""
