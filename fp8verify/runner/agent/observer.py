"""Follow the training from the hooks: count steps, open and close windows, keep the record."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from .census import take_census
from .clock import Clock
from .guard import ProfilerGuard
from .process import is_selected
from .record import Record
from .session import Session
from .windows import Plan

Method = TypeVar("Method", bound=Callable[..., Any])


def harmless(method: Method) -> Method:
    """Let no error out of `method` into the user's program: note it and stop observing."""

    @functools.wraps(method)
    def guarded(self: Observer, *args: Any) -> Any:
        if not self.armed:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            self.disarm(f"{method.__name__}: {type(error).__name__}: {error}")
            return None

    return guarded  # type: ignore[return-value]


class Observer:
    """The one object that the hooks talk to.

    `work` reads a number that grows with every forward pass; see `Clock`.

    Attributes:
        armed: False once anything went wrong, or the process is ending.
        on_disarm: takes the hooks away.
    """

    def __init__(self, config: dict[str, Any], work: Callable[[], int]) -> None:
        self.armed = True
        self.on_disarm: Callable[[], None] = lambda: None
        self.guard = ProfilerGuard(self.foreign_profiler)
        self.plan = Plan(config["windows"])
        self.clock = Clock(work())
        self.record = Record(config, self.clock)
        self._config = config
        self._work = work
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._session: Session | None = None
        self._window = 0

    @harmless
    def optimizer_enters(self) -> None:
        """Hear that an optimizer's step begins."""
        self.clock.enter(self._work())

    @harmless
    def optimizer_leaves(self, optimizer: Any) -> None:
        """Hear that an optimizer has stepped."""
        key = id(optimizer)
        if key not in self._optimizers:
            self._optimizers[key] = weakref.ref(optimizer)
        if self.clock.leave(key, type(optimizer).__name__, self._work(), idle=_is_idle(optimizer)):
            self._ticked()

    @harmless
    def scaler_updates(self) -> None:
        """Hear that a GradScaler's update begins."""
        if self.clock.scaler_updated(self._work()):
            self._ticked()

    @harmless
    def announced(self) -> None:
        """Hear `fp8verify.step()`."""
        if self.clock.announce(self._work()):
            self._ticked()

    @harmless
    def optimizer_is_built(self) -> None:
        """Open a window that begins with step 1: no later moment is known to come before it."""
        if self.clock.steps == 0 and self._session is None:
            self._act(0)

    @harmless
    def foreign_profiler(self) -> None:
        """Give way to the script's own profiler, which is about to start."""
        session = self._session
        if session is None:
            return
        if session.state == "recording" and session.on_its_thread:
            self._close("cut", f"the script's own profiler took over in step {self._current}")
        else:
            self._drop("the script's own profiler took over")

    @harmless
    def finish(self) -> None:
        """Close what is open when the process ends."""
        if self._session is not None and self._session.state == "recording":
            if self._session.on_its_thread:
                self._close("cut", f"the run ended inside step {self._current}")
            else:
                self._drop("the run ended on another thread than the window began on")
        if self.clock.steps:
            self.record.write(ended=True)
        self.armed = False

    def disarm(self, reason: str) -> None:
        """Stop observing for good and say why in the record."""
        self.armed = False
        try:
            self.on_disarm()
            self.record.note(f"stopped observing after step {self.clock.steps}: {reason}")
            self.record.fail(reason)
            session, self._session = self._session, None
            if session is not None and session.state == "recording" and session.on_its_thread:
                session.stop()
        except Exception:
            # Nothing is left that could be said, or said to: the run goes on without us.
            return

    def after_fork(self) -> None:
        """Leave a forked child alone, unless the training itself is still to start in it."""
        if self.clock.steps or self._session is not None:
            self.armed = False
            self._session = None

    @property
    def _current(self) -> int:
        return self.clock.steps + 1

    @property
    def _selected(self) -> bool:
        return is_selected(self.record.rank, self._config["ranks"])

    def _ticked(self) -> None:
        step = self.clock.steps
        if step == 1:
            self._begin()
        self._act(step)
        if self._session is not None and self._session.state == "recording":
            self._session.begin_step(self._current)
        elif not self.plan.finished(step):
            self.record.write_if_stale()

    def _begin(self) -> None:
        self.record.claim()
        if not self._selected:
            reason = f"rank {self.record.rank} is not among the ranks to profile"
            self.record.mark_unreached("skipped", reason)
        self.record.write()

    def _act(self, step: int) -> None:
        actions = {"stop": self._stop, "prepare": self._prepare, "start": self._start}
        for what, window in self.plan.after(step):
            actions[what](window)

    def _prepare(self, window: int) -> None:
        if self._selected and not self.guard.busy:
            self._session, self._window = self._new_session(), window
            self._session.prepare()

    def _start(self, window: int) -> None:
        self.record.claim()  # a window that begins with step 1 is here before `_begin`
        self._take_census()
        if not self._selected:
            self.record.write()
            return
        if self.guard.busy:
            self.record.mark(window, "skipped", "the script's own profiler was running")
            return
        if self._session is None:
            self._session = self._new_session()
        self._window = window
        # Written now, for a process that is killed inside the window.
        self.record.mark(window, "cut", "the process ended inside the window without a chance")
        self._session.start(self._metadata(window))
        self._session.begin_step(self._current)

    def _metadata(self, window: int) -> dict[str, Any]:
        first, last = self.plan.windows[window]
        if first == 1:
            self.record.note("step 1 includes set-up, compilation and autotuning")
        return {
            "version": self._config["version"],
            "rank": self.record.rank,
            "clock": self.clock.source,
            "window": [first, last],
        }

    def _stop(self, window: int) -> None:
        session = self._session
        if session is None or self._window != window or session.state != "recording":
            return
        if not session.on_its_thread:
            self._drop("the steps moved to another thread")
            return
        self._close("complete", None)

    def _close(self, state: str, reason: str | None) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        session.stop()
        if not self.record.modules:
            self._take_census()
        path = self.record.files.trace_path(self._window)
        session.export(path)
        self.record.mark(self._window, state, reason, path.name)

    def _drop(self, reason: str) -> None:
        session, self._session = self._session, None
        if session is not None:
            recording = session.state == "recording"
            session.drop()
            if recording:
                self.record.mark(self._window, "dropped", reason)

    def _new_session(self) -> Session:
        return Session(
            self.guard,
            record_shapes=self._config["record_shapes"],
            on_kineto=self.record.files.note_kineto_call,
        )

    def _take_census(self) -> None:
        optimizers = [reference() for reference in self._optimizers.values()]
        self.record.modules = take_census([o for o in optimizers if o is not None])


def _is_idle(optimizer: Any) -> bool:
    # A learning rate kept in a tensor is not read: that would wait for the GPU.
    rates = [group.get("lr") for group in optimizer.param_groups]
    return all(isinstance(rate, (int, float)) and rate == 0 for rate in rates)
