"""What a kernel that is no GEMM does for FP8, and whether the model launched it at all."""

from __future__ import annotations

import re

from fp8verify.evidence.gemms import Kind
from fp8verify.model import OpContext, Role

# Functions whose kernels, but for their GEMMs, all serve FP8; autograd's nodes add "Backward".
# Evidence: float8/float8_linear.py, float8/float8_training_tensor.py, prototype/moe_training and
# prototype/blockwise_fp8_training of torchao 0.17; float8/float8_linear.py of torchao 0.5 to 0.9.
LAYER_FUNCTIONS = (
    "matmul_with_hp_or_float8_args",
    "_Float8GroupedMM",
    "fp8_blockwise_mm",
    "manual_float8_matmul_with_args_in_float8",
)
_CAST_FUNCTIONS = ("_ToFloat8ConstrFunc", "NoopFwToFloat8BwDynamic", "NoopFwToFloat8E5M2BwDynamic")
_FUNCTIONS = frozenset(
    name + suffix for name in (*LAYER_FUNCTIONS, *_CAST_FUNCTIONS) for suffix in ("", "Backward")
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
# FBGEMM's codecs of embeddings and collectives: fbgemm::FloatToHFP8Quantized and the like (1.9).
_CODEC = re.compile(r"fbgemm::\w*Quantized")
# Functions of layers, which no optimizer calls: AOTAutograd's and Transformer Engine's (2.20).
_LAYERS = frozenset(
    {"CompiledFunction", "_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear"}
)


def of_the_model(op: OpContext | None) -> bool:
    """Whether neither the optimizer nor a codec of collectives launched a kernel."""
    if op is None:
        return True
    if _CODEC.match(op.name):
        return False
    around = (op.name, *op.parents)
    # A profiler that an optimizer's hook steps begins the next step inside the optimizer's range;
    # the trace engine cuts that where the step is annotated, and it need not be.
    inside = next((i for i, name in enumerate(around) if name.startswith("Optimizer.")), None)
    return inside is None or op.backward or not _LAYERS.isdisjoint(around[:inside])


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
