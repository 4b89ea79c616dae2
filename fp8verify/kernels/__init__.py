"""What a GPU kernel is: from its name, and from the operator that launched it."""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import asdict, replace

from fp8verify.kernels import describe
from fp8verify.kernels.describe import element_class
from fp8verify.kernels.operators import (
    Evidence,
    encloses,
    evidence_of,
    multiplies_nothing,
)
from fp8verify.terms import (
    COUNTED,
    Hint,
    KernelName,
    OpContext,
    Precision,
    Role,
    Scaling,
)

__all__ = ["Classification", "alike", "classify", "decode"]

Source = Literal["name", "op", "name+op", "library", "code", "none"]

_UNKNOWN_LIBRARY: Final = "unknown"
# Libraries whose kernels are named by hand: their names may be of one operand alone.
_HAND_WRITTEN: Final = frozenset({_UNKNOWN_LIBRARY, "Triton"})


class Classification(KernelName, frozen=True, kw_only=True):
    """The classification of a kernel launched by an operator, with its evidence.

    `source` is the evidence of the precision: the name, the operator, both in agreement, what the
    library logged, its machine code, or none.
    `conflict` has both statements if name and operator disagree. If both are high or both are
    low precision, the name decides, because it is the kernel that ran; otherwise the precision is
    unknown. `upcast_from` is the format of operands that the GPU cannot multiply and that are
    converted first. `hidden` marks a possible product, by its inputs and time and not by its name.
    """

    source: Source = "name"
    conflict: str | None = None
    upcast_from: Precision | None = None
    hidden: bool = False


def decode(name: str) -> KernelName:
    """Decode a kernel's name.

    It never raises and takes time linear in the name's length. A name that no grammar knows has the
    role OTHER. A name of a GEMM without its types is a GEMM of UNKNOWN precision.
    """
    # Their patterns take a while, which a run without a trace does not wait for.
    from fp8verify.kernels.grammars import GRAMMARS
    from fp8verify.kernels.symbol import Symbol

    symbol = Symbol(name)
    for grammar in GRAMMARS:
        kernel = grammar(symbol)
        if kernel is not None:
            return replace(kernel, name=name)
    unknown = describe.other(_UNKNOWN_LIBRARY, Role.OTHER, "no grammar knows this name")
    return replace(unknown, name=name)


_SIXTEEN_BITS = frozenset({"c10::Half", "c10::BFloat16"})


def classify(decoded: KernelName, op: OpContext | None) -> Classification:
    """Classify a kernel: by its name if that is certain, else by its operator."""
    kernel = _classify(decoded, op)
    if kernel.precision is not Precision.UNKNOWN:
        return kernel
    types = frozenset(op.types) if op is not None else frozenset()
    is_scaled_mm = decoded.hint is Hint.SCALED_MM and decoded.role.is_gemm
    if is_scaled_mm and not any(types):
        reason = f"TorchInductor kernel, {Hint.SCALED_MM.value}"
        return replace(kernel, precision=Precision.FP8, source="name", reason=reason)
    if decoded.hint is Hint.SIXTEEN_BITS or decoded.hint is Hint.WIDENED:
        precision = Precision.BF16
        if _SIXTEEN_BITS & types == {"c10::Half"}:
            precision = Precision.FP16
        reason = f"{kernel.reason}; {decoded.hint.value}"
        return replace(kernel, precision=precision, source="name", reason=reason)
    return kernel


def _classify(decoded: KernelName, op: OpContext | None) -> Classification:
    is_silent = decoded.library == _UNKNOWN_LIBRARY and decoded.role is Role.OTHER
    source: Source = "none" if is_silent else "name"
    kernel = Classification(**asdict(decoded), source=source)
    if kernel.split_k:  # a part of its GEMM
        kernel = replace(kernel, role=Role.GEMM)
    if op is None:
        return kernel
    if decoded.role.is_gemm and multiplies_nothing(op):
        statement = f"the name says {decoded.role.value} ({decoded.reason})"
        conflict = f"{statement}, and {op.name} multiplies nothing"
        return replace(kernel, precision=Precision.UNKNOWN, conflict=conflict)
    enclosing = encloses(op)
    if enclosing and decoded.role.is_gemm:
        reason = f"{kernel.reason}; launched by {op.name}"
        return replace(kernel, role=enclosing, reason=reason)
    may_multiply = kernel.role.is_gemm or is_silent
    evidence = evidence_of(op)
    if evidence is None or not may_multiply:
        return kernel
    if kernel.precision is Precision.UNKNOWN:
        return _by_operator(kernel, op, evidence)
    return _both(kernel, op, evidence)


def _both(kernel: Classification, op: OpContext, evidence: Evidence) -> Classification:
    """Join a GEMM's name with its operator's types."""
    is_mixed = element_class(evidence.a) is not element_class(evidence.b)
    is_low = kernel.precision.is_low
    is_allowed = _allows(evidence, kernel.precision)
    is_by_hand = is_mixed and is_low and kernel.library in _HAND_WRITTEN
    is_counted = op.name.startswith(COUNTED)
    if is_by_hand or (is_counted and not is_allowed):
        return _by_operator(replace(kernel, a=None, b=None), op, evidence)
    kernel = _with_types(kernel, evidence)
    if is_allowed and evidence.maybe:
        return replace(kernel, source="name+op")
    if is_allowed:
        return replace(kernel, source="name")
    classes = sorted(precision.value for precision in evidence.maybe)
    inputs = ", ".join(op.types[:3])
    conflict = (
        f"the name says {kernel.precision.value} ({kernel.reason}), "
        f"the operator {op.name} says {' or '.join(classes)} (inputs {inputs})"
    )
    kernel = replace(kernel, conflict=conflict)
    may_be_low = any(precision.is_low for precision in evidence.maybe)
    if may_be_low is not is_low:
        return replace(kernel, precision=Precision.UNKNOWN)
    return kernel


def _by_operator(
    kernel: Classification, op: OpContext, evidence: Evidence
) -> Classification:
    """Classify by the operator, if the name does not show the operand types."""
    is_known = evidence.precision is not Precision.UNKNOWN
    is_named = kernel.role.is_gemm and not kernel.split_k
    if is_known:
        said = f"{op.name} multiplies {describe.Operands(evidence.a, evidence.b)}"
    elif evidence.maybe:
        said = f"{op.name} has FP32 inputs, multiplied in FP32 or TF32"
    else:
        said = f"{op.name} does not record usable input types"
    return replace(
        _with_types(kernel, evidence),
        precision=evidence.precision,
        source="op" if is_known or not is_named else "name",
        reason=f"{kernel.reason}; {said}",
    )


def _with_types(kernel: Classification, evidence: Evidence) -> Classification:
    """Fill in from the operator what the name leaves open: operand types, experts, scaling.

    A name without a token for the scaling means tensorwise, which the shape of the scales may
    refute.
    """
    scaling = kernel.scaling
    if scaling in (None, Scaling.TENSORWISE) and _allows(evidence, kernel.precision):
        scaling = evidence.scaling or scaling
    grouped = Role.GROUPED_GEMM in (kernel.role, evidence.role)
    return replace(
        kernel,
        role=Role.GROUPED_GEMM if grouped else Role.GEMM,
        a=kernel.a or evidence.a,
        b=kernel.b or evidence.b,
        scaling=scaling,
    )


def alike(one: Precision, other: Precision) -> bool:
    """Whether two classes are the same as far as witnesses can tell that know no block scales.

    Below 16 bits may be any of the low formats.
    """
    if Precision.BELOW16 in (one, other):
        return one.is_low and other.is_low
    if one.is_fp8:
        return other.is_fp8
    if one.is_fp4:
        return other.is_fp4
    return one is other


def _allows(evidence: Evidence, precision: Precision) -> bool:
    """Whether the operator's recorded types allow the class; without any recorded, all are."""
    if not evidence.maybe or precision is Precision.UNKNOWN:
        return True
    return any(alike(precision, maybe) for maybe in evidence.maybe)
