"""The step numbers of a framework or a loop, which continue when a run resumes.

They come from `fp8verify.step(number)`, else from the framework's own counter.
"""

from __future__ import annotations

from typing import Any

from .framework_counters import counters

SCRIPT = "script"  # the source of the numbers of `fp8verify.step(number)`
MAX_STRIDE = 64


class GlobalSteps:
    """The number of the last complete step, and the range of numbers so far.

    Attributes:
        framework: source of the numbers: "transformers", "script" and so on; None as long as there
            are none.
        counter: the source's name for the number.
        stride: increase per optimizer step: Lightning adds up several optimizers.
        lowest: the smallest number so far, None as long as there are none.
        highest: the largest.
    """

    def __init__(self) -> None:
        self.framework: str | None = None
        self.counter = "step"
        self.stride = 1
        self._offset: int | None = None
        self.lowest: int | None = None
        self.highest = 0
        self._last = (0, 0)  # our count and their number

    def learn(self, offset: int) -> None:
        """Take how far the script's numbers are ahead of our count."""
        self._offset = offset

    def completed(self, step: int) -> int | None:
        """Return the number of the step that is complete, from the hook of an optimizer.

        Before the first step, it is the number of the last step before this run.
        """
        number = self._read(step)
        if number is not None and step:
            self._note(step, number)
        return number

    def numbers_of(self, first: int, last: int) -> dict[str, Any] | None:
        """Return the script's numbers of a window."""
        if self._offset is None:
            return None
        numbers = {"first": first + self._offset, "last": last + self._offset}
        return {"name": self.framework, "counter": self.counter, **numbers}

    def _read(self, step: int) -> int | None:
        if self._offset is not None:
            self.framework, self.counter = SCRIPT, "step"
            return step + self._offset
        for counter, number in counters.shown().items():  # one that drives another comes first
            self.framework, self.counter = counter.framework, counter.name
            return number + (not counter.early) if step else number
        return None

    def _note(self, step: int, number: int) -> None:
        (step_before, before), self._last = self._last, (step, number)
        if self.lowest is None:
            self.lowest = max(1, number - step + 1)
        elif step == step_before + 1 and 0 < number - before <= MAX_STRIDE:
            self.stride = number - before
        self.lowest, self.highest = min(self.lowest, number), max(self.highest, number)
