"""`fp8verify doctor`: check hardware, versions and configuration before a run.

`python -m fp8verify.cli.doctor_command FILE…` checks configurations one by one, as the pre-commit
hook does. Each file is a run of its own; what is said of the machine that commits is left out.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fp8verify.cli.options import (
    FiniteFloat,
    emit,
    flag,
    form_option,
    output_option,
    valued,
)
from fp8verify.errors import Fp8VerifyError, UsageError
from fp8verify.preflight import RECIPES, doctor
from fp8verify.preflight.checks import FAULTS, FORMS, Check, Status, report_of, to_text
from fp8verify.preflight.documents import kind_of


@click.command("doctor", context_settings={"allow_interspersed_args": False})
@valued(
    "--config FILE",
    "configs",
    multiple=True,
    type=click.Path(),
    text="A configuration to check: YAML, TOML, JSON, a launch script or Python. Repeatable.",
)
@flag(
    "--measure",
    text="Time the layers of this model on this GPU, in BF16 and in FP8 with all casts: does FP8 "
    "pay for them. (--save-rates measures the GPU itself, for `inspect`.)",
)
@valued(
    "--shape MxKxN",
    "shapes",
    multiple=True,
    text="A layer size to measure: tokens, input and output features. Repeatable.",
)
@valued(
    "--tokens M",
    type=click.IntRange(1, 1 << 26),
    text="Tokens per micro-batch, if no configuration gives them.  [default: 8192]",
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    type=click.Choice(RECIPES),
    help="A torchao recipe to measure. Repeatable.  [default: all]",
)
@valued(
    "--save-rates FILE",
    type=click.Path(dir_okay=False),
    text="Measure how fast this GPU multiplies matrices of 13 x 13 x 13 sizes in BF16 and FP8 (30 "
    "seconds on an H200), and write that to FILE: with FP8VERIFY_RATES=FILE, `inspect` estimates "
    "by it. Needs neither --measure nor a model.",
)
@valued(
    "--gpu NAME",
    "gpus",
    multiple=True,
    text="A GPU of the run (H200, 8xB200, 9.0, gfx942), if it is not this machine's. Repeatable.",
)
@flag("--static", text="Only read the command's files; do not start it.")
@valued(
    "--timeout S",
    type=FiniteFloat(min=1, max=86400),
    default=120.0,
    show_default=True,
    text="End a command that has built no optimizer after S seconds.",
)
@click.option(
    "--require-gpu/--no-require-gpu",
    default=False,
    help="Fail if no GPU is found. By default a missing GPU does not change the exit code.",
)
@flag(
    "--strict", text="Also exit with 1 for warnings, and if a file was not recognized."
)
@form_option(FORMS, "github prints workflow commands with file and line.", "text")
@output_option("Write the report to a file instead of standard output.")
@flag("-v", "--verbose", text="Name the source of each rule that a fault rests on.")
@click.argument("command_line", nargs=-1, metavar="[-- COMMAND…]")
def doctor_command(
    configs: tuple[str, ...],
    command_line: tuple[str, ...],
    measure: bool,
    shapes: tuple[str, ...],
    static: bool,
    strict: bool,
    form: str,
    output: Path | None,
    verbose: bool,
    **given: Any,
) -> None:
    """Check hardware, versions and configuration before a run.

    \b
    fp8verify doctor
    fp8verify doctor --config accelerate.yaml --gpu H200
    fp8verify doctor --config 7b.toml --measure
    fp8verify doctor -- accelerate launch --config_file fp8.yaml train.py

    A command is started. It is ended when it builds its first optimizer, because the layers of the
    model are then known. Side effects up to that point remain, such as new folders.

    Exit codes: 0 no check fails, 1 a check fails (with --strict also warnings), 2 usage.
    """
    _refuse_configuration(command_line)
    report = doctor(
        *configs,
        command=command_line,
        start=not static,
        measure=measure or bool(shapes),
        shapes=shapes,
        **given,
    )
    if verbose and form == "text":
        text = to_text(report, verbose=True)
    else:
        text = FORMS[form](report)
    emit(text, output)
    named = [check.file for check in report.not_checked if check.file is not None]
    unread = any(not file.endswith(".py") for file in named)
    sys.exit(
        report.exit_code or int(strict and (report.status is Status.WARN or unread))
    )


def _refuse_configuration(command: Sequence[str]) -> None:
    """Refuse a configuration in the place of a command.

    Raises:
        UsageError: it is one.
    """
    file = command[0] if len(command) == 1 else ""
    is_program = kind_of(file) in (None, "python") or os.access(file, os.X_OK)
    if Path(file).is_file() and not is_program:
        raise UsageError(
            f"{file} is no command that trains.",
            f"To check it: fp8verify doctor --config {shlex.quote(file)}",
        )


def check_each(files: Sequence[str]) -> int:
    """Print the faults of each file; return 1 if a check fails, 2 if a file cannot be read."""
    code = 0
    for file in files:
        try:
            faults = [check for check in doctor(file).checks if _is_of_file(check)]
        except Fp8VerifyError as error:
            print(f"error: {error.fact}\nhint: {error.hint}", file=sys.stderr)
            code = max(code, 2)
            continue
        if faults:
            report = report_of(faults)
            print(to_text(report), end="")
            code = max(code, report.exit_code)
    return code


def _is_of_file(check: Check) -> bool:
    return check.file is not None and check.status in FAULTS


if __name__ == "__main__":
    sys.exit(check_each(sys.argv[1:]))
