"""Compare what kernel names say with what the GPU's own counters counted."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from fp8verify.kernels import decode
from fp8verify.prove.ncu import CUDA_CORES, FP8_FP6_FP4, Gpu, Launch
from fp8verify.terms import KernelName, Precision, Role
from fp8verify.text import cut_middle, printable

Agreement = Literal["agrees", "differs", "missed", "unclaimed", "not counted"]


# The counters in which a class must show: most have one of their name, those of 8 bits and less
# share one on some GPUs.
def _sources_of(precision: Precision) -> frozenset[str]:
    if precision.is_fp8:
        return frozenset({"fp8", FP8_FP6_FP4})
    if precision.is_fp4:
        return frozenset({"fp4", FP8_FP6_FP4})
    if precision.is_low:
        return frozenset({FP8_FP6_FP4})
    return frozenset({precision.value})


SOURCES: Final[dict[Precision, frozenset[str]]] = {
    one: _sources_of(one) for one in Precision if one is not Precision.UNKNOWN
}
# Kernels with products that are not GEMMs of linear layers: the counters say nothing against them.
_PRODUCTS: Final = frozenset({Role.ATTENTION, Role.CONV})
_NAME_WIDTH: Final = 58


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's class and the operations that the GPU counted in one launch of it, by type.

    `flops` is 2·M·N·K of the launch, None if nothing recorded its shape.
    """

    kernel: str
    role: str
    precision: str
    launches: int
    operations: dict[str, int]
    flops: int | None
    agreement: Agreement
    reason: str


def prove_launches(launches: Iterable[Launch]) -> list[Proof]:
    """Judge launches, grouped by kernel and counts."""
    tally: Tally[tuple[str, int | None, tuple[tuple[str, int], ...]]] = Tally()
    for launch in launches:
        counts = tuple(sorted(launch.operations.items()))
        tally[launch.kernel, launch.flops, counts] += 1
    proofs = []
    for (kernel, flops, counts), number in tally.items():
        proof = judge(kernel, dict(counts), flops, launches=number)
        if proof is not None:
            proofs.append(proof)
    return proofs


def judge(
    kernel: str,
    operations: dict[str, int],
    flops: int | None = None,
    *,
    launches: int = 1,
) -> Proof | None:
    """Compare one kernel's class with its operations; None for one that multiplies nothing."""
    decoded = decode(kernel)
    multiplied = []
    for name, number in operations.items():
        if number and name not in CUDA_CORES:
            multiplied.append(name)
    if not decoded.role.is_gemm and (not multiplied or decoded.role in _PRODUCTS):
        return None
    agreement, reason = _agreement(decoded, operations, multiplied, flops)
    return Proof(
        kernel=kernel,
        role=decoded.role.value,
        precision=decoded.precision.value,
        launches=launches,
        operations=operations,
        flops=flops,
        agreement=agreement,
        reason=reason,
    )


def _agreement(
    decoded: KernelName,
    operations: Mapping[str, int],
    multiplied: list[str],
    flops: int | None,
) -> tuple[Agreement, str]:
    # CUDA cores scale the output of every kernel, so their counts decide only alone.
    counted_types = multiplied or list(filter(operations.get, CUDA_CORES))
    types = " and ".join(name.upper() for name in counted_types) or "no"
    if not counted_types:
        return "not counted", "no operation of a type that is counted on this GPU"
    if not decoded.role.is_gemm:
        return "missed", f"{types} operations in a kernel whose name does not say GEMM"
    if decoded.precision is Precision.UNKNOWN:
        return "unclaimed", f"the name says no type; {types} operations were counted"
    if not set(counted_types) <= SOURCES[decoded.precision]:
        named = decoded.precision.value
        return "differs", f"the name says {named}; {types} operations were counted"
    if decoded.split_k:
        return "agrees", "adds up the parts of the GEMM before it"
    counted = sum(operations[name] for name in counted_types)
    if flops is not None and counted < flops:
        return "differs", f"{counted:,} operations were counted of 2·M·N·K = {flops:,}"
    if flops is None:
        return "agrees", "type agrees; the shape is not known"
    if counted == flops:
        return "agrees", "type agrees, and the count is 2·M·N·K"
    padding = f"{counted / flops - 1:.1%} of padding"
    return "agrees", f"type agrees; the count is 2·M·N·K and {padding}"


def as_json(gpu: Gpu, proofs: Sequence[Proof]) -> str:
    """Return one JSON document: the GPU and a row for each kernel."""
    document = {
        "gpu": gpu.name,
        "compute_capability": gpu.capability,
        "kernels": proofs,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def as_text(
    gpu: Gpu, proofs: Sequence[Proof], *, width: int = 150, color: bool = False
) -> str:
    """Return the table: agreement, class, 2·M·N·K, operations by type, kernel."""
    from fp8verify.report.page import GOOD, Grid, Page
    from fp8verify.report.text import write_text

    headings = (
        "<agreement",
        "calls",
        "<class",
        "2·M·N·K",
        "<counted operations",
        "<kernel",
    )
    rows = list(map(_row, proofs))
    below = [summary(proofs)]
    for proof in proofs:
        if proof.agreement in ("differs", "missed"):
            below.append(f"{_short(proof.kernel)}: {proof.reason}")
    grid = Grid("Proofs", headings, rows, stretch=True, below=tuple(below))
    head = f"{gpu.name}, operations of one launch by source type"
    page = Page("", GOOD, (gpu.name,), "", fails=False, body=(head, grid))
    return write_text(page, terminal=color, verbose=True, width=width).rstrip()


def _row(proof: Proof) -> tuple[str, ...]:
    flops = "-"
    if proof.flops:
        flops = f"{proof.flops:,}"
    return (
        proof.agreement,
        str(proof.launches),
        proof.precision,
        flops,
        _operations(proof),
        _short(proof.kernel),
    )


def summary(proofs: Sequence[Proof]) -> str:
    """Return one sentence: how many kernels agree, and what the others do."""
    counts = Tally(proof.agreement for proof in proofs)
    claimed = counts["agrees"] + counts["differs"] + counts["missed"]
    text = f"The counters agree with the class of {counts['agrees']} of {claimed} GEMM kernels"
    if counts["unclaimed"]:
        text += f"; {counts['unclaimed']} more have names without types"
    if counts["not counted"]:
        text += f"; of {counts['not counted']} nothing was counted"
    return f"{text}."


def _operations(proof: Proof) -> str:
    counted_types = set(filter(proof.operations.get, proof.operations))
    # What the CUDA cores add up counts where nothing else does.
    shown_types = counted_types - CUDA_CORES or counted_types
    shown = []
    for name, count in proof.operations.items():
        if name in shown_types:
            shown.append(f"{name} {count:,}")
    return ", ".join(shown) or "none"


def _short(name: str) -> str:
    return cut_middle(printable(name), _NAME_WIDTH)
