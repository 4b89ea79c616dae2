"""What the recorders of a window share: its state, its thread, and the step that is open."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from ..patches import call_on_main_thread
from .ranges import OpenRanges


class _ThreadEnd:
    """Deleted by a thread that ends, as all that is local to it."""

    def __init__(self, session: WindowSteps) -> None:
        self._session = session

    def __del__(self) -> None:
        with suppress(Exception):
            self._session.stop_on_its_thread()


class WindowSteps:
    """The base of `Session` and `OutsideSession`, which say how a step is marked.

    Attributes:
        state: "new", "prepared", "recording", "stopped" or "dropped".
        sees_gpu: whether torch finds a GPU, once prepared.
    """

    def __init__(self, ranges: OpenRanges, *, record_shapes: bool) -> None:
        self.state = "new"
        self.sees_gpu: bool | None = None
        self._ranges = ranges
        self._record_shapes = record_shapes
        self._thread = 0
        self._step: Any = None
        self._number = 0
        self._local: Any = None

    def begin_step(self, step: int) -> None:
        """Put what follows into the step of that number, as torch.profiler itself names it."""
        if step == self._number:
            return
        self.end_step()
        self._number = step
        self._step = self._open_step(f"ProfilerStep#{step}")

    def end_step(self) -> None:
        """Close the current step."""
        if self._step is not None:
            self._close_step(self._step)
            self._step = None

    @property
    def on_its_thread(self) -> bool:
        """Whether this thread began the window: no other one may end it."""
        return self._thread == threading.get_ident()

    def _is_now(self, state: str) -> None:
        """Note that this thread has prepared the recorder or begun to record."""
        self.state, self._thread = state, threading.get_ident()

    def stop(self) -> None:
        """Stop recording; only the thread that began may do so."""
        raise NotImplementedError

    def stop_when_possible(self) -> None:
        """Have its own thread stop a recording that is lost, if that is the main thread: soon.

        Another thread stops it at its next hook, or when it ends.
        """
        if self._thread == threading.main_thread().ident:
            call_on_main_thread(self.stop_on_its_thread)

    def stop_on_its_thread(self) -> bool:
        """Stop a recording that is lost if this thread may; return whether it records no more."""
        if self.state == "recording" and self.on_its_thread:
            self.stop()
        return self.state != "recording"

    def _stop_with_thread(self) -> None:
        """Have the recording stopped when this thread ends, before torch's state of it is freed."""
        if threading.current_thread() is not threading.main_thread():
            self._local = threading.local()
            self._local.end = _ThreadEnd(self)

    def _open_step(self, name: str) -> Any:
        """Mark the begin of a step; return what `_close_step` needs, None if nothing."""
        raise NotImplementedError

    def _close_step(self, step: Any) -> None:
        raise NotImplementedError
