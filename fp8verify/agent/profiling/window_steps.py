"""What the recorders of a window share: its state, its thread, and the step that is open."""

from __future__ import annotations

import threading
from typing import Any

from .ranges import OpenRanges


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

    def _is_prepared(self) -> None:
        self.state, self._thread = "prepared", threading.get_ident()

    def _open_step(self, name: str) -> Any:
        """Mark the begin of a step; return what `_close_step` needs, None if nothing."""
        raise NotImplementedError

    def _close_step(self, step: Any) -> None:
        raise NotImplementedError
