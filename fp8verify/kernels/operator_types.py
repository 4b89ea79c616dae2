"""What the operator that launched a kernel says about it: its kind and its operands' types."""

from __future__ import annotations

import re
from math import prod
from typing import Final

import msgspec

from fp8verify.kernels.describe import CPP, product_class
from fp8verify.kernels.operators import UNKNOWN, Product, find, function_of
from fp8verify.terms import OpContext, Precision, Role, Scaling, Shape

_FP8: Final = frozenset({"e4m3", "e5m2"})
_BLOCK_SCALES: Final = {"Float8_e8m0fnu": "ue8m0", "Float8_e4m3fn": "ue4m3"}
_HIGH: Final = frozenset({"bf16", "fp16", "fp32"})
_PRODUCT_WORD: Final = re.compile(r"gemm|matmul|(?:^|_|b)mm(?:_|$)|linear")
# What the operators of libraries may be called that cast first and multiply then.
_MAY_MULTIPLY: Final = re.compile(
    r"gemm|mm|matmul|linear|moe|expert|mlp|ffn|attn|attention|proj|layer|forward|backward|apply"
    r"|conv|dot|einsum|[wa]\d+[wa]\d"
)
_COPY_WORD: Final = re.compile(
    r"quant|cast|copy|transpos|permut|pad|shuffle|swizzle|gather|scatter"
)
# Operators of ATen that copy, fill or compute element by element, and kernels that Inductor fused
# of such (torch/_inductor/codegen/triton.py: pointwise, reduction, persistent reduction).
_NO_PRODUCT: Final = re.compile(
    r"aten::(?:_?(?:to_)?copy_?|to|clone|contiguous|fill_|zero_|zeros|cat|add_?|sub_?|mul_?|div_?"
    r"|abs_?|max|amax|clamp(?:_min|_max)?_?|reciprocal_?|sum|mean|pow|sqrt|rsqrt|exp|neg|silu"
    r"(?:_backward)?|gelu(?:_backward)?|embedding|arange|gather|scatter_?|_foreach_\w+|_fused_(?:adam|sgd|rms)\w+)"
    r"|triton_(?:poi|red|per)_fused_\w+"
)


class Evidence(msgspec.Struct, frozen=True):
    """What a GEMM operator says; `maybe` are the classes that its input types allow."""

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
    """Return CONV or ATTENTION for operators whose matrix products are not GEMM time.

    GROUPED_GEMM is that of a function, its node of the backward pass included, whose products are
    those of experts.
    """
    return find(op.name).encloses or find(function_of(op.name) or "").encloses


def multiplies_nothing(op: OpContext) -> bool:
    """Whether an operator certainly multiplies no matrices, whatever the kernel's name."""
    if _NO_PRODUCT.fullmatch(op.name):
        return True
    own = op.name.rpartition("::")[2].lower()
    return (
        find(op.name) is UNKNOWN
        and "::" in op.name
        and _COPY_WORD.search(own) is not None
        and _MAY_MULTIPLY.search(own) is None
    )


def evidence_of(op: OpContext) -> Evidence | None:
    """Return the precision of a GEMM operator, None for any other operator.

    Operators of Transformer Engine (`_Linear`) and compiled functions record the types of the
    module's inputs, not of the GEMM's, and are no evidence.
    """
    product = find(op.name).product
    if product is None or not product.own_types:
        return None
    if product.named:
        return Evidence(product.role, frozenset({product.named}))
    a, b = _element(op, product.a), _element(op, product.b)
    return Evidence(product.role, _classes(op, product, a, b), a, b, _scaling(op, product, a))


def _element(op: OpContext, place: int) -> str | None:
    text = op.types[place] if place < len(op.types) else ""
    return CPP.get(text.rpartition("::")[2])


def _classes(op: OpContext, product: Product, a: str | None, b: str | None) -> frozenset[Precision]:
    if a == b == "fp32":  # which of the two is a process-wide setting that no operator records
        return frozenset({Precision.FP32, Precision.TF32})
    scale = _BLOCK_SCALES.get(_scale_type(op, product) or "")
    precision = product_class(a, b, scale)
    return frozenset() if precision is Precision.UNKNOWN else frozenset({precision})


def _scale_type(op: OpContext, product: Product) -> str | None:
    if product.scale_a is None or len(op.types) <= product.scale_a:
        return None
    return op.types[product.scale_a].rpartition("::")[2]


def _scaling(op: OpContext, product: Product, a: str | None) -> Scaling | None:
    """Return the scaling that the shape of scale_a means: one element, or one a row."""
    place = product.scale_a
    if place is None or product.role is not Role.GEMM or a not in _FP8 or len(op.dims) <= place:
        return None
    if _scale_type(op, product) == "Float8_e8m0fnu":
        return Scaling.MXFP8
    rows, scale = op.dims[product.a], op.dims[place]
    if all(size == 1 for size in scale):
        return Scaling.TENSORWISE
    per_row = len(scale) == 2 and scale[1] == 1 and rows[:1] == scale[:1]
    return Scaling.ROWWISE if per_row else Scaling.BLOCKWISE


def multiplies_fp8(op: OpContext) -> bool:
    """Whether an operator takes two FP8 matrices and gives none: then it is an FP8 GEMM.

    An operator in the table is judged by its row. The recorded inputs of any other may include
    outputs that the caller allocated. So the two matrices must be the only FP8 inputs and share a
    dimension, and at most one may have an input of its size in high precision, from which it could
    have been cast. If one could be a copy of the other by its shape (as large, or with rows of
    equal length, as permuted tokens have), the operator's name must also be that of a product.
    """
    row = find(op.name)
    if row.product is not None:
        evidence = evidence_of(op)
        return evidence is not None and evidence.precision in (Precision.FP8, Precision.MXFP8)
    if row is not UNKNOWN or op.name.startswith("aten::") or multiplies_nothing(op):
        return False  # the table has every product of ATen
    matrices = _two_matrices(op)
    if matrices is None or _cast_from_recorded(op, *matrices):
        return False
    a, b = matrices
    if not set(a[-2:]) & set(b[-2:]) - {1}:
        return False
    return (a[-1] == b[-2] and prod(a) != prod(b)) or _says_product(op.name)


def _says_product(name: str) -> bool:
    own = name.rpartition("::")[2].lower()
    return bool(_PRODUCT_WORD.search(own)) and not _COPY_WORD.search(own)


def _two_matrices(op: OpContext) -> tuple[Shape, Shape] | None:
    """Return the shapes of the FP8 tensors if these are two matrices, or stacks of them."""
    shapes = [dims for dims, element in _recorded(op) if element in _FP8]
    if len(shapes) != 2 or not all(len(dims) in (2, 3) and min(dims) > 0 for dims in shapes):
        return None
    return shapes[0], shapes[1]


def _cast_from_recorded(op: OpContext, a: Shape, b: Shape) -> bool:
    """Whether for both matrices a tensor of their size in high precision was recorded too."""
    sizes = {prod(dims) for dims, element in _recorded(op) if element in _HIGH}
    return prod(a) in sizes and prod(b) in sizes


def _recorded(op: OpContext) -> list[tuple[Shape, str | None]]:
    """Return shape and element type of each input of which both were recorded."""
    return [(dims, _element(op, place)) for place, dims in enumerate(op.dims)]
