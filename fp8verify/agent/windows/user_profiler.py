"""Share the one profiler of the process with a script that profiles itself.

Kineto lets a second profiler cancel the first without an error; stopping the cancelled one then
raises (torch 2.11) or crashes the process (torch 2.13). The script's own profiler always wins, and
where it runs over a window of ours, the trace that it exports is copied into the capture.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch.profiler import _KinetoProfile

from ..observe import observe, unobserve

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


class ProfilerArbiter:
    """Know whether a profiler other than ours is prepared or running.

    `on_foreign` is called right before a profiler of the script is prepared.

    Attributes:
        script: what the script's profiler recorded and exported.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        self.script = ScriptProfiler()
        self._on_foreign = on_foreign
        self._calls = threading.local()
        self._foreign: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Watch the methods through which every front end of torch's profiler passes."""
        observe(autograd_profiler.profile, "_prepare_trace", self._preparing)
        observe(autograd_profiler.profile, "_start_trace", self._starting)
        observe(autograd_profiler.profile, "export_chrome_trace", self._exporting)

    def uninstall(self) -> None:
        """Stop watching."""
        for method in ("_prepare_trace", "_start_trace", "export_chrome_trace"):
            unobserve(autograd_profiler.profile, method)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark what this thread does inside as our own doing."""
        self._calls.ours = True
        try:
            yield
        finally:
            self._calls.ours = False

    @property
    def busy(self) -> bool:
        """Whether a profiler of the script is prepared or running, on whatever thread.

        torch's own flag is not set while one warms up; a profiler has results once it stopped.
        """
        return bool(autograd_profiler._is_profiler_enabled) or any(
            getattr(profile, "kineto_results", None) is None for profile in self._foreign
        )

    def _preparing(self, profile: Any) -> None:
        if not getattr(self._calls, "ours", False):
            self._on_foreign()
            self._foreign.add(profile)

    def _starting(self, profile: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            if not getattr(self._calls, "ours", False):
                self.script.starts(profile)

    def _exporting(self, profile: Any) -> None:
        with suppress(Exception):
            self.script.exports(profile)
