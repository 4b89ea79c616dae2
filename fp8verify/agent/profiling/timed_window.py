"""When a window without given steps begins, the same step on all ranks: by time, or when stable.

Each rank goes by its own clock. The first one whose time has come writes the step at which the
window begins into the capture folder, a few steps ahead; the others read it once their own time has
come, a few steps off at most in ranks that train together. Until then no rank looks for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from ..record.debug import debug

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
