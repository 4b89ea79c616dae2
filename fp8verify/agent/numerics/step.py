"""The steps that are measured: the second after the windows, then every N-th."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..modules.eager_mode import eager_mode
from ..modules.layer_names import compiles
from .clipping import Clipping
from .gradients import gradient_norm
from .hooks import NumericsHooks


class MeasuredStep:
    """One step with hooks on; `number` is its own."""

    def __init__(self, number: int, modules: list[tuple[str, Any]]) -> None:
        self.number = number
        self._eager = False
        self._hooks = NumericsHooks(modules)
        self._clipping = Clipping()

    def begin(self) -> None:
        """Let compiled code run eagerly, in which alone hooks are called.

        Raises:
            RuntimeError: torch is older than 2.6, or this was called from compiled code.
        """
        if compiles():
            eager_mode.enter()
            self._eager = True

    def leave(self) -> None:
        """Take the hooks off; compiled code runs as before."""
        self._hooks.remove()
        self._clipping.remove()
        if self._eager:
            self._eager = False
            eager_mode.leave()

    def result(self, optimizers: Callable[[], list[Any]]) -> dict[str, Any]:
        """Return what was measured; copies it from the GPU."""
        hooks = self._hooks
        rows = hooks.measured.records()
        gradient = gradient_norm(optimizers())
        if gradient is not None:
            gradient["clip_ratio"] = self._clipping.ratio()
        return {
            "step": self.number,
            "time": round(time.time(), 3),
            "rows": rows,
            "recomputed_high": list(dict.fromkeys(hooks.recomputed_high)),
            "gradient": None if gradient is None else {"step": self.number, **gradient},
            "notes": list(hooks.notes()),
        }
