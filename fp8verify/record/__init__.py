"""Attach to a training run that knows nothing of us: `run_training` and what goes with it.

Each name is loaded when it is first used: what the runner imports delays the start of the run.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import every start of ours would feel
if TYPE_CHECKING:
    from typing import Any

    from fp8verify.record.dry_run import describe_run as describe_run
    from fp8verify.record.runner import run_training as run_training
    from fp8verify.record.settings import LiveWindows as LiveWindows
    from fp8verify.record.settings import RankSelection as RankSelection
    from fp8verify.record.settings import RunResult as RunResult
    from fp8verify.record.settings import RunSettings as RunSettings
    from fp8verify.record.settings import TimedWindow as TimedWindow
    from fp8verify.record.settings import parse_count as parse_count
    from fp8verify.record.settings import parse_ranks as parse_ranks
    from fp8verify.record.settings import parse_windows as parse_windows
    from fp8verify.record.settings import read_settings as read_settings

_ELSEWHERE = {"describe_run": "dry_run", "run_training": "runner"}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'settings')}"), name)
