"""Sums over a rank's GEMMs in nanoseconds, launches and FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fp8verify.analysis.gemms import GemmRow, Survey
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.purpose import purpose_of
from fp8verify.report.model import (
    Precision,
    Role,
    fp8_share,
    low_precision_count,
    low_precision_name,
    low_precision_share,
)

# FLOP shares are quoted only where shapes are missing for no more than this share of GEMM time.
NEGLIGIBLE = 0.001

# What a kernel's time is shown under.
GPU_TIME_KEYS: dict[Role, str] = {
    Role.GEMM: "gemm",
    Role.GROUPED_GEMM: "gemm",
    Role.ATTENTION: "attention",
    Role.CONV: "conv",
    Role.CAST_QUANTIZE: "quantize",
    Role.AMAX_REDUCE: "quantize",
    Role.TRANSPOSE: "transpose",
    Role.COMMUNICATION: "communication",
    Role.MEMORY: "memory",
    Role.ELEMENTWISE: "elementwise",
    Role.REDUCTION: "reduction",
    Role.OTHER: "other",
}


class GemmTotals(NamedTuple):
    """GEMM time, launches and FLOPs by precision class; `covered_ns` is of those with FLOPs.

    Shares are rounded as the report shows them, so that a verdict never rests on digits that
    nobody sees.
    """

    time_ns: Counter[Precision]
    kernels: Counter[Precision]
    flops: Counter[Precision]
    covered_ns: int

    @property
    def total_ns(self) -> int:
        """The time of all of them."""
        return self.time_ns.total()

    @property
    def low_kernels(self) -> int:
        """How many of the launches were in FP8 or FP4."""
        return low_precision_count(self.kernels)

    @property
    def name(self) -> str:
        """How a sentence names the low-precision classes that ran, "FP8" where none did."""
        return low_precision_name(self.kernels)

    @property
    def low_precision_share_of_time(self) -> float | None:
        """The FP8 and FP4 share of GEMM time; None where there is no time."""
        return _rounded(low_precision_share(self.time_ns))

    @property
    def fp8_share_of_time(self) -> float | None:
        """The FP8 share of GEMM time; None where there is no time."""
        return _rounded(fp8_share(self.time_ns))

    @property
    def fp8_share_of_flops(self) -> float | None:
        """The FP8 share of FLOPs; None unless those of (nearly) all GEMM time are known."""
        return _rounded(fp8_share(self.flops)) if self.knows_flops else None

    @property
    def knows_flops(self) -> bool:
        """Whether the FLOPs of (nearly) all GEMM time are known."""
        return bool(self.total_ns) and self.total_ns - self.covered_ns <= self.total_ns * NEGLIGIBLE

    @property
    def unknown_share_of_time(self) -> float:
        """The share of GEMM time in kernels of unknown precision."""
        return self._share(self.time_ns[Precision.UNKNOWN])

    @property
    def flops_coverage(self) -> float:
        """The share of GEMM time whose FLOPs are known."""
        return self._share(self.covered_ns)

    def _share(self, part_ns: int) -> float:
        return round(part_ns / self.total_ns, 6) if self.total_ns else 0.0


def gemm_totals(rows: Iterable[GemmRow]) -> GemmTotals:
    """Add up GEMMs by precision class."""
    time_ns, kernels, flops = Counter[Precision](), Counter[Precision](), Counter[Precision]()
    covered_ns = 0
    for row in rows:
        precision = row.precision
        time_ns[precision] += row.time_ns
        kernels[precision] += row.calls
        if row.flops is not None:
            flops[precision] += row.flops
            covered_ns += row.time_ns
    return GemmTotals(time_ns, kernels, flops, covered_ns)


def add_totals(parts: Iterable[GemmTotals]) -> GemmTotals:
    """Add up the totals of several ranks."""
    total = gemm_totals(())
    for part in parts:
        total.time_ns.update(part.time_ns)
        total.kernels.update(part.kernels)
        total.flops.update(part.flops)
        total = total._replace(covered_ns=total.covered_ns + part.covered_ns)
    return total


def gpu_time(survey: Survey, *, taxed: bool) -> dict[str, int]:
    """Return kernel time in ns by what it was for; the values add up to all kernel time.

    Args:
        survey: of a rank.
        taxed: whether it ran or cast low precision. Then what was for that is what `purpose_of`
            says, as in the tax, and a cast of the optimizer or of a codec is elementwise work.
    """
    time_ns = dict.fromkeys(GPU_TIME_KEYS.values(), 0)
    for row in (*survey.gemms, *survey.optimizer):
        time_ns["gemm"] += row.time_ns
    for total in survey.others:
        time_ns[_key(total.kind, taxed=taxed)] += total.time_ns
    return time_ns


def _key(kind: Kind, *, taxed: bool) -> str:
    key = GPU_TIME_KEYS[kind.classification.role]
    if not taxed:
        return key
    purpose = purpose_of(kind)
    if purpose is None:
        return "elementwise" if key in ("quantize", "transpose") else key
    return "transpose" if purpose == "transpose" else "quantize"


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)
