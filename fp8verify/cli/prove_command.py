"""`fp8verify prove`: compare the precision of GEMM kernels with the GPU's own counters."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fp8verify.cli.options import emit, form_option, output_option, valued
from fp8verify.errors import UsageError


@click.command("prove", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND …")
@valued(
    "--launches N",
    default=20,
    show_default=True,
    type=click.IntRange(1, 10_000),
    text="Launches of GEMM-like kernels to measure.",
)
@valued(
    "--skip N",
    default=0,
    show_default=True,
    type=click.IntRange(0, 10**9),
    text="Launches to skip first, such as the warm-up.",
)
@valued(
    "--kernels REGEX",
    text="Measure the kernels whose names match; '' measures every kernel.",
)
@form_option(("text", "json"), "Format of the result.", "text")
@output_option("Write the result to a file instead of standard output.", "FILE")
def prove_command(
    arguments: tuple[str, ...], launches: int, skip: int, kernels: str | None, form: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Run COMMAND under Nsight Compute (ncu) and count each kernel's operations by operand type.

    The GPU's counters show how many operations each GEMM kernel did on FP8, BF16 and other
    operands. The counts are compared with the precision in the kernel's name, and with 2·M·N·K if
    NVTX ranges of torch.autograd.profiler.emit_nvtx(record_shapes=True) give shapes. ncu runs every
    measured kernel several times and ends COMMAND after the last kernel. Exit codes: 0 all agree,
    1 a kernel differs, 3 nothing could be counted.

    \b
    fp8verify prove -- python train.py
    fp8verify prove --launches 40 --skip 200 --format json -o proof.json -- torchrun train.py
    """
    if not arguments:
        raise UsageError(
            "no command given", "Write it after --: fp8verify prove -- python x.py"
        )
    from fp8verify import prove
    from fp8verify.prove import ncu

    gpu = ncu.find_gpu()
    window = ncu.Window(launches, skip, ncu.GEMM_LIKE if kernels is None else kernels)
    proofs = prove.prove_launches(ncu.measure(gpu, arguments, window))
    color = output is None and sys.stdout.isatty()
    if form == "json":
        shown = prove.as_json(gpu, proofs)
    else:
        shown = prove.as_text(gpu, proofs, color=color)
    emit(f"{shown}\n", output)
    verdicts = {proof.agreement for proof in proofs}
    if verdicts & {"differs", "missed"}:
        sys.exit(1)
    if "agrees" not in verdicts:
        sys.exit(3)
