"""What the script's own profiler records and where it writes it, without touching either.

Its trace is evidence like ours: where it runs over a window of ours, the file that it exports is
copied into the capture.
"""

from __future__ import annotations

import os
import shutil
import sys
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler import _KinetoProfile

MAX_FRAMES = 8
MAX_SESSIONS = 8  # kept; a script may profile a few steps again and again
MAX_COPY_BYTES = 1 << 30


class ScriptSession:
    """One recording of the script's profiler.

    Attributes:
        first: the first step that it saw whole.
        last: the last one, None while it records.
        path: where the script exported it to, None if it has not.
        kept: whether its trace is in the capture.
    """

    def __init__(self, profile: Any, steps: int) -> None:
        self.first = steps + 1
        self.last: int | None = None
        self.path: Path | None = None
        self.kept = False
        self._profile = weakref.ref(profile)
        self._sees_gpu = getattr(profile, "use_device", None) == "cuda"

    def is_of(self, profile: Any) -> bool:
        """Whether `profile` made it."""
        return self._profile() is profile

    def look(self, steps: int) -> None:
        """Note that it has ended, if it has, with `steps` steps complete."""
        if self.last is None and getattr(self._profile(), "kineto_results", self) is not None:
            self.last = steps

    def overlaps(self, first: int, last: int) -> bool:
        """Whether it ended and holds a step of the window, and its GPU kernels if there is one."""
        proves = self._sees_gpu or not torch.cuda.is_available()
        return proves and self.last is not None and self.first <= last and first <= self.last

    def copy(self, target: Path) -> None:
        """Copy the exported trace to `target`, which appears when it is whole.

        Raises:
            OSError: it is not there, or cannot be copied.
        """
        if self.path is None:
            raise FileNotFoundError
        partial = target.with_name(f".{target.name}")
        try:
            if self.path.stat().st_size > MAX_COPY_BYTES:
                os.link(self.path, partial)
            else:
                shutil.copyfile(self.path, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


class ScriptProfiler:
    """The latest recordings of the script's profiler.

    Attributes:
        sessions: in the order in which they began.
        steps: how many are complete.
    """

    def __init__(self) -> None:
        self.sessions: list[ScriptSession] = []
        self.steps = 0

    def look(self, steps: int) -> None:
        """Take note of what happened before the step that is now complete."""
        for session in self.sessions:
            session.look(steps - 1)
        self.steps = steps

    def starts(self, profile: Any) -> None:
        """Hear that one begins to record."""
        self.sessions = [*self.sessions[1 - MAX_SESSIONS :], ScriptSession(profile, self.steps)]

    def exports(self, profile: Any) -> None:
        """Hear that one is exported; the path is among the variables of torch's front end."""
        for session in self.sessions:
            if session.is_of(profile):
                session.look(self.steps)
                session.path = _path_in(sys._getframe(1)) or session.path

    def over(self, first: int, last: int) -> list[ScriptSession]:
        """Return those that recorded steps of a window."""
        return [session for session in self.sessions if session.overlaps(first, last)]


def _path_in(frame: FrameType | None) -> Path | None:
    exporting = _KinetoProfile.export_chrome_trace.__code__
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code is exporting:
            path = frame.f_locals.get("path")
            # Absolute now: the script may change its working directory.
            return Path(path).absolute() if isinstance(path, (str, os.PathLike)) else None
        frame = frame.f_back
    return None
