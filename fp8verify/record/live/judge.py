"""The process that judges windows: requests on standard input, answers on standard output.

`python -m fp8verify.record.live.judge` reads one JSON object a metrics, inspects the folder that it
names, writes the report there, and answers with the window's metrics. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fp8verify.errors import Fp8VerifyError

REPORT = "report.json"
NICE = 10


def main() -> None:
    """Answer every request; an error is an answer too."""
    with suppress(OSError):
        os.nice(NICE)  # the training comes first
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not an answer
    for request in sys.stdin:
        _answer(json.loads(request), answers)


def _answer(request: dict[str, Any], answers: IO[str]) -> None:
    answer: dict[str, Any]
    try:
        answer = {"metrics": judge_folder(**request)}
    except Fp8VerifyError as error:
        answer = {"error": error.fact.rstrip(".")}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    with suppress(BrokenPipeError):
        answers.write(json.dumps({"folder": request["folder"], **answer}) + "\n")
        answers.flush()


def judge_folder(folder: str, log: str | None, policy: dict[str, Any]) -> dict[str, Any]:
    """Inspect a capture, write the report into it, and return the window's metrics.

    Raises:
        InputError: it cannot be read.
    """
    from fp8verify.analysis.inspection import inspect
    from fp8verify.record.live.metrics import window_metrics
    from fp8verify.verdict.policy import Policy

    report = inspect(folder, log=log, policy=Policy(**policy))
    write_report(Path(folder), report.to_json())
    return window_metrics(report)


def write_report(folder: Path, text: str) -> None:
    """Write `report.json` into a capture, whole at once."""
    partial = draft_of(folder, os.getpid())
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / REPORT)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def draft_of(folder: Path, process: int) -> Path:
    """Return what the report of a capture is called while a process writes it."""
    return folder / f".{REPORT}.{process}"


if __name__ == "__main__":
    main()
