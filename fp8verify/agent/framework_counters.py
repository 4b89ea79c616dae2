"""The step counters of training frameworks: if they are, and the live objects that have them.

An object is known from its first step on: the method that begins a step is observed. The numbers
of `fp8verify.step(number)` are a counter too.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from .guard import quietly
from .observe import observe


class StepCounter(NamedTuple):
    """Where a framework counts completed optimizer steps, and what it calls before each of them.

    Rows come from `fp8verify/frameworks/` and the user's settings, by the configuration. Most count
    after the optimizer's step, so the optimizer's hook reads one less than the step's number.

    Attributes:
        shown: the framework's name in the report.
        cls: module and name of the class whose method is called before each batch, or each epoch.
        method: the name of that method.
        path: attributes that lead from the object that counts to the counter.
        owner: attribute of the class's instance that is this object; "" if it is the instance.
        early: whether it counts before the optimizer's step, so the hook reads the number.
    """

    shown: str
    cls: str
    method: str
    path: str
    owner: str = ""
    early: bool = False

    @property
    def name(self) -> str:
        """What the framework calls its counter."""
        return self.path.rpartition(".")[2]

    @property
    def module(self) -> str:
        """The module of the class."""
        return self.cls.rpartition(".")[0]


SCRIPT = StepCounter("script", "", "", "step", early=True)

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


class FrameworkCounters:
    """The step counters of this process's frameworks, of each framework the last that was used."""

    def __init__(self) -> None:
        self._known: tuple[StepCounter, ...] = ()
        self._owners: dict[StepCounter, weakref.ref[Any]] = {}
        self._announced: int | None = None  # by the script, of the last complete step

    def use(self, rows: Iterable[dict[str, Any]]) -> None:
        """Take the counters of the configuration; a framework that drives another comes first."""
        self._known = tuple(StepCounter(**row) for row in rows)

    def modules(self) -> set[str]:
        """Return the modules of the classes that count."""
        return {counter.module for counter in self._known}

    def observe(self, begins: Callable[[], object]) -> None:
        """Call `begins` before each step of the frameworks that are imported by now."""
        for counter in self._known:
            _, _, name = counter.cls.rpartition(".")
            cls = getattr(sys.modules.get(counter.module), name, None)
            if isinstance(cls, type) and counter.method in vars(cls):
                listener = partial(self._step_begins, counter, begins)
                observe(cls, counter.method, listener)

    def _step_begins(
        self,
        counter: StepCounter,
        begins: Callable[[], object],
        instance: Any,
    ) -> None:
        # This runs inside a call of the script, which must not fail.
        with quietly(Exception):
            owner = instance
            if counter.owner:
                owner = getattr(instance, counter.owner)
            self._owners[counter] = weakref.ref(owner)
            begins()

    def announce(self, number: int | None, *, is_new: bool) -> None:
        """Take the script's number of the step that is complete; without one it goes on by one."""
        if number is not None:
            self._announced = number
        elif self._announced is not None:
            self._announced += is_new

    def shown(self) -> dict[StepCounter, int]:
        """Return the numbers of the script, then those of live objects, as configured."""
        numbers = {}
        if self._announced is not None:
            numbers[SCRIPT] = self._announced
        for counter in self._known:
            owner = self._owners.get(counter)
            value = None if owner is None else owner()
            for name in counter.path.split("."):
                value = getattr(value, name, None)
            if isinstance(value, int):
                numbers[counter] = value
        return numbers

    def forget(self) -> None:
        """Forget those that were used."""
        self._owners.clear()
        self._announced = None


counters = FrameworkCounters()
