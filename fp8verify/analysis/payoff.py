"""Whether FP8 can pay: what it saves at most, what limits it, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.peaks import peak_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.small_side import SMALL_SIDE
from fp8verify.analysis.tax import Tax
from fp8verify.report.model import Precision

# Every NVIDIA and AMD GPU of `peaks` multiplies FP8 at twice its BF16 rate.
_USUAL_RATIO = 2.0
_SIXTEEN_BIT = (Precision.BF16, Precision.FP16)
_BANDWIDTH_BOUND = ("elementwise", "reduction", "quantize", "transpose", "memory")


class Payoff(NamedTuple):
    """What FP8 can do for one rank, times in ns; estimates rest on the ratio of the peaks.

    Attributes:
        busy: GPU time, overlaps counted once.
        fp8: GEMM time in FP8 or FP4.
        sixteen_bit: GEMM time in BF16 and FP16.
        tax: what FP8 costs beside its GEMMs.
        saved_at_most: what the FP8 GEMMs would take longer in BF16 if both reached their peaks.
        ceiling: speed-up over BF16 of the GPU time with every GEMM in FP8 and no tax (Amdahl).
        speedup_estimate: speed-up over BF16 of the GPU time as it is, `tax` and `saved_at_most`
            taken for true; None where no FP8 ran.
        small: share of FP8 GEMM time with a side below `SMALL_SIDE`; None without shapes.
        idle: share of the GPU's time in which no kernel or copy ran.
        bandwidth_bound: share of `busy` in kernels that memory bandwidth limits.
    """

    busy: int
    fp8: int
    sixteen_bit: int
    tax: Tax
    saved_at_most: int
    ceiling: float | None
    speedup_estimate: float | None
    small: float | None
    idle: float
    bandwidth_bound: float


def payoff(rank: RankEvidence, tax: Tax, gpu_time: Mapping[str, int]) -> Payoff | None:
    """Work out what FP8 can do for a rank; None where no GEMM ran.

    Args:
        rank: its evidence.
        tax: what FP8 costs it.
        gpu_time: its kernel time in ns by what it was for.
    """
    gemms, busy = rank.survey.linear, rank.timeline.busy
    if not gemms or not busy:
        return None
    time_ns = rank.linear.time_ns
    fp8 = sum(ns for precision, ns in time_ns.items() if precision.is_low)
    fp4 = sum(ns for precision, ns in time_ns.items() if precision.is_fp4)
    ratio = _peak_ratio(rank, in_fp4=2 * fp4 > fp8)
    sixteen_bit = sum(time_ns[precision] for precision in _SIXTEEN_BIT)
    saved = round(fp8 * (ratio - 1)) if ratio else 0
    return Payoff(
        busy=busy,
        fp8=fp8,
        sixteen_bit=sixteen_bit,
        tax=tax,
        saved_at_most=saved,
        ceiling=_ceiling(busy - tax.time_ns, fp8, sixteen_bit, ratio),
        speedup_estimate=max(0.0, busy - tax.time_ns + saved) / busy if fp8 and ratio else None,
        small=_small_share(gemms),
        idle=idle_share(rank),
        bandwidth_bound=min(1.0, sum(gpu_time[key] for key in _BANDWIDTH_BOUND) / busy),
    )


def idle_share(rank: RankEvidence) -> float:
    """Share of the time between its first and last kernel in which the GPU did nothing."""
    copying = sum(time_ns for _, time_ns, _ in rank.copies.values())
    span = rank.timeline.span
    return max(0.0, span - rank.timeline.busy - copying) / span if span else 0.0


def _peak_ratio(rank: RankEvidence, *, in_fp4: bool) -> float | None:
    peak = peak_of(rank.gpu)
    if peak is not None:
        rate = peak.fp4 if in_fp4 else peak.fp8
        return rate / peak.bf16 if rate else None
    return _USUAL_RATIO if rank.has_fp8_units else None


def _ceiling(untaxed: int, fp8: int, sixteen_bit: int, ratio: float | None) -> float | None:
    """Amdahl's law: other kernels take as long, 16-bit GEMMs become `ratio` times faster."""
    if ratio is None or not (fp8 or sixteen_bit):
        return None
    rest = max(0, untaxed - fp8 - sixteen_bit)
    return (rest + ratio * fp8 + sixteen_bit) / (rest + fp8 + sixteen_bit / ratio)


def _small_share(gemms: list[GemmRow]) -> float | None:
    """Share of FP8 GEMM time of which a side is too short to pay for the casts."""
    small = known = 0
    for row in gemms:
        shape = row.shape if row.precision.is_low else None
        if shape is not None:
            known += row.time_ns
            small += row.time_ns if min(shape.m, shape.n, shape.k) < SMALL_SIDE else 0
    return small / known if known else None
