"""One window that a profiler around the process records: it is told when, steps and operators."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from .capture_ranges import CaptureRange
from .ranges import OpenRanges
from .session import synchronize


class OutsideSession:
    """A window as `Session`, recorded by Nsight Systems or rocprofv3 and not by Kineto.

    Steps are NVTX ranges (roctx on AMD) that need not nest with those of the script: pushing one
    would have the script's next pop end it. Operators are those of `emit_nvtx`.

    Attributes:
        state: "new", "prepared", "recording", "stopped" or "dropped".
        sees_gpu: whether torch finds a GPU, once prepared; without one nothing is recorded.
        profiler: what records, as the record names it.
    """

    def __init__(self, capture: CaptureRange, ranges: OpenRanges, *, record_shapes: bool) -> None:
        self.state = "new"
        self.sees_gpu: bool | None = None
        self.profiler = capture.name
        self._capture = capture
        self._ranges = ranges
        self._record_shapes = record_shapes
        self._operators: Any = None
        self._thread = 0
        self._step: Any = None
        self._number = 0

    def prepare(self) -> None:
        """Let the recording begin early where that is needed."""
        self.sees_gpu = torch.cuda.is_available()
        self._capture.expect()
        self.state, self._thread = "prepared", threading.get_ident()

    def start(self, metadata: dict[str, Any]) -> None:  # noqa: ARG002 - a trace of others' has none
        """Record from here on."""
        if self.state != "prepared":
            self.prepare()
        synchronize()  # else kernels launched before appear without the operator that did
        self._ranges.end()
        self._capture.open()
        self.state = "recording"
        if self.sees_gpu:
            self._operators = torch.autograd.profiler.emit_nvtx(record_shapes=self._record_shapes)
            self._operators.__enter__()
        self._ranges.watch()

    def begin_step(self, step: int) -> None:
        """Put what follows into the step of that number, as torch.profiler itself names it."""
        if step == self._number:
            return
        self.end_step()
        self._number = step
        if self.sees_gpu:
            self._step = torch.cuda.nvtx.range_start(f"ProfilerStep#{step}")

    def end_step(self) -> None:
        """Close the current step."""
        if self._step is not None:
            torch.cuda.nvtx.range_end(self._step)
            self._step = None

    @property
    def on_its_thread(self) -> bool:
        """Whether this thread began the window: operators of no other one are noted."""
        return self._thread == threading.get_ident()

    def stop(self) -> None:
        """Stop recording; waits for the GPU."""
        self._ranges.rest()
        self._ranges.end()
        synchronize()
        self.end_step()
        self.state = "stopped"
        operators, self._operators = self._operators, None
        try:
            if operators is not None:
                operators.__exit__(None, None, None)
        finally:
            self._capture.close()

    def drop(self) -> None:
        """End the recording; what was recorded stays, without being a window."""
        self._ranges.rest()
        if self.state == "recording" and self.on_its_thread:
            self.stop()
        self._capture.rest()
        self.state = "dropped"

    def export(self, path: Path) -> str | None:  # noqa: ARG002 - as `Session`
        """Return no file: the profiler writes its own once the run has ended."""
        return None
