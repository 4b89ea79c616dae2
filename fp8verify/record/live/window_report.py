"""Judge a capture as soon as a window closes: `report.json` in it, one line on stderr.

The line is left out where the report goes to a file: there the training's stderr stays its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.capture.names import LOG, METAS
from fp8verify.record.stderr import log as say

if TYPE_CHECKING:
    from fp8verify.record.folder import CaptureFolder
    from fp8verify.record.live.judge_process import Judged
    from fp8verify.record.settings import RunSettings
    from fp8verify.report.public import Report
    from fp8verify.verdict.policy import Policy

POLL_S = 0.5


def window_reports(
    settings: RunSettings, policy: Policy, *, prints: bool
) -> Callable[[CaptureFolder, Callable[[], None]], AbstractContextManager[None]]:
    """Return the `watch` of `run_training`; with `prints`, each verdict is a line on stderr."""
    return lambda capture, _: report_each_window(capture, settings, policy, prints=prints)


def keep_report(folder: Path, report: Report) -> None:
    """Write the report into the capture, if that can be written."""
    from fp8verify.record.live.judge import write_report

    with suppress(OSError):
        write_report(folder, report.to_json())


def log_of(capture: Path) -> Path | None:
    """Return the log of a run, if there is one."""
    log = capture / LOG
    return log if log.is_file() else None


@contextmanager
def report_each_window(
    capture: CaptureFolder, settings: RunSettings, policy: Policy, *, prints: bool
) -> Iterator[None]:
    """Judge a capture while inside whenever a window closes on all ranks that record it."""
    if capture.secondary_node is not None:  # the runner that made the folder does
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(capture.path, settings, policy, over, prints), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(
    capture: Path, settings: RunSettings, policy: Policy, over: threading.Event, prints: bool
) -> None:
    if not _wait_for_a_rank(capture, over):
        return
    # Only now: what is imported delays the start of the run.
    from fp8verify.record.live.judge_process import JudgeProcess
    from fp8verify.record.live.status import PendingWindows, all_windows_done

    judge = JudgeProcess(policy, partial(_say, capture, over) if prints else None)
    windows = PendingWindows(capture, settings.ranks)
    while not over.wait(POLL_S):
        is_last = False
        with suppress(Exception):
            # Asked first: a window that closes meanwhile is judged in the next turn.
            if windows.judged:
                is_last = all_windows_done(capture, settings.ranks, settings.window_count)
        with suppress(Exception):
            if windows.is_due(POLL_S):
                judge.submit(capture)
        if judge.idle:
            judge.wait()
            if is_last:
                return  # the run may go on for days
    judge.stop()


def _wait_for_a_rank(capture: Path, over: threading.Event) -> bool:
    """Wait until a rank has written something; False if the run was over before."""
    any_meta = False
    while not any_meta and not over.wait(POLL_S):
        any_meta = any(capture.glob(METAS))
    return not over.is_set()


def _say(capture: Path, over: threading.Event, found: Judged) -> None:
    if found.metrics is not None and not over.is_set():
        verdict, reason = found.metrics["verdict"], found.metrics["reason"]
        say(f"{verdict} so far: {reason}; {capture / 'report.json'}")
