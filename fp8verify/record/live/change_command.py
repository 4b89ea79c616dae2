"""The user's command for when the verdict changes, run in parallel with the watch, in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from fp8verify.record.live.metrics import WindowMetrics

COMMAND_S = 600.0  # how long one call may take
AT_THE_END_S = 30.0  # how long the end of the run waits for all of them


class ChangeCommand:
    """Runs a shell command for each change, on a thread of its own: windows are judged meanwhile.

    Attributes:
        errors: how calls failed, once each.
    """

    def __init__(self, command: str, capture: Path) -> None:
        self.errors: list[str] = []
        self._command = command
        self._capture = capture
        self._calls: SimpleQueue[dict[str, str] | None] = SimpleQueue()
        self._ends_at = float("inf")
        self._thread: threading.Thread | None = None

    def run(self, before: str, metrics: WindowMetrics) -> None:
        """Let the command run for a change to the verdict of `metrics`; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_all, daemon=True)
            self._thread.start()
        self._calls.put(
            {
                "FP8VERIFY_OLD_VERDICT": before,
                "FP8VERIFY_NEW_VERDICT": str(metrics["verdict"]),
                "FP8VERIFY_AT": str(metrics["step"]),
                "FP8VERIFY_CAPTURE": str(self._capture),
            }
        )

    def finish(self) -> None:
        """Wait for the calls that are left, but not for ever."""
        if self._thread is not None:
            self._ends_at = time.monotonic() + AT_THE_END_S
            self._calls.put(None)
            self._thread.join()

    def _run_all(self) -> None:
        for variables in iter(self._calls.get, None):
            at = variables["FP8VERIFY_AT"]
            try:
                failure = self._failure(variables)
            except OSError as error:
                failure = f"cannot be run: {error.strerror}"
            if failure is not None:
                self._note(f"--on-change at step {at}: the command {failure}")

    def _failure(self, variables: dict[str, str]) -> str | None:
        if time.monotonic() > self._ends_at:
            return "was not run: the run had ended"
        process = subprocess.Popen(  # noqa: S602 - a command of the user's, for a shell
            self._command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr or subprocess.DEVNULL,  # None where it is closed
            env={**os.environ, **variables},
            start_new_session=True,  # what it started can be ended with it
        )
        code = self._wait(process)
        if code is None:
            return "was ended: it took too long"
        return f"failed with exit code {code}" if code else None

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return the exit code, None where the time was over."""
        began = time.monotonic()
        while time.monotonic() < min(began + COMMAND_S, self._ends_at):
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=0.5)
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None

    def _note(self, text: str) -> None:
        if len(self.errors) < 8:
            self.errors.append(text)
