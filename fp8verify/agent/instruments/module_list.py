"""The linear-like modules of the trained model."""

from __future__ import annotations

from typing import Any

from ..live_objects import can_look
from ..modules.census import take_census
from ..record.debug import debug
from .instrument import Instrument, Scene


class ModuleList(Instrument):
    """Lists the modules before each window, or after it where no optimizer had stepped before."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._modules: list[dict[str, Any]] = []
        self._listed = False

    def survey(self) -> None:
        """List the modules that `scene.optimizers` train."""
        self._modules = take_census(self.scene.optimizers())
        self._listed = bool(self._modules) or can_look()
        debug.event(f"{len(self._modules)} linear modules found")

    def end(self) -> dict[str, Any]:
        """List them now if there were none to be found: no optimizer exists before step 1."""
        if not self._modules:
            self.survey()
        return {}

    def record(self) -> dict[str, Any]:
        """Return one `ModuleRecord` for each module."""
        return {"modules": self._modules, "modules_listed": self._listed}
