"""The process in the training's Python that times layers: requests to it, and its answers."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).parent / "worker" / "measure_linear.py"
_MARK = "fp8verify: "
_END_S = 30.0  # for a process that was told that there is no more to do


class WorkerError(Exception):
    """The process could not be started, or it ended before its answer did."""


class WorkerProcess:
    """Runs until `close`, or for so many seconds."""

    def __init__(self, program: str, timeout_s: float) -> None:
        self._program = program
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see close
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own Python, our own script
                [program, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._stderr.close()
            raise WorkerError(f"{program}: {type(error).__name__}") from error
        self._timer = threading.Timer(timeout_s, self._process.kill)
        self._timer.start()

    def ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the lines with which it answers a request.

        Raises:
            WorkerError: it ended before.
        """
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except OSError as error:
            raise WorkerError(self._last_words()) from error
        return list(self._answers())

    def _answers(self) -> Iterator[dict[str, Any]]:
        """Yield its lines among others that libraries print."""
        for line in self._process.stdout or ():
            if line.startswith(_MARK):
                answer = json.loads(line.removeprefix(_MARK))
                if "done" in answer:
                    return
                yield answer
        raise WorkerError(self._last_words())

    def _last_words(self) -> str:
        self._process.wait()
        self._stderr.seek(0)
        last = (self._stderr.read().strip().splitlines() or ["it said nothing"])[-1]
        return f"{self._program}: {last[:200]}"

    def close(self) -> None:
        """End the process."""
        self._timer.cancel()
        try:
            self._process.communicate(timeout=_END_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._stderr.close()
