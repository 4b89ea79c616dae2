"""One profiled window: prepare, start, name the steps, stop, write the trace."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, _KinetoProfile, record_function

from .export import export
from .guard import ProfilerGuard
from .quiet import quiet_first_session, quiet_kineto
from .ranges import OpenRanges
from .window_steps import WindowSteps

EXIT_PATIENCE_S = 10.0


class Session(WindowSteps):
    """A profiler over one window; the order of calls is `Plan`'s.

    Attributes:
        profiler: what records, as the record names it.
    """

    profiler = "fp8verify"

    def __init__(
        self,
        guard: ProfilerGuard,
        ranges: OpenRanges,
        *,
        record_shapes: bool,
    ) -> None:
        super().__init__(ranges, record_shapes=record_shapes)
        self._guard = guard
        self._profile: Any = None

    def prepare(self) -> None:
        """Start Kineto and CUPTI without keeping what they record."""
        activities = [ProfilerActivity.CPU]
        self.sees_gpu = torch.cuda.is_available()
        if self.sees_gpu:
            activities.append(ProfilerActivity.CUDA)
        self._profile = _KinetoProfile(
            activities=activities,
            record_shapes=self._record_shapes,
            experimental_config=_trace_only(),
        )
        # torch 2.5 to 2.11 warn at every start that does not accumulate events over cycles; we
        # have one cycle. Accumulating itself would parse all events when the profiler stops.
        self._profile.acc_events = True
        with self._guard.ours(), quiet_first_session():
            self._profile.prepare_trace()
        self._profile.profiler.acc_events = False
        self._is_now("prepared")

    def start(self, metadata: dict[str, Any]) -> None:
        """Record from here on; `metadata` becomes the trace's "fp8verify" entry."""
        if self.state != "prepared":
            self.prepare()
        synchronize()  # else kernels launched before appear without the operator that did
        self._ranges.end()
        with self._guard.ours(), quiet_kineto():
            self._profile.start_trace()
        self._ranges.watch()
        self._is_now("recording")
        self._stop_with_thread()
        self._profile.add_metadata_json("fp8verify", json.dumps(metadata))

    def _open_step(self, name: str) -> Any:
        step = record_function(name)
        step.__enter__()
        return step

    def _close_step(self, step: Any) -> None:
        step.__exit__(None, None, None)

    def stop(self) -> None:
        """Stop recording; waits for the GPU."""
        self._ranges.rest()
        self._ranges.end()
        self.end_step()
        self.state = "stopped"
        with self._guard.ours(), quiet_kineto():
            self._profile.stop_trace()

    def drop(self) -> None:
        """Forget the profiler: after another one took over, touching it can crash the process.

        One that was only prepared is first run to its end on this thread: torch 2.13 would complain
        on stderr about the cancelled warm-up.
        """
        if self.state == "prepared":
            self.start({})
            self.stop()
        self._ranges.rest()
        self.state = "dropped"
        self._profile = self._step = None

    def export(self, path: Path, drafts: Path) -> str | None:
        """Write the trace as JSON, gzipped if `path` ends so; it appears when it is whole.

        Until then it is in the folder `drafts`.

        Returns:
            The name of the file.

        Raises:
            ExportError: it could not be written.
        """
        profile, self._profile = self._profile, None
        with quiet_kineto():  # it says on stderr what the error says
            export(profile.export_chrome_trace, path, drafts)
        return path.name


def _trace_only() -> Any:
    """Return what keeps torch from building events for Python too, which we never read.

    That is half of what stopping and forgetting a window costs besides its trace; None before torch
    2.13.
    """
    try:
        return _ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


def synchronize() -> None:
    """Wait for the GPU, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def gpu_finishes_within(seconds: float = EXIT_PATIENCE_S) -> bool:
    """Return whether the GPU becomes idle in time, without an error.

    A process that ends while a collective waits for a rank that is gone would wait with it for
    ever; without us it would just exit.
    """
    if not torch.cuda.is_initialized():
        return True
    device, idle = torch.cuda.current_device(), threading.Event()

    def wait() -> None:
        with suppress(Exception):
            torch.cuda.synchronize(device)
            idle.set()

    thread = threading.Thread(target=wait, name="fp8verify-wait", daemon=True)
    thread.start()
    thread.join(seconds)
    return idle.is_set()
