"""What this process has to say about itself: `rankR.meta.json` beside the traces."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from .capture import CaptureFiles
from .clock import Clock
from .process import environment, rank_and_world_size

SCHEMA = 1
MAX_NOTES = 32
HEARTBEAT_S = 10.0  # how stale the step count of a process that was killed may be


class Record:
    """The windows, modules and notes of one rank; on disk from the first step on.

    A window's state is one of: "never" (not reached), "cut" (begun, not finished), "complete",
    "dropped" (its trace was lost), "skipped" (not begun, for the reason given).
    """

    def __init__(self, config: dict[str, Any], clock: Clock) -> None:
        self.rank = 0
        self.modules: list[dict[str, Any]] = []
        self._config = config
        self._clock = clock
        self._world_size = 1
        self._notes: list[str] = []
        self._files: CaptureFiles | None = None
        self._written_at = 0.0
        self._windows: list[dict[str, Any]] = [
            {"first": first, "last": last, "state": "never", "reason": None, "trace": None}
            for first, last in config["windows"]
        ]

    def claim(self) -> None:
        """Take this rank's files in the capture folder; further calls do nothing."""
        self._files = self.files

    @property
    def files(self) -> CaptureFiles:
        """The rank's files in the capture folder."""
        if self._files is None:
            self.rank, self._world_size = rank_and_world_size()
            self._files = CaptureFiles(Path(self._config["capture"]), self.rank)
        return self._files

    def note(self, text: str) -> None:
        """Keep a remark for the reader of the report; repetitions and floods are dropped."""
        if text not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    def mark(self, window: int, state: str, reason: str | None, trace: str | None = None) -> None:
        """Set what became of the window of that index, and write it down."""
        self._windows[window].update(state=state, reason=reason, trace=trace)
        self.write()

    def mark_unreached(self, state: str, reason: str) -> None:
        """Set the state of every window that has not begun."""
        for window in self._windows:
            if window["state"] == "never":
                window.update(state=state, reason=reason)

    def fail(self, reason: str) -> None:
        """Give up every window that is not finished, and write that down."""
        self.mark_unreached("dropped", reason)
        for window in self._windows:
            if window["state"] == "cut" and window["trace"] is None:
                window.update(state="dropped", reason=reason)
        self.write()

    def write_if_stale(self) -> None:
        """Write again if the file on disk has grown old."""
        if time.monotonic() - self._written_at > HEARTBEAT_S:
            self.write()

    def write(self, *, ended: bool = False) -> None:
        """Write the meta file; `ended` says that the process is about to exit."""
        seen = "the run ended" if ended else "the process was last seen"
        self.mark_unreached("never", f"{seen} after step {self._clock.steps}")
        self.files.write_meta(
            {
                "schema": SCHEMA,
                "rank": self.rank,
                "world_size": self._world_size,
                "pid": os.getpid(),
                "window": self._windows,
                "steps_seen": self._clock.steps,
                "steps_skipped": self._clock.skipped,
                "clock": self._clock.source,
                "optimizer_updates": self._clock.updates,
                "framework_step": None,
                "notes": [*self._notes, *self._clock.notes],
                "modules": self.modules,
                "environment": environment(),
            }
        )
        self._written_at = time.monotonic()
