"""Share the one profiler of the process with a script that profiles or observes itself.

Kineto lets a second profiler cancel the first without an error; stopping the canceled one then
raises (torch 2.11) or crashes the process (torch 2.13). A thread has one profiler: while ours
records, `emit_nvtx` and `emit_itt` raise. What is in a trace of the script's own observers would be
ours too. They always win: our profiler gives way, and a window that they take moves behind them.

Nor does it print on the script's stderr. Kineto has no setting for the output of one session, only
`KINETO_LOG_LEVEL` for the process. But both ways in which it prints can be turned off during a
call:

- `profiler_start` and `profiler_stop` (torch 2.13) go through Kineto's logger, whose level is a
  global variable that libtorch exports. It is raised for the call and put back. Errors of the call
  are not printed either; the report says what is missing in the trace.
- `External init callback must run in same thread as registerClient` is printed with `fprintf` when
  the process's first session begins on another thread than torch was imported on. C's `stderr` is
  a buffer during that call; anything else in the buffer is written out afterwards.
  Redirecting descriptor 2 instead would affect other threads' writes and their child processes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler

from ..observe import observe, observe_function

RUNNING = "the script's own profiler was running: fp8verify inspect reads the trace that it writes"
PREPARES, PROFILER, EXECUTION_TRACE = "prepares", "profiler", "execution trace"
# What begins and ends the recording of operators, below all of torch's front ends, and the modules
# that have a name for it.
BEGINS = {
    "_prepare_profiler": PREPARES,
    "_enable_profiler": PROFILER,
    "_enable_profiler_legacy": PROFILER,
    "_enable_execution_trace_observer": EXECUTION_TRACE,
}
ENDS = {
    "_disable_profiler": PROFILER,
    "_disable_profiler_legacy": PROFILER,
    "_disable_execution_trace_observer": EXECUTION_TRACE,
    "_remove_execution_trace_observer": EXECUTION_TRACE,
}
PLACES = (
    "torch._C._autograd", "torch._C._profiler", "torch.autograd", "torch.autograd.profiler",
    "torch.autograd.profiler_legacy", "torch.profiler.profiler",
)  # fmt: skip
LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
ABOVE_ALL = 6  # ILoggerObserver.h: VERBOSE 0, INFO, WARNING, STAGE, ERROR, USDT 5
INIT = b"External init callback must run in same thread as registerClient"

_importer = threading.get_ident()  # the agent is imported with torch
_first = True
_kept: list[Any] = []


class ProfilerArbiter:
    """Know whether a profiler or an observer other than ours is prepared or running.

    `on_foreign` is called right before one of the script's is prepared or begins.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        self._on_foreign = on_foreign
        self._calls = threading.local()
        self._foreign: weakref.WeakSet[Any] = weakref.WeakSet()
        self._on: set[str] = set()  # what the script has begun otherwise, and not ended
        self._leave_behind: Callable[[], None] | None = None

    def install(self) -> None:
        """Watch the script's profilers and observers."""
        observe(autograd_profiler.profile, "_prepare_trace", self._preparing)
        for module in filter(None, map(sys.modules.get, PLACES)):
            for names, listener in ((BEGINS, self._begins), (ENDS, self._ends)):
                for name in names.keys() & vars(module).keys():
                    observe_function(module, name, partial(listener, names[name]))

    def forked(self, end: Callable[[], None], *, recording: bool) -> None:
        """Record nothing in a forked child, whose Kineto has lost its threads.

        What the child has of a session of its parent stays, silent, until the child profiles
        itself: to `end` one that was `recording` may take as long as the window.
        """
        enable = torch._C._autograd._enable_record_function
        if recording:
            enable(False)

        def leave_behind() -> None:
            with suppress(Exception), self.ours(), mute_kineto():
                end()
            if recording:
                enable(True)

        self._leave_behind = leave_behind

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
        """Whether a profiler of the script is prepared or running, on any thread.

        torch's own flag is not set during warm-up; a profiler has results once it has stopped.
        """
        return bool(self._on or autograd_profiler._is_profiler_enabled) or any(
            getattr(profile, "kineto_results", None) is None for profile in self._foreign
        )

    def _preparing(self, profile: Any) -> None:
        if not getattr(self._calls, "ours", False):
            self._calls.is_known = True
            self._foreign.add(profile)

    def _begins(self, kind: str) -> None:
        if getattr(self._calls, "ours", False):
            return
        leave_behind, self._leave_behind = self._leave_behind, None
        if leave_behind is not None:
            leave_behind()
        self._on_foreign()
        is_known, self._calls.is_known = getattr(self._calls, "is_known", False), False
        if not (kind == PREPARES and is_known):  # one that is never started is forgotten in time
            self._on.add(PROFILER if kind == PREPARES else kind)

    def _ends(self, kind: str) -> None:
        if not getattr(self._calls, "ours", False):
            self._on.discard(kind)


@contextmanager
def mute_kineto() -> Iterator[None]:
    """Let Kineto log nothing inside."""
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL("libtorch_cpu.so"), LEVEL)
    except (OSError, ValueError):  # another platform, or another Kineto
        level = ctypes.c_int()
    before, level.value = level.value, max(level.value, ABOVE_ALL)
    try:
        yield
    finally:
        level.value = before


@contextmanager
def mute_first_session() -> Iterator[None]:
    """Take Kineto's remark about the thread out of what the first session prints."""
    global _first
    remarks = _first and threading.get_ident() != _importer
    _first = False
    # Only glibc's `stderr` is known to be a variable that may be set.
    if not remarks or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        yield
        return
    libc = ctypes.CDLL(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    _kept.append((stream, text, size))  # C may still write there when the process exits
    stderr = ctypes.c_void_p.in_dll(libc, "stderr")
    before, stderr.value = stderr.value, stream or stderr.value
    try:
        yield
    finally:
        stderr.value = before
        # The buffer is not closed: another thread may still hold it. It is one in a process.
        libc.fflush(ctypes.c_void_p(stream))
        lines = ctypes.string_at(text.value or 0, size.value) if size.value else b""
        others = b"".join(line for line in lines.splitlines(keepends=True) if INIT not in line)
        with suppress(OSError):
            os.write(2, others)
