"""Every hook that stays on torch for the whole run, and the observer that they call.

The observer follows the training: it counts steps, and has the windows opened and closed.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn import Module
from torch.optim import optimizer as optimizers

from . import layers, precision
from .clock import Clock
from .config import Config
from .debug import debug, describe
from .framework_counters import counters, sets_up_an_optimizer
from .graphs import graphs
from .guard import is_the_scripts, quietly
from .numerics.scales import remember
from .observe import (
    hidden,
    observe,
    observe_function,
    register,
    unobserve_all,
    without_modes,
)
from .process import captures_graph, find_instances, on_autograd_thread
from .stored import groups_of, header, is_a, items_of, pairs_of, stored, trained_by
from .windows.manager import RepeatingWindows, WindowManager
from .windows.profiler import EXIT_PATIENCE_S, ProfilerArbiter, leave_without_kineto

Method = TypeVar("Method", bound=Callable[..., Any])

STEPS_IN_BACKWARD = (
    "optimizers step inside the backward pass: a step lasts from one to the next"
)
COMPILED_STEPS = (
    "the optimizer's step is compiled: steps are counted by versions of parameters"
)
PATIENCE_S = 1.0  # for another thread that opens or closes a window
MAX_VERSIONS = 4096  # parameters of an optimizer whose versions are read


def fail_safe(method: Method) -> Method:
    """Let no error of ours out of `method` into the script: note it and stop observing."""

    @functools.wraps(method)
    def guarded(self: Observer, *args: Any) -> Any:
        if not self.armed:
            return None
        try:
            return without_modes(method, self, *args)
        except BaseException as error:
            if is_the_scripts(error):
                self.interrupted()
                raise
            debug.error(method.__name__)
            self.disarm(f"{method.__name__}: {describe(error)}")
            return None

    return guarded  # type: ignore[return-value]


class Observer:
    """The one object that the hooks call.

    Args:
        config: the boot folder's `config.json`.

    Attributes:
        armed: False after any error, and when the process is ending.
    """

    def __init__(self, config: Config) -> None:
        self.armed = True
        self.arbiter = ProfilerArbiter(self.foreign_profiler)
        self.clock = Clock(_work())
        self._boot = Path(config["boot"])
        self._optimizers: dict[int, SteppedOptimizer] = {}
        kind = WindowManager if config["live"] is None else RepeatingWindows
        self.recorder = kind(
            config,
            self.clock,
            self.arbiter,
            self._live_optimizers,
            self._own_optimizers,
        )
        self._lock = threading.RLock()
        self._followed = 0  # steps after which all that was due is done
        self._postponed = False
        self._reads_versions = False
        self._versions: dict[int, int] = {}
        self._built: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )

    @fail_safe
    def optimizer_enters(self) -> None:
        """Note that an optimizer's step begins."""
        self.clock.enter(_work())

    @fail_safe
    def optimizer_leaves(self, optimizer: Any, in_backward: bool) -> None:
        """Note that an optimizer has stepped, maybe on autograd's thread in a backward pass."""
        key = id(optimizer)
        self._remember(key, optimizer)
        if self._reads_versions:
            self._versions[key] = _version(optimizer)
        # Frames are looked at only until training has begun.
        setup = not self.clock.steps and sets_up_an_optimizer()
        # A learning rate kept in a tensor is not read: that would wait for the GPU.
        rates = [group.get("lr") for group in groups_of(optimizer)]
        idle = bool(rates) and all(
            isinstance(rate, (int, float)) and rate == 0 for rate in rates
        )
        name = type(optimizer).__name__
        if not self.clock.leave(key, name, _work(), idle=idle, setup=setup):
            return
        if not in_backward:
            self._ticked()
            return
        # Optimizers that step in the backward pass (one a parameter) do so on autograd's thread,
        # on which a profiler would miss the operators of the script's own.
        self.clock.note(STEPS_IN_BACKWARD)
        self._observe_backward()
        self._postponed = True

    @fail_safe
    def step_is_traced(self) -> None:
        """Note that torch.compile traces an optimizer's step, so its hooks are not called."""
        debug.event("an optimizer's step is compiled")
        self._reads_versions = True
        for key, optimizer in list(
            self._built.items()
        ):  # what is traced has not run yet
            self._versions.setdefault(key, _version(optimizer))
        self._observe_backward()

    @fail_safe
    def backward_begins(self) -> None:
        """Do what is due before a backward pass; asked for by `_observe_backward`."""
        if self._lock.acquire(blocking=False):
            try:
                self.recorder.keep_limits(self.clock.steps)
            finally:
                self._lock.release()
        if self._reads_versions:
            self._count_compiled_steps()
        self._catch_up()

    @fail_safe
    def optimizer_is_captured(self, optimizer: Any) -> None:
        """Note that an optimizer's step was recorded into a CUDA graph, and did not run."""
        graphs.holds(optimizer)
        self.clock.is_captured()

    @fail_safe
    def graph_is_replayed(self, optimizers: dict[int, str]) -> None:
        """Note that a CUDA graph with a step of these optimizers is about to run."""
        self._catch_up()
        if self.clock.replayed(optimizers, _work()):
            self._postponed = True

    @fail_safe
    def scaler_updates(self, scaler: Any) -> None:
        """Note that a GradScaler's update begins."""
        remember(scaler)
        if self.clock.scaler_updated(_work()):
            self._ticked()

    @fail_safe
    def announced(self, number: int | None = None) -> None:
        """Take `fp8verify.step()`; `number` is what the script calls the step."""
        is_new = self.clock.announce(_work())
        counters.announce(number, is_new=is_new)
        if is_new:
            self._ticked()

    @fail_safe
    def framework_begins(self) -> None:
        """Open a window that begins with the first step of this run by the framework's numbers."""
        begun = self.clock.steps or self.recorder.has_begun
        if not begun and self.recorder.plan.place_due(0):
            self.recorder.after(0)

    @fail_safe
    def look_for_frameworks(self) -> None:
        """Observe the steps of the frameworks that are imported by now."""
        counters.observe(self.framework_begins)

    @fail_safe
    def optimizer_is_built(self, optimizer: Any) -> None:
        """Open a window that begins with step 1: no later moment is known to come before it."""
        self.clock.built(id(optimizer))
        self._built[id(optimizer)] = optimizer
        starts_at_once = not self.clock.steps and self.recorder.plan.starts_at_once
        if starts_at_once and not self.recorder.has_begun:
            self.recorder.after(0)
        counters.observe(
            self.framework_begins
        )  # some libraries put their own method there

    @fail_safe
    def foreign_profiler(self) -> None:
        """Give way to the script's own profiler, which is about to start."""
        self.recorder.yield_to_user()

    @fail_safe
    def finish(self, goes_on: bool = False) -> None:
        """Close what is open when the process ends, or the watch in one that `goes_on`."""
        if self._lock.acquire(timeout=EXIT_PATIENCE_S):
            try:
                if self._reads_versions:
                    self._count_compiled_steps()
                if self._postponed and self.recorder.recording:
                    self._ticked()
                self.recorder.finish(goes_on=goes_on)
                if graphs.replays and not self.clock.steps:
                    self._tell_of_replays()
            finally:
                self._lock.release()
        self.armed = False

    def _tell_of_replays(self) -> None:
        """Leave a word for the runner, which says why nothing was recorded."""
        with (
            quietly(OSError),
            (self._boot / "replays").open("a", encoding="ascii") as file,
        ):
            file.write(f"{graphs.replays}\n")

    def interrupted(self) -> None:
        """Give up if an exception of the script's cut the opening or closing of a window short."""
        if self.recorder.is_changing:
            self.disarm(
                "an exception of the script's came when a window began or ended"
            )

    def disarm(self, reason: str) -> None:
        """Stop observing for good and say why in the record."""
        self.armed = False
        try:
            self.arbiter.is_cut_short()
            self.unobserve()
            self.recorder.abandon(reason)
        except Exception as error:
            if is_the_scripts(error):
                raise
            # The record cannot be written either: only the debug log can tell.
            debug.error("giving up")

    def unobserve(self) -> None:
        """Take away what may be taken away in a hook."""
        unobserve_all()
        counters.forget()

    def after_fork(self) -> None:
        """Turn off in a forked child, unless the script is still to start in it."""
        if self.clock.steps or self.recorder.has_begun:
            debug.event("this process is a fork of the script's: it is not observed")
            self.armed = False
            self._lock = threading.RLock()
            with quietly(Exception):  # nor may an error be told
                self.recorder.forget()
            leave_without_kineto()

    def _ticked(self) -> None:
        if not self._lock.acquire(timeout=PATIENCE_S):
            return  # another thread may need this one to finish what it waits for on the GPU
        try:
            self._follow_steps()
        finally:
            self._lock.release()
        # A step of LBFGS calls the script back without end: a window must be able to end inside it.
        loops = self.recorder.recording is not None and any(
            type(optimizer).__name__ == "LBFGS" for optimizer in self._live_optimizers()
        )
        if loops or self.recorder.waits_for_its_thread:
            self._observe_backward()

    def _follow_steps(self) -> None:
        """Do what is due after each step that is complete: once, and in their order.

        Threads that step at once come here late, or find their step done by another one.
        """
        while self._followed < self.clock.steps:
            self._followed += 1
            self.clock.outside.tick(
                disturbed=self.recorder.disturbs or self.arbiter.busy
            )
            self.recorder.after(self._followed)
            self.clock.outside.resume()

    def _catch_up(self) -> None:
        """Do what was put off until the backward pass or the replay with the step was over."""
        if self._postponed:
            self._postponed = False
            self._ticked()

    def _count_compiled_steps(self) -> None:
        """Count the optimizers whose parameters have changed since the last backward pass."""
        for key, optimizer in list(self._built.items()):
            version = _version(optimizer)
            before = self._versions.get(key)
            self._versions[key] = version
            if before is None or version == before:
                continue
            self._remember(key, optimizer)
            self.clock.note(COMPILED_STEPS)
            self.clock.enter(_work())
            if self.clock.leave(key, type(optimizer).__name__, _work()):
                self._ticked()

    def _observe_backward(self) -> None:
        # What torch.autograd.backward and grad call: a script may pickle or compare these.
        observe_function(torch.autograd, "_engine_run_backward", self.backward_begins)

    def _remember(self, key: int, optimizer: Any) -> None:
        known = self._optimizers.get(key)
        thread = threading.get_ident()
        if known is None:
            forget = functools.partial(self._forget, key)
            reference = weakref.ref(optimizer, forget)
            self._optimizers[key] = SteppedOptimizer(reference, thread)
        elif known.thread != thread:
            self._optimizers[key] = known._replace(thread=None)

    def _forget(self, key: int, _: object) -> None:
        # With its training, as in a sweep of several in one process.
        self._optimizers.pop(key, None)
        self.clock.forget(key)

    def _live_optimizers(self) -> list[Any]:
        live = [known.reference() for known in list(self._optimizers.values())]
        return [optimizer for optimizer in live if optimizer is not None]

    def _own_optimizers(self) -> list[Any]:
        """Return the optimizers that this thread alone steps, and whose parameters no other one has.

        While another thread runs a backward pass it replaces the gradients of its parameters
        without holding the interpreter: to read one then crashes the process.
        """
        thread = threading.get_ident()
        own = []
        others = []
        for known in list(self._optimizers.values()):
            optimizer = known.reference()
            if optimizer is None:
                continue
            if known.thread == thread:
                own.append(optimizer)
            else:
                others.append(optimizer)
        foreign = trained_by(others)
        return [
            optimizer
            for optimizer in own
            if foreign.keys().isdisjoint(trained_by([optimizer]))
        ]


class SteppedOptimizer(NamedTuple):
    """An optimizer that has stepped, and the thread of all its steps; None if they had several."""

    reference: weakref.ref[Any]
    thread: int | None


def _version(optimizer: Any) -> int:
    """Return a number that grows whenever the optimizer changes its parameters.

    Fused kernels do not raise the versions of the parameters, but of the state's `step`.
    """
    state = {
        id(key): items_of(values)
        for key, values in pairs_of(stored(optimizer, "state"))
    }
    total = 0
    for key, parameter in islice(trained_by([optimizer]).items(), MAX_VERSIONS):
        for tensor in (parameter, state.get(key, {}).get("step")):
            total += header(tensor, "_version") if is_a(tensor, torch.Tensor) else 0
    return total


# --- the hooks ---

BACKWARD_PASSES = 1 << 62  # above any sequence number

_installed: Observer | None = None
_hooked = False


def install(config: Config) -> Observer:
    """Hook torch for this process, once, and return the observer behind the hooks."""
    global _installed, _hooked
    if _installed is not None:
        return _installed
    debug.open(config)
    precision.declare(config["modules"])
    counters.use(config["counters"])
    observer = _installed = Observer(config)
    # They stay, and do nothing without an observer: torch calls them in a loop over a dictionary,
    # which may not change in it, and compiled code has guards on them.
    if not _hooked:
        _hooked = True
        # A hook that returned a tuple would replace the arguments of step().
        enters = hidden(lambda *_: _tell("optimizer_enters"), when_traced=_is_traced)
        leaves = hidden(_has_stepped, when_traced=_is_traced)
        register(optimizers.register_optimizer_step_pre_hook, enters)
        register(optimizers.register_optimizer_step_post_hook, leaves)
        layers.registrations.begin()
    _observe_graphs(observer)
    observe(torch.amp.GradScaler, "update", observer.scaler_updates)
    observe(
        torch.amp.GradScaler,
        "__init__",
        lambda scaler: _observe_update(scaler, observer),
    )
    observe(optimizers.Optimizer, "__init__", observer.optimizer_is_built)
    observer.look_for_frameworks()
    observer.arbiter.install()
    atexit.register(observer.finish)
    os.register_at_fork(after_in_child=observer.after_fork)
    windows = [
        (window["first"], window["last"]) for window in observer.recorder.plan.windows
    ]
    debug.event(f"hooks are on torch {torch.__version__}; windows {windows}")
    return observer


def install_late(config: Config) -> Observer:
    """Hook torch in a program that may have built its model by now.

    It is searched for at once, and not while the first window is recorded.
    """
    observer = install(config)
    for module in find_instances(lambda kind: issubclass(kind, Module)):
        layers.remember(module)
    return observer


def installed() -> Observer | None:
    """Return the observer of this process, if it has one."""
    return _installed


def uninstall() -> None:
    """Close what is open, and observe no more until the next `install`."""
    global _installed
    observer = _installed
    _installed = None
    if observer is not None:
        observer.finish(True)
        observer.unobserve()
        atexit.unregister(observer.finish)


def _observe_update(scaler: Any, observer: Observer) -> None:
    # FSDP's ShardedGradScaler has an update of its own.
    try:
        owner = next(cls for cls in type(scaler).__mro__ if "update" in cls.__dict__)
        observe(owner, "update", observer.scaler_updates)
    except Exception as error:  # its skipped steps will not be counted
        if is_the_scripts(error):
            raise
        debug.error("finding the update of a GradScaler")


def _work() -> int:
    # In a backward pass: which one, since its thread has a count of its own.
    if on_autograd_thread():
        return BACKWARD_PASSES + int(torch._C._current_graph_task_id())
    # Every autograd node takes the next number of its thread, so a forward pass of training
    # raises it and nothing else does. Watching torch.autograd.backward instead would put a frame
    # of ours into every traceback, and miss engines called directly (Megatron's custom_backward).
    # A forward and backward pass in a CUDA graph makes none.
    return int(torch._C._autograd._get_sequence_nr()) + graphs.replays


def _tell(method: str, *args: Any) -> None:
    if _installed is not None:
        getattr(_installed, method)(*args)


def _is_traced() -> None:
    """A function that torch.compile evaluates while it traces a hook; its result is kept."""
    _tell("step_is_traced")


_is_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _has_stepped(optimizer: Any, *_: Any) -> None:
    if captures_graph():  # the step is being recorded into a CUDA graph, not executed
        _tell("optimizer_is_captured", optimizer)
    else:
        _tell("optimizer_leaves", optimizer, on_autograd_thread())


def _observe_graphs(observer: Observer) -> None:
    """Have graphs noted, and the steps in them counted when they are replayed."""

    def is_replayed(graph: Any) -> None:
        stepped = graphs.is_replayed(graph)
        if stepped:
            observer.graph_is_replayed(stepped)

    with quietly(AttributeError, KeyError):  # a torch whose graphs have no such method
        observe(torch.cuda.CUDAGraph, "capture_begin", graphs.begins)
        observe(torch.cuda.CUDAGraph, "capture_end", graphs.ends)
        observe(torch.cuda.CUDAGraph, "replay", is_replayed)
