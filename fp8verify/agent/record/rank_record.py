"""What this process has to say about itself: `rankR.meta.json` beside the traces."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ..steps.clock import Clock
from .debug import debug
from .process import calls, gpu, rank_and_world_size, versions
from .rank_files import RankFiles

SCHEMA = 1
MAX_NOTES = 32
HEARTBEAT_S = 10.0  # how stale the step count of a process that was killed may be


class RankRecord:
    """The windows and notes of one rank and what its instruments saw; on disk from step 1 on.

    `sections` returns what the instruments have to say, `unplaced` the windows whose steps of this
    run are not known, and why; it gets told how the run is known to end.
    A window's state is one of: "never" (not reached), "cut" (begun, not finished), "complete",
    "dropped" (its trace was lost), "skipped" (not begun, for the reason given).
    """

    def __init__(
        self, config: dict[str, Any], clock: Clock, sections: Callable[[], dict[str, Any]]
    ) -> None:
        self.rank = 0
        self._config = config
        self._clock = clock
        self._sections = sections
        self.world_size = 1
        self._notes: list[str] = []
        self._naming: dict[str, Any] | None = None
        self.sees_gpu: bool | None = None
        self.unplaced: Callable[[str], list[tuple[tuple[int, int], str]]] = lambda _: []
        self._left_out: tuple[str, str] | None = None
        self._seen = ""
        self._files: RankFiles | None = None
        self._written_at = 0.0
        self._timed = config["timed_window"]
        self._windows = [_window(first, last) for first, last in config["windows"]]
        self._more_windows: list[dict[str, Any]] = []
        if self._timed:
            self._windows.append(_window(2, 1 + self._timed["steps"]))

    def claim(self) -> None:
        """Take this rank's files in the capture folder; further calls do nothing."""
        self._files = self.files

    @property
    def files(self) -> RankFiles:
        """The rank's files in the capture folder."""
        if self._files is None:
            self.rank, self.world_size = rank_and_world_size()
            self._files = RankFiles(self._config, self.rank)
        return self._files

    def note(self, text: str) -> None:
        """Keep a remark for the reader of the report; repetitions and floods are dropped."""
        if text not in self._notes and len(self._notes) < MAX_NOTES:
            debug.event(f"note: {text}")
            self._notes.append(text)

    def mark(self, window: int, state: str, reason: str | None, **more: Any) -> None:
        """Set what became of the window of that index, and write it down."""
        debug.event(f"window {window + 1} is {state}: {reason or 'nothing is missing'}")
        self._windows[window].update(state=state, reason=reason, **more)
        self.write()

    def move(self, window: int, first: int, last: int) -> None:
        """Give the window of that index other steps, which are still to come."""
        self._windows[window].update(first=first, last=last, state="never", reason=None)

    def shorten(self, window: int, last: int) -> None:
        """Let the window of that index end with another step."""
        self._windows[window]["last"] = last

    @property
    def has_steps(self) -> bool:
        """Whether a trace was written that holds a whole step."""
        windows, steps = [*self._windows, *self._more_windows], self._clock.steps
        return any(window["trace"] and window["first"] <= steps for window in windows)

    def add_window(self, first: int, last: int, asked: tuple[int, int]) -> None:
        """Add a window that was asked for by the framework's numbers, whose steps are known now."""
        window = {**_window(first, last), "asked": asked}
        if self._left_out is not None:
            window.update(state=self._left_out[0], reason=self._left_out[1])
        self._windows.append(window)

    def add_script_window(self, first: int, last: int, trace: str) -> None:
        """Add what the script's own profiler recorded."""
        window = {**_window(first, last), "state": "complete", "trace": trace}
        self._more_windows.append({**window, "profiler": "script"})
        self.write()

    def mark_naming(self, step: int | None, reason: str | None, trace: str | None = None) -> None:
        """Set what became of the step that names the layers of compiled code."""
        debug.event(f"eager step {step}: {reason or 'its trace is written'}")
        self._naming = {"step": step, "trace": trace, "reason": reason}
        self.write()

    def place_timed_window(self, first: int, last: int) -> None:
        """Give the window that was known only by its time its steps."""
        self._windows[-1].update(first=first, last=last)
        self._timed = None

    def mark_unreached(self, state: str, reason: str) -> None:
        """Set the state of every window that has not begun."""
        if state != "never":
            self._left_out = (state, reason)
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
        self._explain_unreached("the run ended" if ended else "the process was last seen")
        try:
            self.files.write_meta(self._state())
        except OSError:  # a full disk is not for ever: it is written again
            debug.error("writing the record")
        self._written_at = time.monotonic()

    def _state(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "rank": self.rank,
            "world_size": self.world_size,
            "window": [*self._windows, *self._more_windows, *self._waiting_windows()],
            "steps_seen": self._clock.steps,
            "steps_skipped": self._clock.skipped,
            "clock": self._clock.source,
            "leader": self._clock.leader,
            "optimizer_updates": self._clock.updates,
            "notes": [
                *self._notes,
                *self._clock.notes,
                *filter(None, [self._clock.note_on_others]),
            ],
            "steps_outside": self._clock.outside.summary(),
            "process": os.getpid(),
            "recording": self._config["recording"],
            "naming": self._naming,
            "api_calls": calls.names,
            "versions": versions(),
            "environment": {**gpu(), "sees_gpu": self.sees_gpu},
            **self._sections(),
        }

    def _waiting_windows(self) -> list[dict[str, Any]]:
        return [
            {
                **_window(*asked),
                "asked": asked,
                "state": self._left_out[0] if self._left_out else "never",
                "reason": self._left_out[1] if self._left_out else reason,
            }
            for asked, reason in self.unplaced(self._seen)
        ]

    def _explain_unreached(self, seen: str) -> None:
        step = self._clock.steps
        self._seen = f"{seen} after step {step}"
        self.mark_unreached("never", self._seen)
        if self._timed and self._windows[-1]["state"] == "never":
            waited = f"before {self._timed['seconds']:g} seconds had passed"
            if self._timed.get("auto"):
                waited = "before its step time was stable"
            late = f"{seen} after step {step}, {waited}"
            first = step + 2
            self._windows[-1].update(
                first=first, last=first + self._timed["steps"] - 1, reason=late
            )


def _window(first: int, last: int) -> dict[str, Any]:
    return {
        "first": first,
        "last": last,
        "state": "never",
        "reason": None,
        "trace": None,
        "profiler": "fp8verify",
        "asked": None,
    }
