"""When windows open: their steps, by number, by time or by the framework's own numbers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..record.debug import debug
from ..record.rank_record import RankRecord
from ..steps.global_steps import GlobalSteps


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


# How far ranks may be apart when their time comes: CPUs run ahead of collectives, by some steps and
# where those are short by what fits into the time.
MARGIN_STEPS = 4
MARGIN_S = 0.25
# Ranks that are farther apart do not train together.
FAR = 64
MAX_LAUNCHES = 64
# A window that nobody named begins once so many steps in a row took the same time and compiled
# nothing, and with this step at the latest.
STABLE_STEPS = 5
STABLE_WITHIN = 0.2  # of their median
LATEST_STEP = 20


def start_of_window(config: dict[str, Any]) -> TimedStart:
    """Return what finds the first step of the configuration's `timed_window`."""
    return StableStart(config) if config["timed_window"].get("auto") else TimedStart(config)


class TimedStart:
    """Finds the first step of the window of `--after-seconds`; `config` is the boot folder's."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._due = float(config["started"]) + float(config["timed_window"]["seconds"])
        self._folder = Path(config["capture"])
        self._begun = self._looked = time.time()
        self._step_s = 0.0

    def is_due(self) -> bool:
        """Return whether its time has come; called after each step that may come before it."""
        now = time.time()
        self._step_s, self._looked = now - self._looked, now
        return now >= self._due

    def first_step(self, earliest: int, world_size: int) -> int:
        """Return the step at which it begins: `earliest`, or what the ranks agree on."""
        if world_size < 2:
            return earliest
        try:
            agreed = self._agree(earliest)
        except (OSError, ValueError, KeyError, TypeError):  # no folder, no hard links, no JSON
            debug.error("agreeing with the other ranks on the first step")
            return earliest
        return agreed if earliest <= agreed <= earliest + FAR else earliest

    def _agree(self, earliest: int) -> int:
        wanted = earliest + self._margin()
        for launch in range(1, MAX_LAUNCHES):
            path = self._folder / f".window-{launch}"
            if _propose(path, wanted):
                return wanted
            found = json.loads(path.read_bytes())
            # A script may train twice: what was agreed before this process began is not for it.
            if float(found["time"]) >= self._begun:
                return int(found["first"])
        return earliest

    def _margin(self) -> int:
        fitting = MARGIN_S / self._step_s if self._step_s > 0 else 0.0
        return int(min(max(MARGIN_STEPS, fitting), FAR // 2))


class StableStart(TimedStart):
    """Finds the first step of a window that nobody named."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._times: deque[float] = deque(maxlen=STABLE_STEPS)
        self._compiled = 0
        self._steps = 0

    def is_due(self) -> bool:
        """Return whether step times are stable, or another rank's were, or time is up."""
        self._steps += 1
        time_is_up = super().is_due()
        compiled = _compiled_frames()
        if compiled != self._compiled:
            self._compiled = compiled
            self._times.clear()
        elif self._steps > 1:  # of the first one the beginning is not known
            self._times.append(self._step_s)
        if time_is_up or self._steps + 2 >= LATEST_STEP:
            return True
        # Ranks that propose a step name one that all of them reach before the latest.
        return self._steps + 2 + MARGIN_STEPS <= LATEST_STEP and (
            self._is_stable() or (self._folder / ".window-1").exists()
        )

    def first_step(self, earliest: int, world_size: int) -> int:
        """Return the step at which it begins; all ranks come to the latest one by themselves."""
        if earliest == LATEST_STEP and not (self._folder / ".window-1").exists():
            return earliest
        return super().first_step(earliest, world_size)

    def _is_stable(self) -> bool:
        if len(self._times) < STABLE_STEPS:
            return False
        median = sorted(self._times)[STABLE_STEPS // 2]
        return all(abs(took - median) <= STABLE_WITHIN * median for took in self._times)

    def _margin(self) -> int:
        return MARGIN_STEPS


def _compiled_frames() -> int:
    """Return how many frames torch.compile has looked at; 0 where it is not in use."""
    utils = sys.modules.get("torch._dynamo.utils")
    return sum(utils.counters["frames"].values()) if utils is not None else 0


def _propose(path: Path, first: int) -> bool:
    draft = path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}")
    draft.write_text(json.dumps({"first": first, "time": time.time()}), encoding="utf-8")
    try:
        os.link(draft, path)  # whole at once, and exclusive on NFS as well
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


PREFIX = "global:"


class GlobalWindows:
    """Gives each window its steps of this run as soon as the numbers tell that it is near.

    It opens the first time that the numbers come by: a further training of the same process that
    counts from 1 again is not recorded twice.
    """

    def __init__(
        self, windows: Sequence[Sequence[int]], plan: Plan, record: RankRecord, numbers: GlobalSteps
    ) -> None:
        self.numbers = numbers
        self._plan = plan
        self._record = record
        self._waiting = [(first, last) for first, last in windows]
        plan.unplaced = len(self._waiting)
        record.unplaced = self._unplaced

    def after(self, step: int) -> bool:
        """Place what is near when `step` steps are complete; return whether anything was."""
        number = self.numbers.completed(step) if self._waiting else None
        if number is None:
            return False
        stride = self.numbers.stride
        near = [w for w in self._waiting if w[0] <= number + 2 * stride and w[1] > number]
        for window in near:
            self._place(window, step, number, stride)
        return bool(near)

    def named(self, seen: dict[str, Any], first: int, last: int) -> dict[str, Any]:
        """Return the fields of a window with its numbers, where the instruments had none."""
        if seen.get("framework") is not None:
            return seen
        return {**seen, "framework": self.numbers.numbers_of(first, last)}

    def _place(self, window: tuple[int, int], step: int, number: int, stride: int) -> None:
        first = step + max(1, -(-(window[0] - number) // stride))
        if self._plan.windows:  # no profiler session begins in the step in which one ends
            first = max(first, self._plan.windows[-1][1] + 2)
        last = max(first, step + (window[1] - number) // stride)
        self._waiting.remove(window)
        self._plan.add(first, last)
        self._record.add_window(first, last, asked=window)
        if number + (first - 1 - step) * stride >= window[0]:
            self._record.note(
                f"window {PREFIX}{window[0]}-{window[1]} had begun when the numbers of its steps "
                f"were known, after step {step}: the rest of it was recorded"
            )

    def _unplaced(self, seen: str) -> list[tuple[tuple[int, int], str]]:
        """Return the windows that never opened, and why; `seen` says how the run ended."""
        return [(window, self._why(window, seen)) for window in self._waiting]

    def _why(self, window: tuple[int, int], seen: str) -> str:
        if self.numbers.framework is None or not self.numbers.shown:
            return (
                f"{seen}, and their global numbers are unknown: no counter of a framework, no line "
                "of the log whose step number grows with the steps, no fp8verify.step(number)"
            )
        if self.numbers.went_through(window[1]):
            return f"{seen}, and its steps were over when their numbers were known"
        by = f"{self.numbers.framework} {self.numbers.counter}"
        return f"{seen}, having gone through the global steps {self.numbers.shown} ({by})"
