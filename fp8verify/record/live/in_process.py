"""The agent inside the program that calls us, as `fp8verify.watch` and `window` need it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def agent(module: str) -> Any:
    """Return a module of the agent, which imports torch; `run` never imports it."""
    return import_module(f"fp8verify.agent.{module}")


def is_watched() -> bool:
    """Whether an agent of this program counts its steps already."""
    return agent("hooks").installed() is not None


def is_first_rank() -> bool:
    """Whether this is the process of rank 0."""
    rank, _ = agent("record.process").rank_and_world_size()
    return bool(rank == 0)
