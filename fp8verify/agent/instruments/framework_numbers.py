"""How the training framework numbers the steps of a window."""

from __future__ import annotations

from typing import Any

from ..steps.counter_owners import owners
from ..steps.framework_counters import FrameworkCounters
from .instrument import Instrument, Scene


class FrameworkNumbers(Instrument):
    """Reads the framework's step counter at the first and last step of each window."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._counters: FrameworkCounters | None = None

    def begin(self) -> None:
        """Read the counters of the objects that are alive now."""
        live = owners.live()
        if owners.may_miss and not live:
            self.scene.record().note(
                "the framework's own step numbers were not looked for: the process holds millions "
                "of objects, and the training would have waited"
            )
        self._counters = FrameworkCounters(live)

    def after_step(self, _: int, /) -> None:
        """Read the counters."""
        if self._counters is not None:
            self._counters.look()

    def end(self) -> dict[str, Any]:
        """Return the window's `FrameworkSteps`."""
        counters, self._counters = self._counters, None
        return {"framework": counters.result() if counters is not None else None}

    def drop(self) -> None:
        """Forget the counters."""
        self._counters = None
