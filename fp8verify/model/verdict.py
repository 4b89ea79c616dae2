"""What a verdict rests on: findings, the table that decides, and what was expected."""

from __future__ import annotations

import msgspec

from fp8verify.terms import (
    Severity,
    Verdict,
)
from fp8verify.text import label_of_ranks
from fp8verify.thresholds import HALF, TOLERANCE


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something the reader should know, with what to do about it.

    Attributes:
        code: what kind of finding it is; docs/findings explains them.
        severity: error, warning or info.
        message: the fact, in one sentence; of the first of `ranks` if it is `per_rank`.
        hint: what to do about it, empty if nothing is to be done.
        ranks: the ranks that it is about, none if it is about the run.
        layers: the layers that it is about, by their exact names.
        per_rank: whether it holds on each of the ranks by itself.
        verdict: what it makes of its ranks, such as PARTIAL; null where they may be ACTIVE.
        gpu_share: share of GPU time that its cause costs; null where that is not known.
        needs_nothing: whether `hint` says that nothing is to be done.
    """

    code: str
    severity: Severity
    message: str
    hint: str
    ranks: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    per_rank: bool = False
    verdict: Verdict | None = None
    gpu_share: float | None = None
    needs_nothing: bool = False

    def sentence(self, *, alone: bool) -> str:
        """Return the message, with the ranks that it holds on unless there is only one.

        Args:
            alone: whether the run has no other rank.
        """
        if alone or not self.per_rank or not self.ranks:
            return self.message
        return f"{label_of_ranks(self.ranks)}: {self.message}"


class ProofRow(msgspec.Struct, frozen=True, kw_only=True):
    """The GEMMs of layers that train at one value of a coordinate.

    Attributes:
        value: the step, rank, micro-batch, leg, layer or format, as a table names it.
        low: launches in FP8 or FP4.
        high: launches in high precision.
        unknown: launches of unknown precision.
        time_us: µs of all of them.
        flops: floating-point operations of all of them, null unless those of all are known.
        short: whether less ran in FP8 than was expected of it; null where this is open.
        note: what else is known of it, or empty.
        lacking: of the launches in high precision, those that should have run in FP8 or FP4; null
            where the row is not short, or not all of them are known.
    """

    value: str
    low: int
    high: int
    unknown: int
    time_us: float
    flops: float | None
    short: bool | None = False
    note: str = ""
    lacking: int | None = None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The table that decides: the GEMMs of layers that train, along one coordinate.

    Attributes:
        coordinate: step, rank, micro-batch, leg, layer or format, or two of these, as
            "layer, leg".
        rows: its values in their order, those that are short among them.
        left_out: further values that ran like those of the table.
        ranks: the ranks that it adds up, none if their numbers are not known.
    """

    coordinate: str
    rows: tuple[ProofRow, ...]
    left_out: int = 0
    ranks: tuple[int, ...] = ()


class CountedGemms(msgspec.Struct, frozen=True, kw_only=True):
    """The GEMMs of a rank that a list or the log states to run in low precision.

    Attributes:
        expected: how many should run in FP8 or FP4.
        lacking: how many of these did not.
    """

    expected: int
    lacking: int


class ExpectedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was to run in low precision, by module list, recipe and log, against what did.

    Attributes:
        share_of_flops: of the FLOPs of the GEMMs that train, what was to run in FP8 or FP4.
        measured_share_of_flops: what did.
        left_out: the layers that were to stay in high precision.
        stated: whether the log names these layers, or the steps; less than half is expected only
            where it does.
    """

    share_of_flops: float
    measured_share_of_flops: float
    left_out: tuple[str, ...]
    stated: bool

    @property
    def is_met(self) -> bool:
        """Whether as much ran in low precision as was to, but for rounding of shapes."""
        return self.measured_share_of_flops >= self.share_of_flops - TOLERANCE

    @property
    def decides(self) -> bool:
        """Whether a run is judged by it: less than half is believed only where the log says so."""
        return self.share_of_flops >= HALF or self.stated
