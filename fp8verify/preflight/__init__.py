"""Check hardware, versions and configuration before the run, and explain a run without FP8.

The parts of the doctor are imported if they have something to do: every run's report would wait
for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fp8verify.errors import Fp8VerifyError
from fp8verify.preflight.checks import FAULTS, Check, DoctorReport, Status, report_of

if TYPE_CHECKING:
    from fp8verify.model.verdict import Finding
    from fp8verify.report.results import Report

# torchao float8/config.py, Float8LinearRecipeName: those that can be measured.
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
# Of files that were read these say that FP8 is slower, or nothing at all; and a library that the
# process had not imported is not in its versions, and may be installed.
_NO_CAUSE = (
    "compile-off", "dims-too-small-to-pay", "fp8-with-checkpointing", "config-not-recognized",
    "torch-not-installed", "te-not-installed", "torchao-not-installed", "msamp-not-installed",
)  # fmt: skip
_SHOWN = 5
__all__ = ["RECIPES", "Check", "DoctorReport", "Status", "doctor", "explain_missing"]


def doctor(
    *configs: str | Path,
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    gpus: Sequence[str] = (),
    require_gpu: bool = False,
    start: bool = False,
    timeout: float = 120.0,
    measure: bool = False,
    shapes: Sequence[str] = (),
    tokens: int | None = None,
    recipes: Sequence[str] = (),
    save_rates: str | Path | None = None,
) -> DoctorReport:
    """Check this machine, configurations and a command before they train.

    Args:
        configs: configuration files, launch scripts or Python sources.
        command: the run's command line; files that it names are read too.
        environment: the variables that reach the run; those of this process by default.
        gpus: the GPUs of the run, by name ("H200", "8x B200") or compute capability ("9.0",
            "gfx942"), instead of those of this machine.
        require_gpu: whether a machine without a GPU fails.
        start: whether to start the command, until it builds its first optimizer.
        timeout: the seconds after which it is ended anyway.
        measure: whether to time the model's matrix sizes in BF16 and FP8 on this GPU.
        shapes: additional sizes to measure, such as "8192x4096x14336".
        tokens: the tokens of a micro-batch, for sizes from a file or model.
        recipes: torchao's recipes to measure; all three by default.
        save_rates: a file for the rates of this GPU by matrix size, which `inspect` then uses.

    Raises:
        InputError: a configuration cannot be read, or the command cannot be run.
        UsageError: a GPU is not known, or a shape is invalid.
    """
    from concurrent.futures import ThreadPoolExecutor

    from fp8verify.preflight import machine
    from fp8verify.preflight.launch import read_launch
    from fp8verify.preflight.rules import judge

    words = [str(word) for word in command]
    variables = os.environ if environment is None else environment
    found = machine.find_python(words, variables)
    given = tuple(gpu for name in gpus for gpu in machine.named_gpus(name))
    with ThreadPoolExecutor(
        2
    ) as pool:  # programs run in parallel with reading the files
        seen = pool.submit(lambda: (given, "") if gpus else machine.find_gpus())
        python = pool.submit(machine.with_versions, found)
        facts = read_launch([str(path) for path in configs], words, variables)
    gpus_here, why_no_gpu = seen.result()
    facts = facts._replace(
        gpus=gpus_here,
        why_no_gpu=why_no_gpu,
        require_gpu=require_gpu,
    )
    facts = facts._replace(python=python.result())
    if start and command:
        from fp8verify.preflight.dry_start import dry_start

        facts = facts._replace(model=dry_start(facts.command, timeout))
    checks = list(judge(facts))
    if measure:
        from fp8verify.preflight.measure import has_sizes
        from fp8verify.preflight.measure import measure as times

        # Without a model `--measure --save-rates FILE` measures the GPU alone.
        if save_rates is None or has_sizes(facts, shapes, tokens):
            checks += times(facts, shapes, tokens, recipes or RECIPES)
    if save_rates is not None:
        from fp8verify.preflight import rates

        checks += rates.save_rates(facts.python.program, save_rates)
    return report_of(checks, elsewhere=bool(gpus))


def explain_missing(report: Report, command: Sequence[str]) -> Report:
    """Add what the command's own files say to the report of a run without FP8.

    Args:
        report: the report of the run.
        command: what was run; the files that it names are read again.
    """
    from fp8verify.verdict.assessment import WITHOUT_FP8

    if report.verdict in WITHOUT_FP8:
        with suppress(Fp8VerifyError):  # no such library, or no such file any more
            return replace(
                report, findings=(*report.findings, *_explanations(report, command))
            )
    return report


def _explanations(
    report: Report,
    command: Sequence[str],
) -> Iterator[Finding]:
    """Yield what `doctor` finds in the files that a command names."""
    from fp8verify.model.verdict import Finding
    from fp8verify.preflight.launch import read_launch
    from fp8verify.preflight.machine import Gpu
    from fp8verify.preflight.rules import judge
    from fp8verify.terms import Severity

    seen = report.environment
    facts = read_launch([], command, os.environ)
    facts = facts._replace(
        gpus=(Gpu(seen.gpu, seen.compute_capability),) if seen.gpu else (),
        python=facts.python._replace(versions=seen.versions),
    )
    sources = set()
    if _knows_modules(report):  # then what a source mentions is no evidence
        sources = {one.path for one in facts.unread if one.kind == "python"}
    found = []
    for check in judge(facts):
        is_fault = check.status in FAULTS and check.code not in _NO_CAUSE
        # Where nothing asks for FP8, the GPU and its units explain nothing.
        is_about_run = facts.asks or check.file is not None
        if is_fault and is_about_run and check.file not in sources:
            found.append(check)
    for check in found[:_SHOWN]:
        yield Finding(
            code=check.code,
            severity=Severity.WARNING,
            message=f"{check.place}{check.message}",
            hint=check.hint,
        )
    if facts.asks and not found:
        file = facts.asks[0][1]
        yield Finding(
            code="fp8-asked",
            severity=Severity.WARNING,
            message=f"{file} requests FP8, and no GEMM ran in it",
            hint="`fp8verify doctor` before the same command checks the versions here too.",
        )


def _knows_modules(report: Report) -> bool:
    """Whether the report says of any module in which precision it is."""
    return any(rank.modules and rank.modules.counts for rank in report.ranks)
