"""What a kernel that is no GEMM does for FP8, and whether the model launched it at all."""

from __future__ import annotations

from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.optimizers import in_optimizer
from fp8verify.kernels.operators import OPERATORS, Part, find
from fp8verify.report.model import OpContext, Role
from fp8verify.text import lazy_pattern


def _names(part: Part) -> frozenset[str]:
    return frozenset(name for name, row in OPERATORS.items() if row.part is part)


LAYER_FUNCTIONS = _names(Part.LAYER)
# Functions that are all about FP8, and the nodes of their backward passes.
FP8_FUNCTIONS = frozenset(
    name + suffix for name in LAYER_FUNCTIONS | _names(Part.CAST) for suffix in ("", "Backward")
)
_AMAX_OPS, _SCALE_OPS = _names(Part.AMAX), _names(Part.SCALE)
_GATHER_OPS = _AMAX_OPS | _SCALE_OPS
# Casts, and what a compiler makes of them.
_CASTING = frozenset({Role.ELEMENTWISE, Role.REDUCTION, Role.OTHER})
# Values, not the scales of blocks: torch.float8_e8m0fnu.
_LOW_TYPE = lazy_pattern(r"Float8_e[45]m|Float4_e2m1")
_ROLES = {
    Role.CAST_QUANTIZE: "cast",
    Role.AMAX_REDUCE: "amax",
    Role.TRANSPOSE: "transpose",
}


def of_the_model(op: OpContext | None) -> bool:
    """Whether neither the optimizer nor a codec of collectives launched a kernel."""
    if op is None:
        return True
    if find(op.name).part is Part.CODEC:
        return False
    # A profiler that an optimizer's hook steps begins the next step inside the optimizer's range;
    # the trace engine cuts that where the step is annotated, and it need not be.
    return not in_optimizer(op)


def purpose_of(kind: Kind) -> str | None:
    """Return what a kernel that is no GEMM does for FP8, as `TaxRow.purpose`, or None."""
    if kind.op is None or not FP8_FUNCTIONS.intersection((kind.op.name, *kind.op.parents)):
        return _purpose_elsewhere(kind)
    if kind.classification.role in (Role.COMMUNICATION, Role.ATTENTION, Role.MEMORY):
        return None
    return _purpose_inside(kind.op, kind.classification.role)


def _purpose_elsewhere(kind: Kind) -> str | None:
    """Judge a kernel by its role, outside the functions that are all about FP8."""
    if not of_the_model(kind.op):
        return None
    op = kind.op
    if op is not None and any(find(name).part is Part.GATHER for name in op.parents):
        around = _GATHER_OPS.intersection((op.name, *op.parents))
        if around:
            return "amax" if around & _AMAX_OPS else "scale"
    return _ROLES.get(kind.classification.role) or _by_types(kind)


def _by_types(kind: Kind) -> str | None:
    """Judge a kernel by the recorded types of its operator: what has FP8 data, and is no GEMM.

    Kernels beside a GEMM that its own operator launches set it up.
    """
    op, role = kind.op, kind.classification.role
    if op is None or role not in _CASTING or find(op.name).product is not None:
        return None
    low = [name for name in op.types if _LOW_TYPE.search(name)]
    if not low:
        return None
    return "transpose" if len(low) == len(_matrices(op)) > 1 else "cast"


def _matrices(op: OpContext) -> list[str]:
    """Return the types of the inputs that are tensors of numbers, not of scales or scalars."""
    return [name for name, dims in zip(op.types, op.dims, strict=False) if len(dims) > 1 and name]


def _purpose_inside(op: OpContext, role: Role) -> str:
    """Say which step of torchao's casts an eager operator is: amax, scale, cast, then layout."""
    around = {op.name, *op.parents}
    if role is Role.AMAX_REDUCE or around & _AMAX_OPS:
        return "amax"
    if around & _SCALE_OPS or "double" in op.types:
        return "scale"
    moves = [name for name in op.types if "Float8" in name]
    if role is Role.TRANSPOSE or (len(moves) > 1 and role is not Role.CAST_QUANTIZE):
        return "transpose"
    return "cast"
