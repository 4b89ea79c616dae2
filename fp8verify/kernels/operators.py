"""What the CPU operator that launched a kernel says about it: its kind and its operand types."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from fp8verify.kernels.elements import CPP, product_class
from fp8verify.model import OpContext, Precision, Role, Scaling

# GEMM operators and the places of A and B among their recorded inputs, from the schemas in
# aten/src/ATen/native/native_functions.yaml (PyTorch 2.11), torchao, vLLM and FBGEMM.
GEMMS: Final[dict[str, tuple[Role, int, int]]] = {
    "aten::mm": (Role.GEMM, 0, 1),
    "aten::bmm": (Role.GEMM, 0, 1),
    "aten::mv": (Role.GEMM, 0, 1),
    "aten::dot": (Role.GEMM, 0, 1),
    "aten::matmul": (Role.GEMM, 0, 1),
    "aten::linear": (Role.GEMM, 0, 1),
    "aten::addmm": (Role.GEMM, 1, 2),
    "aten::addmm_": (Role.GEMM, 1, 2),
    "aten::addmv": (Role.GEMM, 1, 2),
    "aten::addmv_": (Role.GEMM, 1, 2),
    "aten::addbmm": (Role.GEMM, 1, 2),
    "aten::baddbmm": (Role.GEMM, 1, 2),
    "aten::baddbmm_": (Role.GEMM, 1, 2),
    "aten::_addmm_activation": (Role.GEMM, 1, 2),
    "aten::_int_mm": (Role.GEMM, 0, 1),
    "aten::_scaled_mm": (Role.GEMM, 0, 1),
    "aten::_scaled_mm_v2": (Role.GEMM, 0, 1),
    "aten::_grouped_mm": (Role.GROUPED_GEMM, 0, 1),
    "aten::_scaled_grouped_mm": (Role.GROUPED_GEMM, 0, 1),
    "aten::_scaled_grouped_mm_v2": (Role.GROUPED_GEMM, 0, 1),
    "torchao::blockwise_fp8_gemm": (Role.GEMM, 0, 2),
    "torchao::triton_fp8_gemm_1x128_128x128": (Role.GEMM, 0, 1),
    "torchao::triton_fp8_gemm_1x128_128x1": (Role.GEMM, 0, 1),
    "_C::cutlass_scaled_mm": (Role.GEMM, 1, 2),
    "vllm::cutlass_scaled_mm": (Role.GEMM, 1, 2),
    "_C::cutlass_scaled_fp4_mm": (Role.GEMM, 1, 2),
    "trtllm::cublas_scaled_mm": (Role.GEMM, 0, 1),
    "sgl_kernel::fp8_scaled_mm": (Role.GEMM, 0, 1),
    "fbgemm::bf16bf16bf16_grouped": (Role.GROUPED_GEMM, 0, 1),
}
# Operators whose name is the type of their operands: FBGEMM and MSLK f8f8bf16_rowwise, ....
_NAMED: Final = re.compile(r"(?:fbgemm|mslk)::(?P<type>f8f8|bf16bf16|f4f4|i8i8)bf16\w*")
_NAMED_CLASSES: Final = {
    "f8f8": Precision.FP8,
    "bf16bf16": Precision.BF16,
    "f4f4": Precision.FP4,
    "i8i8": Precision.INT8,
}
_CONVOLUTION: Final = re.compile(r"aten::_?(?:\w+_)?conv(?:olution|_transpose|\dd)\w*")
_ATTENTION: Final = re.compile(
    r"aten::_(?:flash|efficient|cudnn)_attention_\w+|aten::_?scaled_dot_product_\w+"
)
_SCALED: Final = frozenset({"aten::_scaled_mm", "aten::_scaled_grouped_mm"})
_SCALE_PLACE: Final = 2  # self, mat2, scale_a, scale_b, ...


class Evidence(msgspec.Struct, frozen=True):
    """A GEMM operator's testimony; `maybe` are the classes that its input types allow."""

    role: Role
    maybe: frozenset[Precision]
    a: str | None = None
    b: str | None = None
    scaling: Scaling | None = None

    @property
    def precision(self) -> Precision:
        """The one class that the operator allows, otherwise UNKNOWN."""
        return next(iter(self.maybe)) if len(self.maybe) == 1 else Precision.UNKNOWN


def encloses(op: OpContext) -> Role | None:
    """Return CONV or ATTENTION for operators whose matrix products are not GEMM time."""
    if _CONVOLUTION.fullmatch(op.name):
        return Role.CONV
    return Role.ATTENTION if _ATTENTION.fullmatch(op.name) else None


def testimony(op: OpContext) -> Evidence | None:
    """Return what a GEMM operator says, None for any other operator.

    Operators of Transformer Engine (`_Linear`) and compiled functions record the types of the
    module's inputs, not of the GEMM's, and are no witnesses.
    """
    name = op.name.partition(".")[0]
    named = _NAMED.fullmatch(name)
    if named:
        role = Role.GROUPED_GEMM if "grouped" in name else Role.GEMM
        return Evidence(role, frozenset({_NAMED_CLASSES[named["type"]]}))
    if name.startswith("triton_tem_fused_"):
        row = (Role.GROUPED_GEMM if "grouped_mm" in name else Role.GEMM, 0, 1)
    elif name in GEMMS:
        row = GEMMS[name]
    else:
        return None
    role, place_a, place_b = row
    a, b = _element(op, place_a), _element(op, place_b)
    return Evidence(role, _classes(op, name, a, b), a, b, _scaling(op, name, a))


def _element(op: OpContext, place: int) -> str | None:
    text = op.types[place] if place < len(op.types) else ""
    return CPP.get(text.rpartition("::")[2])


def _classes(op: OpContext, name: str, a: str | None, b: str | None) -> frozenset[Precision]:
    if a == b == "fp32":  # which of the two is a process-wide setting that no operator records
        return frozenset({Precision.FP32, Precision.TF32})
    scale = "ue8m0" if _scale_type(op, name) == "Float8_e8m0fnu" else None
    found = product_class(a, b, scale)
    return frozenset() if found is Precision.UNKNOWN else frozenset({found})


def _scale_type(op: OpContext, name: str) -> str | None:
    if name not in _SCALED or len(op.types) <= _SCALE_PLACE:
        return None
    return op.types[_SCALE_PLACE].rpartition("::")[2]


def _scaling(op: OpContext, name: str, a: str | None) -> Scaling | None:
    """Return the scaling that the shape of scale_a means: one element, or one a row."""
    if name != "aten::_scaled_mm" or a not in ("e4m3", "e5m2") or len(op.dims) <= _SCALE_PLACE:
        return None
    if _scale_type(op, name) == "Float8_e8m0fnu":
        return Scaling.MXFP8
    rows, scale = op.dims[0], op.dims[_SCALE_PLACE]
    if all(size == 1 for size in scale):
        return Scaling.TENSORWISE
    per_row = len(scale) == 2 and scale[1] == 1 and rows[:1] == scale[:1]
    return Scaling.ROWWISE if per_row else Scaling.BLOCKWISE
