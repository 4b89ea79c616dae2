"""Judge windows in a process of lower priority, while the training goes on.

`python -m fp8verify.record.judge` reads one JSON request a line, inspects the folder that it names,
and answers with the report and the metrics of the window. It ends with its input.
"""

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

from fp8verify.errors import Fp8VerifyError
from fp8verify.record.window_metrics import WindowMetrics
from fp8verify.verdict.policy import Policy

REPORT = "report.json"
NICE = 10
PACKAGE = Path(__file__).parents[2]


class Judged(NamedTuple):
    """A window that was judged: its metrics, or why there are none."""

    folder: Path
    metrics: WindowMetrics | None
    error: str | None = None


class Judge:
    """Judges captures in the order in which they are submitted, and writes `report.json` into each.

    One process serves all that wait, and ends when none does: between windows no memory is used.

    Args:
        policy: what the verdict asks for.
        on_judged: called for each, on a thread of its own.
    """

    def __init__(self, policy: Policy, on_judged: Callable[[Judged], object]) -> None:
        self._policy = policy
        self._on_judged = on_judged
        self._waiting: deque[tuple[Path, Path | None]] = deque()
        self._lock = threading.Lock()  # of all that follows
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is judged."""
        return not self._is_busy

    def submit(self, folder: Path, log: Path | None = None) -> None:
        """Let a capture be judged."""
        with self._lock:
            self._waiting.append((folder, log))
            if not self._is_busy:
                self._is_busy = True
                self._thread = threading.Thread(target=self._judge_all, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Return when all are judged."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Return at once; what is not judged stays so."""
        with self._lock:
            self._is_stopped = True
            self._waiting.clear()
            if self._process is not None:
                self._process.kill()
        self.wait()

    def _judge_all(self) -> None:
        while (waiting := self._next()) is not None:
            folder, log = waiting
            answer = self._ask(folder, log)
            if "report" in answer:
                try:
                    keep_report(folder, answer["report"])
                except OSError as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
            self._on_judged(Judged(folder, answer.get("metrics"), answer.get("error")))
        self._end_process()

    def _next(self) -> tuple[Path, Path | None] | None:
        with self._lock:
            self._is_busy = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None

    def _ask(self, folder: Path, log: Path | None) -> dict[str, Any]:
        request = {
            "folder": str(folder.absolute()),
            "log": str(log.absolute()) if log is not None else None,
            "policy": self._policy._asdict(),
        }
        try:
            process = self._process or self._start_process()
            requests, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
        except (OSError, ValueError):  # no process can be started, or somebody killed it
            self._end_process()
            return {"error": "the process that reads windows died"}
        return answer

    def _start_process(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fp8verify.record.judge"],
            cwd=PACKAGE,  # where `-m` finds us, and not what the training calls like our modules
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the training
        )
        with self._lock:
            self._process = process
            if self._is_stopped:
                process.kill()
        return process

    def _end_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            with suppress(OSError, ValueError):  # it was killed before it read all
                process.communicate()


def _environment() -> dict[str, str]:
    """Return the environment without what attaches us to the training, and without its GPUs."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in path if entry and not Path(entry).name.startswith(".boot-")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept), "CUDA_VISIBLE_DEVICES": ""}


def keep_report(folder: Path, text: str) -> None:
    """Write `report.json` into a capture, whole at once.

    Raises:
        OSError: it cannot be written.
    """
    draft = folder / f".{REPORT}.{os.getpid()}"
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(folder / REPORT)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def main() -> None:
    """Answer every request; an error is an answer too."""
    with suppress(OSError):
        os.nice(NICE)  # the training comes first
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not an answer
    for request in sys.stdin:
        answer = _answer(**json.loads(request))
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            return


def _answer(folder: str, log: str | None, policy: dict[str, Any]) -> dict[str, Any]:
    from fp8verify.analysis.inspection import inspect
    from fp8verify.record.window_metrics import window_metrics

    try:
        report = inspect(folder, log=log, policy=Policy(**policy))
        return {"metrics": window_metrics(report), "report": report.to_json()}
    except Fp8VerifyError as error:
        return {"error": error.fact.rstrip(".")}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
