"""Check hardware, versions and configuration before the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fp8verify.preflight.checks import Check, DoctorReport, Status, report_of

# torchao float8/config.py, Float8LinearRecipeName: those that can be measured.
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
__all__ = ["RECIPES", "Check", "DoctorReport", "Status", "doctor"]


def doctor(
    *configs: str | Path,
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    gpus: Sequence[str] = (),
    require_gpu: bool = False,
    start: bool = False,
    timeout: float | None = None,
    measure: bool = False,
    shapes: Sequence[str] = (),
    tokens: int | None = None,
    recipes: Sequence[str] = (),
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
        timeout: the seconds after which it is ended anyway; two minutes by default.
        measure: whether to time the model's matrix sizes in BF16 and FP8 on this GPU.
        shapes: additional sizes to measure, such as "8192x4096x14336".
        tokens: the tokens of a micro-batch, for sizes from a file or model.
        recipes: torchao's recipes to measure; all three by default.

    Raises:
        InputError: a configuration cannot be read, or the command cannot be run.
        UsageError: a GPU is not known, or a shape is invalid.
    """
    from fp8verify.preflight.launch import gather
    from fp8verify.preflight.machine import Gpus, named_gpus
    from fp8verify.preflight.rules import judge

    facts = gather(
        [str(path) for path in configs],
        [str(word) for word in command],
        os.environ if environment is None else environment,
        gpus=Gpus(tuple(gpu for name in gpus for gpu in named_gpus(name))) if gpus else None,
        require_gpu=require_gpu,
    )
    if start and command:
        from fp8verify.preflight.dry_start import TIMEOUT_S, dry_start

        facts = facts._replace(model=dry_start(facts.command, timeout or TIMEOUT_S))
    checks = list(judge(facts))
    if measure:
        from fp8verify.preflight.measure import measure as times

        checks += times(facts, shapes, tokens, recipes or RECIPES)
    return report_of(checks)
