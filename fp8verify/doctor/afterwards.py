"""What the doctor adds to the report of a run that failed, or in which no FP8 ran.

The parts of the doctor are imported where they have something to add: every run's report would
wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from fp8verify.capture.files import find_logs
from fp8verify.errors import Fp8VerifyError, InputError
from fp8verify.logs.lines import read_lines
from fp8verify.report.model import Leg, Report, Verdict

if TYPE_CHECKING:
    from fp8verify.doctor.causes import Cause

AnyReport = TypeVar("AnyReport", bound=Report)
_WITHOUT_FP8 = (Verdict.INACTIVE, Verdict.CONTRADICTED, Verdict.EMULATED)


def failure_notes(capture: Path, exit_code: int) -> tuple[str, ...]:
    """Return one sentence for each known cause of a training that failed; none if it did not.

    Args:
        capture: the run's folder, whose logs are read.
        exit_code: the training's.
    """
    if exit_code == 0:
        return ()
    found = ((log.name, cause) for log in find_logs(capture) for cause in _causes(log))
    return tuple(
        f"the training failed, {name} line {cause.line}: {cause.cause}. {cause.remedy}"
        + (f" (doctor: {cause.check})" if cause.check else "")
        for name, cause in found
    )


def _causes(log: Path) -> list[Cause]:
    from fp8verify.doctor.causes import causes

    try:
        return causes(line.text for line in read_lines(log) if line.first)
    except InputError:  # a log that cannot be read is told of by the report itself
        return []


def explain_missing(report: AnyReport, command: Sequence[str]) -> AnyReport:
    """Add what the command's own files say to the report of a run without FP8.

    Args:
        report: the report of the run.
        command: what was run; the files that it names are read again.
    """
    if report.verdict not in _WITHOUT_FP8:
        return report
    from fp8verify.doctor.missing import findings_on

    try:
        found = findings_on(report, command)
    except Fp8VerifyError:  # no such library, or no such file any more
        return report
    return replace(report, findings=(*report.findings, *found))


def with_what_was_possible(report: AnyReport) -> AnyReport:
    """Add a note on what `doctor --measure` measured here for the sizes that ran."""
    rows = (row for rank in report.ranks for row in rank.kernels)
    ran = {row.shape for row in rows if row.leg is Leg.FPROP and row.shape is not None}
    if not ran:
        return report
    from fp8verify.doctor.measure import what_was_possible
    from fp8verify.doctor.probes import Shape

    sizes = {Shape(m, k, n) for _, m, n, k in ran}
    note = what_was_possible(sizes, report.environment.gpu)
    return report if note is None else replace(report, notes=(*report.notes, note))
