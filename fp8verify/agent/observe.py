"""Observe methods and functions of torch and of frameworks, unseen by the script and torch.compile.

A descriptor reports the look-up of a method and returns the original: no frame of ours appears in
the script's tracebacks.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_set_eval_frame: Any = getattr(_eval_frame, "set_eval_frame", None)


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hide one of fp8verify's hooks from torch.compile.

    If the caller is traced, `is_compiling()` folds to True, and the hook leaves nothing in
    the graph. If the caller runs between two graphs, torch.compile would compile the hook and
    all that it calls: its callback is removed during the call.
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


class Observed:
    """A method that calls `listener(instance)` whenever it is looked up on an instance.

    The lookup returns the original bound method. Unlike with a wrapper, an error inside it has the
    same traceback as without fp8verify, and `inspect` sees the original. Code that reads
    the class's dictionary must take this for a function too: jsonargparse (LightningCLI)
    refuses a class whose `__init__` is not a function.
    """

    method: Any = None

    def __init__(self, method: Any, listener: Callable[[Any], None]) -> None:
        functools.update_wrapper(self, method)
        self.method = method
        self.listener = hidden(listener)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return self.method.__get__(instance)
        # Python 3.13's inspect.signature binds a class's own `__init__` to the class.
        if instance is not None and not isinstance(instance, type):
            self.listener(instance)
        return self.method.__get__(instance, owner)

    invisible(__get__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, for callers that found it in the class's dictionary."""
        return self.method(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.method)


_observed: set[tuple[type, str]] = set()


def observe(owner: type, name: str, listener: Callable[[Any], None]) -> None:
    """Call `listener(instance)` at each look-up of `owner.name`; a second call replaces it."""
    method = owner.__dict__[name]
    if isinstance(method, Observed):
        method.listener = hidden(listener)
    else:
        setattr(owner, name, Observed(method, listener))
        _observed.add((owner, name))


def unobserve(owner: type, name: str) -> None:
    """Undo `observe`."""
    _observed.discard((owner, name))
    method = owner.__dict__.get(name)
    if isinstance(method, Observed):
        setattr(owner, name, method.method)


def unobserve_all() -> None:
    """Undo every `observe`."""
    for owner, name in list(_observed):
        unobserve(owner, name)


def observe_function(module: ModuleType, name: str, listener: Callable[[], None]) -> None:
    """Call `listener` whenever a function is looked up on its module; only the first call counts.

    As with a method, no frame of ours is there when the function runs.
    """
    kind: Any = type(module)
    if isinstance(kind.__dict__.get(name), property):
        return

    listener = hidden(listener)

    def look_up(found: Any) -> Any:
        listener()
        return vars(found)[name]

    def replace(found: Any, value: Any) -> None:
        vars(found)[name] = value

    invisible(look_up)
    module.__class__ = type(kind.__name__, (kind,), {name: property(look_up, replace)})


def unobserve_function(module: ModuleType, name: str) -> None:
    """Undo `observe_function`."""
    kind: Any = type(module)
    if isinstance(kind.__dict__.get(name), property):
        module.__class__ = kind.__base__
