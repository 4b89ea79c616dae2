"""Where lines of metrics go: files and functions. `fp8verify.integrations` has other places."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from fp8verify.errors import InputError
from fp8verify.record.live.metrics import WindowMetrics


@runtime_checkable
class Sink(Protocol):
    """Takes the line of each window, in their order."""

    def write(self, metrics: WindowMetrics) -> None:
        """Take a line."""

    def close(self) -> None:
        """Finish: no more lines come."""


@contextmanager
def _refused_early(path: Path) -> Iterator[None]:
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
        with _refused_early(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()

    def write(self, metrics: WindowMetrics) -> None:
        """Append a line; the file is whole after each, and may be moved away between two."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Nothing is left open."""


class Call:
    """Hands each line to a function."""

    def __init__(self, function: Callable[[WindowMetrics], object]) -> None:
        self._function = function

    def write(self, metrics: WindowMetrics) -> None:
        """Call it."""
        self._function(metrics)

    def close(self) -> None:
        """Nothing to do."""
