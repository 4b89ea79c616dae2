"""Judge windows in a process of lower priority, while the script goes on.

`python -m fp8verify.record.judge` reads a JSON request, inspects the folder that it names, writes
the report into it, and answers with the metrics of the window.
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
from typing import Any, NamedTuple

from fp8verify.errors import Fp8VerifyError
from fp8verify.files import replacing
from fp8verify.record.window_metrics import WindowMetrics
from fp8verify.verdict.policy import Policy

REPORT = "report.json"
NICE = 10
PACKAGE = Path(__file__).parents[2]


class Judged(NamedTuple):
    """A window that was judged: its metrics, or why there are none."""

    folder: Path
    metrics: WindowMetrics | None = None
    error: str | None = None


class Judge:
    """Judges captures in the order in which they are submitted, and writes `report.json` into each.

    Each one has a process of its own: between windows no memory is used.

    Args:
        policy: what the verdict asks for.
        on_judged: called for each, on a thread of its own.
    """

    def __init__(self, policy: Policy, on_judged: Callable[[Judged], object]) -> None:
        self._policy = policy
        self._on_judged = on_judged
        self._waiting: deque[tuple[Path, Path | None]] = deque()
        self._lock = threading.Lock()  # of all that follows
        self._thread: threading.Thread | None = None  # while there is something to judge
        self._process: subprocess.Popen[str] | None = None

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is judged."""
        return self._thread is None

    def submit(self, folder: Path, log: Path | None = None) -> None:
        """Let a capture be judged."""
        with self._lock:
            self._waiting.append((folder, log))
            if self._thread is None:
                self._thread = threading.Thread(target=self._judge_all, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Return when all are judged."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        """Return at once; what is not judged stays so."""
        with self._lock:
            self._waiting.clear()
            if self._process is not None:
                self._process.kill()
        self.wait()

    def _judge_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                folder, log = self._waiting.popleft()
                self._process = None
                with suppress(OSError):
                    self._process = _start_process()
            self._on_judged(Judged(folder, **self._ask(folder, log)))

    def _ask(self, folder: Path, log: Path | None) -> dict[str, Any]:
        request = {
            "folder": str(folder.absolute()),
            "log": str(log.absolute()) if log is not None else None,
            "policy": self._policy._asdict(),
        }
        process = self._process
        if process is None:
            return {"error": "no process that reads windows can be started"}
        answer, _ = process.communicate(json.dumps(request))
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError:  # somebody killed it
            return {"error": "the process that reads windows died"}
        return found


def _start_process() -> subprocess.Popen[str]:
    """Start one without what attaches us to the script, and without its GPUs."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in path if entry and not Path(entry).name.startswith(".boot-")]
    return subprocess.Popen(
        [sys.executable, "-m", "fp8verify.record.judge"],
        cwd=PACKAGE,  # where `-m` finds us, and not what the script calls like our modules
        env={**os.environ, "PYTHONPATH": os.pathsep.join(kept), "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the script
    )


def keep_report(folder: Path, text: str) -> None:
    """Write `report.json` into a capture, whole at once.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(folder / REPORT, f".{REPORT}.{os.getpid()}") as draft:
        draft.write_text(text, encoding="utf-8")


def main() -> None:
    """Answer one request; an error is an answer too."""
    with suppress(OSError):
        os.nice(NICE)  # the script comes first
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not an answer
    with suppress(BrokenPipeError), answers:
        json.dump(_answer(**request), answers)


def _answer(folder: str, log: str | None, policy: dict[str, Any]) -> dict[str, Any]:
    from fp8verify.pipeline.inspection import inspect
    from fp8verify.record.window_metrics import window_metrics

    try:
        report = inspect(folder, log=log, policy=Policy(**policy))
        keep_report(Path(folder), report.to_json())
        return {"metrics": window_metrics(report)}
    except Fp8VerifyError as error:
        return {"error": error.fact.rstrip(".")}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
