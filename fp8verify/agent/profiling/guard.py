"""Share the one profiler of the process with a script that profiles itself.

Kineto lets a second profiler cancel the first without an error; stopping the cancelled one then
raises (torch 2.11) or crashes the process (torch 2.13). The script's own profiler always wins.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.autograd.profiler as autograd_profiler

from ..steps.announce import announce, silence
from .script_profiler import ScriptProfiler


class ProfilerGuard:
    """Know whether a profiler other than ours is prepared or running.

    `on_foreign` is called right before a profiler of the script is prepared.

    Attributes:
        script: what the script's profiler recorded and exported.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        self.script = ScriptProfiler()
        self._on_foreign = on_foreign
        self._calls = threading.local()
        self._foreign: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Watch the methods through which every front end of torch's profiler passes."""
        announce(autograd_profiler.profile, "_prepare_trace", self._preparing)
        announce(autograd_profiler.profile, "_start_trace", self._starting)
        announce(autograd_profiler.profile, "export_chrome_trace", self._exporting)

    def uninstall(self) -> None:
        """Stop watching."""
        for method in ("_prepare_trace", "_start_trace", "export_chrome_trace"):
            silence(autograd_profiler.profile, method)

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
        """Whether a profiler of the script is prepared or running, on whatever thread.

        torch's own flag is not set while one warms up; a profiler has results once it stopped.
        """
        return bool(autograd_profiler._is_profiler_enabled) or any(
            getattr(profile, "kineto_results", None) is None for profile in self._foreign
        )

    def _preparing(self, profile: Any) -> None:
        if not getattr(self._calls, "ours", False):
            self._on_foreign()
            self._foreign.add(profile)

    def _starting(self, profile: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            if not getattr(self._calls, "ours", False):
                self.script.starts(profile)

    def _exporting(self, profile: Any) -> None:
        with suppress(Exception):
            self.script.exports(profile)
