"""The metrics of a window: its verdict and its scalars, as every sink gets them.

Each scalar is named once, here, and in docs/live.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any, NamedTuple

from fp8verify.report.model import Leg, Precision, Report, Verdict
from fp8verify.report.model import scalars as watched
from fp8verify.report.model.numerics import TrendPoint

WindowMetrics = dict[str, Any]  # one line of --metrics
LOW = tuple(precision.value for precision in Precision if precision.is_low)


class Scalar(NamedTuple):
    """One scalar: its name, what it says, and how a report gives it; None where it cannot."""

    name: str
    says: str
    of: Callable[[Report], float | None]


def _leg(leg: Leg) -> Callable[[Report], float | None]:
    def share(report: Report) -> float | None:
        times = [row.time_us for row in report.legs if row.leg is leg]
        return _share(times)

    return share


def _share(times: Iterable[dict[str, float]]) -> float | None:
    rows = list(times)
    whole = sum(sum(row.values()) for row in rows)
    low = sum(row.get(precision, 0.0) for row in rows for precision in LOW)
    return low / whole if whole else None


def _tax(report: Report) -> float | None:
    taxes = [rank.tax.share_of_gpu_time for rank in report.ranks if rank.tax is not None]
    return max(taxes, default=None)


def _step_time(report: Report) -> float | None:
    """Return the median step of the slowest rank, in ms: on the GPU, else on the CPU."""
    ranks = [
        median(step.duration_us if step.gpu_us is None else step.gpu_us for step in rank.steps)
        for rank in report.ranks
        if rank.steps
    ]
    return max(ranks) / 1e3 if ranks else None


def _trend(name: str, join: Callable[[Iterable[float]], float]) -> Callable[[Report], float | None]:
    """Take a figure of the measured step, of the rank that has the worst one."""

    def found(report: Report) -> float | None:
        points = [point.scalars for point in _measured(report).values() if name in point.scalars]
        return join(scalars[name] for scalars in points) if points else None

    return found


def _measured(report: Report) -> dict[int, TrendPoint]:
    """Return the newest measured step of each rank, by the rank's place."""
    found = [(place, rank.numerics) for place, rank in enumerate(report.ranks)]
    return {place: numbers.trend[-1] for place, numbers in found if numbers and numbers.trend}


def measured_step(report: Report) -> int | None:
    """Return the step that the figures of FP8 layers are of; None where none was measured."""
    return max((point.step for point in _measured(report).values()), default=None)


def _kept(
    name: str, tensors: tuple[str, ...], join: Callable[[Iterable[float]], float]
) -> Callable[[Report], float | None]:
    """Take a figure of the measured step, else of the scales that delayed scaling keeps."""
    measured, column = _trend(name, join), "scale" if name.endswith("scale") else "amax"

    def found(report: Report) -> float | None:
        rows = [row for rank in report.ranks if rank.numerics for row in rank.numerics.scales]
        values = [getattr(row, column) for row in rows if row.tensor in tensors]
        known = [float(value) for value in values if value is not None]
        now = measured(report)
        return now if now is not None else join(known) if known else None

    return found


def _gradient_norm(report: Report) -> float | None:
    """Return the newest norm of the first rank that has one."""
    norms = [n.norm for rank in report.ranks if rank.numerics for n in rank.numerics.gradients[-1:]]
    return next((norm for norm in norms if norm is not None), None)


def _watched(scalar: watched.Scalar, of: Callable[[Report], float | None]) -> Scalar:
    return Scalar(scalar.name, scalar.means, of)


_FORWARD, _BACKWARD = ("input", "weight"), ("grad_output",)
SCALARS = (
    Scalar("fp8/active", "1 where the verdict is ACTIVE, else 0",
           lambda report: float(report.verdict is Verdict.ACTIVE)),
    Scalar("fp8/share_of_gemm_time", "FP8 share of GEMM time",
           lambda report: report.gemm.fp8_share_of_time),
    Scalar("fp8/low_precision_share_of_gemm_time", "share of FP8 and FP4, by which is judged",
           lambda report: report.gemm.low_precision_share_of_time),
    Scalar("fp8/share_of_gemm_flops", "FP8 share of GEMM FLOPs, where (nearly) all are known",
           lambda report: report.gemm.fp8_share_of_flops),
    Scalar("fp8/unknown_share", "share of GEMM time in kernels of unknown precision",
           lambda report: report.gemm.unknown_share_of_time),
    Scalar("fp8/fprop", "low-precision share of the GEMM time of fprop", _leg(Leg.FPROP)),
    Scalar("fp8/dgrad", "low-precision share of the GEMM time of dgrad", _leg(Leg.DGRAD)),
    Scalar("fp8/wgrad", "low-precision share of the GEMM time of wgrad", _leg(Leg.WGRAD)),
    Scalar("fp8/tax", "share of GPU time in casts and scaling, of the worst rank", _tax),
    Scalar("fp8/step_time_ms", "median step of the slowest rank, in ms", _step_time),
    _watched(watched.FWD_SCALE, _kept("fp8/fwd_scale", _FORWARD, min)),
    _watched(watched.BWD_SCALE, _kept("fp8/bwd_scale", _BACKWARD, min)),
    _watched(watched.AMAX_FWD, _kept("fp8/amax_fwd", _FORWARD, max)),
    _watched(watched.AMAX_BWD, _kept("fp8/amax_bwd", _BACKWARD, max)),
    _watched(watched.UNDERFLOW_FWD, _trend("fp8/underflow_fwd", max)),
    _watched(watched.UNDERFLOW_BWD, _trend("fp8/underflow_bwd", max)),
    _watched(watched.SQNR_FWD, _trend("fp8/sqnr_fwd_db", min)),
    _watched(watched.SQNR_BWD, _trend("fp8/sqnr_bwd_db", min)),
    _watched(watched.NOT_FINITE_FWD, _trend("fp8/not_finite_fwd", max)),
    _watched(watched.NOT_FINITE_BWD, _trend("fp8/not_finite_bwd", max)),
    _watched(watched.GRAD_NORM, _gradient_norm),
    _watched(watched.GRAD_NORM_CLIP_RATIO, _trend("train/grad_norm_clip_ratio", min)),
)  # fmt: skip
NAMES = frozenset(scalar.name for scalar in SCALARS)


def scalars_of(report: Report) -> dict[str, float]:
    """Return the scalars that a report gives, by name."""
    found = {scalar.name: scalar.of(report) for scalar in SCALARS}
    return {name: float(value) for name, value in found.items() if value is not None}


def window_metrics(report: Report) -> WindowMetrics:
    """Return the metrics of a report on one window.

    Keys: `step` and `first_step` (counted from the start of the run), `global_step` where a
    framework counts, `time` (seconds since the epoch), `verdict`, `reason`, `exit_code`,
    `findings` (their codes), and the scalars by their names.
    """
    windows = [w for rank in report.ranks if rank.clock is not None for w in rank.clock.windows]
    first = min((window.first for window in windows), default=None)
    last = max((window.last for window in windows), default=None)
    seen = max(
        (rank.clock.steps_seen for rank in report.ranks if rank.clock is not None), default=0
    )
    if first is not None and last is not None:
        last = max(first, min(last, seen))  # the run may have ended inside the window
    counted = [w.framework_last for w in windows if w.framework_last is not None]
    measured = measured_step(report)
    return {
        "step": last,
        "first_step": first,
        **({"global_step": max(counted)} if counted else {}),
        **({"numerics_step": measured} if measured is not None else {}),
        "time": round(time.time(), 3),
        "verdict": report.verdict.value,
        "reason": report.reason,
        "exit_code": report.exit_code,
        "findings": list(dict.fromkeys(finding.code for finding in report.findings)),
        **{name: _short(value) for name, value in scalars_of(report).items()},
    }


def _short(value: float) -> float:
    """Return a share to six decimals; what is smaller than one, as an amax, to six digits."""
    return float(f"{value:.6g}") if abs(value) < 1 else round(value, 6)


def scalars_in(metrics: WindowMetrics) -> dict[str, float]:
    """Return the scalars of a window, by their names."""
    return {name: value for name, value in metrics.items() if name in NAMES}
