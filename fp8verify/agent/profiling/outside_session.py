"""One window that a profiler around the process records: it is told when, steps and operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .capture_ranges import CaptureRange
from .ranges import OpenRanges
from .session import synchronize
from .window_steps import WindowSteps


class OutsideSession(WindowSteps):
    """A window as `Session`, recorded by Nsight Systems or rocprofv3 and not by Kineto.

    Steps are NVTX ranges (roctx on AMD) that need not nest with those of the script: pushing one
    would have the script's next pop end it. Operators are those of `emit_nvtx`.

    Without a GPU nothing is recorded.

    Attributes:
        profiler: what records, as the record names it.
    """

    def __init__(self, capture: CaptureRange, ranges: OpenRanges, *, record_shapes: bool) -> None:
        super().__init__(ranges, record_shapes=record_shapes)
        self.profiler = capture.name
        self._capture = capture
        self._operators: Any = None

    def prepare(self) -> None:
        """Let the recording begin early where that is needed."""
        self.sees_gpu = torch.cuda.is_available()
        self._capture.expect()
        self._is_now("prepared")

    def start(self, metadata: dict[str, Any]) -> None:  # noqa: ARG002 - a trace of others' has none
        """Record from here on."""
        if self.state != "prepared":
            self.prepare()
        synchronize()  # else kernels launched before appear without the operator that did
        self._ranges.end()
        self._capture.open()
        self._is_now("recording")
        self._stop_with_thread()
        if self.sees_gpu:
            self._operators = torch.autograd.profiler.emit_nvtx(record_shapes=self._record_shapes)
            self._operators.__enter__()
        self._ranges.watch()

    def _open_step(self, name: str) -> Any:
        return torch.cuda.nvtx.range_start(name) if self.sees_gpu else None

    def _close_step(self, step: Any) -> None:
        torch.cuda.nvtx.range_end(step)

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

    def export(self, path: Path, drafts: Path) -> str | None:  # noqa: ARG002 - as `Session`
        """Return no file: the profiler writes its own once the run has ended."""
        return None
