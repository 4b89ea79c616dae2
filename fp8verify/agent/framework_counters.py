"""The step counters of training frameworks: where they are, and the live objects that hold them.

Objects are found when they are made: their class's `__init__` is observed from the import of its
module. Where some may have been made before, as in a script that begins to watch itself, they are
searched for once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from .debug import debug
from .observe import Observed, observe
from .process import TooManyObjectsError, find_instances


class StepCounter(NamedTuple):
    """Where a framework counts completed optimizer steps, and what it calls before each of them.

    All of them add one after the optimizer's step, so its hook reads one less than the step's
    number: transformers/trainer.py `state.global_step += 1` (5.23); lightning/pytorch/trainer/
    trainer.py `global_step`, which adds up several optimizers (2.6); deepspeed/runtime/engine.py
    `_take_model_step` (0.19), which adds steps that it skips for an overflow.

    Attributes:
        framework: its name in the report.
        module: of the class whose instances count.
        cls: the name of that class.
        path: attributes that lead from an instance to its counter.
        begins: module, class and method that is called for each batch.
        owner: attribute of that method's instance that counts; "" if it is that itself.
    """

    framework: str
    module: str
    cls: str
    path: str
    begins: tuple[str, str, str]
    owner: str = ""


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


class _Watched:
    """One live counter: what it read before the window, and at its first and last step."""

    def __init__(self, counter: StepCounter, owner: Any) -> None:
        self.counter = counter
        self.owner = weakref.ref(owner)
        self.before = read_counter(owner, counter.path)
        self.first: int | None = None
        self.last: int | None = None

    def look(self) -> None:
        self.last = read_counter(self.owner(), self.counter.path)
        if self.first is None:
            self.first = self.last

    def numbers(self) -> dict[str, Any] | None:
        if self.first is None or self.last is None:
            return None
        return {
            "name": self.counter.framework,
            "counter": self.counter.path.rpartition(".")[2],
            "first": self.first + 1,
            "last": self.last + 1,
        }


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
        found = self.moving
        return found or next(filter(None, (one.numbers() for one in self._watched[:1])), None)

    @property
    def moving(self) -> dict[str, Any] | None:
        """The same of the first counter that has moved, None if none has."""
        moved = (
            one.numbers()
            for one in self._watched
            if one.last is not None and one.before is not None and one.last > one.before
        )
        return next(filter(None, moved), None)


class CounterOwners:
    """The objects of `COUNTERS` in this process.

    Attributes:
        may_miss: whether some that were made before us were not looked for: there are too many
            objects.
    """

    def __init__(self) -> None:
        self.may_miss = False
        self._owners: list[tuple[StepCounter, weakref.ref[Any]]] = []
        self._listens = False
        self._complete: set[type] = set()  # classes of which no live object is unknown

    def listen(self, after_import: Callable[[str, Callable[[], object]], None]) -> None:
        """Observe all that is made from now on; `after_import` calls back after an import."""
        self.look()
        for counter in COUNTERS:
            if counter.module not in sys.modules:
                after_import(counter.module, partial(self._is_imported, counter))

    def look(self) -> None:
        """Observe the classes of the frameworks that are imported by now."""
        self._listens = True
        for counter, cls in _imported():
            self._observe(counter, cls)

    def forget(self) -> None:
        """Forget what is known: the classes are observed no more."""
        self.may_miss = self._listens = False
        self._complete.clear()
        self._owners.clear()

    def live(self) -> list[tuple[StepCounter, Any]]:
        """Return those that are alive, a framework that drives another one first."""
        if self._listens:
            self.look()
        unknown = self.unknown()
        if unknown:
            names = ", ".join(f"{cls.__module__}.{cls.__name__}" for cls in unknown)
            debug.event(f"all objects are searched for those of {names}")
            try:
                self.learn(find_instances(unknown.__contains__))
            except TooManyObjectsError:
                self.may_miss = True
                self.learn([])
        live = [(counter, reference()) for counter, reference in self._owners]
        found = [(counter, owner) for counter, owner in live if owner is not None]
        return sorted(found, key=lambda pair: COUNTERS.index(pair[0]))

    def unknown(self) -> dict[type, StepCounter]:
        """Return the classes of objects that may be alive without being known, subclasses too."""
        return {
            kind: counter
            for counter, cls in _imported()
            if cls not in self._complete
            for kind in _with_subclasses(cls)
        }

    def learn(self, found: Iterable[Any]) -> None:
        """Take what a search among all objects has found of the classes that were unknown."""
        counters = self.unknown()
        for owner in found:
            if type(owner) in counters:
                self._add(counters[type(owner)], owner)
        self._complete |= {cls for cls in counters if isinstance(vars(cls).get(MADE), Observed)}

    def _is_imported(self, counter: StepCounter) -> None:
        cls = class_in(counter.module, counter.cls)
        if self._listens and cls is not None and self._observe(counter, cls):
            self._complete.add(cls)

    def _observe(self, counter: StepCounter, cls: type) -> bool:
        """Return whether objects of the class are known from now on."""
        if MADE not in vars(cls):
            return False
        if not isinstance(vars(cls)[MADE], Observed):
            self._complete.discard(cls)  # a library may have put its own in the place of ours
            observe(cls, MADE, partial(self._is_made, counter))
        return True

    def _is_made(self, counter: StepCounter, owner: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            self._add(counter, owner)

    def _add(self, counter: StepCounter, owner: Any) -> None:
        alive = [pair for pair in self._owners if pair[1]() not in (None, owner)]
        self._owners = [*alive, (counter, weakref.ref(owner))]


def _imported() -> Iterator[tuple[StepCounter, type]]:
    for counter in COUNTERS:
        cls = class_in(counter.module, counter.cls)
        if cls is not None:
            yield counter, cls


def _with_subclasses(cls: Any) -> Iterator[type]:
    yield cls
    for subclass in type.__subclasses__(cls):
        yield from _with_subclasses(subclass)


owners = CounterOwners()
