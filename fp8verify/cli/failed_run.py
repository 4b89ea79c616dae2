"""The report of a training that ended with an error before it completed a step."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import click
from msgspec.structs import replace

from fp8verify.capture.files import find_logs
from fp8verify.logs.last_error import MISPLACED_OPTION, last_error
from fp8verify.report.model import Finding, Report

AnyReport = TypeVar("AnyReport", bound=Report)
_CODE = "no-training-step"
# Notes of `record.collect_result`, which guess where the error is known.
_UNOBSERVED = ("the command ended with", "no Python that could be observed")


def with_failure(report: AnyReport, capture: Path, exit_code: int) -> AnyReport:
    """Say of a run without a step that the training failed, and with which error.

    Args:
        report: the report of the run.
        capture: the run's folder, whose logs are read.
        exit_code: the training's; one of 0 may be a shell's that ignored the training's.
    """
    if all(finding.code != _CODE for finding in report.findings):
        return report
    error = last_error(find_logs(capture))
    if exit_code == 0 and error is None:
        return report
    fact = f"the training ended with exit code {exit_code} before it completed a step"
    found = tuple(
        _with_message(finding, f"{fact}: {error}" if error else fact)
        if finding.code == _CODE
        else finding
        for finding in report.findings
    )
    notes = tuple(note for note in report.notes if not note.startswith(_UNOBSERVED))
    return replace(report, reason=fact, findings=found, notes=notes)


def _with_message(finding: Finding, message: str) -> Finding:
    hint = "Fix the training's own error first, shown above; the log is in the capture."
    misplaced = MISPLACED_OPTION.search(message)
    ours = {param.name for param in click.get_current_context().command.params}
    if misplaced is not None and misplaced[1][2:].replace("-", "_") in ours:
        hint = f"{misplaced[1]} is an option of fp8verify: put it before the script."
    return replace(finding, message=message, hint=hint)
