"""The names of layers in the trace of a window: `run --layers` on code that is not compiled."""

from __future__ import annotations

from typing import Any

from ..modules.layer_names import LayerNames, compiles
from ..modules.layers import linear_modules
from .instrument import Instrument, Scene


class WindowLayers(Instrument):
    """Hooks the linear modules for as long as a window lasts."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._wanted = bool(scene.config["layers"])
        self._names: LayerNames | None = None

    def begin(self) -> None:
        """Hook the modules, unless torch.compile has compiled any code."""
        if self._wanted and not compiles():
            self._names = LayerNames(linear_modules(self.scene.optimizers()))

    def end(self) -> dict[str, Any]:
        """Take the hooks off and say whether there were any."""
        named = self._names is not None
        self.drop()
        return {"layers": named}

    def drop(self) -> None:
        """Take the hooks off."""
        names, self._names = self._names, None
        if names is not None:
            names.remove()
