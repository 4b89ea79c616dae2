"""Export Kineto's trace, compressed, with no output on the script's stderr.

Kineto writes uncompressed JSON to a path, and does not report a full disk. The path is therefore in
memory, from where the text is compressed.

Kineto has no setting for the output of one session, only `KINETO_LOG_LEVEL` for the process. But
both ways in which it prints can be turned off during a call:

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
import gzip
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, BinaryIO

GZIP_LEVEL = 1  # level 9 is five times slower, for a file a fifth smaller
ENDING = 64
KINETOS_DRAFT = ".tmp"  # torch 2.13 writes there and renames it (output_json.cpp)
LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
ABOVE_ALL = 6  # ILoggerObserver.h: VERBOSE 0, INFO, WARNING, STAGE, ERROR, USDT 5
INIT = b"External init callback must run in same thread as registerClient"

_importer = threading.get_ident()  # the agent is imported with torch
_first = True
_kept: list[Any] = []


class ExportError(Exception):
    """The trace could not be written, for a reason that the report names."""


def export(write: Callable[[str], object], path: Path, drafts: Path) -> None:
    """Have `write` fill a file of JSON; `path` appears when it is whole, gzipped if it ends so.

    Drafts are in the folder `drafts`, of the same file system: a process that is killed leaves
    them there.

    Raises:
        ExportError: the disk is full or cannot be written to, or nothing was written.
    """
    plain, packed = drafts / f".{path.name}.plain", drafts / f".{path.name}.part"
    links = (plain, plain.with_name(plain.name + KINETOS_DRAFT))
    try:
        with _memory() as source:
            for link in links:
                link.symlink_to(f"/proc/self/fd/{source}")
            write(str(plain))
            with open(source, "rb", closefd=False) as text:
                _check_whole(text)
                # What is judged and dropped at once is not worth packing.
                zips = path.suffix == ".gz"
                with gzip.open(packed, "wb", GZIP_LEVEL) if zips else packed.open("wb") as target:
                    shutil.copyfileobj(text, target, 1 << 20)
        packed.replace(path)
    except OSError as error:
        raise ExportError(f"the trace could not be written: {error.strerror}") from error
    finally:
        for draft in (*links, packed):
            with suppress(OSError):
                draft.unlink(missing_ok=True)


@contextmanager
def _memory() -> Iterator[int]:
    """Have a file in memory whose descriptor is above those that a script opens."""
    low = os.memfd_create("fp8verify-trace")
    identity = _identity(low)
    try:
        source = fcntl(low, F_DUPFD_CLOEXEC, getrlimit(RLIMIT_NOFILE)[0] // 2)
        os.close(low)
    except (OSError, OverflowError):  # no number is left there
        source = low
    try:
        yield source
    finally:
        # A thread of the script may have closed all descriptors, and opened its own there.
        with suppress(OSError):
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
