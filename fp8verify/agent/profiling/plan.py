"""What to do with the profiler after which step, for windows of 1-based, inclusive steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Action(NamedTuple):
    """One thing to do (`prepare`, `start` or `stop`) for the window of that index."""

    what: str
    window: int


class Plan:
    """The profiler's timetable.

    A window A-B is prepared after step A-2, so that the profiler's own start-up cost falls into
    the warm-up step A-1, started after A-1 and stopped after B. `after(0)` is the earliest moment.

    Attributes:
        windows: first and last step of each.
        timed_steps: how many steps the window known only by its time has; 0 once it is placed.
        unplaced: how many windows wait for the framework's numbers of the steps.
    """

    def __init__(self, windows: Sequence[Sequence[int]], timed_steps: int = 0) -> None:
        self.windows: list[tuple[int, int]] = [(first, last) for first, last in windows]
        self.timed_steps = timed_steps
        self.unplaced = 0

    def place_timed_window(self, first: int) -> tuple[int, int]:
        """Let the window known by its time begin with step `first`, and return it."""
        window = (first, first - 1 + self.timed_steps)
        self.windows.append(window)
        self.timed_steps = 0
        return window

    def add(self, first: int, last: int) -> None:
        """Add a window that waited, after those there are."""
        self.windows.append((first, last))
        self.unplaced -= 1

    def after(self, step: int) -> list[Action]:
        """Return what is due when `step` steps are complete, in the order to do it."""
        due = [Action("stop", i) for i, (_, last) in enumerate(self.windows) if step == last]
        for index, (first, _) in enumerate(self.windows):
            if step == first - 2 and step > 0 and not self._recording_after(step):
                due.append(Action("prepare", index))
            if step == first - 1:
                due.append(Action("start", index))
        return due

    def _recording_after(self, step: int) -> bool:
        return any(first <= step + 1 <= last for first, last in self.windows)

    @property
    def starts_at_once(self) -> bool:
        """Whether a window begins with step 1, before which no optimizer hook can fire."""
        return any(first == 1 for first, _ in self.windows)

    def placed_are_over(self, step: int) -> bool:
        """Whether every window that has its steps ends with `step` or before."""
        return all(last <= step for _, last in self.windows)

    def finished(self, step: int) -> bool:
        """Whether nothing is left to do after `step`."""
        waits = self.timed_steps or self.unplaced
        return not waits and self.placed_are_over(step)
