"""Known operators by name, which are in operators.toml; and what their inputs say.

An operator is what a trace records on the CPU around a launch: a torch operator, an autograd
function or node, a compiled kernel's wrapper. Operators that are not in the table are unknown.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Final

import msgspec

from fp8verify.files import parse_toml
from fp8verify.kernels.describe import CPP, FP8_ELEMENTS, Operands
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import OpContext, Precision, Role, Scaling


class Counts(Enum):
    """How FLOPs follow from the recorded shapes of the operands."""

    PLAIN = "plain"
    """The last two dimensions are multiplied; leading ones are rows, or a batch where B has it."""
    VECTOR = "vector"
    """B is a vector."""
    GROUPED = "grouped"
    """The groups share M, N or K among them."""
    TEMPLATE = "template"
    """The first two matrices, if nothing comes before them."""
    NEVER = "never"
    """Lists of tensors, whose shapes are not recorded, or layouts that are not known."""


class Product(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix product: the places of its operands among the inputs, and their layout.

    Attributes:
        role: GEMM or GROUPED_GEMM.
        a: place of A, of shape (…, m, k).
        b: place of B, of shape (…, k, n).
        counts: how FLOPs follow.
        b_is_nk: whether B comes as (…, n, k).
        packed: elements along K in one recorded element, two where FP4 is packed in bytes.
        scale_a: place of the scales of A, where their types and shapes give the recipe.
        own_types: whether the recorded types are those of the operands; functions that cast
            first record what they were given.
        named: the class of the operands where the operator's name says it.
    """

    role: Role = Role.GEMM
    a: int = 0
    b: int = 1
    counts: Counts = Counts.PLAIN
    b_is_nk: bool = False
    packed: int = 1
    scale_a: int | None = None
    own_types: bool = True
    named: Precision | None = None


class LayerInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a function that computes layers takes its input and weights; a layer for each weight.

    Attributes:
        input: place of the input, of shape (…, k).
        weights: places of the weights, of shape (n, k), in the order of their GEMMs.
        grouped: whether there are weights of experts in place of the one, after others that vary.
    """

    input: int
    weights: tuple[int, ...]
    grouped: bool = False


class Part(Enum):
    """The part that an operator has in FP8, apart from products."""

    LAYER = "layer"
    """An autograd function whose kernels, but for its GEMMs, all serve FP8."""
    CAST = "cast"
    """An autograd function that casts to FP8."""
    AMAX = "amax"
    """An operator of which eager casts make the largest absolute value."""
    SCALE = "scale"
    """An operator of which eager casts make scales."""
    GATHER = "gather"
    """A range around the gathering of parameters, before which they are cast."""
    CODEC = "codec"
    """A codec of embeddings or collectives, no part of the model's arithmetic."""


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table.

    Attributes:
        product: the matrix product that it computes itself.
        encloses: CONV or ATTENTION, whose products are no GEMM time, or GROUPED_GEMM.
        part: its part in FP8.
        layer: whether it is a function of layers, which no optimizer calls.
        linear: whether it is the forward pass of a linear layer, and a recomputation within the
            backward pass.
        layer_inputs: for a function of whole layers, whose node launches dgrad and wgrad of each.
    """

    product: Product | None = None
    encloses: Role | None = None
    part: Part | None = None
    layer: bool = False
    linear: bool = False
    layer_inputs: LayerInputs | None = None


class _Tables(msgspec.Struct):
    operators: dict[str, Operator]
    patterns: dict[str, Operator]


_TEXT: Final = Path(__file__).with_name("operators.toml").read_text(encoding="utf-8")
_TABLES: Final = msgspec.convert(parse_toml(_TEXT), _Tables)
OPERATORS: Final = {
    name: row for names, row in _TABLES.operators.items() for name in names.split()
}
# Unlike a row that is empty, which is known and has nothing to say, and another object.
UNKNOWN: Final = Operator()
_NODE: Final = lazy_pattern(
    r"(?:autograd::engine::evaluate_function: )?(.*Backward)\d*$", re.ASCII
)


@lru_cache(maxsize=4096)
def find(name: str) -> Operator:
    """Return the row of an operator, an empty one if it is unknown; overloads share a row."""
    name = name.partition(".")[0]
    found = OPERATORS.get(name)
    if found is not None:
        return found
    rows = _TABLES.patterns.items()
    alike = (row for pattern, row in rows if re.fullmatch(pattern, name, re.DOTALL))
    return next(alike, UNKNOWN)


def node_of(name: str) -> str | None:
    """Return the name of an autograd node without its number, "MmBackward"; None for no node."""
    match = _NODE.match(name)
    if match:
        return match[1]
    return None


def function_of(name: str) -> str | None:
    """Return the autograd function to whose backward pass a node belongs; None for no node."""
    node = node_of(name)
    if node is None:
        return None
    return node.removesuffix("Backward")


_BLOCK_SCALES: Final = {"Float8_e8m0fnu": "ue8m0", "Float8_e4m3fn": "ue4m3"}
_HIGH: Final = frozenset({"bf16", "fp16", "fp32"})
_PRODUCT_WORD: Final = lazy_pattern(r"gemm|matmul|(?:^|_|b)mm(?:_|$)|linear")
# What the operators of libraries may be called that cast first and multiply then.
_MAY_MULTIPLY: Final = lazy_pattern(
    r"gemm|mm|matmul|linear|moe|expert|mlp|ffn|attn|attention|proj|layer|forward|backward|apply"
    r"|conv|dot|einsum|[wa]\d+[wa]\d"
)
_COPY_WORD: Final = lazy_pattern(
    r"quant|cast|copy|transpos|permut|pad|shuffle|swizzle|gather|scatter"
)
# Operators of ATen that copy, fill or compute element by element, and kernels that Inductor fused
# of such (torch/_inductor/codegen/triton.py: pointwise, reduction, persistent reduction).
_NO_PRODUCT: Final = lazy_pattern(
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
        if len(self.maybe) == 1:
            return next(iter(self.maybe))
        return Precision.UNKNOWN


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
    function = op.name.rpartition("::")[2].lower()
    return (
        find(op.name) is UNKNOWN
        and "::" in op.name
        and _COPY_WORD.search(function) is not None
        and _MAY_MULTIPLY.search(function) is None
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
    a = _element(op, product.a)
    b = _element(op, product.b)
    scale = _BLOCK_SCALES.get(_type(op, product.scale_a))
    maybe = {Operands(a, b, scale=scale).precision} - {Precision.UNKNOWN}
    if (
        a == b == "fp32"
    ):  # which of the two is a process-wide setting that no operator records
        maybe = {Precision.FP32, Precision.TF32}
    return Evidence(
        role=product.role,
        maybe=frozenset(maybe),
        a=a,
        b=b,
        scaling=_scaling(op, product, a),
    )


def _type(op: OpContext, place: int | None) -> str:
    """Return the type of an input without its namespace, "" if none was recorded."""
    if place is None or place >= len(op.types):
        return ""
    return op.types[place].rpartition("::")[2]


def _element(op: OpContext, place: int) -> str | None:
    return CPP.get(_type(op, place))


def _scaling(op: OpContext, product: Product, a: str | None) -> Scaling | None:
    """Return the scaling that the shape of scale_a means: one element, or one a row."""
    place = product.scale_a
    if (
        place is None
        or product.role is not Role.GEMM
        or a not in FP8_ELEMENTS
        or len(op.dims) <= place
    ):
        return None
    if _type(op, place) == "Float8_e8m0fnu":
        return Scaling.MXFP8
    rows = op.dims[product.a]
    scale = op.dims[place]
    if all(size == 1 for size in scale):
        return Scaling.TENSORWISE
    per_row = len(scale) == 2 and scale[1] == 1 and rows[:1] == scale[:1]
    if per_row:
        return Scaling.ROWWISE
    return Scaling.BLOCKWISE


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
        return evidence is not None and evidence.precision in (
            Precision.FP8,
            Precision.MXFP8,
        )
    if row is not UNKNOWN or op.name.startswith("aten::") or multiplies_nothing(op):
        return False  # the table has every product of ATen
    recorded = [(dims, _element(op, place)) for place, dims in enumerate(op.dims)]
    matrices = [dims for dims, element in recorded if element in FP8_ELEMENTS]
    if len(matrices) != 2 or not all(map(_is_matrix, matrices)):
        return False
    a, b = matrices
    sizes = {prod(a), prod(b)}
    high = {prod(dims) for dims, element in recorded if element in _HIGH}
    shared = set(a[-2:]).intersection(b[-2:]) - {1}
    if sizes <= high or not shared:
        return False
    is_no_copy = a[-1] == b[-2] and prod(a) != prod(b)
    return is_no_copy or _is_called_product(op.name)


def _is_matrix(dims: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix, or a batch of some, with values."""
    return len(dims) in (2, 3) and min(dims) > 0


def _is_called_product(name: str) -> bool:
    function = name.rpartition("::")[2].lower()
    says_product = _PRODUCT_WORD.search(function) is not None
    return says_product and not _COPY_WORD.search(function)
