"""The metrics of a window, its verdict and its scalars, and the sinks that get them.

docs/live.md says what each scalar means. A sink is a file of JSON lines, or a function.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, Protocol, runtime_checkable

from fp8verify.errors import UsageError
from fp8verify.files import writing
from fp8verify.report.model.diagnosis import GRAD_NORM, GRAD_NORM_CLIP_RATIO, OF_TENSORS, TrendPoint
from fp8verify.report.model.report import Report
from fp8verify.terms import Leg, Verdict, low_precision_share

WindowMetrics = dict[str, Any]  # one line of --metrics


@runtime_checkable
class Sink(Protocol):
    """Takes the metrics of each window, in their order."""

    def write(self, metrics: WindowMetrics, /) -> object:
        """Take the metrics of a window."""

    def close(self) -> None:
        """Finish: no more windows come."""


Destination = str | Path | Sink | Callable[[WindowMetrics], object]


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
    counted = [w.framework_last for w in windows if w.framework_last is not None]
    measured = [point.step for point in _measured(report)]
    return {
        "step": last,
        "first_step": first,
        **({"global_step": max(counted)} if counted else {}),
        **({"numerics_step": max(measured)} if measured else {}),
        "time": round(time.time(), 3),
        "verdict": report.verdict.value,
        "reason": report.reason,
        "exit_code": report.exit_code,
        "findings": list(dict.fromkeys(finding.code for finding in report.findings)),
        **{name: _short(value) for name, value in scalars_of(report).items()},
    }


def scalars_in(metrics: WindowMetrics) -> dict[str, float]:
    """Return the scalars of a window, by their names."""
    return {name: value for name, value in metrics.items() if name.startswith(("fp8/", "train/"))}


def scalars_of(report: Report) -> dict[str, float]:
    """Return the scalars that a report gives, by name."""
    norms = [n.norm for rank in report.ranks if rank.numerics for n in rank.numerics.gradients[-1:]]
    overheads = [rank.tax.share_of_gpu_time for rank in report.ranks if rank.tax is not None]
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
        median(step.duration_us if step.gpu_us is None else step.gpu_us for step in rank.steps)
        for rank in report.ranks
        if rank.steps
    ]
    return max(ranks) / 1e3 if ranks else None


def _measured(report: Report) -> list[TrendPoint]:
    """Return the newest measured step of each rank that has one."""
    trends = [rank.numerics.trend for rank in report.ranks if rank.numerics is not None]
    return [trend[-1] for trend in trends if trend]


def _numerics(report: Report, name: str, worst: Callable[[Iterable[float]], float]) -> float | None:
    """Take a figure of the measured step, else of the scales that delayed scaling keeps."""
    values = [point.scalars[name] for point in _measured(report) if name in point.scalars]
    of = OF_TENSORS.get(name)
    if not values and of is not None and of.kept is not None:
        rows = [row for rank in report.ranks if rank.numerics for row in rank.numerics.scales]
        figures = [of.kept(row) for row in rows if row.tensor in of.tensors]
        values = [float(value) for value in figures if value is not None]
    return worst(values) if values else None


def _short(value: float) -> float:
    """Return a share to six decimals; what is smaller than one, as an amax, to six digits."""
    return float(f"{value:.6g}") if abs(value) < 1 else round(value, 6)


class JsonLines:
    """Appends the metrics of each window to a file as a JSON object."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with writing("metrics", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()

    def write(self, metrics: WindowMetrics) -> None:
        """Append a line; the file is whole after each, and may be moved away between two."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Nothing is left open."""


class Call:
    """Passes the metrics of each window to a function."""

    def __init__(self, function: Callable[[WindowMetrics], object]) -> None:
        self.write = function

    def close(self) -> None:
        """Nothing to do."""


def open_sink(what: Destination) -> Sink:
    """Return the sink of a `FILE.jsonl` or of a function; a sink is itself.

    Raises:
        UsageError: it is neither.
        InputError: the file cannot be written.
    """
    if isinstance(what, str):
        if not what:
            raise UsageError("A sink needs a name.", "Such as fp8.jsonl.")
        if re.match(r"[A-Za-z][\w-]+:", what):
            raise UsageError(
                f"{what[:80]!r} is not a file: metrics are written as JSON lines.",
                "Give FILE.jsonl; docs/recipes.md has recipes for TensorBoard, W&B and others.",
            )
    if isinstance(what, (str, Path)):
        return JsonLines(what)
    if isinstance(what, Sink):
        return what
    if callable(what):
        return Call(what)
    raise UsageError(f"{type(what).__name__} is not a sink.", "Give a file or a function.")
