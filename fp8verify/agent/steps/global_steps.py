"""The numbers that a framework or a loop gives its steps: they go on where a run resumes.

They come from `fp8verify.step(number)`, else from the framework's own counter, else from the log.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ..observe import observe, unobserve
from .framework_counters import (
    COUNTERS,
    LOG,
    SCRIPT,
    FrameworkCounters,
    StepCounter,
    owners,
    read_counter,
)

MAX_STRIDE = 64
MAX_RANGES = 4


class Beginning(NamedTuple):
    """A method that a framework calls before each step, with its counter as it then is.

    Attributes:
        framework: as in `COUNTERS`.
        module: of the class.
        cls: whose method it is.
        method: its name.
        owner: where the instance has the object that counts; "" if it is that itself.
    """

    framework: str
    module: str
    cls: str
    method: str
    owner: str = ""


# transformers/trainer.py calls training_step for every batch (5.23); lightning's
# training_epoch_loop.py advance (2.6); deepspeed/runtime/engine.py forward (0.19).
BEGINNINGS = (
    Beginning("transformers", "transformers.trainer", "Trainer", "training_step"),
    Beginning(
        "lightning",
        "lightning.pytorch.loops.training_epoch_loop",
        "_TrainingEpochLoop",
        "advance",
        "trainer",
    ),
    Beginning(
        "lightning",
        "pytorch_lightning.loops.training_epoch_loop",
        "_TrainingEpochLoop",
        "advance",
        "trainer",
    ),
    Beginning("deepspeed", "deepspeed.runtime.engine", "DeepSpeedEngine", "forward"),
)
_PRECEDENCE = tuple(dict.fromkeys(counter.framework for counter in COUNTERS))


class Beginnings:
    """Hears of every step that a framework begins; `hear` gets its counter and what holds it."""

    def __init__(self, hear: Callable[[StepCounter, Any], None]) -> None:
        self._hear = hear
        self._announced: list[tuple[type, str]] = []

    def look(self) -> None:
        """Listen to the frameworks that are imported by now."""
        for beginning in BEGINNINGS:
            cls = getattr(sys.modules.get(beginning.module), beginning.cls, None)
            if not isinstance(cls, type) or beginning.method not in vars(cls):
                continue
            if (cls, beginning.method) not in self._announced:
                observe(cls, beginning.method, self._listener(beginning))
                self._announced.append((cls, beginning.method))

    def uninstall(self) -> None:
        """Listen no more."""
        for cls, method in self._announced:
            unobserve(cls, method)
        self._announced.clear()

    def _listener(self, beginning: Beginning) -> Callable[[Any], None]:
        counter = next(one for one in COUNTERS if one.framework == beginning.framework)

        def begins(instance: Any) -> None:
            owner = getattr(instance, beginning.owner, None) if beginning.owner else instance
            if owner is not None:
                self._hear(counter, owner)

        return begins


class GlobalSteps:
    """What the step that is complete is called, and which numbers the run went through.

    Attributes:
        framework: whose numbers they are: "transformers", "log", "script" and so on; None as long
            as nothing tells them.
        counter: what it calls them.
        stride: by how much they grow in one step of ours: Lightning adds up several optimizers.
    """

    def __init__(self) -> None:
        self.framework: str | None = None
        self.counter = "step"
        self.stride = 1
        self._counter: StepCounter | None = None
        self._owner: Callable[[], Any] = lambda: None
        self._found: FrameworkCounters | None = None
        self._offsets: dict[str, int] = {}
        self._ranges: list[tuple[int, int]] = []
        self._last: tuple[int, int] | None = None

    def begins(self, counter: StepCounter, owner: Any) -> None:
        """Hear that a framework begins a step; one that drives another has the better numbers."""
        held = self._owner()
        if held is owner:
            return
        if self._counter is not None and held is not None:
            known = _PRECEDENCE.index(self._counter.framework)
            if known < _PRECEDENCE.index(counter.framework):
                return
        self._counter, self._owner = counter, weakref.ref(owner)

    def learn(self, number: int, step: int, source: str) -> None:
        """Hear that `number` steps are complete where `step` steps of this run are."""
        self._offsets[source] = number - step

    def learn_from_log(self, offset: int | None) -> None:
        """Take how far the log's numbers are ahead of our count; None if they tell nothing."""
        if offset is None:
            self._offsets.pop(LOG, None)
        else:
            self._offsets[LOG] = offset

    def completed(self, step: int) -> int | None:
        """Return the number of the step that is complete, from the hook of an optimizer.

        Before the first step, it is that of the last one before this run.
        """
        number = self._read(step)
        if number is not None and step:
            self._note(step, number)
        return number

    def numbers_of(self, first: int, last: int) -> dict[str, Any] | None:
        """Return the framework and its numbers of a window, as lines or calls have told them."""
        offset = self._offsets.get(self.framework or "")
        if offset is None:
            return None
        numbers = {"first": first + offset, "last": last + offset}
        return {"name": self.framework, "counter": self.counter, **numbers}

    @property
    def shown(self) -> str:
        """The numbers that the run went through, such as "4990-5003"."""
        ranges = [f"{first}-{last}" for first, last in self._ranges]
        more = ["…"] if len(ranges) >= MAX_RANGES else []
        return ", ".join([*ranges, *more])

    def went_through(self, number: int) -> bool:
        """Whether the run has had a step of that number."""
        return any(first <= number <= last for first, last in self._ranges)

    def _read(self, step: int) -> int | None:
        if SCRIPT in self._offsets:
            return self._by_offset(SCRIPT, step)
        if self._counter is not None:
            value = read_counter(self._owner(), self._counter.path)
            if value is not None:
                self._is_by(self._counter.framework, self._counter.path)
                return value + 1 if step else value
        if LOG in self._offsets:
            return self._by_offset(LOG, step)
        return self._search(step) if step else None

    def _by_offset(self, source: str, step: int) -> int:
        self._is_by(source, "step")
        return step + self._offsets[source]

    def _search(self, step: int) -> int | None:
        """Return the number of a counter that no beginning told of, but that moves."""
        if self._found is None:
            self._found = FrameworkCounters(owners.live()) if step == 1 else None
            return None
        self._found.look()
        found = self._found.moving
        if found is None:
            return None
        self._is_by(found["name"], found["counter"])
        return int(found["last"])

    def _is_by(self, framework: str, path: str) -> None:
        self.framework, self.counter = framework, path.rpartition(".")[2]

    def _note(self, step: int, number: int) -> None:
        before, self._last = self._last, (step, number)
        if before is None:
            self._ranges.append((max(1, number - step + 1), number))
            return
        grown = number - before[1]
        if step == before[0] + 1 and 0 < grown <= MAX_STRIDE:
            self.stride = grown
        if 0 <= grown <= MAX_STRIDE * max(1, step - before[0]):
            self._ranges[-1] = (self._ranges[-1][0], number)
        elif len(self._ranges) < MAX_RANGES:
            self._ranges.append((number, number))
