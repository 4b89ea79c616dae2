"""Our end of the process that judges windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from fp8verify.record.live.judge import draft_of
from fp8verify.record.live.metrics import WindowMetrics
from fp8verify.verdict.policy import Policy

HOME = Path(__file__).parents[2]
RESTART_AFTER = 500  # what a process has read leaves traces in its memory


class Judged(NamedTuple):
    """A window that was judged: its metrics, or why there is none."""

    folder: Path
    metrics: WindowMetrics | None
    error: str | None = None


class JudgeProcess:
    """Judges folders in the order in which they are submitted, in a process of lower priority.

    Args:
        policy: what the verdict asks for.
        on_judged: called for each, on a thread of its own; without it, `wait` returns them.
    """

    def __init__(self, policy: Policy, on_judged: Callable[[Judged], None] | None = None) -> None:
        self._policy = policy
        self._done: deque[Judged] = deque()
        self._on_judged = on_judged or self._done.append
        self._pending: deque[Path] = deque()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._submitted = 0

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is judged."""
        return not self._pending

    def submit(self, folder: Path, log: Path | None = None) -> None:
        """Let a capture be judged."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        request = {
            "folder": str(folder.absolute()),
            "log": str(log.absolute()) if log is not None else None,
            "policy": self._policy._asdict(),
        }
        self._pending.append(folder)
        self._submitted += 1
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        except OSError:
            self._fail_pending()
        if self._submitted % RESTART_AFTER == 0:
            self.wait()

    def wait(self, timeout: float | None = None) -> list[Judged]:
        """Wait until all are judged and end the process; return them if there is no `on_judged`."""
        process, reader = self._process, self._reader
        if process is not None and reader is not None:
            with suppress(OSError):
                self._requests.close()
            reader.join(timeout)
            if reader.is_alive():
                process.kill()
                reader.join()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._process = self._reader = None
        done = list(self._done)
        self._done.clear()
        return done

    def stop(self) -> None:
        """End the process at once; what is not judged stays so."""
        if self._process is not None:
            drafts = [draft_of(folder, self._process.pid) for folder in list(self._pending)]
            self._pending.clear()
            self._process.kill()
            self.wait()
            for draft in drafts:
                with suppress(OSError):
                    draft.unlink()

    def _start(self) -> None:
        self.wait()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fp8verify.record.live.judge"],
            cwd=HOME,  # where `-m` finds us, and not what the training calls like our modules
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the training
        )
        self._requests = cast(IO[str], self._process.stdin)
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), name="fp8verify-judged", daemon=True
        )
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for answer in process.stdout or ():
            self._take(json.loads(answer))
        self._fail_pending()

    def _take(self, answer: dict[str, Any]) -> None:
        folder = self._pending.popleft()
        self._on_judged(Judged(folder, answer.get("metrics"), answer.get("error")))

    def _fail_pending(self) -> None:
        while self._pending:
            self._on_judged(Judged(self._pending.popleft(), None, "the judging process died"))


def _environment() -> dict[str, str]:
    """Return the environment without what attaches us to the training, and without its GPUs."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in path if entry and not Path(entry).name.startswith(".boot-")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept), "CUDA_VISIBLE_DEVICES": ""}
