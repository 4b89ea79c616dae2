"""The cells of a run's grid: five coordinates, and what ran there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from fp8verify.terms import Leg

# A layer: its name, (outputs, inputs), the experts of all layers, or None if it cannot be told.
Layer: TypeAlias = "str | tuple[int, ...] | None"


class Cell(NamedTuple):
    """The five coordinates; `rank` and `step` are places among those of the run and the rank."""

    rank: int
    step: int
    micro_batch: int
    layer: Layer
    leg: Leg


class Tally(NamedTuple):
    """What ran in cells: fractions of all work of the rank, and launches, some shared by cells."""

    low: float = 0.0
    high: float = 0.0
    unknown: float = 0.0
    calls: float = 0.0
    low_calls: float = 0.0
    unknown_calls: float = 0.0

    @property
    def total(self) -> float:
        """All work."""
        return self.low + self.high + self.unknown

    @property
    def share(self) -> float | None:
        """The share of low precision in what is known, None of nothing."""
        known = self.low + self.high
        return self.low / known if known else None


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Add up cells."""
    columns = list(zip(*tallies, strict=True))
    return Tally(*map(sum, columns)) if columns else Tally()
