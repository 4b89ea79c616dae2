"""One line of metrics: what a window of the training says of it."""

from __future__ import annotations

import time
from typing import Any

from fp8verify.record.live.scalars import NAMES, measured_step, scalars_of
from fp8verify.report.model import Report

Line = dict[str, Any]


def line_of(report: Report) -> Line:
    """Return the line of a report on one window.

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


def scalars_in(line: Line) -> dict[str, float]:
    """Return the scalars of a line, by their names."""
    return {name: value for name, value in line.items() if name in NAMES}
