"""Read the step counters that training frameworks keep, to name steps as the user knows them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple


class StepCounter(NamedTuple):
    """Where a framework counts completed optimizer steps: module, class, attribute path.

    All of them add one after the optimizer's step, so its hook reads one less than the step's
    number: transformers/trainer.py `state.global_step += 1` (5.23); lightning/pytorch/trainer/
    trainer.py `global_step`, which adds up several optimizers (2.6); deepspeed/runtime/engine.py
    `_take_model_step` (0.19), which adds steps that it skips for an overflow.
    """

    framework: str
    module: str
    cls: str
    path: str


COUNTERS = (
    StepCounter("transformers", "transformers.trainer", "Trainer", "state.global_step"),
    StepCounter("lightning", "lightning.pytorch.trainer.trainer", "Trainer", "global_step"),
    StepCounter("lightning", "pytorch_lightning.trainer.trainer", "Trainer", "global_step"),
    StepCounter("deepspeed", "deepspeed.runtime.engine", "DeepSpeedEngine", "global_steps"),
)

# Other sources of numbers than a framework's counter.
LOG = "log"  # lines of its log
SCRIPT = "script"  # `fp8verify.step(number)`

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


class _Watched:
    """One live counter: what it read before the window, and at its first and last step."""

    def __init__(self, counter: StepCounter, owner: Any) -> None:
        self.counter = counter
        self.owner = weakref.ref(owner)
        self.before = read_counter(owner, counter.path)
        self.first: int | None = None
        self.last: int | None = None

    def look(self) -> None:
        value = read_counter(self.owner(), self.counter.path)
        if self.first is None:
            self.first = value
        self.last = value

    @property
    def moved(self) -> bool:
        return self.last is not None and self.before is not None and self.last > self.before


class FrameworkCounters:
    """The framework's numbers of the steps of one window; `owners` are `CounterOwners.live`'s."""

    def __init__(self, owners: Iterable[tuple[StepCounter, Any]]) -> None:
        self._watched = [_Watched(counter, owner) for counter, owner in owners]

    def look(self) -> None:
        """Read the counters, from the hook of an optimizer, at the end of a step."""
        for watched in self._watched:
            watched.look()

    def result(self) -> dict[str, Any] | None:
        """Return the framework and its numbers of the window's first and last step, if known."""
        return self.moving or next(filter(None, map(_numbers, self._watched[:1])), None)

    @property
    def moving(self) -> dict[str, Any] | None:
        """The same of the first counter that has moved, None if none has."""
        moved = (watched for watched in self._watched if watched.moved)
        return next(filter(None, map(_numbers, moved)), None)


def _numbers(watched: _Watched) -> dict[str, Any] | None:
    if watched.first is None or watched.last is None:
        return None
    return {
        "name": watched.counter.framework,
        "counter": watched.counter.path.rpartition(".")[2],
        "first": watched.first + 1,
        "last": watched.last + 1,
    }


def read_counter(owner: Any, path: str) -> int | None:
    """Return what a counter shows, None where it is no number or gone."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner if isinstance(owner, int) else None
