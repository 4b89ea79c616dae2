"""The files of one rank in the capture folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class CaptureFiles:
    """The files of one rank in the capture folder, claimed so that no other process's are hit."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.stem = self._claim(rank)

    def _claim(self, rank: int) -> str:
        # A shell script may train twice: the second process of a rank gets files of its own.
        for stem in (f"rank{rank}", f"rank{rank}-{os.getpid()}"):
            try:
                os.close(os.open(self._meta(stem), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            return stem
        raise FileExistsError(self._meta(f"rank{rank}-{os.getpid()}"))

    def _meta(self, stem: str) -> Path:
        return self.folder / f"{stem}.meta.json"

    def trace_path(self, window: int) -> Path:
        """Return where the trace of the window of that index (from 0) belongs."""
        suffix = f".w{window + 1}" if window else ""
        return self.folder / f"{self.stem}{suffix}.json.gz"

    def write_meta(self, meta: dict[str, Any]) -> None:
        """Replace the meta file in one step, so that a reader never sees half of it."""
        path = self._meta(self.stem)
        partial = path.with_name(f".{path.name}")
        partial.write_text(json.dumps(meta), encoding="utf-8")
        partial.replace(path)

    def note_kineto_call(self) -> None:
        """Leave a count of our profiler's starts and stops for the parent.

        torch 2.13 prints a line on stderr for each; the parent takes as many out of the echo.
        """
        with (self.folder / f".kineto-{os.getpid()}").open("ab") as file:
            file.write(b".")
