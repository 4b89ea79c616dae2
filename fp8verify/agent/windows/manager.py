"""Open and close the windows of one process, and write down what became of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import instruments
from ..clock import Clock
from ..config import Config, Live
from ..debug import MORE, debug
from ..guard import quietly
from ..numerics import Numerics
from ..process import is_selected
from ..record import RankRecord
from . import profiler
from .plan import Plan, plan_of
from .profiler import ProfilerArbiter, Session

KINDS = (
    instruments.ModuleList,
    instruments.FrameworkNumbers,
    instruments.WindowLayers,
    instruments.MemoryPeak,
    instruments.BlasLog,
    Numerics,
)
# After the windows the record is kept up to date until so many steps are timed.
WRITTEN_STEPS = 64
# Bytes of JSON for one autograd node: the operators and kernels of its forward and backward pass.
# 1.7 KB an operator with its shapes (torch 2.13, CPU), some five events a node.
BYTES_PER_NODE = 8 << 10


class WindowLimits:
    """How long the window that begins now may last and how large its trace may become.

    The size is not known before the trace is written. What is known is how many autograd nodes the
    script has made since, and by how much the memory of the process has grown. 0 is no limit.
    """

    def __init__(self, config: Config) -> None:
        self._seconds = config["max_window_seconds"]
        self._megabytes = config["max_trace_mb"]
        self._began = time.monotonic()
        self._nodes = _autograd_nodes()
        self._memory = _resident()

    def exceeded(self) -> str | None:
        """Return which limit the window has passed."""
        if 0 < self._seconds < time.monotonic() - self._began:
            return f"it had lasted {self._seconds:g} seconds (--max-window-seconds)"
        if self._megabytes <= 0:
            return None
        nodes = _autograd_nodes() - self._nodes
        grown = _resident() - self._memory
        estimate = max(nodes * BYTES_PER_NODE, grown)
        if estimate > self._megabytes << 20:
            return f"its trace would exceed {self._megabytes} MB (--max-trace-mb)"
        return None


def _autograd_nodes() -> int:
    return int(torch._C._autograd._get_sequence_nr())


def _resident() -> int:
    with quietly(OSError, ValueError, IndexError):
        figures = Path("/proc/self/statm").read_text(encoding="ascii").split()
        pages = int(figures[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


class WindowManager:
    """The profiler's part of the observer: prepares, starts and stops windows by step.

    `optimizers` returns the live ones; their parameters show which modules are trained. `own`
    returns those whose values this thread may read.

    Attributes:
        is_changing: whether a window is about to begin or end, or could not do so to the end.
        plan: the windows.
        record: the record of these windows.
        has_begun: whether a profiler of ours exists or existed.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        arbiter: ProfilerArbiter,
        optimizers: Callable[[], list[Any]],
        own: Callable[[], list[Any]],
    ) -> None:
        self.has_begun = False
        self.is_changing = False
        self._config = config
        self._clock = clock
        self._arbiter = arbiter
        self._ranges = profiler.OpenRanges()
        self._ranges.observe_fast()
        self._limits = WindowLimits(config)  # of the open window
        self._session: Session | None = None
        self._window = 0  # the index of the session's
        self._lost: Session | None = None
        # Windows that wait for the script's profiler to end.
        self._gave_way: set[int] = set()
        context = instruments.InstrumentContext(
            config=config,
            optimizers=optimizers,
            own=own,
            record=lambda: self.record,
            may_measure=self._may_measure,
        )
        self._instruments = instruments.InstrumentSet(context, KINDS)
        self._begin(config, plan_of(config))

    def _begin(self, config: Config, plan: Plan) -> None:
        """Take a plan, with a record of its own."""
        self.plan = plan
        sections = partial(self._instruments.call, "record")
        self.record = RankRecord(config, self._clock, plan, sections)

    # --- what the observer asks -------------------------------------------------------------------

    @property
    def recording(self) -> Session | None:
        """The profiler that records, if one does."""
        session = self._session
        if session is not None and session.state == "recording":
            return session
        return None

    @property
    def _is_prepared(self) -> bool:
        return self._session is not None and self._session.state == "prepared"

    @property
    def waits_for_its_thread(self) -> bool:
        """Whether a session records that only another thread can stop."""
        return self._lost is not None

    @property
    def disturbs(self) -> bool:
        """Whether the step that is running is profiled, measured, or warms a profiler up."""
        busy = self._session or self._lost or self._instruments.measures
        return bool(busy)

    def _may_measure(self, step: int) -> bool:
        return self.plan.finished(step)

    # --- steps ------------------------------------------------------------------------------------

    def after(self, step: int) -> None:
        """Do what is due when `step` steps are complete; 0 is the earliest moment."""
        self.keep_limits(step)
        if step == 1:
            self._note_rank()
        self._instruments.call("after_step", step)
        if self._gave_way and not self._arbiter.busy:
            self._move_windows(step)
        self.plan.place_due(step)
        actions = {
            "stop": self._stop,
            "prepare": self._prepare,
            "start": self._start,
        }
        for what, window in self.plan.after(step):
            debug.event(f"{what} window {window + 1} after step {step}")
            self.is_changing = True
            actions[what](window)
            self.is_changing = False
        if self.recording is not None:
            self.recording.begin_step(step + 1)
        elif step and (
            not self.plan.finished(step) or self._clock.outside.count < WRITTEN_STEPS
        ):
            self.record.write_if_stale()

    def keep_limits(self, step: int) -> None:
        """End the open window if it has grown too large, when `step` steps are complete."""
        if self._lost is not None and self._lost.stop_on_its_thread():
            self._lost = None
        self._leave_ended_thread()
        session = self.recording
        if session is None:
            return
        last = self.plan.windows[self._window]["last"]
        reason = self._limits.exceeded()
        if step > last:  # two threads stepped at once
            self._close("cut", f"its last step was over before it could end, at {step}")
        elif not session.on_its_thread or (reason is not None and step < last):
            self._close("cut", f"{reason} after step {step}")

    def _note_rank(self) -> None:
        if self.plan.starts_at_once:
            self.record.note("step 1 includes set-up, compilation and autotuning")
        if not self._is_selected():
            reason = f"rank {self.record.files.rank} is not among the ranks to profile"
            self.record.leave_out("skipped", reason)
        self.record.write()

    def _is_selected(self) -> bool:
        return is_selected(self.record.files.rank, self._config["ranks"])

    def _move_windows(self, step: int) -> None:
        """Move the windows that the script's profiler took behind it, as often as it takes them."""
        for index in sorted(self._gave_way):
            if self.plan.move(index, step):
                self.record.note(
                    "the script's own profiler was running when a window was to begin: later steps "
                    "were chosen instead"
                )
        self._gave_way.clear()

    def _move_late(self, index: int) -> None:
        """Move a window of which other threads have begun or completed steps by now."""
        if self.plan.move(index, self._clock.steps):
            self.record.note(
                "other threads completed steps while a window was to begin: later steps were chosen "
                "instead"
            )
            return
        reason = "other threads completed its steps before it could begin"
        self._drop(reason)
        self.record.mark(self.plan.windows[index], "skipped", reason)

    def _give_way(self, index: int) -> None:
        self.record.mark(self.plan.windows[index], "skipped", profiler.RUNNING)
        self._gave_way.add(index)

    def _prepare(self, window: int) -> None:
        if not self._is_selected() or self._arbiter.busy or self._lost is not None:
            return
        if self._ranges.obstacle() is not None:
            return
        if self._session is not None:  # its window moved
            self._session.drop()
        self._session = self._new_session()
        self._window = window
        self._session.prepare()

    def _start(self, index: int) -> None:
        window = self.plan.windows[index]
        self._instruments.call("before_window")
        if not self._is_selected():
            self.record.write()
            return
        if self._lost is not None:
            self.record.mark(
                window, "skipped", "the session of an earlier window still recorded"
            )
            return
        if self._arbiter.busy:
            self._give_way(index)
            return
        obstacle = self._ranges.obstacle()
        if obstacle is not None:
            self._drop(obstacle)
            self.record.mark(window, "skipped", obstacle)
            return
        if self._clock.steps >= window["first"]:
            self._move_late(index)
            return
        if self._session is not None and not self._session.on_its_thread:
            self._session.drop()
            self._session = None
        self._session = self._session or self._new_session()
        self._window = index
        # Written now, for a process that is killed inside the window.
        self.record.mark(window, "cut", "the process was killed inside the window")
        self._instruments.call("begin")
        metadata = {
            "version": self._config["version"],
            "rank": self.record.files.rank,
            "clock": self._clock.source,
            "window": [window["first"], window["last"]],
        }
        self._session.start(metadata)
        self.record.sees_gpu = self._session.sees_gpu
        self._limits = WindowLimits(self._config)

    def _stop(self, window: int) -> None:
        if self.recording is None or self._window != window:
            return
        self._close("complete", None)

    def _close(self, state: str, reason: str | None) -> None:
        """End the open window and write its trace; only its session's own thread can do so."""
        session = self.recording
        if session is None:
            return
        self._session = None
        window = self.plan.windows[self._window]
        if not session.on_its_thread:
            self._lost = session
            self._instruments.call("drop")
            self.record.mark(
                window, "dropped", "it ended on another thread than it began on"
            )
            debug.event("a session is left to its thread")
            session.stop_when_possible()
            return
        session.stop()
        seen = self._instruments.call("end")
        files = self.record.files
        path = files.trace_path(self._window)
        try:
            trace = session.export(path, files.drafts)
        except profiler.ExportError as error:
            debug.error("writing the trace")
            self.record.mark(window, "dropped", f"{error}", **seen)
        else:
            self.record.mark(window, state, reason, **seen, trace=trace)

    def _drop(self, reason: str) -> None:
        """Forget the session, whether it records or is only prepared."""
        session = self._session
        self._session = None
        self._instruments.call("drop")
        if session is not None:
            has_begun = session.state in ("recording", "stopped")
            session.drop()
            if has_begun:
                self.record.mark(self.plan.windows[self._window], "dropped", reason)

    def _leave_ended_thread(self) -> None:
        """Give up a session that was stopped because its thread ended."""
        if self._session is not None and self._session.state == "stopped":
            self._drop("its thread ended inside the window")

    # --- the end, and others that take over -------------------------------------------------------

    def close_now(self) -> None:
        """End all windows, open or not, with the last step that is complete."""
        for window in self.plan.windows:
            window["last"] = max(
                window["first"], min(window["last"], self._clock.steps)
            )
        self._close("complete", None)

    def yield_to_user(self) -> None:
        """Leave the profiler to the script's own, which is about to start."""
        took_over = "the script's own profiler took over"
        session = self.recording
        if session is None or not session.on_its_thread:
            self._drop(took_over)
        elif self._current > self.plan.windows[self._window]["first"]:
            self._close("cut", f"{took_over} in step {self._current}")
        else:  # not one step of ours is whole
            self._session = None
            session.stop()
            self._instruments.call("drop")
            self._give_way(self._window)
        if not self.plan.finished(self._clock.steps):
            self._ranges.watch()  # what begins in its session may end in one of ours

    def finish(self, *, goes_on: bool = False) -> None:
        """Close what is open and write the last word: the process ends, unless it `goes_on`."""
        self._leave_ended_thread()
        session = self.recording
        reason = f"the run ended inside step {self._current}"
        if (
            session is not None
            and session.on_its_thread
            and not profiler.gpu_finishes_within()
        ):
            self._drop(f"{reason}, its GPU still busy")
        elif session is not None:
            self._close("cut", reason)
        elif goes_on or (self._is_prepared and profiler.gpu_finishes_within()):
            # It would stay prepared, and CUPTI's thread then crashes a process that ends.
            self._drop("the run ended")
        if self._clock.steps:
            self.record.write(ended=True)

    def abandon(self, reason: str) -> None:
        """Give up every window for `reason`."""
        self.record.note(
            f"stopped observing after step {self._clock.steps}: {reason}; {MORE}"
        )
        self.record.fail(reason)
        self._instruments.call("drop")
        session = self._session
        is_prepared = self._is_prepared
        self._session = None
        if session is not None and is_prepared:
            with quietly(Exception):  # the GPU may have failed
                session.drop()
        elif session is not None and not session.stop_on_its_thread():
            session.stop_when_possible()
        self._ranges.unwatch()

    def forget(self) -> None:
        """Let go of the profiler, in a forked child that does not own it."""
        session = self._session or self._lost
        if session is not None and session.on_its_thread:
            self._arbiter.forked(
                session.end_in_child, recording=session.state == "recording"
            )
        self._session = self._lost = None
        self._instruments.call("drop")
        self._ranges.unwatch()

    @property
    def _current(self) -> int:
        return self._clock.steps + 1

    def _new_session(self) -> Session:
        self.has_begun = True
        return Session(
            self._arbiter, self._ranges, record_shapes=self._config["record_shapes"]
        )


# --- a watch ---

LIVE = "live"
PRIVATE = 0o700
CLOSED = (
    ".closed"  # and the rank's files' stem before it: this rank adds nothing any more
)
WARM_UP = 2  # steps before a window in which its session has something to do
MEASURING = 2  # and those before them in which a step is measured
MAX_WAITING = 64  # windows that were not judged yet; more would fill the disk


class RepeatingWindows(WindowManager):
    """Opens a window every N steps.

    Each window has its own plan and record, in a separate capture below `live/`; the record of the
    whole run has no windows. Between windows a step costs one comparison.

    Attributes:
        on_closed: called with the folder of each window that has ended on this rank.
    """

    def __init__(self, config: Config, *others: Any) -> None:
        super().__init__({**config, "windows": ()}, *others)
        self.on_closed: Callable[[Path], None] = lambda _: None
        measures = bool(config["numerics"] or config["numerics_every"])
        self._warm_up = WARM_UP + MEASURING if measures else WARM_UP
        live: Live = config["live"]  # type: ignore[assignment]
        self._every = live["every"]
        self._length = live["length"]
        self._next = live["first"]
        self._whole = self.record
        self._plan_next()

    def _plan_next(self) -> None:
        self.record = self._whole
        self.plan = Plan([(self._next, self._next + self._length - 1)])

    @property
    def _is_open(self) -> bool:
        return self.record is not self._whole

    def _may_measure(self, step: int) -> bool:
        """Whether the second step from now is before the next window."""
        return self._is_open and step + MEASURING < self.plan.windows[0]["first"]

    def after(self, step: int) -> None:
        """Do what is due when `step` steps are complete; 0 is the earliest moment."""
        if step == 1:
            self._whole.write()
        if not self._is_open:
            if self._lost is not None:
                self.keep_limits(step)
            if step < self._next - self._warm_up or not self._open(step):
                return
        super().after(step)
        over = self.plan.finished(step) and self._session is None
        if over and not self._gave_way:
            self._closed()

    def finish(self, *, goes_on: bool = False) -> None:
        """Close what is open and write the last word: the process ends, unless it `goes_on`."""
        if self._is_open:
            super().finish(goes_on=goes_on)
            self._closed()
        if self._clock.steps:
            self._whole.write(ended=True)

    def abandon(self, reason: str) -> None:
        """Give up the window and the watch for `reason`."""
        super().abandon(reason)
        if self._is_open:
            self._plan_next()
            super().abandon(reason)

    def _open(self, step: int) -> bool:
        """Begin the next window's capture; return whether this rank records it."""
        # A run that profiles itself, or a first window near the first step, may be late.
        while self._next <= step:
            self._next += self._every
        first = self._next
        self._next += self._every
        if not self._is_selected() or self._is_behind():
            return False
        folder = Path(self._config["capture"], LIVE, f"step-{first:09d}")
        # One by one: what `parents` makes has not the mode.
        folder.parent.mkdir(mode=PRIVATE, exist_ok=True)
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        plan = Plan([(first, first + self._length - 1)])
        self._begin({**self._config, "capture": str(folder)}, plan)
        return self._is_selected()  # which claims its files

    def _is_behind(self) -> bool:
        folder = Path(self._config["capture"], LIVE)
        if folder.is_dir() and sum(1 for _ in folder.iterdir()) >= MAX_WAITING:
            self.record.note(
                f"windows were left out while {MAX_WAITING} others waited to be judged"
            )
            return True
        return False

    def _closed(self) -> None:
        record = self.record
        window = self.plan.windows[0]
        self._plan_next()
        files = record.files
        if window["first"] > self._clock.steps and not record.has_steps:
            files.discard()  # the run ended before its first step was complete
            return
        record.write()
        with quietly(OSError):
            self._whole.files.append_numerics(files.series.read_text(encoding="utf-8"))
        files.folder.joinpath(f"{files.stem}{CLOSED}").touch(mode=0o600)
        self.on_closed(files.folder)
