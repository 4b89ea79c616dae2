"""A window every N steps of the whole run, in constant memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..clock import Clock
from ..config import Config, Live
from .manager import WindowManager
from .plan import Plan
from .profiler import ProfilerArbiter

LIVE = "live"
CLOSED = ".closed"  # and the rank's files' stem before it: this rank adds nothing any more
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

    def __init__(
        self,
        config: Config,
        live: Live,
        clock: Clock,
        arbiter: ProfilerArbiter,
        optimizers: Callable[[], list[Any]],
    ) -> None:
        super().__init__({**config, "windows": ()}, clock, arbiter, optimizers)
        self.on_closed: Callable[[Path], None] = lambda _: None
        measures = bool(config["numerics"] or config["numerics_every"])
        self._warm_up = WARM_UP + MEASURING if measures else WARM_UP
        self._begun = False
        self._every, self._length = live["every"], live["length"]
        self._next = live["first"]
        self._whole = self.record
        self._plan_next()

    def _plan_next(self) -> None:
        self.record = self._whole
        self.plan = Plan([(self._next, self._next + self._length - 1)])

    @property
    def _is_open(self) -> bool:
        return self.record is not self._whole

    @property
    def has_begun(self) -> bool:
        """Whether a profiler of ours exists or existed."""
        return self._begun or super().has_begun

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
        self._begun = True
        folder = Path(self._config["capture"], LIVE, f"step-{first:09d}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        record, window = self.record, self.plan.windows[0]
        self._plan_next()
        files = record.files
        if window["first"] > self._clock.steps and not record.has_steps:
            files.discard()  # the run ended before its first step was complete
            return
        record.write()
        with suppress(OSError):
            self._whole.files.append_numerics(files.series.read_text(encoding="utf-8"))
        files.folder.joinpath(f"{files.stem}{CLOSED}").touch(mode=0o600)
        self.on_closed(files.folder)
