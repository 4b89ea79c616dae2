"""Windows that are named by the framework's own step numbers: `--steps global:5000-5002`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..record.rank_record import RankRecord
from ..steps.global_steps import GlobalSteps
from .plan import Plan

PREFIX = "global:"


class GlobalWindows:
    """Gives each window its steps of this run as soon as the numbers tell that it is near.

    It opens the first time that the numbers come by: a further training of the same process that
    counts from 1 again is not recorded twice.
    """

    def __init__(
        self, windows: Sequence[Sequence[int]], plan: Plan, record: RankRecord, numbers: GlobalSteps
    ) -> None:
        self.numbers = numbers
        self._plan = plan
        self._record = record
        self._waiting = [(first, last) for first, last in windows]
        plan.unplaced = len(self._waiting)
        record.unplaced = self._unplaced

    def after(self, step: int) -> bool:
        """Place what is near when `step` steps are complete; return whether anything was."""
        number = self.numbers.completed(step) if self._waiting else None
        if number is None:
            return False
        stride = self.numbers.stride
        near = [w for w in self._waiting if w[0] <= number + 2 * stride and w[1] > number]
        for window in near:
            self._place(window, step, number, stride)
        return bool(near)

    def named(self, seen: dict[str, Any], first: int, last: int) -> dict[str, Any]:
        """Return the fields of a window with its numbers, where the instruments had none."""
        if seen.get("framework") is not None:
            return seen
        return {**seen, "framework": self.numbers.numbers_of(first, last)}

    def _place(self, window: tuple[int, int], step: int, number: int, stride: int) -> None:
        first = step + max(1, -(-(window[0] - number) // stride))
        if self._plan.windows:  # no profiler session begins in the step in which one ends
            first = max(first, self._plan.windows[-1][1] + 2)
        last = max(first, step + (window[1] - number) // stride)
        self._waiting.remove(window)
        self._plan.add(first, last)
        self._record.add_window(first, last, asked=window)
        if number + (first - 1 - step) * stride >= window[0]:
            self._record.note(
                f"window {PREFIX}{window[0]}-{window[1]} had begun when the numbers of its steps "
                f"were known, after step {step}: the rest of it was recorded"
            )

    def _unplaced(self, seen: str) -> list[tuple[tuple[int, int], str]]:
        """Return the windows that never opened, and why; `seen` says how the run ended."""
        return [(window, self._why(window, seen)) for window in self._waiting]

    def _why(self, window: tuple[int, int], seen: str) -> str:
        if self.numbers.framework is None or not self.numbers.shown:
            return (
                f"{seen}, and their global numbers are unknown: no counter of a framework, no line "
                "of the log whose step number grows with the steps, no fp8verify.step(number)"
            )
        if self.numbers.went_through(window[1]):
            return f"{seen}, and its steps were over when their numbers were known"
        by = f"{self.numbers.framework} {self.numbers.counter}"
        return f"{seen}, having gone through the global steps {self.numbers.shown} ({by})"
