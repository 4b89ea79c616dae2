"""The doctor's part of the report of a run in which no FP8 ran.

The parts of the doctor are imported if they have something to add: every run's report would
wait for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fp8verify.errors import Fp8VerifyError
from fp8verify.report.model.parts import Finding
from fp8verify.report.model.report import Report
from fp8verify.terms import Severity
from fp8verify.verdict.verdict import WITHOUT_FP8

_SHOWN = 5
# Of files that were read these say that FP8 is slower, or nothing at all.
_NO_CAUSE = (
    "compile-off",
    "dims-too-small-to-pay",
    "fp8-with-checkpointing",
    "config-not-recognized",
)


def explain_missing(report: Report, command: Sequence[str]) -> Report:
    """Add what the command's own files say to the report of a run without FP8.

    Args:
        report: the report of the run.
        command: what was run; the files that it names are read again.
    """
    if report.verdict not in WITHOUT_FP8:
        return report
    try:
        found = tuple(_missing(report, command))
    except Fp8VerifyError:  # no such library, or no such file any more
        return report
    return replace(report, findings=(*report.findings, *found))


def _missing(report: Report, command: Sequence[str]) -> Iterator[Finding]:
    """Yield what `doctor` finds in the files that a command names."""
    from fp8verify.preflight.checks import Status
    from fp8verify.preflight.launch import read_launch
    from fp8verify.preflight.machine import Gpu, Gpus
    from fp8verify.preflight.rules import judge

    seen = report.environment
    facts = read_launch([], command, os.environ)
    facts = facts._replace(
        gpus=Gpus((Gpu(seen.gpu, seen.compute_capability),) if seen.gpu else ()),
        installed=facts.installed._replace(versions=seen.versions),
    )
    # A library that the process had not imported is not in the versions, and may be installed.
    found = [
        check
        for check in judge(facts)
        if check.status in (Status.WARN, Status.FAIL)
        and check.code not in _NO_CAUSE
        and not check.code.endswith("-not-installed")
    ]
    if not facts.asks:  # then the GPU and its units explain nothing
        found = [check for check in found if check.file is not None]
    # Where the modules are known, what a source mentions is no evidence.
    if any(rank.modules.counts for rank in report.ranks if rank.modules):
        sources = {one.path for one in facts.unread if one.kind == "python"}
        found = [check for check in found if check.file not in sources]
    for check in found[:_SHOWN]:
        place = f"{check.file}:{check.line or 1}: " if check.file else ""
        yield _warning(check.code, f"{place}{check.message}", check.hint)
    if facts.asks and not found:
        message = f"{facts.asks[0][1]} requests FP8, and no GEMM ran in it"
        hint = "`fp8verify doctor` before the same command checks the versions here too."
        yield _warning("fp8-asked", message, hint)


def _warning(code: str, message: str, hint: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, message=message, hint=hint)
