"""Helper kernels, known by the words of their function's name: casts, amax, norms, copies, ....

Only whole words count. Such a kernel can prove that an FP8 recipe is on, but not that a GEMM ran
in FP8: its precision is the format that it writes or reads.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import CPP, element_class
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.kernels.type_words import is_low
from fp8verify.kernels.words import first_of, word_rows, word_set
from fp8verify.terms import KernelName, Precision, Role

_TE: Final = "transformer_engine"
_FORMATS: Final = ("mxfp8", "nvfp4", "mxfp4", "fp4")
_WRITERS: Final = frozenset(
    {Role.CAST_QUANTIZE, Role.AMAX_REDUCE, Role.TRANSPOSE, Role.ELEMENTWISE}
)

# The first row with a word of the name decides; rows are in the order of how much a word says.
_ROLES: Final = word_rows(
    Role,
    """
    cast_quantize: quant
    other: sort radix routing chunk recurrent
    cast_quantize: cast quantize dequantize quant dequant quantization convert quantized hfp8
        downcast upcast
    amax_reduce: amax absmax
    cast_quantize: swizzle unswizzle scaling
    transpose: transpose transposed permute021
    reduction: softmax norm layernorm rmsnorm layer_norm ln reduce reduction sum mean argmax
        batchnorm qknorm scan groupnorm
    elementwise: elementwise copy cat fill rope rotary silu gelu swiglu relu dropout add mul memset
        adam index gather scatter unary gated activation pad unpadding padding apply geglu reglu
        permute unpermute
    """,
)
# Beside a low-precision format: what computes scales casts too, or is part of a cast.
_SCALES: Final = word_set("scale scales pack")
_ALONG: Final = word_set("rowwise colwise")
SETS_UP: Final = word_set(
    "prepare setup init tensormaps workspace clean offsets scheduler metadata problem sizes "
    "finalize"
)
# The C++ types of FP8 and FP4.
_LOW: Final = {
    name: element for name, element in CPP.items() if element_class(element).is_low
}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a helper kernel of any library."""
    if not symbol.path:
        return None
    if symbol.path[0] == _TE:
        return _describe(symbol, "Transformer Engine", _transformer_engine(symbol))
    ordered = split(symbol.base)
    words = frozenset(ordered)
    role = first_of(_ROLES, words)
    if role in (None, Role.TRANSPOSE):
        along = role is not None and any(map(is_low, words)) and words & _ALONG
        if along or _casts(ordered):
            role = Role.CAST_QUANTIZE
    if role is not None:
        library = "unknown"
        if len(symbol.path) > 1:
            library = symbol.path[0]
        return _describe(symbol, library, _refined(symbol, role, words))
    if words & SETS_UP:
        return sets_up(symbol)
    return None


def sets_up(symbol: Symbol) -> KernelName:
    """Describe what sets up or finishes other kernels."""
    reason = "sets up or finishes the work of other kernels"
    return describe.other(symbol.library, Role.OTHER, reason)


def _casts(words: tuple[str, ...]) -> bool:
    """Recognize casts by their target or scales: `to_mxfp8_dim0`, `fp8_colwise_scales`.

    `mx_block_rearrange` puts scales into the layout that the tensor cores read.
    """
    target = any(before == "to" and is_low(word) for before, word in pairwise(words))
    scales = not _SCALES.isdisjoint(words) and any(map(is_low, words))
    return target or scales or {"mx", "rearrange"} <= set(words)


def _refined(symbol: Symbol, role: Role, words: frozenset[str]) -> Role:
    """Correct a role by the types: what is called quant, but writes no low precision, is not."""
    if role is Role.CAST_QUANTIZE and words & {"norm", "rmsnorm", "layernorm"}:
        if _element(symbol) or any(map(is_low, words)):
            return role
        return Role.REDUCTION
    if role is Role.REDUCTION and "AbsMaxOp" in symbol.identifiers:
        return Role.AMAX_REDUCE
    if "unary" in words and _element(symbol):
        return Role.CAST_QUANTIZE
    return role


def _transformer_engine(symbol: Symbol) -> Role:
    words = frozenset(split(symbol.base))
    spaces = frozenset(word for part in symbol.path[1:-1] for word in split(part))
    if "normalization" in spaces:
        return Role.REDUCTION
    if (
        words & {"rht", "hadamard"} and "amax" not in words
    ):  # rotated on the way to NVFP4
        return Role.CAST_QUANTIZE
    if "amax" in words or (words <= {"kernel", "bulk"} and "amax" in spaces):
        return Role.AMAX_REDUCE
    if words & {"scale", "scaling", "swizzle", "unswizzle"}:
        return Role.CAST_QUANTIZE
    return _refined(symbol, first_of(_ROLES, words) or Role.ELEMENTWISE, words)


def _describe(symbol: Symbol, library: str, role: Role) -> KernelName:
    precision = Precision.UNKNOWN
    element = None
    if role in _WRITERS:
        precision, element = _format(symbol, role)
    reason = f"function name {symbol.base}: {role.value.replace('_', ' ')}"
    return describe.other(library, role, reason, element=element, precision=precision)


def _format(symbol: Symbol, role: Role) -> tuple[Precision, str | None]:
    """Return the low-precision format that the kernel handles: by its path, or by its types."""
    named = {word for part in symbol.path for word in part.split("_")}
    for block_format in _FORMATS:
        if block_format in named:
            return Precision(block_format), None
    element = _element(symbol)
    if element:
        return element_class(element), element
    if (
        "int4" in symbol.base
        or role is Role.ELEMENTWISE
        or named.isdisjoint(("fp8", "hfp8"))
    ):
        return Precision.UNKNOWN, None
    return Precision.FP8, None


def _element(symbol: Symbol) -> str | None:
    """Return the first FP8 or FP4 element type among the template arguments and parameters."""
    return next((_LOW[name] for name in symbol.identifiers if name in _LOW), None)
