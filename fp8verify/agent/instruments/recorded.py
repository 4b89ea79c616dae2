"""What is recorded beside each trace: modules, layer names, framework numbers, memory."""

from __future__ import annotations

from typing import Any

import torch

from ..gc_scan import can_look
from ..modules.census import take_census
from ..modules.layer_names import LayerNames, compiles
from ..modules.layers import linear_modules
from ..record.debug import debug
from ..steps.framework_counters import FrameworkCounters, owners
from .instrument import Instrument, InstrumentContext


class FrameworkNumbers(Instrument):
    """Reads the framework's step counter at the first and last step of each window."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._counters: FrameworkCounters | None = None

    def begin(self) -> None:
        """Read the counters of the objects that are alive now."""
        live = owners.live()
        if owners.may_miss and not live:
            self.context.record().note(
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


class MemoryPeak(Instrument):
    """Reads the counters when a window ends; never resets them, they may be the script's."""

    def end(self) -> dict[str, Any]:
        """Return the window's `MemoryRecord`; None where no GPU is used."""
        if not torch.cuda.is_initialized():
            return {"memory": None}
        return {
            "memory": {
                "allocated_peak": int(torch.cuda.max_memory_allocated()),
                "reserved_peak": int(torch.cuda.max_memory_reserved()),
                "total": int(torch.cuda.get_device_properties(None).total_memory),
            }
        }


class ModuleList(Instrument):
    """Lists the modules before each window, or after it where no optimizer had stepped before."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._modules: list[dict[str, Any]] = []
        self._listed = False

    def before_window(self) -> None:
        """List the modules that `context.optimizers` train."""
        self._modules = take_census(self.context.optimizers())
        self._listed = bool(self._modules) or can_look()
        debug.event(f"{len(self._modules)} linear modules found")

    def end(self) -> dict[str, Any]:
        """List them now if there were none to be found: no optimizer exists before step 1."""
        if not self._modules:
            self.before_window()
        return {}

    def record(self) -> dict[str, Any]:
        """Return one `ModuleRecord` for each module."""
        return {"modules": self._modules, "modules_listed": self._listed}


class WindowLayers(Instrument):
    """Hooks the linear modules for as long as a window lasts."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._wanted = bool(context.config["layers"])
        self._names: LayerNames | None = None

    def begin(self) -> None:
        """Hook the modules, unless torch.compile has compiled any code."""
        if self._wanted and not compiles():
            self._names = LayerNames(linear_modules(self.context.optimizers()))

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
