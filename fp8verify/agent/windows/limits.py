"""What ends a window early: limits in seconds and bytes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

# Bytes of JSON for one autograd node: the operators and kernels of its forward and backward pass.
# 1.7 KB an operator with its shapes (torch 2.13, CPU), some five events a node.
BYTES_PER_NODE = 8 << 10


class WindowLimits:
    """How long a window may last and how large its trace may become; 0 is without a limit.

    The size is not known before the trace is written. What is known is how many autograd nodes the
    script has made since, and by how much the memory of the process has grown.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._seconds = float(config["max_window_seconds"])
        self._megabytes = int(config["max_trace_mb"])
        self._began = 0.0
        self._nodes = self._memory = 0

    def begin(self, nodes: int) -> None:
        """Note that a window begins."""
        self._began, self._nodes, self._memory = time.monotonic(), nodes, _resident()

    def exceeded(self, nodes: int) -> str | None:
        """Return which limit the window has passed."""
        if 0 < self._seconds < time.monotonic() - self._began:
            return f"it had lasted {self._seconds:g} seconds (--max-window-seconds)"
        if self._megabytes:
            limit = self._megabytes << 20
            made = max(0, nodes - self._nodes) * BYTES_PER_NODE
            if made > limit or _resident() - self._memory > limit:
                return f"its trace would exceed {self._megabytes} MB (--max-trace-mb)"
        return None


def _resident() -> int:
    with suppress(OSError, ValueError, IndexError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0
