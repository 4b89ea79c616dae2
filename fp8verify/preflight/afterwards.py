"""What the doctor adds to the report of a run that failed, or in which no FP8 ran."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from fp8verify.capture.files import find_logs
from fp8verify.errors import Fp8VerifyError, InputError
from fp8verify.logs.lines import read_lines
from fp8verify.model import Finding, Leg, Report, Severity, Verdict
from fp8verify.preflight.causes import Cause, causes
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.facts import Facts
from fp8verify.preflight.gpus import Gpu, Gpus
from fp8verify.preflight.interpreter import Installed, Interpreter
from fp8verify.preflight.launch import read_launch
from fp8verify.preflight.measure import covered, kept
from fp8verify.preflight.probes import Shape
from fp8verify.preflight.rules import judge
from fp8verify.preflight.timings import Answer, Measured, answer_of

AnyReport = TypeVar("AnyReport", bound=Report)
_WITHOUT_FP8 = (Verdict.INACTIVE, Verdict.CONTRADICTED, Verdict.EMULATED)
_SHOWN = 5
_ONLY_SLOWER = ("compile-off", "dims-too-small-to-pay", "fp8-with-checkpointing")


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
    try:
        found = _findings(_facts(report, command))
    except Fp8VerifyError:  # no such library, or no such file any more
        return report
    return replace(report, findings=(*report.findings, *found))


def with_what_was_possible(report: AnyReport) -> AnyReport:
    """Add a note on what `doctor --measure` measured here for the sizes that ran."""
    rows = (row for rank in report.ranks for row in rank.kernels)
    sizes = {
        Shape(m, k, n)
        for row in rows
        if row.leg is Leg.FPROP and row.shape is not None
        for _, m, n, k in [row.shape]
    }
    measured = [one for one in covered(kept(report.environment.gpu), sizes) if one.recipes]
    if not measured:
        return report
    known = {shape for one in measured for shape in one.shapes}
    paying = {shape for one in measured if answer_of(one) is Answer.PAYS for shape in one.shapes}
    note = (
        f"`doctor --measure` on this GPU knows {len(known)} of the {len(sizes)} sizes of layers "
        f"that ran: FP8 pays for {len(paying)} of them, and one block or layer of each could be "
        f"{_possible(measured):.2f}x as fast as in BF16, casts included"
    )
    return replace(report, notes=(*report.notes, note))


def _possible(measured: Sequence[Measured]) -> float:
    """Return the speed-up of the layers where each has the fastest of BF16 and FP8."""
    before = sum(one.layers_us for one in measured)
    saved = sum(max(0.0, *(one.saved(name).us for name in one.recipes)) for one in measured)
    return before / max(before - saved, before / 1e3)


def _facts(report: Report, command: Sequence[str]) -> Facts:
    seen = report.environment
    gpu = Gpu(seen.gpu, seen.compute_capability) if seen.gpu else None
    launch = read_launch([], command, os.environ)
    return Facts(
        gpus=Gpus((gpu,) if gpu else ()),
        installed=Installed(Interpreter("", "", named=False), seen.versions),
        environment=launch.environment,
        configs=launch.configs,
        scripts=launch.scripts,
        command=tuple(command),
        require_gpu=False,
    )


def _findings(facts: Facts) -> list[Finding]:
    grave = [check for check in judge(facts) if check.status in (Status.WARN, Status.FAIL)]
    # A library that the process had not imported is not in the versions, and may be installed.
    found = [
        check
        for check in grave
        if check.code not in _ONLY_SLOWER and not check.code.endswith("-not-installed")
    ]
    if not facts.wishes:  # then the GPU and its units explain nothing
        found = [check for check in found if check.file is not None]
    elif not found:
        found = [
            Check(
                code="fp8-asked",
                status=Status.WARN,
                message=f"{facts.wishes[0][1]} asks for FP8, and no GEMM ran in it",
                hint="`fp8verify doctor` before the same command checks the versions here too.",
            )
        ]
    return [_finding(check) for check in found[:_SHOWN]]


def _finding(check: Check) -> Finding:
    place = f"{check.file}:{check.line or 1}: " if check.file else ""
    return Finding(
        code=check.code,
        severity=Severity.WARNING,
        message=f"{place}{check.message}",
        hint=check.hint,
    )
