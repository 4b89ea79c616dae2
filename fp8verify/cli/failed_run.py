"""The report of a training that ended with an error before it completed a step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from fp8verify.capture.files import find_logs
from fp8verify.errors import InputError
from fp8verify.logs.lines import read_lines
from fp8verify.report.model import Finding, Report

AnyReport = TypeVar("AnyReport", bound=Report)
_CODE = "no-training-step"
# The last line of a Python traceback: "ModuleNotFoundError: No module named 'x'".
_ERROR = re.compile(
    r"(?:^|\]: ?)((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .{0,160})?)\s*$"
)
_MAX_LINES = 200_000


def with_failure(report: AnyReport, capture: Path, exit_code: int) -> AnyReport:
    """Say of a run without a step that the training failed, and with which error.

    Args:
        report: the report of the run.
        capture: the run's folder, whose logs are read.
        exit_code: the training's.
    """
    if exit_code == 0 or all(finding.code != _CODE for finding in report.findings):
        return report
    fact = f"the training ended with exit code {exit_code} before it completed a step"
    error = last_error(capture)
    found = tuple(
        _told(finding, f"{fact}: {error}" if error else fact) if finding.code == _CODE else finding
        for finding in report.findings
    )
    notes = tuple(note for note in report.notes if not note.startswith("the command ended with"))
    return replace(report, reason=fact, findings=found, notes=notes)


def _told(finding: Finding, message: str) -> Finding:
    hint = "Mend the training's own error first, shown above; the log is in the capture."
    return replace(finding, message=message, hint=hint)


def last_error(capture: Path) -> str | None:
    """Return the last line of the last traceback in the logs of a capture, None without one."""
    found = None
    for log in find_logs(capture):
        try:
            for number, line in enumerate(read_lines(log)):
                match = _ERROR.search(line.text)
                if match is not None:
                    found = match[1]
                if number > _MAX_LINES:
                    break
        except InputError:  # a log that cannot be read is told of by the report itself
            continue
    return found
