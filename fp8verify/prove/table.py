"""The table of what was proved, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fp8verify.prove.agreement import Proof
from fp8verify.prove.ncu import Gpu
from fp8verify.text import printable

_NAME: Final = 58


def as_json(gpu: Gpu, proofs: Sequence[Proof]) -> str:
    """Return one JSON document: the GPU and a row for each kernel."""
    rows = [msgspec.to_builtins(proof) for proof in proofs]
    document = {"gpu": gpu.name, "compute_capability": gpu.capability, "kernels": rows}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def as_text(gpu: Gpu, proofs: Sequence[Proof], *, width: int = 150, colour: bool = False) -> str:
    """Return the table: agreement, class, 2·M·N·K, operations by type, kernel."""
    from fp8verify.report.page import GOOD, Grid, Page
    from fp8verify.report.text import write_text

    names = ("agreement", "calls", "class", "2·M·N·K", "counted operations", "kernel")
    rows = tuple(
        (
            proof.agreement,
            str(proof.launches),
            proof.precision,
            f"{proof.flops:,}" if proof.flops else "-",
            _operations(proof),
            _short(proof.kernel),
        )
        for proof in proofs
    )
    wrong = (proof for proof in proofs if proof.agreement in ("differs", "missed"))
    below = (summary(proofs), *(f"{_short(proof.kernel)}: {proof.reason}" for proof in wrong))
    grid = Grid("Proofs", names, ("agreement", "class", *names[4:]), rows, True, below=below)
    head = f"{gpu.name}, operations of one launch by source type"
    page = Page(head, "", GOOD, "", fails=False, name=gpu.name, body=(grid,))
    return write_text(page, terminal=colour, verbose=True, width=width).rstrip()


def summary(proofs: Sequence[Proof]) -> str:
    """Return one sentence: how many kernels agree, and what the others do."""
    counts = {what: sum(p.agreement == what for p in proofs) for what in
              ("agrees", "differs", "missed", "unclaimed", "not counted")}  # fmt: skip
    claimed = counts["agrees"] + counts["differs"] + counts["missed"]
    text = f"The counters agree with the class of {counts['agrees']} of {claimed} GEMM kernels"
    if counts["unclaimed"]:
        text += f"; {counts['unclaimed']} more have names without types"
    if counts["not counted"]:
        text += f"; of {counts['not counted']} nothing was counted"
    return f"{text}."


def _operations(proof: Proof) -> str:
    tensor = {name: n for name, n in proof.operations.items() if n and name != "fp32"}
    shown = tensor or {name: n for name, n in proof.operations.items() if n}
    return ", ".join(f"{name} {count:,}" for name, count in shown.items()) or "none"


def _short(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"
