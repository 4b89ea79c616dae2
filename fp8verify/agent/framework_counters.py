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

    Most count after the optimizer's step, so that the optimizer's hook reads one less than the
    step's number: transformers/trainer.py `state.global_step += 1` (5.23);
    lightning/pytorch/trainer/ trainer.py `global_step`, which adds up several optimizers (2.6);
    deepspeed/runtime/engine.py `_take_model_step` (0.19), which adds steps that it skips for an
    overflow.

    Attributes:
        framework: its name in the report.
        module: of the class whose method is called before each batch, or each epoch.
        cls: the name of that class.
        method: the name of that method.
        path: attributes that lead from the object that counts to the counter.
        owner: attribute of the class's instance that is this object; "" if it is the instance.
        early: whether it counts before the optimizer's step, so that the hook reads the number.
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


# transformers/trainer.py calls training_step for every batch (5.23); lightning's
# training_epoch_loop.py advance (2.6); deepspeed/runtime/engine.py forward (0.19). A framework that
# drives another one comes first.
COUNTERS = (
    StepCounter(
        "transformers", "transformers.trainer", "Trainer", "training_step", "state.global_step"
    ),
    *(
        StepCounter(
            "lightning",
            f"{package}.loops.training_epoch_loop",
            "_TrainingEpochLoop",
            "advance",
            "global_step",
            owner="trainer",
        )
        for package in ("lightning.pytorch", "pytorch_lightning")
    ),
    StepCounter(
        "deepspeed", "deepspeed.runtime.engine", "DeepSpeedEngine", "forward", "global_steps"
    ),
    # Its log is written by another thread. olmo_core/train/trainer.py, _fit_epoch (fa6c501)
    StepCounter(
        "olmo-core", "olmo_core.train.trainer", "Trainer", "_fit_epoch", "global_step", early=True
    ),
)

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
        self._owners: dict[StepCounter, weakref.ref[Any]] = {}

    def observe(self, begins: Callable[[], object]) -> None:
        """Call `begins` before each step of the frameworks that are imported by now."""
        for counter in COUNTERS:
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
        """Return what those show that are numbers and alive, in the order of `COUNTERS`."""
        found = {}
        for counter in COUNTERS:
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
