"""Every hook that stays on torch for the whole run."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.nn import Module
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import precision
from .config import Config
from .debug import debug
from .framework_counters import counters
from .layers import registrations, remember
from .observe import (
    hidden,
    invisible,
    observe,
    register,
)
from .observer import Observer
from .process import (
    captures_graph,
    find_instances,
    on_autograd_thread,
)

BACKWARD_PASSES = 1 << 62  # above any sequence number

_installed: Observer | None = None
_hooked = False
_captured: dict[int, str] = {}  # optimizers whose step is in the CUDA graph being captured


def install(config: Config) -> Observer:
    """Hook torch for this process, once, and return the observer behind the hooks."""
    global _installed, _hooked
    if _installed is not None:
        return _installed
    debug.open(config)
    precision.declare(config["modules"])
    counters.use(config["counters"])
    observer = _installed = Observer(config, _work)
    # They stay, and do nothing without an observer: torch calls them in a loop over a dictionary,
    # which may not change in it, and compiled code has guards on them.
    if not _hooked:
        _hooked = True
        register(register_optimizer_step_pre_hook, _before_step())
        register(register_optimizer_step_post_hook, _after_step())
        registrations.begin()
    _observe_graphs(observer)
    observe(torch.amp.GradScaler, "update", observer.scaler_updates)
    observe(torch.amp.GradScaler, "__init__", lambda scaler: _observe_update(scaler, observer))
    observe(Optimizer, "__init__", observer.optimizer_is_built)
    observer.look_for_frameworks()
    observer.arbiter.install()
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.after_fork)
    windows = [(window["first"], window["last"]) for window in observer.recorder.plan.windows]
    debug.event(f"hooks are on torch {torch.__version__}; windows {windows}")
    return observer


def install_late(config: Config) -> Observer:
    """Hook torch in a program that may have built its model by now.

    It is searched for at once, and not while the first window is recorded.
    """
    observer = install(config)
    for module in find_instances(lambda kind: issubclass(kind, Module)):
        remember(module)
    return observer


def installed() -> Observer | None:
    """Return the observer of this process, if it has one."""
    return _installed


def uninstall() -> None:
    """Close what is open, and observe no more until the next `install`."""
    global _installed
    observer, _installed = _installed, None
    if observer is not None:
        observer.finish(True)
        observer.unobserve()
        atexit.unregister(observer.finish)


def _observe_update(scaler: Any, observer: Observer) -> None:
    # FSDP's ShardedGradScaler has an update of its own.
    try:
        owner = next(cls for cls in type(scaler).__mro__ if "update" in cls.__dict__)
        observe(owner, "update", observer.scaler_updates)
    except Exception:  # its skipped steps will not be counted
        debug.error("finding the update of a GradScaler")


def _work() -> int:
    # In a backward pass: which one, since its thread has a count of its own.
    if on_autograd_thread():
        return BACKWARD_PASSES + int(torch._C._current_graph_task_id())
    # Every autograd node takes the next number of its thread, so a forward pass of training
    # raises it and nothing else does. Watching torch.autograd.backward instead would put a frame
    # of ours into every traceback, and miss engines called directly (Megatron's custom_backward).
    return int(torch._C._autograd._get_sequence_nr())


def _tell(method: str, *args: Any) -> None:
    if _installed is not None:
        getattr(_installed, method)(*args)


def _is_traced() -> None:
    """A function that torch.compile evaluates while it traces a hook; its result is kept."""
    _tell("step_is_traced")


_is_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


# A pre hook that returns a tuple would replace the arguments of step(): both return None.
def _before_step() -> Callable[..., None]:
    is_traced, enters = _is_traced, hidden(lambda: _tell("optimizer_enters"))

    def fp8verify_before_step(*_: Any) -> None:
        if torch.compiler.is_compiling():
            is_traced()
        else:
            enters()

    invisible(fp8verify_before_step)
    return fp8verify_before_step


def _after_step() -> Callable[..., None]:
    def has_stepped(optimizer: Any) -> None:
        if captures_graph():  # the step is being recorded into a CUDA graph, not executed
            _captured[id(optimizer)] = type(optimizer).__name__
        else:
            _tell("optimizer_leaves", optimizer, on_autograd_thread())

    is_traced, has_stepped = _is_traced, hidden(has_stepped)

    def fp8verify_after_step(optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():
            is_traced()
        else:
            has_stepped(optimizer)

    invisible(fp8verify_after_step)
    return fp8verify_after_step


def _observe_graphs(observer: Observer) -> None:
    """Count the steps in CUDA graphs, by their optimizers, when they are replayed."""
    graphs: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()

    def ends(graph: Any) -> None:
        if _captured:
            with suppress(TypeError):  # one that cannot be referred to weakly
                graphs[graph] = dict(_captured)
            _captured.clear()

    def is_replayed(graph: Any) -> None:
        optimizers = graphs.get(graph) if graphs else None
        if optimizers:
            observer.graph_is_replayed(optimizers)

    listeners: dict[str, Callable[[Any], None]] = {
        "capture_begin": lambda _: _captured.clear(),
        "capture_end": ends,
        "replay": is_replayed,
    }
    for name, listener in listeners.items():
        with suppress(AttributeError, KeyError):  # a torch whose graphs have no such method
            observe(torch.cuda.CUDAGraph, name, listener)
