"""Hear the optimizer steps of a CUDA graph that the script replays by hand.

Python's hooks run while the graph is captured, when nothing is executed, and never again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from .announce import announce, silence


class Listener(Protocol):
    """What hears of replays: the observer."""

    def graph_is_replayed(self, optimizers: dict[int, str]) -> None:
        """Hear that a graph with a step of each of these optimizers is about to run."""


class ReplayedSteps:
    """Which graphs hold a step of which optimizers, by id and class."""

    def __init__(self, observer: Listener) -> None:
        self._observer = observer
        self._captured: dict[int, str] = {}
        self._graphs: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Watch the graphs of the script."""
        for name, listener in self._listeners().items():
            with suppress(AttributeError, KeyError):  # a torch whose graphs have no such method
                announce(torch.cuda.CUDAGraph, name, listener)

    @staticmethod
    def uninstall() -> None:
        """Stop watching."""
        for name in ("capture_begin", "capture_end", "replay"):
            silence(torch.cuda.CUDAGraph, name)

    def captured(self, optimizer: Any) -> None:
        """Note that an optimizer's step is in the graph that is being captured."""
        self._captured[id(optimizer)] = type(optimizer).__name__

    def _listeners(self) -> dict[str, Callable[[Any], None]]:
        return {
            "capture_begin": lambda _: self._captured.clear(),
            "capture_end": self._ends,
            "replay": self._replayed,
        }

    def _ends(self, graph: Any) -> None:
        if self._captured:
            with suppress(TypeError):  # one that cannot be referred to weakly
                self._graphs[graph] = dict(self._captured)
            self._captured.clear()

    def _replayed(self, graph: Any) -> None:
        optimizers = self._graphs.get(graph) if self._graphs else None
        if optimizers:
            self._observer.graph_is_replayed(optimizers)
