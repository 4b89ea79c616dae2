"""What runs in parallel with a run: a report when a window closes, or the watch of `--every`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.capture.names import METAS
from fp8verify.record.log import say

# All else that judges is imported on the threads: its import would delay the start of the run.
if TYPE_CHECKING:
    from fp8verify.record.folder import CaptureFolder
    from fp8verify.record.judge import History, Judged
    from fp8verify.record.settings import RunSettings
    from fp8verify.record.window_metrics import Sink, WindowMetrics
    from fp8verify.verdict.policy import Policy

POLL_S = 0.5
COMMAND_S = 60.0  # how long one call of --on-change may take
AT_THE_END_S = 30.0  # how long the end of the run waits for all of them
MAX_ERRORS = 8


class Watcher:
    """Follows a run on a thread, if its runner is the one that made the capture.

    Args:
        settings: of the run.
        policy: what a verdict asks for.
    """

    def __init__(self, settings: RunSettings, policy: Policy) -> None:
        self.settings = settings
        self.policy = policy
        self.over = threading.Event()  # the run has ended

    @contextmanager
    def following(self, capture: CaptureFolder, stop: Callable[[], None]) -> Iterator[None]:
        """Follow the run while inside; `stop` asks it to end."""
        if capture.secondary_node is not None:
            yield
            return
        thread = threading.Thread(target=self.follow, args=(capture, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.over.set()
            thread.join()

    def follow(self, capture: CaptureFolder, stop: Callable[[], None]) -> None:
        """Return once the run is over."""
        raise NotImplementedError


class WindowReports(Watcher):
    """Judges the capture when a window has closed on all ranks that record it.

    With `prints`, each verdict is a line on standard error. Where the report goes to a file the
    script's standard error stays its own. What is not judged when the run ends is left to the
    report on the run.
    """

    def __init__(self, settings: RunSettings, policy: Policy, *, prints: bool) -> None:
        super().__init__(settings, policy)
        self._prints = prints

    def follow(self, capture: CaptureFolder, stop: Callable[[], None]) -> None:  # noqa: ARG002
        """Judge until the last window is judged, or the run is over."""
        folder = capture.path
        while not any(folder.glob(METAS)):
            if self.over.wait(POLL_S):
                return
        from fp8verify.record.judge import Judge, progress

        judge = Judge(self.policy, partial(self._say, folder))
        asked, judged = self.settings, 0
        count = len(asked.windows + asked.global_windows) + (asked.timed_window is not None)
        while not self.over.wait(POLL_S):
            with suppress(Exception):  # the script may remove or exchange anything there
                closed, is_last = progress(folder, asked.ranks, count)
                if closed > judged:
                    judge.submit(folder)
                    judged = closed
                elif is_last and judge.idle:
                    return  # the run may go on for days
        judge.stop()

    def _say(self, capture: Path, judged: Judged) -> None:
        if self._prints and judged.metrics is not None and not self.over.is_set():
            verdict, reason = judged.metrics["verdict"], judged.metrics["reason"]
            say(f"{verdict} so far: {reason}; {capture / 'report.json'}")


class RunWatch(Watcher):
    """Watches a run of `--every` for its whole life.

    Args:
        settings: of the run.
        policy: what a verdict asks for.
        sinks: get the metrics of each window.
        on_change: a shell command for when the verdict changes, or None.
        stop_on: verdicts upon which the script is asked to stop.

    Attributes:
        worst: the capture of the window with the worst verdict; None before the end, or without.
        stopped: whether the script was asked to stop.
        notes: what to say of the run as a whole.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: Policy,
        sinks: Sequence[Sink],
        on_change: str | None = None,
        stop_on: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(settings, policy)
        self.worst: Path | None = None
        self.stopped = False
        self.notes: tuple[str, ...] = ()
        self._sinks = sinks
        self._command = on_change
        self._stop_on = stop_on
        self._errors: list[str] = []  # of the command, the first eight
        self._left_s = AT_THE_END_S

    def follow(self, capture: CaptureFolder, stop: Callable[[], None]) -> None:
        """Judge each window; at the end of the run, wait until all are judged."""
        live = capture.path / "live"
        while not live.is_dir() and not self.over.wait(POLL_S):
            pass
        from fp8verify.record.judge import History, Judge, is_closed

        history = History(capture.path, self._sinks, partial(self._changed, capture.path, stop))
        judge = Judge(self.policy, history.take)
        submitted: set[str] = set()
        is_over = False
        while not is_over:
            is_over = self.over.wait(POLL_S)
            with suppress(OSError):  # no window was recorded yet, or one is being moved
                for folder in sorted(live.iterdir()):
                    if folder.name not in submitted and (
                        is_over or is_closed(folder, self.settings.ranks)
                    ):
                        submitted.add(folder.name)
                        judge.submit(folder, capture.log if capture.log.is_file() else None)
        judge.wait()
        history.close()
        self.worst = history.worst
        with suppress(OSError):
            live.rmdir()
        summary = self._summary(capture.path, history)
        self.notes = (summary, *self.notes, *history.errors, *self._errors)

    def _changed(
        self, capture: Path, stop: Callable[[], None], before: str | None, metrics: WindowMetrics
    ) -> None:
        """Report a verdict that differs from the last one, and do what the user asked for."""
        verdict, step = metrics["verdict"], metrics["step"]
        was = "" if before is None else f", was {before}"
        say(f"{verdict} at step {step}{was}: {metrics['reason']}")
        if verdict in self._stop_on and not self.stopped and not self.over.is_set():
            self.stopped = True
            self.notes = (f"fp8verify stopped the script, since step {step} is {verdict}",)
            say(f"{self.notes[0]} (--stop-on)")
            stop()
        if self._command is not None and before is not None:
            variables = {
                "FP8VERIFY_OLD_VERDICT": before,
                "FP8VERIFY_NEW_VERDICT": str(verdict),
                "FP8VERIFY_AT": str(step),
                "FP8VERIFY_CAPTURE": str(capture),
            }
            failure = self._run_command(self._command, variables)
            if failure is not None and len(self._errors) < MAX_ERRORS:
                self._errors.append(f"--on-change at step {step}: the command {failure}")

    def _run_command(self, command: str, variables: dict[str, str]) -> str | None:
        """Run a shell command and return how it failed; windows wait for it, the end not long."""
        if self._left_s <= 0:
            return "was not run: the run had ended"
        process = subprocess.Popen(  # noqa: S602 - a command of the user's, for a shell
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr or subprocess.DEVNULL,  # None if it is closed
            env={**os.environ, **variables},
            start_new_session=True,  # what it started can be ended with it
        )
        ends_at = time.monotonic() + COMMAND_S
        while time.monotonic() < ends_at and self._left_s > 0:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=POLL_S)
                return f"failed with exit code {code}" if code else None
            if self.over.is_set():
                self._left_s -= POLL_S
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "was ended: it took too long"

    def _summary(self, capture: Path, history: History) -> str:
        from fp8verify.record.judge import metas_of

        counts = ", ".join(f"{count} {verdict}" for verdict, count in history.counts.items())
        if counts:
            return f"of the run's windows {counts}"
        live = self.settings.live
        steps = max((meta.steps_seen for meta in metas_of(capture)), default=0)
        if live is None or not steps:
            return "no window was recorded"
        return (
            f"no window was recorded: the run ended after step {steps}, and the first window was "
            f"to be steps {live.first}-{live.first + live.length - 1}"
        )
