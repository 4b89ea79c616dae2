"""What the runner tells the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class Live(TypedDict):
    """`LiveWindows` of the runner."""

    every: int
    length: int
    first: int


class Timed(TypedDict):
    """`TimedWindow` of the runner."""

    seconds: float
    steps: int
    auto: bool


class Ranks(TypedDict):
    """`RankSelection` of the runner."""

    only: Sequence[int]
    every: int | None
    auto: bool


class Config(TypedDict):
    """The boot folder's `config.json`, as `agent_config` of the runner returns it.

    The settings are those of `RunSettings`. `boot` is the boot folder, `guest` what this node calls
    itself in a capture that another one made, `started` when the run began; `modules` and
    `counters` (of `StepCounter`) are what is known of frameworks.
    """

    version: str
    boot: str
    capture: str
    guest: str | None
    started: float
    capture_log: bool
    debug: bool
    windows: Sequence[Sequence[int]]
    global_windows: Sequence[Sequence[int]]
    timed_window: Timed | None
    live: Live | None
    ranks: Ranks
    record_shapes: bool
    layers: bool
    blas_log: bool
    numerics: bool
    numerics_every: int | None
    numerics_eager: bool
    max_trace_mb: int
    max_window_seconds: float
    modules: dict[str, str]
    counters: Sequence[dict[str, Any]]
