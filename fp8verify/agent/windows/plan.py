"""When windows open: their steps, by number, by time or by the framework's own numbers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import Config, Timed
from ..debug import debug
from ..framework_counters import counters
from ..guard import is_the_scripts
from ..private import open_private
from ..process import rank_and_world_size

Window = dict[str, Any]  # its record


def new_window(
    first: int,
    last: int,
    **more: Any,
) -> Window:
    """Return the record of a window that has not begun.

    Its state is one of: "never" (not reached), "cut" (begun, not finished), "complete", "dropped"
    (its trace was lost), "skipped" (not begun, for the reason given).
    """
    return {
        "first": first,
        "last": last,
        "state": "never",
        "reason": None,
        "trace": None,
        "asked": None,
        **more,
    }


class Plan:
    """The profiler's schedule.

    A window A-B is prepared after step A-2, so the profiler's own start-up cost falls into
    the warm-up step A-1, started after A-1 and stopped after B. `after(0)` is the earliest moment.

    Attributes:
        windows: records of the windows whose steps are known.
        waiting: windows that get their steps later, by time or by the framework's numbers.
        notes: remarks for the reader of the report.
    """

    def __init__(
        self, windows: Sequence[Sequence[int]] = (), waiting: Sequence[Window] = ()
    ) -> None:
        self.windows = [new_window(first, last) for first, last in windows]
        self.waiting = list(waiting)
        self.notes: list[str] = []
        self._step = 0

    def place_due(self, step: int) -> bool:  # noqa: ARG002
        """Give the windows that wait and are due after `step` steps theirs; return if any was."""
        return False

    def why(self, window: Window, seen: str) -> str:  # noqa: ARG002
        """Return why a window that waits has no steps; `seen` says how the run ended."""
        return seen

    def place(
        self,
        window: Window,
        first: int,
        last: int,
    ) -> None:
        """Give a window that waited its steps."""
        self.waiting = [other for other in self.waiting if other is not window]
        window.update(first=first, last=last)
        self.windows.append(window)

    def move(self, index: int, step: int) -> bool:
        """Give a window the first free steps after `step`; return whether no other has them."""
        window = self.windows[index]
        first = step + 2
        last = step + 2 + window["last"] - window["first"]
        later = [other["first"] for other in self.windows if other["first"] > step]
        if later and last >= min(later) - 1:
            return False  # no profiler session begins in the step in which one ends
        window.update(
            first=first,
            last=last,
            state="never",
            reason=None,
        )
        return True

    def records(self, seen: str) -> list[Window]:
        """Return the records of all windows; `seen` says how far the run came."""
        for window in self.windows:
            if window["state"] == "never":
                window["reason"] = seen
        for window in self.waiting:
            if window["state"] == "never":
                window["reason"] = self.why(window, seen)
            if window["asked"] is None:  # the steps that it would have next
                length = window["last"] - window["first"]
                window.update(first=self._step + 2, last=self._step + 2 + length)
        return [*self.windows, *self.waiting]

    def after(self, step: int) -> list[tuple[str, int]]:
        """Return what is due when `step` steps are complete, in the order to do it.

        It is "prepare", "start" or "stop", with the index of a window.
        """
        self._step = step
        due = []
        records = False
        for index, window in enumerate(self.windows):
            if step == window["last"]:
                due.append(("stop", index))
            if window["first"] <= step + 1 <= window["last"]:
                records = True
        for index, window in enumerate(self.windows):
            ahead = window["first"] - step
            if ahead == 2 and step > 0 and not records:
                due.append(("prepare", index))
            if ahead == 1:
                due.append(("start", index))
        return due

    @property
    def starts_at_once(self) -> bool:
        """Whether a window begins with step 1, before which no optimizer hook can fire."""
        return any(window["first"] == 1 for window in self.windows)

    def finished(self, step: int) -> bool:
        """Whether all windows are done after `step`."""
        if self.waiting:
            return False
        return all(window["last"] <= step for window in self.windows)


def plan_of(config: Config) -> Plan:
    """Return the plan of the windows that the configuration asks for."""
    if config["global_windows"]:
        return GlobalPlan(config["global_windows"])
    timed = config["timed_window"]
    if timed is None:
        return Plan(config["windows"])
    return TimedPlan(timed, config)


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


class TimedPlan(Plan):
    """A plan with one more window, which begins when its time has come (`--after-seconds`).

    An automatic one begins when step times are stable too. Ranks agree on its first step by a file
    in the capture.
    """

    def __init__(self, timed: Timed, config: Config) -> None:
        super().__init__(config["windows"], [new_window(2, 1 + timed["steps"])])
        self._seconds = timed["seconds"]
        self._auto = timed["auto"]
        self._due = config["started"] + self._seconds
        self._folder = Path(config["capture"])
        self._begun = time.time()
        self._looked = self._begun
        self._step_s = 0.0
        self._times: deque[float] = deque(maxlen=STABLE_STEPS)
        self._steps = 0
        self._compiled = 0

    def why(self, window: Window, seen: str) -> str:  # noqa: ARG002
        """Return why the window has not begun, given how the run is known to end."""
        if self._auto:
            return f"{seen}, before its step time was stable"
        return f"{seen}, before {self._seconds:g} seconds had passed"

    def place_due(self, step: int) -> bool:
        """Place the window if it is due when `step` steps are complete; return whether it was."""
        if not (step and self.waiting and self.is_due()):
            return False
        (window,) = self.waiting
        _, world_size = rank_and_world_size()
        first = self.first_step(step + 2, world_size)
        length = window["last"] - window["first"]
        self.place(window, first, first + length)
        return True

    def is_due(self) -> bool:
        """Return whether its time has come; called after each step that may come before it."""
        now = time.time()
        self._step_s = now - self._looked
        self._looked = now
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
        return self._is_stable() or self._is_proposed

    def _is_stable(self) -> bool:
        if len(self._times) < STABLE_STEPS:
            return False
        median = sorted(self._times)[STABLE_STEPS // 2]
        most = STABLE_WITHIN * median
        return all(abs(took - median) <= most for took in self._times)

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
        except (OSError, ValueError, KeyError, TypeError) as error:
            if is_the_scripts(error):
                raise
            # No folder, no hard links, no JSON.
            debug.error("agreeing with the other ranks on the first step")
            return earliest
        return agreed if earliest <= agreed <= earliest + FAR else earliest

    def _agree(self, earliest: int) -> int:
        margin = float(MARGIN_STEPS)
        if self._step_s > 0 and not self._auto:
            margin = max(margin, MARGIN_S / self._step_s)
        wanted = earliest + int(min(margin, FAR // 2))
        for launch in range(1, MAX_LAUNCHES):
            path = self._folder / f".window-{launch}"
            if _propose(path, wanted):
                return wanted
            proposed = json.loads(path.read_bytes())
            # A script may train twice: what was agreed before this process began is not for it.
            if float(proposed["time"]) >= self._begun:
                return int(proposed["first"])
        return earliest


def _compiled_frames() -> int:
    """Return how many frames torch.compile has compiled or tried to; 0 if it is not used."""
    utils = sys.modules.get("torch._dynamo.utils")
    return sum(utils.counters["frames"].values()) if utils is not None else 0


def _propose(path: Path, first: int) -> bool:
    draft = path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}")
    proposal = json.dumps({"first": first, "time": time.time()})
    with open_private(draft, "wb") as file:
        file.write(proposal.encode())
    try:
        os.link(draft, path)  # whole at once, and exclusive on NFS as well
    except FileExistsError:  # of os.link, with a number: no handler raises that
        return False
    finally:
        draft.unlink()
    return True


MAX_STRIDE = 64


class GlobalPlan(Plan):
    """A plan of windows by the numbers of a framework or the script, which go on in a resumed run.

    Each gets its steps of this run as soon as the numbers show that it is near, and opens the first
    time that they come by: a further training of the same process that counts from 1 again is not
    recorded twice.

    Attributes:
        source: what counts: "transformers global_step", "script step"; "" as long as nothing does.
        lowest: the smallest number so far, None as long as there are none.
        highest: the largest.
    """

    def __init__(self, asked: Sequence[Sequence[int]]) -> None:
        waiting = [
            new_window(first, last, asked=(first, last)) for first, last in asked
        ]
        super().__init__(waiting=waiting)
        self.source = ""
        self.lowest: int | None = None
        self.highest = 0
        self._stride = 1  # per optimizer step: Lightning adds up several optimizers
        self._last = (0, 0)  # our count and their number

    def place_due(self, step: int) -> bool:
        """Place what is near when `step` steps are complete; return whether anything was."""
        number = self.number_of(step) if self.waiting else None
        if number is None:
            return False
        if step:
            self._learn(step, number)
        soon = number + 2 * self._stride
        was_near = False
        for window in tuple(self.waiting):
            begins, ends = window["asked"]
            if begins <= soon and ends > number:
                self._place_by(window, step, number)
                was_near = True
        return was_near

    def number_of(self, step: int) -> int | None:
        """Return the number of the step that is complete, from the hook of an optimizer.

        Before the first step, it is the number of the last step before this run.
        """
        shown = counters.shown()
        if not shown:
            return None
        counter, number = next(iter(shown.items()))  # one that drives another
        self.source = f"{counter.shown} {counter.name}"
        if step and not counter.early:
            number += 1
        return number

    def _learn(self, step: int, number: int) -> None:
        step_before, before = self._last
        self._last = (step, number)
        if self.lowest is None:
            self.lowest = max(1, number - step + 1)
        elif step == step_before + 1 and 0 < number - before <= MAX_STRIDE:
            self._stride = number - before
        self.lowest = min(self.lowest, number)
        self.highest = max(self.highest, number)

    def _place_by(
        self,
        window: Window,
        step: int,
        number: int,
    ) -> None:
        begins, ends = window["asked"]
        stride = self._stride
        first = step + max(1, -(-(begins - number) // stride))
        if self.windows:  # no profiler session begins in the step in which one ends
            first = max(first, self.windows[-1]["last"] + 2)
        self.place(window, first, max(first, step + (ends - number) // stride))
        if number + (first - 1 - step) * stride >= begins:
            self.notes.append(
                f"window global:{begins}-{ends} had begun when the numbers of its steps "
                f"were known, after step {step}: the rest of it was recorded"
            )

    def why(self, window: Window, seen: str) -> str:
        """Return why a window never opened; `seen` says how the run ended."""
        if self.lowest is None:
            return (
                f"{seen}, and their global numbers are unknown: no counter of a framework, no "
                "fp8verify.step(number)"
            )
        if self.lowest <= window["asked"][1] <= self.highest:
            return f"{seen}, and its steps were over when their numbers were known"
        numbers = f"{self.lowest}-{self.highest} ({self.source})"
        return f"{seen}, having gone through the global steps {numbers}"
