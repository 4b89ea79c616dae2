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

from ..gc_scan import TooManyObjectsError, find_instances
from ..observe import Observed, observe, unobserve
from ..record.debug import debug


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


MADE = "__init__"


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
        """Hear of all that is made from now on; `after_import` calls back after an import."""
        self.look()
        for counter in COUNTERS:
            if counter.module not in sys.modules:
                after_import(counter.module, partial(self._is_imported, counter))

    def look(self) -> None:
        """Listen to the frameworks that are imported by now."""
        self._listens = True
        for counter, cls in _imported():
            self._observe(counter, cls)

    def stop(self) -> None:
        """Hear of nothing any more, and forget what is known."""
        for _, cls in _imported():
            unobserve(cls, MADE)
        self.may_miss = self._listens = False
        self._complete.clear()
        self._owners.clear()

    def live(self) -> list[tuple[StepCounter, Any]]:
        """Return those that are alive, a framework that drives another one first."""
        if self._listens:
            self.look()
        self._search()
        live = [(counter, reference()) for counter, reference in self._owners]
        found = [(counter, owner) for counter, owner in live if owner is not None]
        return sorted(found, key=lambda pair: COUNTERS.index(pair[0]))

    def _is_imported(self, counter: StepCounter) -> None:
        cls = _class_of(counter)
        if self._listens and cls is not None and self._observe(counter, cls):
            self._complete.add(cls)

    def _observe(self, counter: StepCounter, cls: type) -> bool:
        """Return whether objects of the class are heard of from now on."""
        if MADE not in vars(cls):
            return False
        if not isinstance(vars(cls)[MADE], Observed):
            self._complete.discard(cls)  # a library may have put its own in the place of ours
            observe(cls, MADE, lambda owner: self._is_made(counter, owner))
        return True

    def _is_made(self, counter: StepCounter, owner: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            self._add(counter, owner)

    def _add(self, counter: StepCounter, owner: Any) -> None:
        alive = [pair for pair in self._owners if pair[1]() not in (None, owner)]
        self._owners = [*alive, (counter, weakref.ref(owner))]

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

    def _search(self) -> None:
        counters = self.unknown()
        if not counters:
            return
        debug.event(f"all objects are searched for those of {', '.join(map(_name, counters))}")
        try:
            self.learn(find_instances(counters.__contains__))
        except TooManyObjectsError:
            self.may_miss = True
            self.learn([])


def _imported() -> Iterator[tuple[StepCounter, type]]:
    for counter in COUNTERS:
        cls = _class_of(counter)
        if cls is not None:
            yield counter, cls


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def _class_of(counter: StepCounter) -> type | None:
    cls = getattr(sys.modules.get(counter.module), counter.cls, None)
    return cls if isinstance(cls, type) else None


def _with_subclasses(cls: Any) -> Iterator[type]:
    yield cls
    for subclass in type.__subclasses__(cls):
        yield from _with_subclasses(subclass)


owners = CounterOwners()
