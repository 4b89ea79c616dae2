"""Every hook on torch, each named, idempotent and undoable."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import Module
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .gc_scan import TooManyObjectsError, find_instances
from .modules.layer_names import compiles
from .modules.trained import listening
from .observe import (
    hidden,
    invisible,
    observe,
    observe_function,
    unobserve,
    unobserve_function,
)
from .observer import Observer
from .record.debug import debug
from .steps.framework_counters import owners

NO_BACKWARD = -1
BACKWARD_PASSES = 1 << 62  # above any sequence number


class Sources(NamedTuple):
    """Where a framework's numbers of the steps come from: `Beginnings` and `LogLines`."""

    frameworks: Any
    lines: Any


_installed: Observer | None = None
_scalers: set[type] = set()


def install(config: dict[str, Any]) -> Observer:
    """Hook torch for this process, once, and return the observer behind the hooks."""
    global _installed
    if _installed is not None:
        return _installed
    debug.open(config)
    observer = _installed = Observer(config, _work)
    graphs = ReplayedSteps(observer)
    handles = [
        register_optimizer_step_pre_hook(_before_step(observer)),
        register_optimizer_step_post_hook(_after_step(observer, graphs)),
        listening.begin(),
    ]
    observe(torch.amp.GradScaler, "update", observer.scaler_updates)
    observe(torch.amp.GradScaler, "__init__", lambda scaler: _hear_update_of(scaler, observer))
    sources = _sources_of_numbers(observer) if config["global_windows"] else None
    observe(Optimizer, "__init__", _optimizer_is_built(observer, sources))
    owners.look()
    observer.arbiter.install()
    # Tensor.backward looks this up too.
    observer.on_steps_in_backward = lambda: observe_function(
        torch.autograd, "backward", observer.backward_begins
    )
    graphs.install()
    observer.on_disarm = lambda: _uninstall(observer, handles, sources)
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.after_fork)
    debug.event(f"hooks are on torch {torch.__version__}; windows {observer.recorder.plan.windows}")
    return observer


def install_late(config: dict[str, Any]) -> Observer:
    """Hook torch in a program that may have built its model and its Trainer by now.

    What there is is searched for at once, and not while the first window is recorded.
    """
    observer = install(config)
    wanted = owners.unknown()
    with suppress(TooManyObjectsError):
        found = find_instances(lambda kind: kind in wanted or issubclass(kind, Module))
        owners.learn(found)
        for module in found:
            if isinstance(module, Module):
                listening.remember(module)
    return observer


def installed() -> Observer | None:
    """Return the observer of this process, if it has one."""
    return _installed


def uninstall() -> None:
    """Close what is open and take the hooks away, so that they can be installed again."""
    global _installed
    observer, _installed = _installed, None
    if observer is not None:
        observer.finish(True)
        observer.on_disarm()
        atexit.unregister(observer.finish)


def _uninstall(observer: Observer, handles: list[Any], sources: Sources | None) -> None:
    if not compiles():  # compiled code has guards on torch's hooks, and would be compiled again
        for handle in handles:
            handle.remove()
    if sources is not None:
        sources.frameworks.uninstall()
        sources.lines.uninstall()
    for scaler in (torch.amp.GradScaler, *_scalers):
        unobserve(scaler, "update")
    unobserve(torch.amp.GradScaler, "__init__")
    unobserve(Optimizer, "__init__")
    owners.stop()
    unobserve_function(torch.autograd, "backward")
    ReplayedSteps.uninstall()
    observer.arbiter.uninstall()


def _sources_of_numbers(observer: Observer) -> Sources:
    from .steps.global_steps import Beginnings  # every start of a run waits for what it imports
    from .steps.log_lines import LogLines

    sources = Sources(
        Beginnings(observer.framework_begins), LogLines(hidden(observer.line_is_logged))
    )
    sources.frameworks.look()
    sources.lines.install()
    return sources


def _optimizer_is_built(observer: Observer, sources: Sources | None) -> Callable[[Any], None]:
    def is_built(optimizer: Any) -> None:
        observer.optimizer_is_built(optimizer)
        if not observer.armed:
            return
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            owners.look()  # a framework that trains with it is imported by now
        if sources is not None:
            sources.frameworks.look()

    return is_built


def _hear_update_of(scaler: Any, observer: Observer) -> None:
    # FSDP's ShardedGradScaler has an update of its own.
    try:
        owner = next(cls for cls in type(scaler).__mro__ if "update" in cls.__dict__)
        observe(owner, "update", observer.scaler_updates)
        _scalers.add(owner)
    except Exception:  # its skipped steps will not be counted
        debug.error("finding the update of a GradScaler")


def _work() -> int:
    # In a backward pass: which one, since its thread has a count of its own.
    task = int(torch._C._current_graph_task_id())
    if task != NO_BACKWARD:
        return BACKWARD_PASSES + task
    # Every autograd node takes the next number of its thread, so a forward pass of training
    # raises it and nothing else does. Watching torch.autograd.backward instead would put a frame
    # of ours into every traceback, and miss engines called directly (Megatron's custom_backward).
    return int(torch._C._autograd._get_sequence_nr())


def _is_traced(observer: Observer) -> Callable[[], None]:
    """Return what torch.compile calls once, while it traces a hook, and whose result it keeps."""

    def is_traced() -> None:
        observer.step_is_traced()

    is_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return is_traced


# A pre hook that returns a tuple would replace the arguments of step(): both return None.
def _before_step(observer: Observer) -> Callable[..., None]:
    is_traced, enters = _is_traced(observer), hidden(observer.optimizer_enters)

    def fp8verify_before_step(*_: Any) -> None:
        if torch.compiler.is_compiling():
            is_traced()
        else:
            enters()

    invisible(fp8verify_before_step)
    return fp8verify_before_step


def _after_step(observer: Observer, graphs: ReplayedSteps) -> Callable[..., None]:
    is_traced = _is_traced(observer)

    def has_stepped(optimizer: Any) -> None:
        if _capturing_graph():  # the step is being recorded into a CUDA graph, not executed
            graphs.captured(optimizer)
        else:
            in_backward = torch._C._current_graph_task_id() != NO_BACKWARD
            observer.optimizer_leaves(optimizer, in_backward)

    has_stepped = hidden(has_stepped)

    def fp8verify_after_step(optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():
            is_traced()
        else:
            has_stepped(optimizer)

    invisible(fp8verify_after_step)
    return fp8verify_after_step


def _capturing_graph() -> bool:
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class Listener(Protocol):
    """What hears of replays: the observer."""

    def graph_is_replayed(self, optimizers: dict[int, str]) -> None:
        """Hear that a graph with a step of each of these optimizers is about to run."""


class ReplayedSteps:
    """Which graphs hold a step of which optimizers, by id and class."""

    def __init__(self, observer: Listener) -> None:
        self._observer = observer
        self._captured: dict[int, str] = {}
        self._graphs: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Watch the graphs of the script."""
        for name, listener in self._listeners().items():
            with suppress(AttributeError, KeyError):  # a torch whose graphs have no such method
                observe(torch.cuda.CUDAGraph, name, listener)

    @staticmethod
    def uninstall() -> None:
        """Stop watching."""
        for name in ("capture_begin", "capture_end", "replay"):
            unobserve(torch.cuda.CUDAGraph, name)

    def captured(self, optimizer: Any) -> None:
        """Note that an optimizer's step is in the graph that is being captured."""
        self._captured[id(optimizer)] = type(optimizer).__name__

    def _listeners(self) -> dict[str, Callable[[Any], None]]:
        return {
            "capture_begin": lambda _: self._captured.clear(),
            "capture_end": self._ends,
            "replay": self._replayed,
        }

    def _ends(self, graph: Any) -> None:
        if self._captured:
            with suppress(TypeError):  # one that cannot be referred to weakly
                self._graphs[graph] = dict(self._captured)
            self._captured.clear()

    def _replayed(self, graph: Any) -> None:
        optimizers = self._graphs.get(graph) if self._graphs else None
        if optimizers:
            self._observer.graph_is_replayed(optimizers)
