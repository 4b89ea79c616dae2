"""The script's own CUDA graphs: which optimizers step in them, and how often they are replayed.

What a replay does calls no hook and makes no autograd node. So a replay is known by the look-up of
`CUDAGraph.replay`, and counts as work: the optimizer that steps after it makes a new update.
"""

from __future__ import annotations

import weakref
from typing import Any

from .guard import quietly

Optimizers = dict[int, str]  # classes by the ids of instances


class CudaGraphs:
    """The graphs that this process captures and replays.

    Attributes:
        replays: of all graphs.
    """

    def __init__(self) -> None:
        self.replays = 0
        self._captured: Optimizers = {}  # of the graph that is being captured
        self._known: weakref.WeakKeyDictionary[Any, Optimizers] = (
            weakref.WeakKeyDictionary()
        )

    def begins(self, _: Any) -> None:
        """Note that a capture begins."""
        self._captured.clear()

    def holds(self, optimizer: Any) -> None:
        """Note that an optimizer's step goes into the graph that is being captured."""
        self._captured[id(optimizer)] = type(optimizer).__name__

    def ends(self, graph: Any) -> None:
        """Note that the capture of a graph ends."""
        captured = dict(self._captured)
        self._captured.clear()
        if captured:
            with quietly(TypeError):  # one that cannot be referred to weakly
                self._known[graph] = captured

    def is_replayed(self, graph: Any) -> Optimizers:
        """Note that a graph is about to run; return the optimizers that step in it."""
        self.replays += 1
        with quietly(TypeError):
            return self._known.get(graph, {})
        return {}


graphs = CudaGraphs()
