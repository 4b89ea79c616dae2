"""Which clock counted the steps of a run, on one line, for every form of the report."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.report.model import ClockReport, RankReport, Report, WindowReport
from fp8verify.steps import show_steps, show_window

_WINDOWS = 3
_RECORDED = frozenset({"complete", "cut"})


def clock_lines(report: Report) -> list[tuple[RankReport, str]]:
    """Return each rank that has a clock with its line; of ranks alike, the first."""
    lines: dict[str, RankReport] = {}
    for rank in report.ranks:
        if rank.clock is not None:
            lines.setdefault(_line(rank.clock), rank)
    return [(rank, line) for line, rank in lines.items()]


def steps_shown(report: Report) -> str:
    """Return the steps that the ranks' traces hold: "steps 10-12", or nothing."""
    return show_steps(
        step.step
        for rank in report.ranks
        for step in rank.steps
        # A window that the run's end cut short holds the begin of a step that never came.
        if rank.clock is None or (step.step or 0) <= rank.clock.steps_seen
    )


def counted_by(report: Report) -> str:
    """Return " (AdamW.step)" where all ranks counted the same call, else nothing."""
    calls = {rank.clock.counts if rank.clock else None for rank in report.ranks}
    call = calls.pop() if len(calls) == 1 else None
    return f" ({call})" if call else ""


def head_says_all(clock: ClockReport) -> bool:
    """Whether the steps and `counted_by` are all that there is to say of the only clock."""
    framework = any(window.framework is not None for window in clock.windows)
    recorded = sum(window.state in _RECORDED for window in clock.windows)
    plain = clock.source == "optimizer" and clock.counts is not None
    return plain and recorded == 1 and not framework and not clock.steps_skipped


def _line(clock: ClockReport) -> str:
    explicit = clock.source == "explicit"
    counted = "fp8verify.step()" if explicit else "optimizer steps"
    if clock.counts and not explicit:
        counted += f" ({clock.counts})"
    return "; ".join([", ".join([counted, *_windows(clock)]), *_skipped(clock)])


def _windows(clock: ClockReport) -> Iterator[str]:
    windows = [window for window in clock.windows if window.state in _RECORDED]
    for window in windows[:_WINDOWS]:
        yield f"window {show_window((window.first, window.last))}{_framework(window)}"
    if len(windows) > _WINDOWS:
        yield f"{len(windows) - _WINDOWS} more windows"


def _framework(window: WindowReport) -> str:
    if window.framework_first is None or window.framework_last is None:
        return ""
    steps = show_window((window.framework_first, window.framework_last))
    return f" = {window.framework} {window.counter} {steps}"


def _skipped(clock: ClockReport) -> Iterator[str]:
    if clock.steps_skipped:
        steps = "step" if clock.steps_skipped == 1 else "steps"
        yield f"{clock.steps_skipped} {steps} skipped by GradScaler"
