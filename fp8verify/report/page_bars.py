"""The bars of the page: GEMMs by precision and by leg, GPU time by what it was for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fp8verify.report.charts import Bar, Bars, Segment, Tick, kind_of, segments, ticks
from fp8verify.report.model import LegRow, Report, fp8_share
from fp8verify.report.tables import millis, percent, precision_rows

LEGENDS = {
    "fp8": "FP8",
    "high": "higher precision",
    "mixed": "some in FP8",
    "low": "other 4 or 8 bits",
    "unknown": "unknown precision",
    "rest": "other kernels",
}


def precision_bar(report: Report) -> Bars:
    """One bar: the GEMM time of linear layers by precision."""
    rows = precision_rows(report)
    gemm_us = sum(row.time_us for row in rows)
    parts = [
        (kind_of(row.precision), row.time_us, _tip(row.precision, row.time_us, row.share))
        for row in rows
    ]
    bar = Bar("GEMMs", segments(parts, gemm_us), f"{millis(gemm_us)} ms")
    return Bars([bar], _ms_ticks(gemm_us))


def _tip(label: str, time_us: float, share: float) -> str:
    return f"{label}: {millis(time_us)} ms, {percent(share)}"


def _ms_ticks(total_us: float) -> list[Tick]:
    return ticks(total_us / 1000, " ms")


def leg_bars(legs: tuple[LegRow, ...]) -> Bars:
    """All legs on one scale, so that their lengths compare."""
    longest = max((total(leg.time_us) for leg in legs), default=0.0)
    rows = [
        Bar(
            leg.leg.value,
            segments(_by_kind(leg.time_us, leg.leg.value), longest),
            f"{percent(fp8_share(leg.time_us))} FP8 of {millis(total(leg.time_us))} ms",
        )
        for leg in legs
    ]
    return Bars(rows, _ms_ticks(longest))


def _by_kind(time_us: Mapping[str, float], where: str) -> list[tuple[str, float, str]]:
    order = list(LEGENDS)
    whole = total(time_us)
    parts = [
        (kind_of(name), us, _tip(f"{where}, {name}", us, us / whole if whole else 0.0))
        for name, us in time_us.items()
    ]
    return sorted(parts, key=lambda part: order.index(part[0]))


def gpu_bars(report: Report) -> Bars:
    """What each kind of kernel took, on the scale of all GPU time."""
    gpu_us = total(report.gpu_time_us)
    rows = [
        Bar(
            name,
            _gpu_segments(report, name, us, gpu_us),
            f"{percent(us / gpu_us)}, {millis(us)} ms",
        )
        for name, us in sorted(report.gpu_time_us.items(), key=lambda item: -item[1])
        if us
    ]
    return Bars(rows, [Tick(at, f"{at}%") for at in (0, 20, 40, 60, 80, 100)])


def _gpu_segments(report: Report, name: str, us: float, gpu_us: float) -> list[Segment]:
    if name == "gemm":
        gemms = Counter(report.gemm.time_us) + Counter(report.optimizer_gemm.time_us)
        return segments(_by_kind(gemms, "GEMMs"), gpu_us)
    return segments([("rest", us, _tip(name, us, us / gpu_us if gpu_us else 0.0))], gpu_us)


def total(time_us: Mapping[str, float]) -> float:
    """Add up times by name."""
    return sum(time_us.values())
