"""The step counters of training frameworks: where they are, and the live objects that hold them.

Objects are found when they are made: their class's `__init__` is observed from the import of its
module. A script that begins to watch itself may have made some before: `hooks.install_late`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from .observe import Observed, observe


class StepCounter(NamedTuple):
    """Where a framework counts completed optimizer steps, and what it calls before each of them.

    Most add one after the optimizer's step, so its hook reads one less than the step's
    number: transformers/trainer.py `state.global_step += 1` (5.23); lightning/pytorch/trainer/
    trainer.py `global_step`, which adds up several optimizers (2.6); deepspeed/runtime/engine.py
    `_take_model_step` (0.19), which adds steps that it skips for an overflow.

    Attributes:
        framework: its name in the report.
        module: of the class whose instances count.
        cls: the name of that class.
        path: attributes that lead from an instance to its counter.
        begins: module, class and method that is called before each batch, or each epoch.
        owner: attribute of that method's instance that counts; "" if it is that itself.
        early: whether it adds one before the optimizer's step, so that the hook reads the number.
    """

    framework: str
    module: str
    cls: str
    path: str
    begins: tuple[str, str, str]
    owner: str = ""
    early: bool = False


# transformers/trainer.py calls training_step for every batch (5.23); lightning's
# training_epoch_loop.py advance (2.6); deepspeed/runtime/engine.py forward (0.19).
COUNTERS = (
    StepCounter(
        "transformers",
        "transformers.trainer",
        "Trainer",
        "state.global_step",
        ("transformers.trainer", "Trainer", "training_step"),
    ),
    *(
        StepCounter(
            "lightning",
            f"{package}.trainer.trainer",
            "Trainer",
            "global_step",
            (f"{package}.loops.training_epoch_loop", "_TrainingEpochLoop", "advance"),
            "trainer",
        )
        for package in ("lightning.pytorch", "pytorch_lightning")
    ),
    StepCounter(
        "deepspeed",
        "deepspeed.runtime.engine",
        "DeepSpeedEngine",
        "global_steps",
        ("deepspeed.runtime.engine", "DeepSpeedEngine", "forward"),
    ),
    # Its log is written by another thread. olmo_core/train/trainer.py, _fit_epoch (fa6c501)
    StepCounter(
        "olmo-core",
        "olmo_core.train.trainer",
        "Trainer",
        "global_step",
        ("olmo_core.train.trainer", "Trainer", "_fit_epoch"),
        early=True,
    ),
)

# Functions that step an optimizer whose gradients are zeros, to make its state before training:
# deepspeed/runtime/fp16/fused_optimizer.py and its siblings (0.19); torch's own
# distributed/checkpoint/state_dict.py (2.13), which OLMo-core calls after a dry run of the model.
SETUP = frozenset({"initialize_optimizer_states", "_init_optim_state"})
SETUP_DEPTH = 16
MADE = "__init__"


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


def read_counter(owner: Any, path: str) -> int | None:
    """Return what a counter shows, None where it is no number or gone."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner if isinstance(owner, int) else None


def class_in(module: str, name: str) -> type | None:
    """Return a class of a module that is imported."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls if isinstance(cls, type) else None


class FrameworkCounters:
    """The framework's numbers of the steps of one window; `owners` are `CounterOwners.live`'s."""

    def __init__(self, owners: Iterable[tuple[StepCounter, Any]]) -> None:
        self._held = [(counter, weakref.ref(owner)) for counter, owner in owners]
        self._before = self._read()
        self._first: list[int | None] | None = None
        self._last: list[int | None] = []

    def look(self) -> None:
        """Read the counters, from the hook of an optimizer, at the end of a step."""
        self._last = self._read()
        self._first = self._first or self._last

    def result(self) -> dict[str, Any] | None:
        """Return the framework and its numbers of the window's first and last step, if known.

        They are those of the first counter that moved, else of the first.
        """
        known = [
            (last > before, counter, first, last)
            for (counter, _), before, first, last in zip(
                self._held, self._before, self._first or (), self._last, strict=False
            )
            if before is not None and first is not None and last is not None
        ]
        if not known:
            return None
        _, counter, first, last = next((one for one in known if one[0]), known[0])
        return {
            "name": counter.framework,
            "counter": counter.path.rpartition(".")[2],
            "first": first + (not counter.early),
            "last": last + (not counter.early),
        }

    def _read(self) -> list[int | None]:
        return [read_counter(owner(), counter.path) for counter, owner in self._held]


class CounterOwners:
    """The objects of `COUNTERS` in this process."""

    def __init__(self) -> None:
        self._owners: list[tuple[StepCounter, weakref.ref[Any]]] = []
        self._observes = False

    def listen(self, after_import: Callable[[str, Callable[[], object]], None]) -> None:
        """Observe all that is made from now on; `after_import` calls back after an import."""
        self.look()
        for counter in COUNTERS:
            if counter.module not in sys.modules:
                after_import(counter.module, self._is_imported)

    def _is_imported(self) -> None:
        if self._observes:
            self.look()

    def look(self) -> None:
        """Observe the classes of the frameworks that are imported by now."""
        self._observes = True
        for cls, counter in _imported().items():
            made = vars(cls).get(MADE)
            # A library may have put its own in the place of ours.
            if made is not None and not isinstance(made, Observed):
                observe(cls, MADE, partial(self._is_made, counter))

    def forget(self) -> None:
        """Forget what is known: the classes are observed no more."""
        self._observes = False
        self._owners.clear()

    def live(self) -> list[tuple[StepCounter, Any]]:
        """Return those that are alive, a framework that drives another one first."""
        if self._observes:
            self.look()
        live = [(counter, reference()) for counter, reference in self._owners]
        found = [(counter, owner) for counter, owner in live if owner is not None]
        return sorted(found, key=lambda pair: COUNTERS.index(pair[0]))

    def learn(self, objects: Iterable[Any]) -> None:
        """Take those among the objects of a program that were made before they were observed."""
        counters = _imported()
        for one in objects:
            known = (counters[cls] for cls in type(one).__mro__ if cls in counters)
            counter = next(known, None)
            if counter is not None:
                self._is_made(counter, one)

    def _is_made(self, counter: StepCounter, owner: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            # By identity: a dataclass compares its fields, which may be tensors.
            known = [(one, held) for one, held in self._owners if held() is not owner]
            alive = [(one, held) for one, held in known if held() is not None]
            self._owners = [*alive, (counter, weakref.ref(owner))]


def counter_classes() -> tuple[type, ...]:
    """Return the classes of `COUNTERS` that are imported."""
    return tuple(_imported())


def _imported() -> dict[type, StepCounter]:
    found = {class_in(counter.module, counter.cls): counter for counter in COUNTERS}
    return {cls: counter for cls, counter in found.items() if cls is not None}


owners = CounterOwners()
