"""The configuration of the agent: its `config.json`, wherever it runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from fp8verify.record.settings import RunSettings
from fp8verify.version import __version__


def agent_config(
    settings: RunSettings,
    capture: Path,
    *,
    boot: str = os.devnull,
    agent: str | None = None,
    secondary_node: str | None = None,
    started: float | None = None,
) -> dict[str, Any]:
    """Return where the agent is to write and what it is to observe.

    Args:
        settings: what the user asks for.
        capture: the capture folder.
        boot: the boot folder; none where the agent is part of the training's own program.
        agent: the folder of the agent's code; None for the one in the boot folder.
        secondary_node: what this node calls itself in a capture that another one made.
        started: when the run began; None for now.
    """
    timed, live = settings.timed_window, settings.live
    return {
        "version": __version__,
        "boot": boot,
        "agent": agent,
        "capture": str(capture),
        "guest": secondary_node,
        "windows": settings.windows,
        "global_windows": settings.global_windows,
        "timed_window": timed._asdict() if timed is not None else None,
        "window": "auto" if timed is not None and timed.auto else None,
        "live": live._asdict() if live is not None else None,
        "started": started or time.time(),
        "ranks": settings.ranks._asdict(),
        "record_shapes": settings.record_shapes,
        "max_trace_mb": settings.max_trace_mb,
        "max_window_seconds": settings.max_window_seconds,
        "recording": None,
        "layers": settings.layers,
        "numerics": settings.numerics,
        "numerics_every": settings.numerics_every,
        "log": settings.capture_log,
        "debug": settings.debug,
    }
