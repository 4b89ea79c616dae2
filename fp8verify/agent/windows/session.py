"""One profiled window: prepare, start, name the steps, stop, write the trace.

A session belongs to the thread that begins to record: torch keeps its state there, and stopping it
on another thread crashes the process. A session whose thread takes no more steps is lost: it is
never exported, and stopped as soon as its own thread runs code of ours.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, _KinetoProfile, record_function

from ..observe import call_on_main_thread, observe, unobserve, without_modes
from .export import export, mute_first_session, mute_kineto
from .user_profiler import ProfilerArbiter

EXIT_PATIENCE_S = 10.0


class OpenRanges:
    """The `record_function` ranges that began on this thread while a profiler ran.

    A range that begins in one session of torch's profiler and ends in another one writes its end
    into freed memory, which crashes the process (torch 2.13); one that is open when a session stops
    may make torch warn on stderr. An optimizer's step is such a range, since its hook runs inside
    it, and so is what the script opens around several steps.
    """

    def __init__(self) -> None:
        self._begun: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._thread = 0

    def watch(self) -> None:
        """Note every range that begins from here on, on this thread."""
        self._thread = threading.get_ident()
        observe(record_function, "__enter__", self._note)

    def unwatch(self) -> None:
        """Note no more of them."""
        unobserve(record_function, "__enter__")

    def end(self) -> None:
        """End those noted, the last one first; when the script ends them, nothing more happens."""
        for begun in reversed(list(self._begun.values())):
            # One that failed to begin has no record to end.
            with suppress(Exception), without_modes(), torch._C.DisableTorchFunctionSubclass():
                torch.ops.profiler._record_function_exit._RecordFunction(begun.record)
        self._begun.clear()

    def _note(self, begun: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            if threading.get_ident() == self._thread:
                self._begun[next(self._numbers)] = begun


class _ThreadEnd:
    """Deleted by a thread that ends, as all that is local to it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __del__(self) -> None:
        with suppress(Exception):
            self._session.stop_on_its_thread()


def leave_without_kineto() -> None:
    """Let a forked child exit, if a session of ours has started Kineto in its parent.

    Kineto waits, when a process exits, for the threads that it has started, which a fork does not
    have. So the child exits as soon as the handlers of `atexit` have run and all is flushed.
    """
    if Session.has_started_kineto:
        with suppress(Exception):  # a C library without `on_exit`
            libc = ctypes.CDLL(None)
            libc.on_exit(libc._exit, None)
            libc.__cxa_atexit(libc.fflush, None, None)  # the last one is called first


class Session:
    """A profiler over one window; the order of calls is `Plan`'s.

    Attributes:
        state: "new", "prepared", "recording", "stopped" or "dropped".
        sees_gpu: whether torch finds a GPU, once prepared.
        has_started_kineto: whether there was one in this process.
    """

    has_started_kineto = False

    def __init__(
        self, arbiter: ProfilerArbiter, ranges: OpenRanges, *, record_shapes: bool
    ) -> None:
        self.state = "new"
        self.sees_gpu: bool | None = None
        self._arbiter = arbiter
        self._ranges = ranges
        self._record_shapes = record_shapes
        self._profile: Any = None
        self._thread = 0
        self._local: Any = None
        self._step: Any = None
        self._number = 0

    @property
    def on_its_thread(self) -> bool:
        """Whether this thread prepared it or, later, began to record: no other one may stop it."""
        return self._thread == threading.get_ident()

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
        Session.has_started_kineto = True
        with self._arbiter.ours(), mute_first_session():
            self._profile.prepare_trace()
        self._profile.profiler.acc_events = False
        self.state, self._thread = "prepared", threading.get_ident()

    def start(self, metadata: dict[str, Any]) -> None:
        """Record from here on; `metadata` becomes the trace's "fp8verify" entry."""
        if self.state != "prepared":
            self.prepare()
        synchronize()  # else kernels launched before appear without the operator that did
        self._ranges.end()
        with self._arbiter.ours(), mute_kineto():
            self._profile.start_trace()
        self._ranges.watch()
        self.state, self._thread = "recording", threading.get_ident()
        if threading.current_thread() is not threading.main_thread():
            self._local = threading.local()  # torch frees its state when the thread has ended
            self._local.end = _ThreadEnd(self)
        self._profile.add_metadata_json("fp8verify", json.dumps(metadata))

    def begin_step(self, step: int) -> None:
        """Put what follows into the step of that number, as torch.profiler itself names it."""
        if step != self._number:
            self._end_step()
            self._number = step
            self._step = record_function(f"ProfilerStep#{step}")
            self._step.__enter__()

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def stop(self) -> None:
        """Stop recording, on the thread that began; waits for the GPU."""
        self._ranges.unwatch()
        self._ranges.end()
        self._end_step()
        self.state = "stopped"
        with self._arbiter.ours(), mute_kineto():
            self._profile.stop_trace()

    def stop_on_its_thread(self) -> bool:
        """Stop a recording that is lost if this thread may; return whether it records no more."""
        if self.state == "recording" and self.on_its_thread:
            self.stop()
        return self.state != "recording"

    def stop_when_possible(self) -> None:
        """Have its own thread stop a recording that is lost, if that is the main thread: soon.

        Another thread stops it at its next hook, or when it ends.
        """
        if self._thread == threading.main_thread().ident:
            call_on_main_thread(self.stop_on_its_thread)

    def drop(self) -> None:
        """Forget the profiler: after another one took over, touching it can crash the process.

        One that was only prepared is first run to its end on this thread: torch 2.13 would complain
        on stderr about the canceled warm-up.
        """
        if self.state == "prepared":
            self.start({})
            self.stop()
        self._ranges.unwatch()
        self.state = "dropped"
        self._profile = self._step = None

    def export(self, path: Path, drafts: Path) -> str:
        """Write the trace as JSON, gzipped if `path` ends so; it appears when it is whole.

        Until then it is in the folder `drafts`. Returns the name of the file.

        Raises:
            ExportError: it could not be written.
        """
        profile, self._profile = self._profile, None
        with mute_kineto():  # it says on stderr what the error says
            export(profile.export_chrome_trace, path, drafts)
        return path.name


def _trace_only() -> Any:
    """Return the setting that keeps torch from also building Python events, which are not used.

    These are half of the cost of stopping a window, apart from its trace. None before torch 2.13.
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
    try:
        thread.start()
    except RuntimeError:  # Python 3.12.0 and 3.12.1 start none at exit: ask this stream alone
        stream, until = torch.cuda.current_stream(), time.monotonic() + seconds
        while not stream.query() and time.monotonic() < until:
            time.sleep(0.01)
        return bool(stream.query())
    thread.join(seconds)
    return idle.is_set()
