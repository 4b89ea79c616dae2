"""One profiled window, and how it shares the profiler of the process with the script.

A session belongs to the thread that begins to record: torch keeps its state there, and stopping it
on another thread crashes the process. A session whose thread takes no more steps is lost: it is
never exported, and stopped as soon as its own thread runs code of ours.

Kineto writes uncompressed JSON to a path, and does not report a full disk. The path is therefore in
memory, from where the text is compressed.

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
import itertools
import json
import os
import shutil
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import F_DUPFD_CLOEXEC, fcntl
from functools import cache, partial
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, BinaryIO

import torch
import torch.autograd.profiler as autograd_profiler
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, _KinetoProfile, record_function

from ..guard import is_the_scripts, quietly
from ..observe import (
    Observed,
    ObservedCalls,
    caller_of_ours,
    hidden,
    observe,
    observe_function,
    replaced,
    without_modes,
)
from ..private import open_private
from ..process import c_library
from . import exit_of_c

RUNNING = "the script's own profiler was running: fp8verify inspect reads the trace that it writes"
PREPARES = "prepares"
PROFILER = "profiler"
EXECUTION_TRACE = "execution trace"
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
ABOVE_ALL = 6  # ILoggerObserver.h: VERBOSE 0, INFO, WARNING, STAGE, ERROR, USDT 5
RANGE_EXIT: Any = torch.ops.profiler._record_function_exit._RecordFunction
INIT = b"External init callback must run in same thread as registerClient"

EXIT_PATIENCE_S = 10.0
PACK_LEVEL = 1  # level 9 is five times slower, for a file a fifth smaller
GZIP = 16 + zlib.MAX_WBITS  # the format of the data, as zlib numbers it
CHUNK = 1 << 20
ENDING = 64
KINETOS_DRAFT = ".tmp"  # torch 2.13 writes there and renames it (output_json.cpp)

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
        exit_of_c.disarm()
        if recording:
            enable(False)

        def leave_behind() -> None:
            with quietly(Exception), self.ours(), mute_kineto():
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

    def is_cut_short(self) -> None:
        """Take back what a call of ours has set, after an exception of the script's."""
        self._calls.ours = False
        level = _kinetos_level()
        if level.value == ABOVE_ALL:
            level.value = _ordinary_level

    @property
    def busy(self) -> bool:
        """Whether a profiler of the script is prepared or running, on any thread.

        torch's own flag is not set during warm-up; a profiler has results once it has stopped.
        """
        return bool(self._on or autograd_profiler._is_profiler_enabled) or any(
            getattr(profile, "kineto_results", None) is None
            for profile in self._foreign
        )

    def _preparing(self, profile: Any) -> None:
        if not getattr(self._calls, "ours", False):
            self._calls.is_known = True
            self._foreign.add(profile)

    def _begins(self, kind: str) -> None:
        if getattr(self._calls, "ours", False):
            return
        leave_behind = self._leave_behind
        self._leave_behind = None
        if leave_behind is not None:
            leave_behind()
        self._on_foreign()
        is_known = getattr(self._calls, "is_known", False)
        self._calls.is_known = False
        if not (
            kind == PREPARES and is_known
        ):  # one that is never started is forgotten in time
            self._on.add(PROFILER if kind == PREPARES else kind)

    def _ends(self, kind: str) -> None:
        if not getattr(self._calls, "ours", False):
            self._on.discard(kind)


@cache
def _kinetos_level() -> ctypes.c_int:
    with quietly(OSError, ValueError):  # another platform, or another Kineto
        return ctypes.c_int.in_dll(
            c_library("libtorch_cpu.so"), exit_of_c.KINETOS_LEVEL
        )
    return ctypes.c_int()


_ordinary_level = 0


@contextmanager
def mute_kineto() -> Iterator[None]:
    """Let Kineto log nothing inside."""
    global _ordinary_level
    level = _kinetos_level()
    if level.value < ABOVE_ALL:
        _ordinary_level = level.value
    try:
        level.value = ABOVE_ALL
        yield
    finally:
        level.value = _ordinary_level


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
    libc = c_library(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text = ctypes.c_void_p()
    size = ctypes.c_size_t()
    stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    _kept.append((stream, text, size))  # C may still write there when the process exits
    stderr = ctypes.c_void_p.in_dll(libc, "stderr")
    before = stderr.value
    stderr.value = stream or stderr.value
    try:
        yield
    finally:
        stderr.value = before
        # The buffer is not closed: another thread may still hold it. It is one in a process.
        libc.fflush(ctypes.c_void_p(stream))
        lines = ctypes.string_at(text.value or 0, size.value) if size.value else b""
        others = b"".join(
            line for line in lines.splitlines(keepends=True) if INIT not in line
        )
        with quietly(OSError):
            os.write(2, others)


# --- a window ---


class OpenRanges:
    """The `record_function` ranges that began on this thread while a profiler ran.

    A range that begins in one session of torch's profiler and ends in another one writes its end
    into freed memory, which crashes the process (torch 2.13); one that is open when a session stops
    may make torch warn on stderr. An optimizer's step is such a range, since its hook runs inside
    it, and so is what the script opens around several steps.

    Others cannot be ended early. A call of TorchScript is noted too: while one lasts that began in a
    session, no other session begins. Of a `_RecordFunctionFast` neither begin nor end is known;
    once the script makes one, no session begins any more.
    """

    def __init__(self) -> None:
        self._fast = False
        self._calls: list[weakref.ref[Any]] = []
        self._begun: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )
        self._numbers = itertools.count()
        self._thread = 0
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Note every range that begins from here on, on this thread."""
        self.unwatch()
        self._thread = threading.get_ident()
        enters = partial(Observed, listener=self._note)
        self._undo = [replaced(record_function, "__enter__", enters)]
        calls = partial(ObservedCalls, listener=self._note_call)
        for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
            self._undo.append(replaced(kind, "__call__", calls))

    def unwatch(self) -> None:
        """Note no more of them."""
        for undo in self._undo:
            undo()
        self._undo = []

    def observe_fast(self) -> None:
        """Hear of ranges that the script makes with torch's class for its own short ones."""
        observe_function(torch._C._profiler, "_RecordFunctionFast", self._note_fast)

    def obstacle(self) -> str | None:
        """Return why no session may begin now, None if one may."""
        if self._fast:
            return "the script opens ranges of torch's C++ that a window must not cut"
        self._calls = [call for call in self._calls if call() is not None]
        if self._calls:
            return "a call of TorchScript from an earlier window still ran"
        return None

    def end(self) -> None:
        """End those noted, the last one first; when the script ends them, nothing more happens."""
        for begun in reversed(list(self._begun.values())):
            # One that failed to begin has no record to end.
            with quietly(Exception), torch._C.DisableTorchFunctionSubclass():
                without_modes(RANGE_EXIT, begun.record)
        self._begun.clear()

    def _note(self, begun: Any) -> None:
        with quietly(Exception):  # it runs inside a call of the script
            if threading.get_ident() == self._thread:
                self._begun[next(self._numbers)] = begun

    def _note_call(self, call: Any) -> None:
        with quietly(Exception):
            if threading.get_ident() == self._thread:
                self._calls = [known for known in self._calls if known() is not None]
                self._calls.append(weakref.ref(call))

    def _note_fast(self) -> None:
        with quietly(Exception):
            caller = caller_of_ours()
            name = caller.f_globals.get("__name__") if caller is not None else None
            self._fast |= str(name).partition(".")[0] != "torch"


class _ThreadEnd:
    """Deleted by a thread that ends, as all that is local to it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __del__(self) -> None:
        with quietly(Exception):
            self._session.stop_on_its_thread()


def leave_without_kineto() -> None:
    """Let a forked child exit, if a session of ours has started Kineto in its parent.

    Kineto waits, when a process exits, for the threads that it has started, which a fork does not
    have. So the child exits as soon as the handlers of `atexit` have run and all is flushed.
    """
    if Session.has_started_kineto:
        with quietly(Exception):  # a C library without `on_exit`
            libc = c_library(None)
            libc.on_exit(libc._exit, None)
            libc.__cxa_atexit(libc.fflush, None, None)  # the last one is called first


_on_main_thread: list[Any] = []


def call_on_main_thread(function: Callable[[], object]) -> None:
    """Have the main thread call `function` between two instructions of its Python code."""

    def pending(_: Any) -> int:
        with quietly(Exception):
            without_modes(function)
        return 0

    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    _on_main_thread.append(kind(hidden(pending)))  # C keeps no reference to it
    ctypes.pythonapi.Py_AddPendingCall(_on_main_thread[-1], None)


class Session:
    """A profiler over one window; the order of calls is `Plan`'s.

    Attributes:
        state: "new", "prepared", "recording", "stopped" or "dropped".
        sees_gpu: whether torch finds a GPU, once prepared.
        has_started_kineto: whether there was one in this process.
    """

    has_started_kineto = False

    def __init__(
        self,
        arbiter: ProfilerArbiter,
        ranges: OpenRanges,
        *,
        record_shapes: bool,
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
        self.state = "prepared"
        self._thread = threading.get_ident()

    def start(self, metadata: dict[str, Any]) -> None:
        """Record from here on; `metadata` becomes the trace's "fp8verify" entry."""
        if self.state != "prepared":
            self.prepare()
        synchronize()  # else kernels launched before appear without the operator that did
        self._ranges.end()
        self.state = "recording"
        self._thread = threading.get_ident()
        with self._arbiter.ours(), mute_kineto():
            self._profile.start_trace()
        self._ranges.watch()
        if threading.current_thread() is threading.main_thread():
            exit_of_c.arm()
        if threading.current_thread() is not threading.main_thread():
            self._local = (
                threading.local()
            )  # torch frees its state when the thread has ended
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
        step = self._step
        self._step = None
        if step is not None:
            step.__exit__(None, None, None)

    def stop(self) -> None:
        """Stop recording, on the thread that began; waits for the GPU."""
        self._ranges.unwatch()
        self._ranges.end()
        self._end_step()
        exit_of_c.disarm()
        self.state = "stopped"
        if not torch.cuda.is_initialized():
            # torch waits for the device of its profiler, and would initialize CUDA to do so in a
            # process that does not use it.
            self._profile.profiler.use_device = None
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

    def end_in_child(self) -> None:
        """End what a forked child has of it: one that is prepared ends only once it has begun."""
        if self.state == "prepared":
            self._profile.profiler._start_trace()
        torch._C._autograd._disable_profiler()

    def export(self, path: Path, drafts: Path) -> str:
        """Write the trace as JSON, gzipped if `path` ends so; it appears when it is whole.

        Until then it is in the folder `drafts`. Returns the name of the file.

        Raises:
            ExportError: it could not be written.
        """
        profile = self._profile
        self._profile = None
        with mute_kineto():  # it says on stderr what the error says
            export(profile.export_chrome_trace, path, drafts)
        return path.name


class ExportError(Exception):
    """The trace could not be written, for a reason that the report names."""


def export(
    write: Callable[[str], object],
    path: Path,
    drafts: Path,
) -> None:
    """Have `write` fill a file of JSON; `path` appears when it is whole, gzipped if it ends so.

    Drafts are in the folder `drafts`, of the same file system: a process that is killed leaves
    them there.

    Raises:
        ExportError: the disk is full or cannot be written to, or nothing was written.
    """
    plain = drafts / f".{path.name}.plain"
    packed = drafts / f".{path.name}.part"
    links = (plain, plain.with_name(plain.name + KINETOS_DRAFT))
    try:
        with _memory() as source:
            for link in links:
                link.symlink_to(f"/proc/self/fd/{source}")
            write(str(plain))
            with open(source, "rb", closefd=False) as text:
                _check_whole(text)
                # What is judged and dropped at once is not worth packing.
                if path.suffix == ".gz":
                    _pack(text, packed)
                else:
                    _copy(text, packed)
        packed.replace(path)
    except OSError as error:
        if is_the_scripts(error):
            raise
        raise ExportError(
            f"the trace could not be written: {error.strerror}"
        ) from error
    finally:
        for draft in (*links, packed):
            with quietly(OSError):
                draft.unlink(missing_ok=True)


def _pack(text: BinaryIO, target: Path) -> None:
    # A GzipFile would leave cyclic garbage, which a script may count (Python 3.12).
    packer = zlib.compressobj(PACK_LEVEL, wbits=GZIP)
    with open_private(target, "wb") as file:
        while chunk := text.read(CHUNK):
            file.write(packer.compress(chunk))
        file.write(packer.flush())


def _copy(text: BinaryIO, target: Path) -> None:
    with open_private(target, "wb") as file:
        shutil.copyfileobj(text, file, CHUNK)


@contextmanager
def _memory() -> Iterator[int]:
    """Have a file in memory whose descriptor is above those that a script opens."""
    low = os.memfd_create("fp8verify-trace")
    identity = _identity(low)
    try:
        source = fcntl(low, F_DUPFD_CLOEXEC, getrlimit(RLIMIT_NOFILE)[0] // 2)
        os.close(low)
    except (OSError, OverflowError) as error:  # no number is left there
        if is_the_scripts(error):
            raise
        source = low
    try:
        yield source
    finally:
        # A thread of the script may have closed all descriptors, and opened its own there.
        with quietly(OSError):
            if _identity(source) == identity:
                os.close(source)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _check_whole(text: BinaryIO) -> None:
    """Go to the begin of a document that has an end: Kineto does not say if it could not write."""
    size = text.seek(0, os.SEEK_END)
    text.seek(max(0, size - ENDING))
    if not text.read().rstrip().endswith(b"}"):
        raise ExportError("the profiler could not write the whole trace")
    text.seek(0)


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
    device = torch.cuda.current_device()
    idle = threading.Event()

    def wait() -> None:
        with quietly(Exception):
            torch.cuda.synchronize(device)
            idle.set()

    thread = threading.Thread(
        target=wait,
        name="fp8verify-wait",
        daemon=True,
    )
    with quietly(RuntimeError):  # Python 3.12.0 and 3.12.1 start none at exit
        thread.start()
        thread.join(seconds)
    return idle.is_set()
