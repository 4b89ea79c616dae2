"""Which exceptions go on to the script: what is raised in a hook of ours need not come from it.

A signal handler runs between two instructions of whatever Python code its thread executes, and so
does an exception that another thread sets by `PyThreadState_SetAsyncExc` (stopit, func_timeout).
If that code is ours, what is raised passes through our hook, and goes on unchanged.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_OWN = __name__.partition(".")[0]
# Of Python 3.8 and 3.9, which have no list: what the agent calls.
_OLD_LIBRARY = (
    "contextlib", "ctypes", "functools", "genericpath", "gzip", "importlib", "inspect",
    "json", "os", "pathlib", "posixpath", "shutil", "threading", "traceback", "typing",
    "weakref",
)  # fmt: skip
_CALLED = frozenset({_OWN, "torch", *getattr(sys, "stdlib_module_names", _OLD_LIBRARY)})
# What code raises without a message too.
_BARE = (AssertionError, MemoryError, NotImplementedError, StopIteration)


class quietly:  # noqa: N801 - a context, like `contextlib.suppress`
    """Suppress errors of these classes, unless they are the script's own."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> bool:
        """Return whether the error goes no further."""
        return isinstance(error, self._kinds) and not is_the_scripts(error)


def is_the_scripts(error: BaseException) -> bool:
    """Whether an exception that passes through code of ours is to reach the script.

    It is not if our code raised it, or code that ours called: of torch, of a mock of `open`.
    """
    if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit
        return True
    frames = list(_frames(error.__traceback__))
    if any(map(_interrupts, frames)):
        return True
    if not frames or not _is_known(frames[-1]):
        return False
    return _was_set_from_outside(error)


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _interrupts(frame: FrameType) -> bool:
    """Whether this is a call of a signal handler or a trace function.

    These are given the frame that they interrupt.
    """
    interrupted = frame.f_back
    if interrupted is None or _root(frame.f_globals.get("__name__")) == _OWN:
        return False
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        count += 1
    known = frame.f_locals
    for name in code.co_varnames[:count]:
        value: Any = known.get(name)
        if value is interrupted:
            return True
        if type(value) is tuple and any(item is interrupted for item in value):
            return True
    return False


def _is_known(frame: FrameType) -> bool:
    """Whether a frame is of our code, torch's or Python's."""
    return _root(frame.f_globals.get("__name__")) in _CALLED


def _was_set_from_outside(error: Exception) -> bool:
    """Whether no code raised this, by its class.

    It is one of the script's or, since a class and no instance is set, has no arguments.
    """
    kind = type(error)
    if _root(kind.__module__) not in _CALLED:
        return True
    is_built_in = vars(builtins).get(kind.__name__) is kind
    return is_built_in and not error.args and not isinstance(error, _BARE)


def _root(module: Any) -> str:
    return str(module).partition(".")[0]
