"""Judge a capture as soon as a window closes: `report.json` beside it, one line on stderr.

The line is left out where the report goes to a file: there the training's stderr stays its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.capture.names import LOG
from fp8verify.runner.notices import tell

if TYPE_CHECKING:
    from fp8verify.judging.policy import Policy
    from fp8verify.report.public import Report
    from fp8verify.runner.folder import CaptureFolder
    from fp8verify.runner.settings import RunSettings

POLL_S = 0.5
STRAGGLERS_S = 60.0  # how long the other ranks may take to write the traces of a window


def judged_at_close(
    settings: RunSettings, policy: Policy, *, aloud: bool
) -> Callable[[CaptureFolder, Callable[[], None]], AbstractContextManager[None]]:
    """Return what is to go on beside a run: `run_training`'s `beside`; `aloud` is with the line."""
    return lambda capture, _: report_at_close(capture, settings, policy, aloud=aloud)


def keep_report(folder: Path, report: Report) -> None:
    """Write the report beside the capture, where that can be written."""
    from fp8verify.live.judge import write_report

    with suppress(OSError):
        write_report(folder, report.to_json())


def log_of(capture: Path) -> Path | None:
    """Return the log of a run, if there is one."""
    log = capture / LOG
    return log if log.is_file() else None


@contextmanager
def report_at_close(
    capture: CaptureFolder, settings: RunSettings, policy: Policy, *, aloud: bool
) -> Iterator[None]:
    """Judge a capture while inside whenever a window closes on all ranks that record it."""
    if capture.guest is not None:  # the runner that made the folder does
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(capture.path, settings, policy, over, aloud), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(
    capture: Path, settings: RunSettings, policy: Policy, over: threading.Event, aloud: bool
) -> None:
    any_meta = False
    while not any_meta and not over.wait(POLL_S):
        any_meta = any(capture.glob("rank*.meta.json"))
    if over.is_set():
        return
    # Only now: what is imported delays the start of the run.
    from fp8verify.live.closed import closed_windows, none_to_come
    from fp8verify.live.judge_process import Judged, JudgeProcess

    def say(found: Judged) -> None:
        if aloud and found.line is not None and not over.is_set():
            verdict, reason = found.line["verdict"], found.line["reason"]
            tell(f"{verdict} so far: {reason}; {capture / 'report.json'}")

    judge, judged, since = JudgeProcess(policy, say), 0, 0.0
    while not over.wait(POLL_S):
        with suppress(Exception):
            some, every = closed_windows(capture, settings.ranks)
            since = since + POLL_S if some > judged else 0.0
            if every > judged or since > STRAGGLERS_S:
                judged, since = max(every, some if since > STRAGGLERS_S else 0), 0.0
                judge.submit(capture)
        if judge.idle:
            judge.wait()
            with suppress(Exception):
                if judged and none_to_come(capture, settings.ranks, settings.window_count):
                    return  # the run may go on for days
    judge.stop()
