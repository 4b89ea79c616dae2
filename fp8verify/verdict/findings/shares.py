"""Shares of low precision in parts of a window: of steps, and of legs.

One FP8 GEMM does not make a step or a leg one of FP8: a part falls short where its share is less
than half of what the other parts show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.totals import GemmTotals

HALF = 0.5

Weigh = Callable[[GemmRow], float]


class Part(NamedTuple):
    """FLOPs, or ns, of GEMMs in low precision and of all of them."""

    low: float = 0.0
    total: float = 0.0

    @property
    def share(self) -> float:
        """The share in low precision, 0 of nothing."""
        return self.low / self.total if self.total else 0.0

    @classmethod
    def of(cls, rows: Iterable[GemmRow], weigh: Weigh) -> Part:
        """Add up GEMMs."""
        weights = [(weigh(row), row.precision.is_low) for row in rows]
        return cls(sum(w for w, low in weights if low), sum(w for w, _ in weights))

    @classmethod
    def sum(cls, parts: Iterable[Part]) -> Part:
        """Add up parts."""
        found = list(parts)
        return cls(sum(part.low for part in found), sum(part.total for part in found))


def amounts_of(totals: GemmTotals) -> Weigh:
    """Return how GEMMs are weighed: by FLOPs where those of all are known, else by time."""
    return _flops if totals.knows_flops else _time


def _flops(row: GemmRow) -> float:
    return row.flops or 0


def _time(row: GemmRow) -> float:
    return row.time_ns
