"""Join what a kernel's name says with what the operator that launched it says."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from fp8verify.kernels import describe
from fp8verify.kernels.elements import element_class
from fp8verify.kernels.operator_types import Evidence, encloses, evidence_of, multiplies_nothing
from fp8verify.terms import KernelName, OpContext, Precision, Role, Scaling

Source = Literal["name", "op", "name+op", "none"]

_UNKNOWN_LIBRARY: Final = "unknown"
# Libraries whose kernels are named by hand: their names may be of one operand alone.
_HAND_WRITTEN: Final = frozenset({_UNKNOWN_LIBRARY, "Triton"})
# Inputs whose block scales were not recorded look like plain FP8 or FP4 to an operator.
_SAME: Final = (
    frozenset({Precision.FP8, Precision.MXFP8}),
    frozenset({Precision.FP4, Precision.NVFP4, Precision.MXFP4}),
)


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel launched by an operator did, and who says so.

    `source` is the witness of the precision: the name, the operator, both in agreement, or none.
    `split_k` marks a kernel that adds up the partial sums of a GEMM: its time is GEMM time, but it
    is not counted as a GEMM.
    `conflict` holds both statements where name and operator disagree. Of two classes that are both
    high or both low the name is believed, because it is the kernel that ran; otherwise the
    precision is unknown. `upcast_from` is the format of operands that the GPU cannot
    multiply, and that are converted first.
    """

    role: Role
    precision: Precision
    library: str
    source: Source
    reason: str
    a: str | None = None
    b: str | None = None
    out: str | None = None
    scaling: Scaling | None = None
    fast_accum: bool | None = None
    split_k: bool = False
    conflict: str | None = None
    upcast_from: Precision | None = None


def classify(decoded: KernelName, op: OpContext | None) -> Classification:
    """Say what a kernel did: its name decides where it can, else its operator."""
    found = _classify(decoded, op)
    types_known = op is not None and any(op.types)
    if found.precision is Precision.UNKNOWN and _is_scaled_mm(decoded) and not types_known:
        reason = f"TorchInductor kernel, {describe.SCALED_MM[1]}"
        return msgspec.structs.replace(found, precision=Precision.FP8, source="name", reason=reason)
    return found


def _is_scaled_mm(decoded: KernelName) -> bool:
    return describe.SCALED_MM in decoded.tokens and decoded.role.is_gemm


def _classify(decoded: KernelName, op: OpContext | None) -> Classification:
    if op is None:
        return _by_name(decoded)
    if decoded.role.is_gemm and multiplies_nothing(op):
        return _doubted(decoded, op)
    enclosing = encloses(op)
    if enclosing and decoded.role.is_gemm:
        return _by_name(decoded, enclosing, f"{decoded.reason}; launched by {op.name}")
    evidence = evidence_of(op)
    if evidence is None:
        return _by_name(decoded)
    if decoded.role.is_gemm or _is_split_k(decoded):
        return _both(decoded, op, evidence)
    if decoded.role is Role.OTHER and decoded.library == _UNKNOWN_LIBRARY:
        return _by_operator(decoded, op, evidence)
    return _by_name(decoded)


def _is_split_k(decoded: KernelName) -> bool:
    return describe.SPLIT_K in decoded.tokens


def _by_name(
    decoded: KernelName, role: Role | None = None, reason: str | None = None
) -> Classification:
    """Believe the name alone; a split-K reduction is a part of its GEMM."""
    split = _is_split_k(decoded)
    silent = decoded.library == _UNKNOWN_LIBRARY and decoded.role is Role.OTHER
    return Classification(
        role=role or (Role.GEMM if split else decoded.role),
        precision=decoded.precision,
        library=decoded.library,
        source="none" if silent else "name",
        reason=reason or decoded.reason,
        a=decoded.a,
        b=decoded.b,
        out=decoded.out,
        scaling=decoded.scaling,
        fast_accum=decoded.fast_accum,
        split_k=split,
    )


def _both(decoded: KernelName, op: OpContext, evidence: Evidence) -> Classification:
    """Join a GEMM's name with its operator's types."""
    if decoded.precision is Precision.UNKNOWN:
        return _by_operator(decoded, op, evidence)
    mixed = element_class(evidence.a) is not element_class(evidence.b)
    if mixed and decoded.precision.is_low and decoded.library in _HAND_WRITTEN:
        unsaid = msgspec.structs.replace(decoded, precision=Precision.UNKNOWN, a=None, b=None)
        return _by_operator(unsaid, op, evidence)
    grouped = Role.GROUPED_GEMM in (decoded.role, evidence.role)
    agrees = _allows(evidence, decoded.precision)
    disputed = not agrees and _is_low(evidence) is not decoded.precision.is_low
    return Classification(
        role=Role.GROUPED_GEMM if grouped else Role.GEMM,
        precision=Precision.UNKNOWN if disputed else decoded.precision,
        library=decoded.library,
        source="name+op" if agrees and evidence.maybe else "name",
        reason=decoded.reason,
        a=decoded.a or evidence.a,
        b=decoded.b or evidence.b,
        out=decoded.out,
        scaling=_scaling(decoded, evidence) if agrees else decoded.scaling,
        fast_accum=decoded.fast_accum,
        split_k=_is_split_k(decoded),
        conflict=None if agrees else _conflict(decoded, op, evidence),
    )


def _is_low(evidence: Evidence) -> bool:
    return any(precision.is_low for precision in evidence.maybe)


def _doubted(decoded: KernelName, op: OpContext) -> Classification:
    """Believe neither a name that says GEMM nor an operator that multiplies nothing."""
    conflict = f"the name says {decoded.role.value} ({decoded.reason}), and {op.name} multiplies"
    return msgspec.structs.replace(
        _by_name(decoded), precision=Precision.UNKNOWN, conflict=f"{conflict} nothing"
    )


def _scaling(decoded: KernelName, evidence: Evidence) -> Scaling | None:
    """Return the scaling that the name says, else what the shape of the scales says.

    A name without a token for it means tensorwise, which the shape of the scales may refute.
    """
    if decoded.scaling in (None, Scaling.TENSORWISE):
        return evidence.scaling or decoded.scaling
    return decoded.scaling


def _allows(evidence: Evidence, precision: Precision) -> bool:
    """Whether the operator's recorded types allow the class; without any recorded, all are."""
    if not evidence.maybe or precision in evidence.maybe:
        return True
    return any(precision in alike and evidence.maybe & alike for alike in _SAME)


def _conflict(decoded: KernelName, op: OpContext, evidence: Evidence) -> str:
    allowed = " or ".join(sorted(precision.value for precision in evidence.maybe))
    return (
        f"the name says {decoded.precision.value} ({decoded.reason}), "
        f"the operator {op.name} says {allowed} (inputs {', '.join(op.types[:3])})"
    )


def _by_operator(decoded: KernelName, op: OpContext, evidence: Evidence) -> Classification:
    """Believe the operator, where the name does not say the operand types."""
    known = evidence.precision is not Precision.UNKNOWN
    if known:
        said = f"{op.name} multiplies {describe.operands(evidence.a, evidence.b, None)}"
    elif evidence.maybe:
        said = f"{op.name} has FP32 inputs, multiplied in FP32 or TF32"
    else:
        said = f"{op.name} does not record usable input types"
    named = decoded.role.is_gemm
    return Classification(
        role=Role.GROUPED_GEMM if Role.GROUPED_GEMM in (decoded.role, evidence.role) else Role.GEMM,
        precision=evidence.precision,
        library=decoded.library,
        source="op" if known or not named else "name",
        reason=f"{decoded.reason}; {said}",
        a=decoded.a or evidence.a,
        b=decoded.b or evidence.b,
        out=decoded.out,
        scaling=_scaling(decoded, evidence),
        fast_accum=decoded.fast_accum,
        split_k=_is_split_k(decoded),
    )
