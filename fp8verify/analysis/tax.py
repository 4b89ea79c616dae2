"""The FP8 tax: the kernels that a run in BF16 would not need, to cast, scale and turn operands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from fp8verify.analysis.gemms import KindTotal
from fp8verify.analysis.purpose import LAYER_FUNCTIONS, purpose_of
from fp8verify.report.model import Leg, OpContext


class TaxRow(NamedTuple):
    """Kernels of one purpose under one operator.

    Attributes:
        purpose: "cast", "amax", "scale" (arithmetic on scales) or "transpose" (copies of FP8 data
            to the layout that the GEMM needs).
        fused: whether a compiler or library made them one pass over the data. A fused kernel may
            also do work that BF16 needs, so that its time is the most that FP8 can have cost.
    """

    purpose: str
    op: str | None
    leg: Leg
    fused: bool
    calls: int
    time_ns: int


class Tax(NamedTuple):
    """The rows of a rank, and the part of the time that eager mode's unfused kernels took."""

    rows: tuple[TaxRow, ...] = ()

    @property
    def time_ns(self) -> int:
        """All of it, in ns."""
        return sum(row.time_ns for row in self.rows)

    @property
    def unfused_ns(self) -> int:
        """What kernels took that each do one step of a cast."""
        return sum(row.time_ns for row in self.rows if not row.fused)


def fp8_tax(others: Iterable[KindTotal]) -> Tax:
    """Add up what a rank that ran or cast FP8 spent on it in kernels that are no GEMMs."""
    totals: dict[tuple[str, str | None, Leg, bool], list[int]] = defaultdict(lambda: [0, 0])
    for total in others:
        purpose = purpose_of(total.kind)
        if purpose is not None:
            op = total.kind.op
            fused = total.kind.classification.library != "PyTorch"
            row = totals[purpose, op.name if op else None, _leg(op), fused]
            row[0] += total.calls
            row[1] += total.time_ns
    rows = [TaxRow(*key, calls, time_ns) for key, (calls, time_ns) in totals.items()]
    return Tax(tuple(sorted(rows, key=lambda row: -row.time_ns)))


def _leg(op: OpContext | None) -> Leg:
    """Say in which pass it ran: a gradient's cast serves dgrad and wgrad both."""
    if op is None or not op.backward:
        return Leg.FPROP if op is not None else Leg.UNKNOWN
    return Leg.RECOMPUTE if LAYER_FUNCTIONS.intersection(op.parents) else Leg.BACKWARD
