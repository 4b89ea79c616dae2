"""The kernels of a rank: GEMMs by precision class and leg, and what vouches for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from fp8verify.terms import (
    Leg,
    Precision,
    Role,
    Shape,
    fp8_share,
    low_precision_share,
)

_Number = TypeVar("_Number", int, float)


class PrecisionRow(NamedTuple):
    """GEMM time in µs of one precision class; `tflops` is None unless shapes cover all of it."""

    precision: str
    kernels: int
    time_us: float
    share: float
    tflops: float | None


class GemmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """GEMM totals by precision class.

    Attributes:
        time_us: GEMM time in µs by precision class, with that of kernels that add up the parts of
            split-K GEMMs.
        kernels: GEMMs by precision class, without these kernels.
        flops: floating-point operations by precision class, as far as recorded shapes give them;
            null where no GEMM has recorded shapes.
        fp8_share_of_time: share of GEMM time in `fp8` and `mxfp8`, null without GEMMs.
        low_precision_share_of_time: the same with the FP4 formats, which the verdict judges by.
        fp8_share_of_flops: null unless the FLOPs of (nearly) all GEMM time are known.
        unknown_share_of_time: share of GEMM time in kernels of unknown precision.
        flops_coverage: share of GEMM time whose FLOPs are known.
    """

    time_us: dict[str, float]
    kernels: dict[str, int]
    flops: dict[str, float] | None
    fp8_share_of_time: float | None
    low_precision_share_of_time: float | None
    fp8_share_of_flops: float | None
    unknown_share_of_time: float
    flops_coverage: float

    @property
    def total_ns(self) -> int:
        """The time of all of them, in ns."""
        return round(1000 * sum(self.time_us.values()))

    @property
    def launches(self) -> int:
        """How many there are."""
        return sum(self.kernels.values())

    @property
    def rows(self) -> list[PrecisionRow]:
        """The precision classes that ran, the most time first."""
        total = sum(self.time_us.values())
        flops = self.flops if self.flops_coverage >= 1 else None
        rows = [
            PrecisionRow(
                precision=name,
                kernels=self.kernels[name],
                time_us=us,
                share=us / total if total else 0.0,
                tflops=flops.get(name, 0.0) / us / 1e6
                if flops is not None and us
                else None,
            )
            for name, us in self.time_us.items()
            if us or self.kernels.get(name)
        ]
        return sorted(rows, key=lambda row: -row.time_us)

    def less(self, *parts: GemmSummary) -> GemmSummary:
        """Return the totals without some of the GEMMs."""
        flops = self.flops if self.flops_coverage >= 1 else None
        time_us = _less(self.time_us, *(part.time_us for part in parts))
        return msgspec.structs.replace(
            self,
            time_us=time_us,
            kernels=_less(self.kernels, *(part.kernels for part in parts)),
            flops=flops and _less(flops, *(part.flops or {} for part in parts)),
            fp8_share_of_time=fp8_share(time_us),
            low_precision_share_of_time=low_precision_share(time_us),
        )


def _less(
    whole: Mapping[str, _Number], *parts: Mapping[str, _Number]
) -> dict[str, _Number]:
    return {
        name: value - sum(part.get(name, 0) for part in parts)
        for name, value in whole.items()
    }


class LegRow(msgspec.Struct, frozen=True, kw_only=True):
    """GEMM time of one leg, by precision class.

    Attributes:
        leg: fprop, dgrad, wgrad, backward (dgrad or wgrad), recompute, attention (products of
            attention that no fused kernel computes), optimizer or unknown.
        time_us: µs by precision class.
        kernels: GEMMs by precision class, without kernels that add up the parts of split-K ones.
    """

    leg: Leg
    time_us: dict[str, float]
    kernels: dict[str, int]


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of kernel launched by one kind of operator.

    Attributes:
        name: the kernel's.
        role: what it does.
        precision: class of the operands of a GEMM; of other kernels, of what they write.
        library: where the kernel comes from.
        op: the operator that launched it, null where not known.
        leg: which of a layer's GEMMs it is, null if it is not a GEMM.
        dims: the operator's input shapes.
        shape: (batch, m, n, k) of a GEMM; a kernel that adds up the parts of one has its shape.
        kernels: launches.
        time_us: µs of all launches.
        tflops: 10^12 operations a second of all launches together.
        percent_of_peak: that over the GPU's dense peak of the precision.
        decided_by: who says the precision: name, op, name+op, library, code, or none.
        reason: how that was read.
    """

    name: str
    role: Role
    precision: Precision
    library: str
    op: str | None
    leg: Leg | None
    dims: tuple[Shape, ...] | None
    shape: Shape | None
    kernels: int
    time_us: float
    tflops: float | None
    percent_of_peak: float | None
    decided_by: str
    reason: str


class RecipeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How the GEMMs in low precision were scaled, by the kernels.

    Attributes:
        time_us: GEMM time in µs by scaling.
        fast_accumulation: by leg, whether fast accumulation was on.
    """

    time_us: dict[str, float]
    fast_accumulation: dict[str, bool]


class LibraryLogReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the BLAS library logged of a rank's windows, against the kernels of the trace.

    Attributes:
        products: in the log.
        gemms: GEMM kernels in the trace, of any library.
        vouched: those of `gemms` whose precision the log confirms.
        settled: those of `vouched` whose precision is known from the log alone.
        disputed: kernels whose precision the log contradicts.
        note: why the log could not be joined to the kernels, null if it was.
    """

    products: int
    gemms: int = 0
    vouched: int = 0
    settled: int = 0
    disputed: int = 0
    note: str | None = None


class CompiledCodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine code that compilers left on disk says of a rank's kernels.

    Attributes:
        gemms: launches of products of Triton's, or of nobody's that is known.
        vouched: those of `gemms` whose precision the code shows.
        settled: those of `vouched` whose precision is known from the code alone.
        disputed: those of `vouched` whose names say another precision.
        differing: kernels that were left as they are, because codes of their name and launch
            differ in precision.
    """

    gemms: int
    vouched: int = 0
    settled: int = 0
    disputed: int = 0
    differing: int = 0


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """How whole the trace is: each kind of damage, counted.

    Attributes:
        events: records read.
        skipped_events: records that could not be decoded.
        truncated: whether the file ends early.
        kernels: GPU kernels in the file.
        kernels_without_launch: kernels whose launch is not in the file.
        kernels_without_op: kernels without a known operator.
        kernels_before_window: kernels launched before the window, which do not count.
        kernels_in_graphs: kernels that a CUDA graph launched.
        bad_durations: kernels with times that cannot be.
        notes: what else was seen.
    """

    events: int
    skipped_events: int
    truncated: bool
    kernels: int
    kernels_without_launch: int
    kernels_without_op: int
    kernels_before_window: int
    kernels_in_graphs: int
    bad_durations: int
    notes: tuple[str, ...]
