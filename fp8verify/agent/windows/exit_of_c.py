"""End a session that is open when C's `exit` runs, without Python.

torch keeps a session in variables of its thread, whose destructors crash the process if the session
records. Python's `atexit` comes before them, unless a script clears its handlers or calls `exit` of
the C library. So torch's own `disableProfiler` is called by a destructor that was registered last
and therefore runs first. It must do nothing while no session records, cannot be taken back, and
may call no Python, which has ended by then: it is C's `fflush` of a stream of ours. That calls the
stream's function for seeking if a character was put back into the stream, and else does nothing. A
flush of all streams leaves out those that are read.

Before it, a second stream raises the level of Kineto's logger, which would print `profiler_stop`:
C's `memcpy` has the arguments of such a function, and copies one byte of the distance to seek.

Only where the address for a result of C++ is the first argument, and with glibc: x86-64 Linux.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

from ..guard import quietly
from ..process import c_library

DISABLE = "_ZN5torch8autograd8profiler15disableProfilerEv"
KINETOS_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
ROOM = 64  # for its result, a pointer
# Two, since a seek to -1 would be an error. The lowest byte of -2 is above all levels of Kineto.
CHARACTERS = b"ab"


class _Functions(ctypes.Structure):
    """`cookie_io_functions_t` of the C library."""

    _fields_ = (
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("seek", ctypes.c_void_p),
        ("close", ctypes.c_void_p),
    )


def _address(function: Any) -> ctypes.c_void_p:
    # ctypes.cast would leave a cycle of references.
    return ctypes.c_void_p.from_buffer_copy(function)


class _ExitGuard:
    """The streams and the destructors of the main thread.

    Raises:
        OSError, AttributeError: this platform has no such functions.
    """

    def __init__(self) -> None:
        if platform.machine() != "x86_64":
            raise OSError("results of C++ are returned otherwise")
        torch_library = c_library("libtorch_cpu.so")
        disable = torch_library[DISABLE]
        self._libc = c_library(None)
        register = self._libc["__cxa_thread_atexit_impl"]
        copy = self._libc["memcpy"]
        # To drop them would leave cyclic garbage.
        self._kept = (disable, register, copy)
        self._purge = self._libc["__fpurge"]
        self._register = register
        self._streams: list[ctypes.c_void_p] = []
        self._room = ctypes.create_string_buffer(ROOM)
        # What was registered last is called first.
        self._add_stream(disable, self._room)
        with quietly(ValueError):  # another Kineto
            self._level = ctypes.c_int.in_dll(torch_library, KINETOS_LEVEL)
            self._add_stream(copy, self._level)

    def _add_stream(self, function: Any, argument: Any) -> None:
        """Have a function called with the address of an argument when C exits.

        It gets the address of the distance to seek, too, and 1 for a distance from here.
        """
        functions = _Functions(None, None, _address(function), None)
        opened = self._libc.fopencookie
        opened.restype = ctypes.c_void_p
        opened.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Functions]
        address = ctypes.addressof(argument)
        stream = ctypes.c_void_p(opened(address, b"r", functions))
        flush = _address(self._libc.fflush)
        if stream.value is None or self._register(flush, stream, None):
            raise OSError("the C library has no room for it")
        self._streams.append(stream)

    def arm(self) -> None:
        """A session begins to record."""
        for stream in self._streams:
            for character in CHARACTERS:
                self._libc.ungetc(character, stream)

    def disarm(self) -> None:
        """It records no more, or a forked child has only a copy of it."""
        for stream in self._streams:
            self._purge(stream)


@cache
def _guard() -> Any:
    with quietly(OSError, AttributeError):
        return _ExitGuard()
    return None


def arm() -> None:
    """Have the session that begins on the main thread ended when C exits."""
    guard = _guard()
    if guard is not None:
        guard.arm()


def disarm() -> None:
    """Have nothing done when C exits."""
    if _guard.cache_info().currsize and _guard() is not None:
        _guard().disarm()
