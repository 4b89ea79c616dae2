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

from ..debug import debug
from ..observe import observe, unobserve
from ..record import RankRecord, Window
from .plan import Plan

MAX_FRAMES = 8
MAX_SESSIONS = 8  # kept; a script may profile a few steps again and again
MAX_COPY_BYTES = 1 << 30
RUNNING = "the script's own profiler was running"


class ScriptSession:
    """One recording of the script's profiler.

    Attributes:
        first: the first step that it saw whole.
        last: the last one, None while it records.
        path: where the script exported it to, None if it has not.
        kept: whether its trace is in the capture.
        profile: a weak reference to the script's profiler.
    """

    def __init__(self, profile: Any, steps: int) -> None:
        self.first = steps + 1
        self.last: int | None = None
        self.path: Path | None = None
        self.kept = False
        self.profile = weakref.ref(profile)
        self._sees_gpu = getattr(profile, "use_device", None) == "cuda"

    def look(self, steps: int) -> None:
        """Note that it has ended, if it has, with `steps` steps complete."""
        if self.last is None and getattr(self.profile(), "kineto_results", self) is not None:
            self.last = steps

    def overlaps(self, window: Window) -> bool:
        """Whether it ended and holds a step of the window, and its GPU kernels if there is one."""
        if self.last is None or not (self._sees_gpu or not torch.cuda.is_available()):
            return False
        return bool(self.first <= window["last"] and window["first"] <= self.last)

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


def _path_in(frame: FrameType | None) -> Path | None:
    """Return the path among the variables of torch's front end, which is exporting."""
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
    """Know whether a profiler other than ours is prepared or running, and what it recorded.

    `on_foreign` is called right before a profiler of the script is prepared.

    Attributes:
        sessions: the latest recordings of the script's profiler, in the order they began.
        steps: how many are complete.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        self.sessions: list[ScriptSession] = []
        self.steps = 0
        self._on_foreign = on_foreign
        self._calls = threading.local()
        self._foreign: weakref.WeakSet[Any] = weakref.WeakSet()
        # The methods through which every front end of torch's profiler passes.
        self._listeners = {
            "_prepare_trace": self._preparing,
            "_start_trace": self._starting,
            "export_chrome_trace": self._exporting,
        }

    def install(self) -> None:
        """Watch the script's profilers."""
        for method, listener in self._listeners.items():
            observe(autograd_profiler.profile, method, listener)

    def uninstall(self) -> None:
        """Stop watching."""
        for method in self._listeners:
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

    def look(self, steps: int) -> None:
        """Take note of what happened before the step that is now complete."""
        for session in self.sessions:
            session.look(steps - 1)
        self.steps = steps

    def over(self, window: Window) -> list[ScriptSession]:
        """Return the recordings that hold steps of a window."""
        return [session for session in self.sessions if session.overlaps(window)]

    def _preparing(self, profile: Any) -> None:
        if not getattr(self._calls, "ours", False):
            self._on_foreign()
            self._foreign.add(profile)

    def _starting(self, profile: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            if not getattr(self._calls, "ours", False):
                session = ScriptSession(profile, self.steps)
                self.sessions = [*self.sessions[1 - MAX_SESSIONS :], session]

    def _exporting(self, profile: Any) -> None:
        with suppress(Exception):
            for session in self.sessions:
                if session.profile() is profile:
                    session.look(self.steps)
                    session.path = _path_in(sys._getframe(1)) or session.path


class SharedWindows:
    """The windows that wait for the script's profiler to end, or for the trace that it exports.

    A trace of the script's over steps of a window is copied into the capture. Where it does not
    reach the window's last step, the window moves to the first steps after it, once.
    """

    def __init__(self, plan: Plan, record: RankRecord, arbiter: ProfilerArbiter) -> None:
        self._plan = plan
        self._record = record
        self._arbiter = arbiter
        self._waiting: dict[int, bool] = {}  # and whether the window may move
        self._moved: set[int] = set()
        self._kept = 0

    def wait(self, window: int, *, may_move: bool) -> None:
        """Let a window, which is over or cannot begin, wait for the script's profiler."""
        self._waiting[window] = may_move and window not in self._moved

    @property
    def waiting(self) -> bool:
        """Whether any window waits."""
        return bool(self._waiting)

    def settle(self, step: int) -> None:
        """Decide what can be decided when `step` steps are complete, unless a profiler runs."""
        if not self._waiting or self._arbiter.busy:
            return
        for window, may_move in list(self._waiting.items()):
            sessions = self._keep(window)
            if any(session.path is None and session.last == step - 1 for session in sessions):
                continue  # it ended since the last step, and may be exported before the next one
            del self._waiting[window]
            end = self._plan.windows[window]["last"]
            recorded = any(one.kept and (one.last or 0) >= end for one in sessions)
            if may_move and not recorded:
                self._move(window, step)

    def finish(self) -> None:
        """Keep what the script exported up to the end of the run."""
        self._arbiter.look(self._arbiter.steps + 1)
        for window in self._waiting:
            self._keep(window)
        self._waiting.clear()

    def _keep(self, window: int) -> list[ScriptSession]:
        """Copy the traces over a window, and return their recordings."""
        sessions = self._arbiter.over(self._plan.windows[window])
        for session in sessions:
            if session.path is None or session.kept:
                continue
            target = self._record.files.script_path(self._kept + 1, session.path)
            try:
                session.copy(target)
            except OSError as error:
                debug.error("copying the trace of the script's own profiler")
                self._record.note(
                    "the trace of the script's own profiler could not be copied: "
                    f"{error.strerror or error}"
                )
                session.path = None
                continue
            session.kept, self._kept = True, self._kept + 1
            self._enter(window, session, target.name)
        return sessions

    def _enter(self, window: int, session: ScriptSession, trace: str) -> None:
        first, last = session.first, session.last or session.first
        self._record.note(
            f"steps {first}-{last} were recorded by the script's own profiler, "
            f"whose trace {str(session.path)[-200:]} was copied"
        )
        planned = self._plan.windows[window]
        if self._waiting[window] and last >= planned["last"]:
            more = {"first": first, "last": last, "trace": trace, "profiler": "script"}
            self._record.mark(planned, "complete", None, **more)
        else:
            self._record.add_script_window(first, last, trace)

    def _move(self, window: int, step: int) -> None:
        planned = self._plan.windows[window]
        first, last = planned["first"], planned["last"]
        moved = (step + 2, step + 2 + last - first)
        later = [other["first"] for other in self._plan.windows if other["first"] > step]
        if later and moved[1] >= min(later) - 1:
            return  # those steps lie before or in another window
        self._moved.add(window)
        planned.update(first=moved[0], last=moved[1], state="never", reason=None)
        self._record.note(
            f"{RUNNING} when window {first}-{last} was to begin: steps {moved[0]}-{moved[1]} were "
            "chosen instead"
        )
