"""Scalars of windows for TensorBoard."""

from __future__ import annotations

from typing import Any

from fp8verify.integrations.requires import requires
from fp8verify.record.live.line import Line, scalars_in


class TensorBoardSink:
    """Writes the scalars of each line; `writer` is a folder, or a torch `SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        self._owned = isinstance(writer, str)
        if self._owned:
            with requires("tensorboard"):
                from tensorboard.summary import Writer

            writer = Writer(writer or "runs/fp8verify")
        self._writer = writer

    def write(self, line: Line) -> None:
        """Add the scalars at the window's last step."""
        for name, value in scalars_in(line).items():
            self._writer.add_scalar(name, value, line["step"])
        self._writer.flush()

    def close(self) -> None:
        """Close the writer if it is ours."""
        if self._owned:
            self._writer.close()
