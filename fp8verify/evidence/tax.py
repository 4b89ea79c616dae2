"""The FP8 tax: the kernels that a run in BF16 would not need, to cast, scale and turn operands."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from fp8verify.evidence.gemms import Kind
from fp8verify.evidence.rank import RankEvidence, of_the_model
from fp8verify.model import Leg, OpContext, Role

# Functions whose kernels, but for their GEMMs, all serve FP8; autograd's nodes add "Backward".
# Evidence: float8/float8_linear.py, float8/float8_training_tensor.py, prototype/moe_training and
# prototype/blockwise_fp8_training of torchao 0.17; float8/float8_linear.py of torchao 0.5 to 0.9.
_LAYER_FUNCTIONS = (
    "matmul_with_hp_or_float8_args",
    "_Float8GroupedMM",
    "fp8_blockwise_mm",
    "manual_float8_matmul_with_args_in_float8",
)
_CAST_FUNCTIONS = ("_ToFloat8ConstrFunc", "NoopFwToFloat8BwDynamic", "NoopFwToFloat8E5M2BwDynamic")
_FUNCTIONS = frozenset(
    name + suffix for name in (*_LAYER_FUNCTIONS, *_CAST_FUNCTIONS) for suffix in ("", "Backward")
)
# FSDP2 runs torchao's casts of the weights before it gathers them (fsdp_pre_all_gather).
_GATHER = "FSDP::all_gather"
_AMAX_OPS = frozenset({"aten::abs", "aten::max", "aten::amax", "aten::aminmax"})
_SCALE_OPS = frozenset(
    {"aten::reciprocal", "aten::div", "aten::exp2", "aten::log2", "aten::floor", "aten::stack"}
)
_GATHER_OPS = _AMAX_OPS | _SCALE_OPS
_ROLES = {
    Role.CAST_QUANTIZE: "cast",
    Role.AMAX_REDUCE: "amax",
    Role.TRANSPOSE: "transpose",
}


class TaxRow(NamedTuple):
    """Kernels of one purpose under one operator.

    Attributes:
        purpose: "cast", "amax", "scale" (arithmetic on scales) or "transpose" (copies of FP8 data
            to the layout that the GEMM needs).
        fused: whether a compiler or library made them one pass over the data. A fused kernel may
            also do work that BF16 needs, so that its time is the most that FP8 can have cost.
    """

    purpose: str
    op: str | None
    leg: Leg
    fused: bool
    calls: int
    time_ns: int


class Tax(NamedTuple):
    """The rows of a rank, and the part of the time that eager mode's unfused kernels took."""

    rows: tuple[TaxRow, ...] = ()

    @property
    def time_ns(self) -> int:
        """All of it, in ns."""
        return sum(row.time_ns for row in self.rows)

    @property
    def unfused_ns(self) -> int:
        """What kernels took that each do one step of a cast."""
        return sum(row.time_ns for row in self.rows if not row.fused)


def fp8_tax(rank: RankEvidence) -> Tax:
    """Add up what the rank spent on FP8 beside its GEMMs; nothing where it made no FP8."""
    if not (rank.ran_fp8 or rank.made_fp8_tensors):
        return Tax()
    totals: dict[tuple[str, str | None, Leg, bool], list[int]] = defaultdict(lambda: [0, 0])
    for total in rank.survey.others:
        purpose = purpose_of(total.kind)
        if purpose is not None:
            op = total.kind.op
            fused = total.kind.classification.library != "PyTorch"
            row = totals[purpose, op.name if op else None, _leg(op), fused]
            row[0] += total.calls
            row[1] += total.time_ns
    rows = [TaxRow(*key, calls, time_ns) for key, (calls, time_ns) in totals.items()]
    return Tax(tuple(sorted(rows, key=lambda row: -row.time_ns)))


def purpose_of(kind: Kind) -> str | None:
    """Return what a kernel that is no GEMM does for FP8, as `TaxRow.purpose`, or None."""
    if kind.op is None or not _FUNCTIONS.intersection((kind.op.name, *kind.op.parents)):
        return _purpose_elsewhere(kind)
    if kind.classification.role in (Role.COMMUNICATION, Role.ATTENTION, Role.MEMORY):
        return None
    return _purpose_inside(kind.op, kind.classification.role)


def _purpose_elsewhere(kind: Kind) -> str | None:
    """Judge a kernel by its role, outside the functions that are all about FP8."""
    if not of_the_model(kind.op):
        return None
    op = kind.op
    if op is not None and any(name.startswith(_GATHER) for name in op.parents):
        around = _GATHER_OPS.intersection((op.name, *op.parents))
        if around:
            return "amax" if around & _AMAX_OPS else "scale"
    return _ROLES.get(kind.classification.role)


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


def _leg(op: OpContext | None) -> Leg:
    """Say in which pass it ran: a gradient's cast serves dgrad and wgrad both."""
    if op is None or not op.backward:
        return Leg.FPROP if op is not None else Leg.UNKNOWN
    return Leg.RECOMPUTE if set(_LAYER_FUNCTIONS) & set(op.parents) else Leg.BACKWARD
