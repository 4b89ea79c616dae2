"""Open and close the windows of one process, and write down what became of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch

from ..instruments.instrument import InstrumentContext
from ..instruments.set import InstrumentSet
from ..modules.layer_names import compiles, eager_mode
from ..modules.layers import linear_modules
from ..record.debug import debug
from ..record.process import is_selected
from ..record.rank_record import RankRecord
from ..steps.clock import Clock
from ..windows.session import OpenRanges, Session, gpu_finishes_within
from .eager_step import STEPS_AFTER_WINDOW, EagerStep
from .export import ExportError
from .limits import TerminationGuard, WindowLimits
from .plan import Plan, TimedStart, start_of_window
from .shared_windows import RUNNING, SharedWindows
from .user_profiler import ProfilerArbiter

# After the windows the record is kept up to date until so many steps are timed.
WRITTEN_STEPS = 64


class WindowManager:
    """The profiler's side of the observer: what to do after which step.

    `optimizers` returns the live ones; their parameters tell which modules are trained.
    """

    def __init__(
        self,
        config: dict[str, Any],
        clock: Clock,
        arbiter: ProfilerArbiter,
        optimizers: Callable[[], list[Any]],
        instruments: InstrumentSet | None = None,
    ) -> None:
        timed = config["timed_window"]
        self.plan = Plan(config["windows"], timed["steps"] if timed else 0)
        self._timed = start_of_window(config) if timed else None
        context = InstrumentContext(config, optimizers, lambda: self.record, self.plan.finished)
        self._instruments = instruments or InstrumentSet(
            context, lambda text: self.record.note(text)
        )
        self.record = RankRecord(config, clock, self._instruments.record)
        self._global = _global_windows(config, self.plan, self.record)
        self._config = config
        self._clock = clock
        self._arbiter = arbiter
        self._shared = SharedWindows(self.plan, self.record, arbiter.script)
        self._ranges = OpenRanges()
        self._optimizers = optimizers
        self._session: Session | None = None
        self._lost: Session | None = None
        self._window = 0
        self._naming: EagerStep | None = None
        self._limits = WindowLimits(config)
        self._termination = TerminationGuard(self._terminated)
        self._closing = self._ends_after = False

    @property
    def has_begun(self) -> bool:
        """Whether a profiler of ours exists."""
        return self._session is not None

    @property
    def numbers(self) -> Any:
        """The `GlobalSteps` of a run with windows by the framework's numbers, else None."""
        return None if self._global is None else self._global.numbers

    def before_first_step(self) -> None:
        """Open a window that begins with the first step of this run by the framework's numbers."""
        if self._global is not None and self._global.after(0):
            self.after(0)

    @property
    def idle(self) -> bool:
        """Whether no window is open, or to come, or waits for the script's own profiler."""
        over = self.plan.finished(self._clock.steps)
        return over and self._session is None and not self._shared.waiting

    @property
    def disturbs(self) -> bool:
        """Whether the step that is running is profiled, measured, or warms a profiler up."""
        return bool(self._session or self._lost) or self._instruments.measures or eager_mode.entered

    @property
    def recording(self) -> Session | None:
        """The profiler of the window that is open, if one is."""
        session = self._session
        return session if session is not None and session.state == "recording" else None

    def after(self, step: int) -> None:
        """Do what is due when `step` steps are complete; 0 is the earliest moment."""
        self.keep_limits(step)
        if step == 1:
            self._begin()
        if self._naming is not None and not self._naming.after(step):
            self._naming = None
        self._instruments.after_step(step)
        self._arbiter.script.look(step)
        if self._shared.waiting and not self._arbiter.busy:
            self._shared.settle(step)
        if self._timed is not None and self._is_due(self._timed, step):
            first = self._timed.first_step(step + 2, self.record.world_size)
            self.record.place_timed_window(*self.plan.place_timed_window(first))
        if self._global is not None:
            self._global.after(step)
        actions = {"stop": self._stop, "prepare": self._prepare, "start": self._start}
        for what, window in self.plan.after(step):
            debug.event(f"{what} window {window + 1} after step {step}")
            actions[what](window)
        if self.recording is not None:
            self.recording.begin_step(step + 1)
        elif step and (not self.plan.finished(step) or self._clock.outside.count < WRITTEN_STEPS):
            self.record.write_if_stale()

    def close_now(self) -> None:
        """End all windows, open or not, with the last step that is complete."""
        for window, (first, last) in enumerate(self.plan.windows):
            ends = max(first, min(last, self._clock.steps))
            self.plan.windows[window] = (first, ends)
            self.record.shorten(window, ends)
        session = self.recording
        if session is not None:
            self._close(session, "complete", None)

    def keep_limits(self, step: int) -> None:
        """End the open window if it has grown too large, when `step` steps are complete."""
        if self._lost is not None and self._lost.stop_on_its_thread():
            self._lost = None
        session = self.recording
        if session is None:
            return
        if not session.on_its_thread:
            self._lose("the steps moved to another thread")
            return
        last = self.plan.windows[self._window][1]
        reason = self._limits.exceeded(_autograd_nodes())
        if step > last:  # two threads stepped at once
            self._close(session, "cut", f"its last step was over before it could end, at {step}")
        elif reason is not None and step < last:
            self._close(session, "cut", f"{reason} after step {step}")

    @property
    def waits_for_its_thread(self) -> bool:
        """Whether a session records that only another thread can stop."""
        return self._lost is not None

    def _lose(self, reason: str) -> None:
        """Give the open window up, whose session this thread may not stop."""
        session = self._session
        if session is None:
            return
        self._session, self._lost = None, session
        debug.event(f"a session is left to its thread: {reason}")
        self._instruments.drop()
        self._termination.disarm()
        self.record.mark(self._window, "dropped", reason)
        session.stop_when_possible()

    def yield_to_user(self) -> None:
        """Leave the profiler to the script's own, which is about to start."""
        self._end_naming("the script's own profiler took over")
        session = self.recording
        if session is not None and session.on_its_thread:
            self._yield_window(session)
        else:
            self._drop("the script's own profiler took over")
        if not self.plan.finished(self._clock.steps):
            self._ranges.watch()  # what begins in its session may end in one of ours

    def _yield_window(self, session: Session) -> None:
        if self._current > self.plan.windows[self._window][0]:
            took_over = f"the script's own profiler took over in step {self._current}"
            self._close(session, "cut", took_over)
            self._shared.wait(self._window, may_move=False)
            return
        # Not one step of ours is whole: the window is the script's, or moves.
        self._session = None
        session.stop()
        self._instruments.drop()
        self.record.mark(self._window, "skipped", RUNNING)
        self._shared.wait(self._window, may_move=True)

    def finish(self, *, goes_on: bool = False) -> None:
        """Close what is open and write the last word: the process ends, unless it `goes_on`."""
        self._end_naming(f"the run ended after step {self._clock.steps}")
        session = self.recording
        if session is not None:
            if not session.on_its_thread:
                self._lose("the run ended on another thread than the window began on")
            else:
                self._close_at_the_end(session, f"the run ended inside step {self._current}")
        elif goes_on:
            self._drop("the watch ended")  # a profiler that is prepared would stay so
        self._shared.finish()
        if self._clock.steps:
            self.record.write(ended=True)

    def _close_at_the_end(self, session: Session, reason: str) -> None:
        if gpu_finishes_within():
            self._close(session, "cut", reason)
        else:
            self._drop(f"{reason}, its GPU still busy")

    def _terminated(self) -> bool:
        """Keep what the open window holds; False if that is already being done."""
        session = self.recording
        self._ends_after = self._closing
        if not self._closing and session is not None and session.on_its_thread:
            self._close_at_the_end(session, f"SIGTERM ended the run inside step {self._current}")
            self.record.write(ended=True)
        return not self._closing

    def abandon(self, reason: str) -> None:
        """Give up every window for `reason`."""
        self.record.note(
            f"stopped observing after step {self._clock.steps}: {reason}; {debug.how_to_see_more}"
        )
        self.record.fail(reason)
        self._instruments.drop()
        self._termination.disarm()
        session, self._session = self.recording, None
        if session is not None and not session.stop_on_its_thread():
            session.stop_when_possible()
        self._end_naming(reason)
        self._ranges.unwatch()

    def forget(self) -> None:
        """Let go of the profiler, in a forked child that does not own it."""
        self._session = self._lost = self._naming = None
        self._termination.disarm()
        self._ranges.unwatch()

    @property
    def _current(self) -> int:
        return self._clock.steps + 1

    @property
    def _selected(self) -> bool:
        return is_selected(self.record.rank, self._config["ranks"])

    def _begin(self) -> None:
        self.record.claim()
        if not self._selected:
            reason = f"rank {self.record.rank} is not among the ranks to profile"
            self.record.mark_unreached("skipped", reason)
        self.record.write()

    def _is_due(self, timed: TimedStart, step: int) -> bool:
        waits = bool(step and self.plan.timed_steps)
        return waits and self.plan.placed_are_over(step) and timed.is_due()

    def _prepare(self, window: int) -> None:
        if self._selected and not self._arbiter.busy and self._lost is None:
            if self._session is not None:  # two threads stepped at once: it was never started
                self._session.drop()
            self._session, self._window = self._new_session(), window
            self._session.prepare()

    def _start(self, window: int) -> None:
        self.record.claim()  # a window that begins with step 1 is here before `_begin`
        self._instruments.before_window()
        if not self._selected:
            self.record.write()
            return
        if self._lost is not None:
            self.record.mark(window, "skipped", "the session of an earlier window still recorded")
            return
        if self._arbiter.busy:
            self.record.mark(window, "skipped", RUNNING)
            self._shared.wait(window, may_move=True)
            return
        if self._session is not None and not self._session.on_its_thread:
            self._session.drop()
            self._session = None
        if self._session is None:
            self._session = self._new_session()
        self._window = window
        # Written now, for a process that is killed inside the window.
        self.record.mark(window, "cut", "the process was killed inside the window")
        self._instruments.begin()
        first, last = self.plan.windows[window]
        if first == 1:
            self.record.note("step 1 includes set-up, compilation and autotuning")
        self._session.start(self._metadata(first, last))
        self.record.sees_gpu = self._session.sees_gpu
        self._limits.begin(_autograd_nodes())
        self._termination.arm()

    def _metadata(self, first: int, last: int) -> dict[str, Any]:
        return {
            "version": self._config["version"],
            "rank": self.record.rank,
            "clock": self._clock.source,
            "window": [first, last],
        }

    def _stop(self, window: int) -> None:
        session = self.recording
        if session is None or self._window != window:
            return
        self._close(session, "complete", None)
        if self._config["layers"] and compiles() and self.plan.finished(self._clock.steps):
            self._plan_naming()

    def _close(self, session: Session, state: str, reason: str | None) -> None:
        self._closing = True
        try:
            self._session = None
            session.stop()
            seen = self._instruments.end()
            if self._global is not None:
                seen = self._global.named(seen, *self.plan.windows[self._window])
            self._keep(session, state, reason, seen)
        finally:
            self._closing = False
            self._termination.disarm()
        if self._ends_after:  # SIGTERM arrived meanwhile
            os.kill(os.getpid(), signal.SIGTERM)

    def _keep(self, session: Session, state: str, reason: str | None, seen: dict[str, Any]) -> None:
        try:
            files = self.record.files
            trace = session.export(files.trace_path(self._window), files.drafts)
        except ExportError as error:
            debug.error("writing the trace")
            self.record.mark(self._window, "dropped", f"{error}", **seen)
        else:
            seen["profiler"] = "fp8verify"
            self.record.mark(self._window, state, reason, trace=trace, **seen)

    def _drop(self, reason: str) -> None:
        session, self._session = self._session, None
        self._instruments.drop()
        self._termination.disarm()
        if session is not None:
            recording = session.state == "recording"
            session.drop()
            if recording:
                self.record.mark(self._window, "dropped", reason)

    def _plan_naming(self) -> None:
        every_rank = range(self.record.world_size)
        if not all(is_selected(rank, self._config["ranks"]) for rank in every_rank):
            # A rank that alone runs eagerly may order its collectives differently: all, or none.
            self.record.mark_naming(None, "layers of compiled code need --ranks all")
            return
        step = self._clock.steps + STEPS_AFTER_WINDOW
        self._naming = EagerStep(
            step,
            self.record,
            Session(self._arbiter, self._ranges, record_shapes=self._config["record_shapes"]),
            lambda: linear_modules(self._optimizers()),
            self._metadata(step, step),
        )

    def _end_naming(self, why_not: str) -> None:
        naming, self._naming = self._naming, None
        if naming is not None:
            naming.end(why_not)

    def _new_session(self) -> Session:
        return Session(self._arbiter, self._ranges, record_shapes=self._config["record_shapes"])


def _global_windows(config: dict[str, Any], plan: Plan, record: RankRecord) -> Any:
    if not config["global_windows"]:
        return None
    from ..steps.global_steps import GlobalSteps
    from .plan import GlobalWindows  # every start waits for what it imports

    return GlobalWindows(config["global_windows"], plan, record, GlobalSteps())


def _autograd_nodes() -> int:
    return int(torch._C._autograd._get_sequence_nr())
