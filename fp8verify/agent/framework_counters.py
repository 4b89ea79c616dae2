"""The step counters of training frameworks: if they are, and the live objects that have them.

An object is known from its first step on: the method that begins a step is observed.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from .observe import observe


class StepCounter(NamedTuple):
    """Where a framework counts completed optimizer steps, and what it calls before each of them.

    Rows come from `fp8verify/frameworks/` and the user's settings, by the configuration. Most count
    after the optimizer's step, so the optimizer's hook reads one less than the step's number.

    Attributes:
        framework: its name in the report.
        module: of the class whose method is called before each batch, or each epoch.
        cls: the name of that class.
        method: the name of that method.
        path: attributes that lead from the object that counts to the counter.
        owner: attribute of the class's instance that is this object; "" if it is the instance.
        early: whether it counts before the optimizer's step, so the hook reads the number.
    """

    framework: str
    module: str
    cls: str
    method: str
    path: str
    owner: str = ""
    early: bool = False

    @property
    def name(self) -> str:
        """What the framework calls its counter."""
        return self.path.rpartition(".")[2]


# Functions that step an optimizer whose gradients are zeros, to make its state before training:
# deepspeed/runtime/fp16/fused_optimizer.py and its siblings (0.19); torch's own
# distributed/checkpoint/state_dict.py (2.13), which OLMo-core calls after a dry run of the model.
SETUP = frozenset({"initialize_optimizer_states", "_init_optim_state"})
SETUP_DEPTH = 16


def sets_up_an_optimizer() -> bool:
    """Return whether a framework is stepping an optimizer only to make its state."""
    frame: Any = sys._getframe(1)
    for _ in range(SETUP_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name in SETUP:
            return True
        frame = frame.f_back
    return False


def _counter(row: dict[str, Any]) -> StepCounter:
    module, _, cls = row["cls"].rpartition(".")
    return StepCounter(
        row["shown"], module, cls, row["method"], row["path"], row["owner"], row["early"]
    )


class FrameworkCounters:
    """The step counters of this process's frameworks, of each framework the last that was used."""

    def __init__(self) -> None:
        self._known: tuple[StepCounter, ...] = ()
        self._owners: dict[StepCounter, weakref.ref[Any]] = {}

    def use(self, rows: list[dict[str, Any]]) -> None:
        """Take the counters of the configuration; a framework that drives another comes first."""
        self._known = tuple(map(_counter, rows))

    def modules(self) -> set[str]:
        """Return the modules of the classes that count."""
        return {counter.module for counter in self._known}

    def observe(self, begins: Callable[[], object]) -> None:
        """Call `begins` before each step of the frameworks that are imported by now."""
        for counter in self._known:
            cls = getattr(sys.modules.get(counter.module), counter.cls, None)
            if isinstance(cls, type) and counter.method in vars(cls):
                observe(cls, counter.method, partial(self._step_begins, counter, begins))

    def _step_begins(
        self, counter: StepCounter, begins: Callable[[], object], instance: Any
    ) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            owner = getattr(instance, counter.owner) if counter.owner else instance
            self._owners[counter] = weakref.ref(owner)
            begins()

    def shown(self) -> dict[StepCounter, int]:
        """Return what those show that are numbers and alive, in the order of the configuration."""
        found = {}
        for counter in self._known:
            value = self._owners[counter]() if counter in self._owners else None
            for name in counter.path.split("."):
                value = getattr(value, name, None)
            if isinstance(value, int):
                found[counter] = value
        return found

    def forget(self) -> None:
        """Forget those that were used."""
        self._owners.clear()


counters = FrameworkCounters()
