"""Keep what Kineto prints for a session of ours off the script's stderr, and nothing else.

Kineto has no setting for one session, only `KINETO_LOG_LEVEL` for the process. But both of the ways
in which it prints can be turned off for the length of a call:

- `profiler_start` and `profiler_stop` (torch 2.13) go through Kineto's logger, whose level is a
  global variable that libtorch exports. It is raised for the call and put back. Errors of the call
  are not printed either; what is missing in the trace is told by the report.
- `External init callback must run in same thread as registerClient` is printed with `fprintf` when
  the process's first session begins on another thread than torch was imported on. C's `stderr` is
  then, for that one call, a buffer; whatever else was written into it is written out after it.
  Redirecting descriptor 2 instead would reach other threads' writes and the processes they start.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
ABOVE_ALL = 6  # ILoggerObserver.h: VERBOSE 0, INFO, WARNING, STAGE, ERROR, USDT 5
INIT = b"External init callback must run in same thread as registerClient"

_importer = threading.get_ident()  # the agent is imported with torch
_first = True
_kept: list[Any] = []


@contextmanager
def mute_kineto() -> Iterator[None]:
    """Let Kineto log nothing inside."""
    level = _level()
    if level is None:
        yield
        return
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
    buffer = _open_buffer() if remarks else None
    if buffer is None:
        yield
        return
    stream, text, size = buffer
    _kept.append(buffer)  # C may still write there when the process exits
    stderr = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stderr")
    before, stderr.value = stderr.value, stream
    try:
        yield
    finally:
        stderr.value = before
        _write_out(stream, text, size)


def _level() -> Any:
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL("libtorch_cpu.so"), LEVEL)
    except (OSError, ValueError):  # another platform, or another Kineto
        return None


def _open_buffer() -> tuple[int, ctypes.c_void_p, ctypes.c_size_t] | None:
    try:
        # Only there is `stderr` known to be a variable that may be set.
        if not str(os.confstr("CS_GNU_LIBC_VERSION")).startswith("glibc"):
            return None
        libc = ctypes.CDLL(None)
        libc.open_memstream.restype = ctypes.c_void_p
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    except (OSError, ValueError, AttributeError):
        return None
    return (stream, text, size) if stream else None


def _write_out(stream: int, text: ctypes.c_void_p, size: ctypes.c_size_t) -> None:
    # The buffer is not closed: another thread may still hold it. It is one in a process.
    ctypes.CDLL(None).fflush(ctypes.c_void_p(stream))
    lines = ctypes.string_at(text.value or 0, size.value) if size.value else b""
    others = b"".join(line for line in lines.splitlines(keepends=True) if INIT not in line)
    if others:
        with suppress(OSError):
            os.write(2, others)
