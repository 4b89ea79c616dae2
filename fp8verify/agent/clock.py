"""Turn optimizer hooks into 1-based training steps: a state machine that knows no torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

# A GAN's critic may step a few times between two steps of the leader; an optimizer that replaced
# the leader steps without end. Eight in a row tell them apart.
TAKEOVER_AFTER = 8
MAX_NOTES = 16
MAX_SAMPLES = 512
STEPS_TO_RECOVER = 2


class _Nesting(threading.local):
    """Depth of optimizer steps inside one another, and the work done when the outermost began."""

    depth = 0
    work = 0


class StepTimes:
    """Wall times of the steps that fp8verify does not slow down, in constant memory.

    `tick` is called when a step ends, and `resume` when the hook that counted it returns: the time
    between is fp8verify's. After a disturbed step the next ones are left out too, because the GPU's
    queue is empty at first.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.count = self.total = 0
        self._now = now
        self._began: int | None = None
        self._left_out = 0
        self._samples: list[int] = []
        self._stride = 1

    def tick(self, *, disturbed: bool) -> None:
        """Note that a step ends; `disturbed` is whether it was profiled or measured."""
        began = self._began
        if disturbed:
            self._left_out = STEPS_TO_RECOVER
        elif self._left_out:
            self._left_out -= 1
        elif began is not None:
            took = self._now() - began
            self.total += took
            if self.count % self._stride == 0:
                self._samples.append(took)
            self.count += 1
            if len(self._samples) > MAX_SAMPLES:
                self._stride *= 2
                self._samples = self._samples[::2]

    def resume(self) -> None:
        """Note that the training runs on."""
        self._began = self._now()

    def summary(self) -> dict[str, Any] | None:
        """Return the fields of the capture's `StepTimes`, None if no step was timed."""
        if not self._samples:
            return None
        return {
            "count": self.count,
            "total_ns": self.total,
            "median_ns": sorted(self._samples)[(len(self._samples) - 1) // 2],
            "samples_ns": self._samples,
        }


class Clock:
    """Count the training steps of this process.

    A step is one update of the *leader*, the first optimizer that made one, so a second
    optimizer in the same iteration is not counted. `work` is a number that grows whenever a forward
    pass builds an autograd graph: updates without work between them (ZeRO sub-groups, the zero-lr
    step that initializes optimizer state) belong to one step. If no graph is ever seen, every
    update with a learning rate counts.

    Attributes:
        steps: training steps completed since the start of the process.
        source: "optimizer", or "explicit" once the script itself announced a step.
        leader: class of the optimizer whose updates are counted.
        skipped: steps whose update a GradScaler left out.
        updates: outermost and nested `step()` calls by optimizer class.
        notes: remarks on the step numbers, for the report.
        outside: times of the steps outside windows.
    """

    def __init__(self, work: int = 0) -> None:
        self.steps = 0
        self.source = "optimizer"
        self.leader: str | None = None
        self.skipped = 0
        self.updates: dict[str, int] = {}
        self.notes: list[str] = []
        self.outside = StepTimes()
        self._nesting = _Nesting()
        self._first_work = work
        self._counted_work = work
        self._leader: int | None = None
        self._rival: int | None = None
        self._rival_updates = 0
        self._built: dict[int, int] = {}
        self._updated_since_scaler = False

    def note(self, text: str) -> None:
        """Keep a remark, once."""
        if text not in self.notes:
            self.notes.append(text)

    def built(self, optimizer: int) -> None:
        """Note that an optimizer is made."""
        if self.steps:
            self._built[optimizer] = self.steps

    def enter(self, work: int) -> None:
        """Note that some optimizer's `step()` begins."""
        nesting = self._nesting
        # A step() that raised never left. Work since then shows that it is over.
        if nesting.depth and nesting.work != work:
            nesting.depth = 0
        if not nesting.depth:
            nesting.work = work
        nesting.depth += 1

    def leave(
        self,
        optimizer: int,
        name: str,
        work: int,
        *,
        idle: bool = False,
        setup: bool = False,
    ) -> bool:
        """Note that `optimizer` has stepped and return whether that completed a training step.

        `optimizer` identifies the instance, `name` is its class, `idle` is whether all its
        learning rates are zero, `setup` whether it is known to step only to make its state.
        """
        self._nesting.depth = max(0, self._nesting.depth - 1)
        if setup:
            return False
        self.updates[name] = self.updates.get(name, 0) + 1
        self._updated_since_scaler = True
        if (
            self._nesting.depth
            or self.source == "explicit"
            or not self._is_new(work, idle)
        ):
            return False
        if not self._leads(optimizer, name):
            return False
        return self._tick(work)

    def replayed(self, optimizers: dict[int, str], work: int) -> bool:
        """Note a CUDA graph that contains a step of each of these optimizers, by id and class.

        Return whether it contains a step of the leader, which is then counted. The start of the
        replay is counted, because nothing shows when the GPU has finished it.
        """
        for name in optimizers.values():
            self.updates[name] = self.updates.get(name, 0) + 1
        if self.source == "explicit" or not self._leads_one_of(optimizers):
            return False
        self.note(
            "steps are replayed as a CUDA graph: one is counted from a replay to the next"
        )
        return self._tick(work)

    def is_captured(self) -> None:
        """Note that a `step()` that began was recorded into a CUDA graph instead of run."""
        self._nesting.depth = max(0, self._nesting.depth - 1)

    def scaler_updated(self, work: int) -> bool:
        """Note `GradScaler.update()`: without an update before it, the scaler skipped this step."""
        skipped = not self._updated_since_scaler and work != self._counted_work
        self._updated_since_scaler = False
        if not skipped or self.source == "explicit":
            return False
        self.skipped += 1
        return self._tick(work)

    def announce(self, work: int) -> bool:
        """Note a step that the script announced itself; from then on only these count."""
        already_counted = self.source != "explicit" and self.steps > 0
        self.source = "explicit"
        return not already_counted and self._tick(work)

    def forget(self, optimizer: int) -> None:
        """Note that an optimizer was deleted, because another object may get its id."""
        if optimizer == self._leader:
            self._leader = None
            self._rival_updates = 0

    def _is_new(self, work: int, idle: bool) -> bool:
        if work != self._counted_work:
            return True
        return work == self._first_work and not idle

    def _leads(self, optimizer: int, name: str) -> bool:
        if self.leader is None:
            self._leader = optimizer
            self.leader = name
        if optimizer == self._leader:
            self._rival_updates = 0
            return True
        # One that is made and steps while the leader rests, or is no more, trains in its place:
        # the next fold.
        if self._built.pop(optimizer, None) == self.steps or self._leader is None:
            self._follow(
                optimizer, name, f"a new {name} began to step: it is counted since"
            )
            return True
        self._rival_updates = self._rival_updates + 1 if optimizer == self._rival else 1
        self._rival = optimizer
        if self._rival_updates < TAKEOVER_AFTER:
            return False
        self._follow(
            optimizer,
            name,
            f"the optimizer that was counted stopped stepping; {name} is counted since, and "
            f"{TAKEOVER_AFTER - 1} of its steps are not",
        )
        return True

    def _leads_one_of(self, optimizers: dict[int, str]) -> bool:
        """Whether the leader is one of these, or the first of them leads from here on."""
        if self._leader in optimizers:
            self._rival_updates = 0
            return True
        optimizer, name = next(iter(optimizers.items()))
        if self._leader is None:
            self._leader = optimizer
            self.leader = name
            return True
        return self._leads(optimizer, name)

    def _follow(
        self,
        optimizer: int,
        name: str,
        why: str,
    ) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(f"after step {self.steps} {why}")
        self._leader = optimizer
        self.leader = name
        self._rival_updates = 0

    def _tick(self, work: int) -> bool:
        self._counted_work = work
        self.steps += 1
        return True
