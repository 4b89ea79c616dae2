"""What the files of a command say about a run of it in which no FP8 ran."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.gpus import Gpu, Gpus
from fp8verify.doctor.interpreter import Installed, Interpreter
from fp8verify.doctor.launch import read_launch
from fp8verify.doctor.rules import judge
from fp8verify.report.model import Finding, Report, Severity

_SHOWN = 5
_ONLY_SLOWER = ("compile-off", "dims-too-small-to-pay", "fp8-with-checkpointing")


def findings_on(report: Report, command: Sequence[str]) -> list[Finding]:
    """Return what `doctor` finds in the files that a command names.

    Raises:
        Fp8VerifyError: one of them is not there any more.
    """
    return _findings(_facts(report, command))


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
