"""End the `record_function` ranges of the script that would outlive the session they are in.

A range that begins in one session of torch's profiler and ends in another one writes its end into
freed memory, which crashes the process (torch 2.13); one that is open when a session stops
may make torch warn on stderr. An optimizer's step is such a range, since its hook runs inside it,
and so is what the script opens around several steps.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from contextlib import suppress
from typing import Any

import torch
from torch.profiler import record_function

from ..steps.announce import announce, silence


class OpenRanges:
    """The ranges that began on this thread while a profiler ran and may still be open."""

    def __init__(self) -> None:
        self._begun: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._thread = 0

    def watch(self) -> None:
        """Note every range that begins from here on, on this thread."""
        self._thread = threading.get_ident()
        announce(record_function, "__enter__", self._note)

    def rest(self) -> None:
        """Note no more of them."""
        silence(record_function, "__enter__")

    def end(self) -> None:
        """End those noted, the last one first; when the script ends them, nothing more happens."""
        for begun in reversed(list(self._begun.values())):
            # One that failed to begin has no record to end.
            with suppress(Exception), torch._C.DisableTorchFunctionSubclass():
                torch.ops.profiler._record_function_exit._RecordFunction(begun.record)
        self._begun.clear()

    def _note(self, begun: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            if threading.get_ident() == self._thread:
                self._begun[next(self._numbers)] = begun
