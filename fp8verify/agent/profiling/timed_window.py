"""When a window that is known by its time begins, the same step on all ranks.

Each rank goes by its own clock. The first one whose time has come writes the step at which the
window begins into the capture folder, a few steps ahead; the others read it once their own time has
come, a few steps off at most in ranks that train together. Until then no rank looks for it.
"""

from __future__ import annotations

import json
import os
import time
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
