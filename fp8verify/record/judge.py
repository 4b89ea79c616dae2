"""Judge one window in a process of lower priority, and return its metrics.

`python -m fp8verify.record.judge` reads a JSON request, inspects the folder that it names, writes
the report into it, and answers with the metrics of the window, or with why there are none.
docs/live.md says what each scalar means.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from fp8verify.errors import Fp8VerifyError
from fp8verify.model.numerics import (
    GRAD_NORM,
    GRAD_NORM_CLIP_RATIO,
    OF_TENSORS,
    TrendPoint,
)
from fp8verify.model.report import Report
from fp8verify.record.folder import keep_report
from fp8verify.record.live import WindowMetrics
from fp8verify.terms import Leg, Verdict, low_precision_share
from fp8verify.verdict.policy import Policy

NICE = 10


def main() -> None:
    """Answer one request."""
    with suppress(OSError):
        os.nice(NICE)  # the script comes first
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not an answer
    with suppress(BrokenPipeError), answers:
        json.dump(_answer(**request), answers)


def _answer(
    folder: str, log: str | None, policy: dict[str, Any]
) -> WindowMetrics | str:
    from fp8verify.pipeline.inspection import inspect

    try:
        report = inspect(folder, log=log, policy=Policy(**policy))
        keep_report(Path(folder), report.to_json())
        return window_metrics(report)
    except Fp8VerifyError as error:
        return error.fact.rstrip(".")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def window_metrics(report: Report) -> WindowMetrics:
    """Return the metrics of a report on one window.

    Keys: `step` and `first_step` (counted from the start of the run), `global_step` where a
    framework counts, `time` (seconds since the epoch), `verdict`, `reason`, `exit_code`,
    `findings` (their codes), and the scalars by their names.
    """
    clocks = [rank.clock for rank in report.ranks if rank.clock is not None]
    windows = [window for clock in clocks for window in clock.windows]
    first = min((window.first for window in windows), default=None)
    last = max((window.last for window in windows), default=None)
    if first is not None and last is not None:
        seen = max(clock.steps_seen for clock in clocks)
        last = max(first, min(last, seen))  # the run may have ended inside the window
    metrics: WindowMetrics = {"step": last, "first_step": first}
    counted = [w.framework_last for w in windows if w.framework_last is not None]
    if counted:
        metrics["global_step"] = max(counted)
    measured = [point.step for point in _measured(report)]
    if measured:
        metrics["numerics_step"] = max(measured)
    codes = dict.fromkeys(finding.code for finding in report.findings)
    metrics |= {
        "time": round(time.time(), 3),
        "verdict": report.verdict.value,
        "reason": report.reason,
        "exit_code": report.exit_code,
        "findings": list(codes),
    }
    for name, value in scalars_of(report).items():
        metrics[name] = _short(value)
    return metrics


def scalars_of(report: Report) -> dict[str, float]:
    """Return the scalars that a report gives, by name."""
    norms = [
        n.norm
        for rank in report.ranks
        if rank.numerics
        for n in rank.numerics.gradients[-1:]
    ]
    overheads = [
        rank.tax.share_of_gpu_time for rank in report.ranks if rank.tax is not None
    ]
    scalars = {
        "fp8/active": float(report.verdict is Verdict.ACTIVE),
        "fp8/share_of_gemm_time": report.gemm.fp8_share_of_time,
        "fp8/low_precision_share_of_gemm_time": report.gemm.low_precision_share_of_time,
        "fp8/share_of_gemm_flops": report.gemm.fp8_share_of_flops,
        "fp8/unknown_share": report.gemm.unknown_share_of_time,
        "fp8/fprop": _low_share(report, Leg.FPROP),
        "fp8/dgrad": _low_share(report, Leg.DGRAD),
        "fp8/wgrad": _low_share(report, Leg.WGRAD),
        "fp8/tax": max(overheads, default=None),
        "fp8/step_time_ms": _step_time(report),
        **{name: _numerics(report, name, of.worst) for name, of in OF_TENSORS.items()},
        GRAD_NORM_CLIP_RATIO: _numerics(report, GRAD_NORM_CLIP_RATIO, min),
        # The newest norm of the first rank that has one.
        GRAD_NORM: next((norm for norm in norms if norm is not None), None),
    }
    return {name: float(value) for name, value in scalars.items() if value is not None}


def _low_share(report: Report, leg: Leg) -> float | None:
    times = Counter[str]()
    for row in report.legs:
        times.update(row.time_us if row.leg is leg else {})
    return low_precision_share(times)


def _step_time(report: Report) -> float | None:
    """Return the median step of the slowest rank, in ms: on the GPU, else on the CPU."""
    ranks = [
        median(
            step.duration_us if step.gpu_us is None else step.gpu_us
            for step in rank.steps
        )
        for rank in report.ranks
        if rank.steps
    ]
    if ranks:
        return max(ranks) / 1e3
    return None


def _measured(report: Report) -> list[TrendPoint]:
    """Return the newest measured step of each rank that has one."""
    trends = [rank.numerics.trend for rank in report.ranks if rank.numerics is not None]
    return [trend[-1] for trend in trends if trend]


def _numerics(
    report: Report, name: str, worst: Callable[[Iterable[float]], float]
) -> float | None:
    """Take a figure of the measured step, else of the scales that delayed scaling keeps."""
    values = [
        point.scalars[name] for point in _measured(report) if name in point.scalars
    ]
    of = OF_TENSORS.get(name)
    if not values and of is not None and of.kept is not None:
        rows = [
            row
            for rank in report.ranks
            if rank.numerics
            for row in rank.numerics.scales
        ]
        figures = [of.kept(row) for row in rows if row.tensor in of.tensors]
        values = [float(value) for value in figures if value is not None]
    if values:
        return worst(values)
    return None


def _short(value: float) -> float:
    """Return a share to six decimals; what is smaller than one, as an amax, to six digits."""
    if abs(value) < 1:
        return float(f"{value:.6g}")
    return round(value, 6)


if __name__ == "__main__":
    main()
