"""Where the metrics of windows go: a file of JSON lines, or a function."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from fp8verify.errors import UsageError
from fp8verify.files import writing
from fp8verify.record.window_metrics import Sink, WindowMetrics

Destination = str | Path | Sink | Callable[[WindowMetrics], object]


class JsonLines:
    """Appends the metrics of each window to a file as a JSON object."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with writing("metrics", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()

    def write(self, metrics: WindowMetrics) -> None:
        """Append a line; the file is whole after each, and may be moved away between two."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Nothing is left open."""


class Call:
    """Passes the metrics of each window to a function."""

    def __init__(self, function: Callable[[WindowMetrics], object]) -> None:
        self.write = function

    def close(self) -> None:
        """Nothing to do."""


def open_sink(what: Destination) -> Sink:
    """Return the sink of a `FILE.jsonl` or of a function; a sink is itself.

    Raises:
        UsageError: it is neither.
        InputError: the file cannot be written.
    """
    if isinstance(what, str):
        if not what:
            raise UsageError("A sink needs a name.", "Such as fp8.jsonl.")
        if re.match(r"[A-Za-z][\w-]+:", what):
            raise UsageError(
                f"{what[:80]!r} is not a file: metrics are written as JSON lines.",
                "Give FILE.jsonl; docs/recipes.md has recipes for TensorBoard, W&B and others.",
            )
    if isinstance(what, (str, Path)):
        return JsonLines(what)
    if isinstance(what, Sink):
        return what
    if callable(what):
        return Call(what)
    raise UsageError(f"{type(what).__name__} is not a sink.", "Give a file or a function.")
