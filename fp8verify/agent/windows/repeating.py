"""A window every so many steps, for the whole life of a run, in constant memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..instruments.instrument import InstrumentContext
from ..instruments.set import InstrumentSet
from ..record.process import is_selected
from ..record.rank_record import RankRecord
from ..steps.clock import Clock
from ..windows.session import Session
from .manager import WindowManager
from .plan import Plan
from .user_profiler import ProfilerArbiter

LIVE = "live"
CLOSED = ".closed"  # and the rank's files' stem before it: this rank adds nothing any more
WARM_UP = 2  # steps before a window in which its recorder has something to do
MEASURING = 2  # and those before them in which a step is measured
MAX_WAITING = 64  # windows that were not judged yet; more would fill the disk


class CensusOnce(InstrumentSet):
    """Instruments whose census is that of the first window: taking one goes through all objects."""

    taken = False

    def before_window(self) -> None:
        """Look at the training before the first window."""
        if not self.taken:
            self.taken = True
            super().before_window()


class RepeatingWindows:
    """As `WindowManager` for the observer; it has a recorder of its own for every window.

    The run as a whole has a record without windows. Between windows a step costs one comparison.

    Attributes:
        on_closed: called with the folder of a window that is over on this rank.
    """

    def __init__(
        self,
        config: dict[str, Any],
        clock: Clock,
        arbiter: ProfilerArbiter,
        optimizers: Callable[[], list[Any]],
    ) -> None:
        self.on_closed: Callable[[Path], None] = lambda _: None
        self._config = config
        self._clock = clock
        self._arbiter = arbiter
        self._optimizers = optimizers
        context = InstrumentContext(
            config, optimizers, lambda: self._current.record, self._may_measure
        )
        self._instruments = CensusOnce(context, self._note)
        measures = bool(config["numerics"] or config["numerics_every"])
        self._warm_up = WARM_UP + MEASURING if measures else WARM_UP
        self._whole = WindowManager(
            {**config, "windows": []}, clock, arbiter, optimizers, self._instruments
        )
        self._window: WindowManager | None = None
        self._begun = False
        live = config["live"]
        self._every, self._length = int(live["every"]), int(live["length"])
        self._next = int(live["first"] or self._every)

    @property
    def plan(self) -> Plan:
        """The next window, of which nobody may ask but before the first step."""
        return Plan([(self._next, self._next + self._length - 1)])

    @property
    def numbers(self) -> None:
        """There are no windows by the framework's numbers."""
        return None

    @property
    def record(self) -> RankRecord:
        """What is noted of the run."""
        return self._whole.record

    @property
    def has_begun(self) -> bool:
        """Whether a profiler of ours exists or existed."""
        return self._begun or (self._window is not None and self._window.has_begun)

    @property
    def disturbs(self) -> bool:
        """Whether the step that is running is profiled, measured, or warms a profiler up."""
        return self._window is not None and self._window.disturbs

    @property
    def waits_for_its_thread(self) -> bool:
        """Whether a session records that only another thread can stop."""
        return self._window is not None and self._window.waits_for_its_thread

    @property
    def recording(self) -> Session | None:
        """The profiler of the window that is open, if one is."""
        return None if self._window is None else self._window.recording

    def after(self, step: int) -> None:
        """Do what is due when `step` steps are complete; 0 is the earliest moment."""
        if step == 1:
            self._whole.after(step)
        if self._window is None:
            if step < self._next - self._warm_up:
                return
            self._window = self._open(step)
        self._window.after(step)
        if self._window.idle:
            self._closed()

    def keep_limits(self, step: int) -> None:
        """End the open window if it has grown too large, when `step` steps are complete."""
        if self._window is not None:
            self._window.keep_limits(step)

    def yield_to_user(self) -> None:
        """Leave the profiler to the script's own, which is about to start."""
        (self._window or self._whole).yield_to_user()

    def finish(self, *, goes_on: bool = False) -> None:
        """Close what is open and write the last word: the process ends, unless it `goes_on`."""
        if self._window is not None and self._begun:
            self._window.finish(goes_on=goes_on)
            self._closed()
        self._whole.finish(goes_on=goes_on)

    def abandon(self, reason: str) -> None:
        """Give up every window for `reason`."""
        if self._window is not None:
            self._window.abandon(reason)
            self._window = None
        self._whole.abandon(reason)

    def forget(self) -> None:
        """Let go of the profiler, in a forked child that does not own it."""
        if self._window is not None:
            self._window.forget()

    def _open(self, step: int) -> WindowManager:
        # A run that profiles itself, or a first window near the first step, may be late.
        while self._next <= step:
            self._next += self._every
        first = self._next
        self._next += self._every
        config = {
            **self._config,
            "capture": str(self._folder(first)),
            "windows": [(first, first + self._length - 1)],
        }
        self.record.claim()
        if not is_selected(self.record.rank, config["ranks"]) or self._is_behind():
            config["windows"] = []
        else:
            self._begun = True
            Path(config["capture"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        return WindowManager(
            config, self._clock, self._arbiter, self._optimizers, self._instruments
        )

    def _folder(self, first: int) -> Path:
        return Path(self._config["capture"], LIVE, f"step-{first:09d}")

    def _is_behind(self) -> bool:
        folder = Path(self._config["capture"], LIVE)
        if folder.is_dir() and sum(1 for _ in folder.iterdir()) >= MAX_WAITING:
            self._note(f"windows were left out while {MAX_WAITING} others waited to be judged")
            return True
        return False

    def _closed(self) -> None:
        window, self._window = self._window, None
        if window is None or not window.plan.windows:
            return
        files = window.record.files
        if window.plan.windows[0][0] > self._clock.steps and not window.record.has_steps:
            files.discard()  # the run ended before its first step was complete
            return
        window.record.write()
        self.record.files.take_series(files)
        files.folder.joinpath(f"{files.stem}{CLOSED}").touch(mode=0o600)
        self.on_closed(files.folder)

    @property
    def _current(self) -> WindowManager:
        return self._window or self._whole

    def _may_measure(self, step: int) -> bool:
        """Whether the second step from now lies before the window that is near."""
        windows = self._window.plan.windows if self._window is not None else []
        return bool(windows) and step + MEASURING < windows[0][0]

    def _note(self, text: str) -> None:
        self._current.record.note(text)
