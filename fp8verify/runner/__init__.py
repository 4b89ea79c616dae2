"""Attach to a training run that knows nothing of us: `run_training` and what goes with it."""

from __future__ import annotations

from fp8verify.runner.capture import ModuleRecord, RankMeta, WindowRecord, read_meta
from fp8verify.runner.parent import run_training
from fp8verify.runner.settings import (
    RankSelection,
    RunResult,
    RunSettings,
    parse_ranks,
    parse_windows,
)

__all__ = [
    "ModuleRecord",
    "RankMeta",
    "RankSelection",
    "RunResult",
    "RunSettings",
    "WindowRecord",
    "parse_ranks",
    "parse_windows",
    "read_meta",
    "run_training",
]
