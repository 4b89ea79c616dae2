"""What the agent is told where it is part of the training's own program."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fp8verify.runner.settings import LiveWindows, RankSelection, RunSettings
from fp8verify.steps import Window
from fp8verify.version import __version__


def agent_config(
    capture: Path,
    *,
    windows: Sequence[Window] = (),
    live: LiveWindows | None = None,
    ranks: RankSelection = RankSelection(only=(0,)),  # noqa: B008 - a tuple
    record_shapes: bool = True,
) -> dict[str, Any]:
    """Return what `config.json` holds in a run that is attached to from outside."""
    return {
        "version": __version__,
        "boot": os.devnull,  # there is no runner to leave anything for
        "capture": str(capture),
        "guest": None,
        "windows": windows,
        "timed_window": None,
        "live": live._asdict() if live is not None else None,
        "started": time.time(),
        "ranks": ranks._asdict(),
        "record_shapes": record_shapes,
        "max_trace_mb": RunSettings().max_trace_mb,
        "max_window_seconds": RunSettings().max_window_seconds,
        "profiler": RunSettings().profiler,
        "recording": None,
        "layers": False,
        "log": False,
        "debug": False,
    }
