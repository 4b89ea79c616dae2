"""Share the one profiler of the process with a script that profiles itself.

Kineto lets a second profiler cancel the first without an error; stopping the cancelled one then
raises (torch 2.11) or crashes the process (torch 2.13). The script's own profiler always wins: ours
gives way to it, and a window that it takes moves behind it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.autograd.profiler as autograd_profiler

from ..observe import observe

RUNNING = "the script's own profiler was running: fp8verify inspect reads the trace that it writes"


class ProfilerArbiter:
    """Know whether a profiler other than ours is prepared or running.

    `on_foreign` is called right before a profiler of the script is prepared.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        self._on_foreign = on_foreign
        self._calls = threading.local()
        self._foreign: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Watch the script's profilers: every front end of torch's passes through this method."""
        observe(autograd_profiler.profile, "_prepare_trace", self._preparing)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark what this thread does inside as our own doing."""
        self._calls.ours = True
        try:
            yield
        finally:
            self._calls.ours = False

    @property
    def busy(self) -> bool:
        """Whether a profiler of the script is prepared or running, on any thread.

        torch's own flag is not set during warm-up; a profiler has results once it has stopped.
        """
        return bool(autograd_profiler._is_profiler_enabled) or any(
            getattr(profile, "kineto_results", None) is None for profile in self._foreign
        )

    def _preparing(self, profile: Any) -> None:
        if not getattr(self._calls, "ours", False):
            self._on_foreign()
            self._foreign.add(profile)
