"""What torch.compile must not see of us."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_set_eval_frame: Any = getattr(_eval_frame, "set_eval_frame", None)


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hide a hook of ours from torch.compile.

    Where the caller is traced, `is_compiling()` folds to True, and nothing of the hook is left in
    the graph. Where the caller runs between two graphs, torch.compile would compile the hook and
    all that it calls: for the length of the call there is no such callback.
    """

    def fp8verify_hook(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        before = _set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _set_eval_frame(before)

    if _set_eval_frame is None:
        return function
    assigned = ("__module__", "__name__", "__qualname__", "__doc__")
    for name in assigned:  # and no `__wrapped__`, which torch.compile would look into
        with suppress(AttributeError):
            setattr(fp8verify_hook, name, getattr(function, name))
    invisible(fp8verify_hook)
    return fp8verify_hook


def invisible(function: Any) -> None:
    """Keep torch.compile from compiling the frame of a function of ours on its own."""
    with suppress(Exception):  # a torch that has neither
        if hasattr(_eval_frame, "skip_code"):  # before torch 2.7
            _eval_frame.skip_code(function.__code__)
        else:
            skip, default = _eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.DEFAULT
            strategy = _eval_frame._FrameExecStrategy(skip, default)
            _eval_frame.set_code_exec_strategy(function.__code__, strategy)


_on_main_thread: list[Any] = []


def call_on_main_thread(function: Callable[[], object]) -> None:
    """Have the main thread call `function` between two instructions of its Python code."""

    def pending(_: Any) -> int:
        with suppress(Exception):
            function()
        return 0

    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    _on_main_thread.append(kind(hidden(pending)))  # C keeps no reference to it
    ctypes.pythonapi.Py_AddPendingCall(_on_main_thread[-1], None)
