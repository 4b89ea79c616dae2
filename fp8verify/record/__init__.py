"""Attach to a training run that knows nothing of us: `run_training` and what goes with it.

Each name is loaded when it is first used: what the runner imports delays the start of the run.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import every start of ours would feel
if TYPE_CHECKING:
    from typing import Any

    from fp8verify.record.dry_run import describe_run
    from fp8verify.record.runner import run_training
    from fp8verify.record.settings import (
        LiveWindows,
        RankSelection,
        RunResult,
        RunSettings,
        TimedWindow,
        parse_count,
        parse_ranks,
        parse_windows,
        read_settings,
    )

__all__ = [
    "LiveWindows",
    "RankSelection",
    "RunResult",
    "RunSettings",
    "TimedWindow",
    "describe_run",
    "parse_count",
    "parse_ranks",
    "parse_windows",
    "read_settings",
    "run_training",
]
_HOMES = {
    "LiveWindows": "settings",
    "RankSelection": "settings",
    "RunResult": "settings",
    "RunSettings": "settings",
    "TimedWindow": "settings",
    "describe_run": "dry_run",
    "parse_count": "settings",
    "parse_ranks": "settings",
    "parse_windows": "settings",
    "read_settings": "settings",
    "run_training": "runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
