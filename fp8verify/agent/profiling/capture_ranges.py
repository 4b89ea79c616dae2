"""Begin and end what a profiler around the process records: Nsight Systems, rocprofv3.

Such a profiler is started with the training and records nothing until it is told to.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

# rocprofv3 preloads it for --marker-trace; roctracer's libroctx64.so has no such functions.
_ROCTX = "librocprofiler-sdk-roctx.so"
_LEADER = "capture-leader"


class CaptureRange(Protocol):
    """Switches the recording of one process, or of all that the profiler watches.

    Attributes:
        name: of the profiler, as the record says.
    """

    name: str

    def expect(self) -> None:
        """Hear that a window begins after the next step."""

    def open(self) -> None:
        """Record from here on."""

    def close(self) -> None:
        """Record no more, or not much longer."""

    def tick(self) -> None:
        """Hear that a step is complete."""

    def rest(self) -> None:
        """Record no more, at once."""


class NsysRange:
    """Nsight Systems' `--capture-range=cudaProfilerApi`.

    The first process that calls `cudaProfilerStart` starts the recording of all, and the first that
    calls `cudaProfilerStop` ends it. Where several ranks are recorded, one of them therefore does
    both: a step before the window and a step after it, since the others may be behind or ahead.

    Args:
        boot: the boot folder of this runner, whose Nsight Systems watches this process.
        is_shared: whether several ranks of the run are recorded.
    """

    name = "nsys"

    def __init__(self, boot: Path, is_shared: Callable[[], bool]) -> None:
        self._boot = boot
        self._is_shared = is_shared
        self._leads: bool | None = None
        self._is_open = self._closes = False

    def expect(self) -> None:
        """Begin early where ranks may be apart."""
        if self._is_shared():
            self.open()

    def open(self) -> None:
        """Record from here on; further calls do nothing."""
        self._closes = False
        if not self._is_open and self._is_leader() and torch.cuda.is_available():
            torch.cuda.profiler.start()
            self._is_open = True

    def close(self) -> None:
        """Record no more, from the next step on where ranks may be apart."""
        self._closes = True
        if not self._is_shared():
            self.rest()

    def tick(self) -> None:
        """End what was to end with this step."""
        if self._closes:
            self.rest()

    def rest(self) -> None:
        """Record no more."""
        self._closes = False
        if self._is_open:
            self._is_open = False
            torch.cuda.profiler.stop()

    def _is_leader(self) -> bool:
        if self._leads is None:
            self._leads = not self._is_shared() or _is_first(self._boot / _LEADER)
        return self._leads


def _is_first(claim: Path) -> bool:
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


class RocprofRange:
    """rocprofv3's `--selected-regions`, each process for itself."""

    name = "rocprofv3"

    def __init__(self) -> None:
        self._is_open = False

    def expect(self) -> None:
        """Do nothing."""

    def open(self) -> None:
        """Record from here on; further calls do nothing."""
        if not self._is_open and torch.cuda.is_available():
            _roctx().roctxProfilerResume(ctypes.c_uint64(0))
            self._is_open = True

    def close(self) -> None:
        """Record no more."""
        self.rest()

    def tick(self) -> None:
        """Do nothing."""

    def rest(self) -> None:
        """Record no more."""
        if self._is_open:
            self._is_open = False
            _roctx().roctxProfilerPause(ctypes.c_uint64(0))


def _roctx() -> Any:
    everything = ctypes.CDLL(None)
    return everything if hasattr(everything, "roctxProfilerResume") else ctypes.CDLL(_ROCTX)


def capture_range(config: dict[str, Any], is_shared: Callable[[], bool]) -> CaptureRange | None:
    """Return how to switch the profiler that the run was started under, None for Kineto."""
    if config["profiler"] == NsysRange.name:
        return NsysRange(Path(config["boot"]), is_shared)
    return RocprofRange() if config["profiler"] == RocprofRange.name else None
