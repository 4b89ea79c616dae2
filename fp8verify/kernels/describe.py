"""Build what a grammar found into a KernelName, with its reason and the meaning of its tokens."""

from __future__ import annotations

from typing import Final

from fp8verify.kernels.elements import product_class, spoken
from fp8verify.terms import KernelName, Precision, Role, Scaling

Tokens = tuple[tuple[str, str], ...]

# The first token of a split-K reduction, by which `classify` knows it.
SPLIT_K: Final = ("splitKreduce", "adds up the parts of a GEMM whose K was split")
# Inductor has a template of torch._scaled_mm for FP8 alone, FP4 goes to cuBLAS
# (torch/_inductor/kernel/mm.py, `tuned_scaled_mm`, torch 2.11).
SCALED_MM: Final = ("scaled_mm", "the product of torch._scaled_mm, whose template takes FP8")

SCALING: Final[dict[Scaling, str]] = {
    Scaling.TENSORWISE: "one scale for a whole tensor",
    Scaling.ROWWISE: "one scale for each row of A and column of B",
    Scaling.BLOCKWISE: "FP32 scales for blocks of 128",
    Scaling.MXFP8: "MXFP8: one E8M0 scale for 32 elements",
    Scaling.NVFP4: "NVFP4: one E4M3 scale for 16 elements",
    Scaling.MXFP4: "MXFP4: one E8M0 scale for 32 elements",
}


def operands(a: str | None, b: str | None, out: str | None) -> str:
    """Say the types of a product: "A e4m3 × B e5m2 -> bf16"."""  # noqa: RUF002
    arrow = f" -> {out}" if out else ""
    return f"A {a or '?'} × B {b or '?'}{arrow}"  # noqa: RUF001


def scaling_of(a: str | None, scale: str | None) -> Scaling | None:
    """Return the block scaling that a hardware scale format means for operands of type `a`."""
    if scale == "ue4m3":
        return Scaling.NVFP4
    if scale == "ue8m0":
        return Scaling.MXFP4 if a in ("e2m1", "fp4") else Scaling.MXFP8
    return None


def gemm(
    name: str,
    library: str,
    evidence: str,
    a: str | None,
    b: str | None,
    out: str | None = None,
    *,
    role: Role = Role.GEMM,
    scale: str | None = None,
    scaling: Scaling | None = None,
    precision: Precision | None = None,
    fast_accum: bool | None = None,
    tokens: Tokens = (),
) -> KernelName:
    """Describe a matrix multiplication (or `role`) whose name tells the types of its operands."""
    found = product_class(a, b, scale) if precision is None else precision
    reason = f"{evidence}: {operands(a, b, out)}"
    if found is Precision.UNKNOWN:
        reason += "; the precision of the multiplication cannot be told from it"
    return KernelName(
        name=name,
        role=role,
        precision=found,
        library=library,
        reason=reason,
        a=a,
        b=b,
        out=out,
        scaling=scaling or scaling_of(a, scale),
        fast_accum=fast_accum,
        tokens=tokens or operand_tokens(a, b, out),
    )


def other(
    name: str,
    library: str,
    role: Role,
    reason: str,
    *,
    element: str | None = None,
    precision: Precision = Precision.UNKNOWN,
    tokens: Tokens = (),
) -> KernelName:
    """Describe a kernel that is no GEMM of known types; `element` is the type that it writes."""
    return KernelName(
        name=name,
        role=role,
        precision=precision,
        library=library,
        reason=reason,
        out=element,
        tokens=tokens,
    )


def operand_tokens(a: str | None, b: str | None, out: str | None) -> Tokens:
    """Return the plainest tokens: each known type and which operand it is."""
    named = ((a, "operand A is"), (b, "operand B is"), (out, "the output is"))
    return tuple((element, f"{what} {spoken(element)}") for element, what in named if element)
