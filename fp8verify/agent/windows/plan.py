"""When windows open: their steps, by number, by time or by the framework's own numbers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..debug import debug
from ..process import rank_and_world_size
from ..record import Window, new_window
from ..step_numbers import GlobalSteps


class Plan:
    """The profiler's schedule.

    A window A-B is prepared after step A-2, so the profiler's own start-up cost falls into
    the warm-up step A-1, started after A-1 and stopped after B. `after(0)` is the earliest moment.

    Attributes:
        windows: records of the windows whose steps are known.
        waiting: windows that get their steps later, by time or by the framework's numbers.
        why: returns the reason why such a window has none, given how the run ended.
    """

    def __init__(self, windows: Sequence[Sequence[int]], waiting: Sequence[Window] = ()) -> None:
        self.windows = [new_window(first, last) for first, last in windows]
        self.waiting = list(waiting)
        self.why: Callable[[Window, str], str] = lambda _, seen: seen
        self._step = 0

    def place(self, window: Window, first: int, last: int) -> None:
        """Give a window that waited its steps."""
        self.waiting = [other for other in self.waiting if other is not window]
        window.update(first=first, last=last)
        self.windows.append(window)

    def move(self, index: int, step: int) -> bool:
        """Give a window the first free steps after `step`; return whether no other has them."""
        window = self.windows[index]
        first, last = step + 2, step + 2 + window["last"] - window["first"]
        later = [other["first"] for other in self.windows if other["first"] > step]
        if later and last >= min(later) - 1:
            return False  # no profiler session begins in the step in which one ends
        window.update(first=first, last=last, state="never", reason=None)
        return True

    def unreached(self, seen: str) -> list[Window]:
        """Return the windows that still wait, with the reason; `seen` says how the run ended."""
        for window in self.waiting:
            if window["state"] == "never":
                window["reason"] = self.why(window, seen)
            if window["asked"] is None:  # the steps that it would have next
                length = window["last"] - window["first"]
                window.update(first=self._step + 2, last=self._step + 2 + length)
        return self.waiting

    def after(self, step: int) -> list[tuple[str, int]]:
        """Return what is due when `step` steps are complete, in the order to do it.

        It is "prepare", "start" or "stop", with the index of a window.
        """
        self._step = step
        due = [("stop", i) for i, one in enumerate(self.windows) if step == one["last"]]
        for index, window in enumerate(self.windows):
            ahead = window["first"] - step
            if ahead == 2 and step > 0 and not self._recording_after(step):
                due.append(("prepare", index))
            if ahead == 1:
                due.append(("start", index))
        return due

    def _recording_after(self, step: int) -> bool:
        return any(window["first"] <= step + 1 <= window["last"] for window in self.windows)

    @property
    def starts_at_once(self) -> bool:
        """Whether a window begins with step 1, before which no optimizer hook can fire."""
        return any(window["first"] == 1 for window in self.windows)

    def finished(self, step: int) -> bool:
        """Whether all windows are done after `step`."""
        return not self.waiting and all(window["last"] <= step for window in self.windows)


# How far ranks may be apart when their time comes: CPUs run ahead of collectives, by some steps and
# where those are short by what fits into the time.
MARGIN_STEPS = 4
MARGIN_S = 0.25
# Ranks that are farther apart do not train together.
FAR = 64
MAX_LAUNCHES = 64
# A window without given steps begins once so many steps in a row took the same time and compiled
# nothing, and with this step at the latest.
STABLE_STEPS = 5
STABLE_WITHIN = 0.2  # of their median
LATEST_STEP = 20


class TimedStart:
    """Finds the first step of the configuration's `timed_window`, the only one of its plan.

    It begins when its time has come (`--after-seconds`) or, if it is automatic, when the step times
    are stable. Ranks agree on the step by a file in the capture.
    """

    def __init__(self, plan: Plan, config: dict[str, Any]) -> None:
        timed = config["timed_window"]
        self._plan = plan
        self._seconds = float(timed["seconds"])
        self._auto = bool(timed.get("auto"))
        self._due = float(config["started"]) + self._seconds
        self._folder = Path(config["capture"])
        self._begun = self._looked = time.time()
        self._step_s = 0.0
        self._times: deque[float] = deque(maxlen=STABLE_STEPS)
        self._steps = self._compiled = 0

    def why(self, _: Window, seen: str) -> str:
        """Return why the window has not begun, given how the run is known to end."""
        if self._auto:
            return f"{seen}, before its step time was stable"
        return f"{seen}, before {self._seconds:g} seconds had passed"

    def after(self, step: int) -> bool:
        """Place the window if it is due when `step` steps are complete; return whether it was."""
        if not (step and self._plan.waiting and self.is_due()):
            return False
        (window,) = self._plan.waiting
        first = self.first_step(step + 2, rank_and_world_size()[1])
        self._plan.place(window, first, first + window["last"] - window["first"])
        return True

    def is_due(self) -> bool:
        """Return whether its time has come; called after each step that may come before it."""
        now = time.time()
        self._step_s, self._looked = now - self._looked, now
        self._steps += 1
        return now >= self._due or (self._auto and self._is_settled())

    def _is_settled(self) -> bool:
        """Whether step times are stable, or another rank's were, or the latest step has come."""
        compiled = _compiled_frames()
        if compiled != self._compiled:
            self._compiled = compiled
            self._times.clear()
        elif self._steps > 1:  # of the first one the beginning is not known
            self._times.append(self._step_s)
        if self._steps + 2 >= LATEST_STEP:
            return True
        # Ranks that propose a step name one that all of them reach before the latest.
        if self._steps + 2 + MARGIN_STEPS > LATEST_STEP:
            return False
        median = sorted(self._times)[len(self._times) // 2] if self._times else 0.0
        near = [took for took in self._times if abs(took - median) <= STABLE_WITHIN * median]
        return len(near) == STABLE_STEPS or self._is_proposed

    @property
    def _is_proposed(self) -> bool:
        return (self._folder / ".window-1").exists()

    def first_step(self, earliest: int, world_size: int) -> int:
        """Return the step at which it begins: `earliest`, or what the ranks agree on."""
        # All ranks come to the latest step by themselves.
        latest = self._auto and earliest == LATEST_STEP and not self._is_proposed
        if world_size < 2 or latest:
            return earliest
        try:
            agreed = self._agree(earliest)
        except (OSError, ValueError, KeyError, TypeError):  # no folder, no hard links, no JSON
            debug.error("agreeing with the other ranks on the first step")
            return earliest
        return agreed if earliest <= agreed <= earliest + FAR else earliest

    def _agree(self, earliest: int) -> int:
        fitting = MARGIN_S / self._step_s if self._step_s > 0 and not self._auto else 0.0
        wanted = earliest + int(min(max(MARGIN_STEPS, fitting), FAR // 2))
        for launch in range(1, MAX_LAUNCHES):
            path = self._folder / f".window-{launch}"
            if _propose(path, wanted):
                return wanted
            found = json.loads(path.read_bytes())
            # A script may train twice: what was agreed before this process began is not for it.
            if float(found["time"]) >= self._begun:
                return int(found["first"])
        return earliest


def _compiled_frames() -> int:
    """Return how many frames torch.compile has compiled or tried to; 0 if it is not used."""
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


class GlobalWindows:
    """Gives each window its steps of this run as soon as the numbers show that it is near.

    It opens the first time that the numbers come by: a further training of the same process that
    counts from 1 again is not recorded twice.

    Args:
        plan: its `waiting` windows are by these numbers.
        numbers: the framework's.
        note: keeps a remark for the reader of the report.
    """

    def __init__(self, plan: Plan, numbers: GlobalSteps, note: Callable[[str], None]) -> None:
        self.numbers = numbers
        self._plan = plan
        self._note = note

    def after(self, step: int) -> bool:
        """Place what is near when `step` steps are complete; return whether anything was."""
        number = self.numbers.completed(step) if self._plan.waiting else None
        if number is None:
            return False
        near = [
            window
            for window in self._plan.waiting
            if window["asked"][0] <= number + 2 * self.numbers.stride
            and window["asked"][1] > number
        ]
        for window in near:
            self._place(window, step, number)
        return bool(near)

    def _place(self, window: Window, step: int, number: int) -> None:
        begins, ends = window["asked"]
        stride = self.numbers.stride
        first = step + max(1, -(-(begins - number) // stride))
        if self._plan.windows:  # no profiler session begins in the step in which one ends
            first = max(first, self._plan.windows[-1]["last"] + 2)
        self._plan.place(window, first, max(first, step + (ends - number) // stride))
        if number + (first - 1 - step) * stride >= begins:
            self._note(
                f"window global:{begins}-{ends} had begun when the numbers of its steps "
                f"were known, after step {step}: the rest of it was recorded"
            )

    def why(self, window: Window, seen: str) -> str:
        """Return why a window never opened; `seen` says how the run ended."""
        lowest, highest = self.numbers.lowest, self.numbers.highest
        if lowest is None:
            return (
                f"{seen}, and their global numbers are unknown: no counter of a framework, no "
                "fp8verify.step(number)"
            )
        if lowest <= window["asked"][1] <= highest:
            return f"{seen}, and its steps were over when their numbers were known"
        by = f"{self.numbers.framework} {self.numbers.counter}"
        return f"{seen}, having gone through the global steps {lowest}-{highest} ({by})"
