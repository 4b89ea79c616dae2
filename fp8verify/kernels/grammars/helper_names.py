"""Helper kernels, known by the words of their function's name: casts, amax, norms, copies, ....

Only whole words count. Such a kernel can prove that an FP8 recipe is on, but not that a GEMM ran
in FP8: its precision is the format that it writes or reads.
"""

from __future__ import annotations

from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import CPP, element_class
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.kernels.type_words import is_low
from fp8verify.terms import KernelName, Precision, Role

_TE: Final = "transformer_engine"
_FORMATS: Final = {
    "mxfp8": Precision.MXFP8,
    "nvfp4": Precision.NVFP4,
    "mxfp4": Precision.MXFP4,
    "fp4": Precision.FP4,
    "fp8": Precision.FP8,
    "hfp8": Precision.FP8,
}
_WRITERS: Final = frozenset(
    {Role.CAST_QUANTIZE, Role.AMAX_REDUCE, Role.TRANSPOSE, Role.ELEMENTWISE}
)

# The first row with a word of the name decides; rows are in the order of how much a word says.
_WORDS: Final[tuple[tuple[Role, frozenset[str]], ...]] = (
    (Role.CAST_QUANTIZE, frozenset({"quant"})),
    (Role.OTHER, frozenset({"sort", "radix", "routing", "chunk", "recurrent"})),
    (Role.CAST_QUANTIZE, frozenset({"cast", "quantize", "dequantize", "quant", "dequant",
                                    "quantization", "convert", "quantized", "hfp8", "downcast",
                                    "upcast"})),
    (Role.AMAX_REDUCE, frozenset({"amax", "absmax"})),
    (Role.CAST_QUANTIZE, frozenset({"swizzle", "unswizzle", "scaling"})),
    (Role.TRANSPOSE, frozenset({"transpose", "transposed", "permute021"})),
    (Role.REDUCTION, frozenset({"softmax", "norm", "layernorm", "rmsnorm", "layer_norm", "ln",
                                "reduce", "reduction", "sum", "mean", "argmax", "batchnorm",
                                "qknorm", "scan", "groupnorm"})),
    (Role.ELEMENTWISE, frozenset({"elementwise", "copy", "cat", "fill", "rope", "rotary", "silu",
                                  "gelu", "swiglu", "relu", "dropout", "add", "mul", "memset",
                                  "adam", "index", "gather", "scatter", "unary", "gated",
                                  "activation", "pad", "unpadding", "padding", "apply", "geglu",
                                  "reglu", "permute", "unpermute"})),
)  # fmt: skip
# Beside a low-precision format: what computes scales casts too, or is part of a cast.
_SCALES: Final = frozenset({"scale", "scales", "pack"})
_ALONG: Final = frozenset({"rowwise", "colwise"})
_SETUP: Final = frozenset(
    {"prepare", "setup", "init", "tensormaps", "workspace", "clean", "offsets", "scheduler",
     "metadata", "problem", "sizes", "finalize"}
)  # fmt: skip
# The C++ types of FP8 and FP4.
_LOW: Final = {name: element for name, element in CPP.items() if element_class(element).is_low}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a helper kernel of any library."""
    if not symbol.path:
        return None
    if symbol.path[0] == _TE:
        return _describe(symbol, "Transformer Engine", _transformer_engine(symbol))
    words = split(symbol.base)
    role = _role(frozenset(words))
    if role in (None, Role.TRANSPOSE):
        along = role is not None and any(map(is_low, words)) and not _ALONG.isdisjoint(words)
        role = Role.CAST_QUANTIZE if along else _casts(words) or role
    if role is None:
        return _setup(symbol, frozenset(words))
    return _describe(symbol, symbol.path[0] if len(symbol.path) > 1 else "unknown",
                     _refined(symbol, role, frozenset(words)))  # fmt: skip


def _setup(symbol: Symbol, words: frozenset[str]) -> KernelName | None:
    """Describe what sets up or finishes other kernels."""
    if not words & _SETUP:
        return None
    reason = "sets up or finishes the work of other kernels"
    return describe.other(symbol.path[0], Role.OTHER, reason)


def _casts(words: tuple[str, ...]) -> Role | None:
    """Recognize casts by their target or scales: `to_mxfp8_dim0`, `fp8_colwise_scales`.

    `mx_block_rearrange` puts scales into the layout that the tensor cores read.
    """
    low = [at for at, word in enumerate(words) if is_low(word)]
    casts = any(at and words[at - 1] == "to" for at in low)
    scales = bool(low) and not _SCALES.isdisjoint(words)
    return Role.CAST_QUANTIZE if casts or scales or {"mx", "rearrange"} <= set(words) else None


def _role(words: frozenset[str]) -> Role | None:
    return next((role for role, row in _WORDS if words & row), None)


def _refined(symbol: Symbol, role: Role, words: frozenset[str]) -> Role:
    """Correct a role by the types: what is called quant, but writes no low precision, is not."""
    if role is Role.CAST_QUANTIZE and words & {"norm", "rmsnorm", "layernorm"}:
        low = not _LOW.keys().isdisjoint(symbol.identifiers) or any(map(is_low, words))
        return role if low else Role.REDUCTION
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
    if words & {"rht", "hadamard"} and not words & {"amax"}:  # rotated on the way to NVFP4
        return Role.CAST_QUANTIZE
    if {"block", "scaled"} <= words or {"partial", "cast"} <= words:
        return Role.CAST_QUANTIZE
    if words & {"amax"} or (words <= {"kernel", "bulk"} and "amax" in spaces):
        return Role.AMAX_REDUCE
    if words & {"scale", "scaling", "swizzle", "unswizzle"}:
        return Role.CAST_QUANTIZE
    return _refined(symbol, _role(words) or Role.ELEMENTWISE, words)


def _describe(symbol: Symbol, library: str, role: Role) -> KernelName:
    precision, element = Precision.UNKNOWN, None
    if role in _WRITERS:
        precision, element = _format(symbol, role)
    reason = f"function name {symbol.base}: {role.value.replace('_', ' ')}"
    return describe.other(library, role, reason, element=element, precision=precision)


def _format(symbol: Symbol, role: Role) -> tuple[Precision, str | None]:
    """Return the low-precision format that the kernel handles: by its path, or by its types."""
    named = _FORMATS.keys() & {word for part in symbol.path for word in part.split("_")}
    for block_format in ("mxfp8", "nvfp4", "mxfp4", "fp4"):
        if block_format in named:
            return _FORMATS[block_format], None
    element = _element(symbol)
    if element:
        return element_class(element), element
    if "int4" in symbol.base or role is Role.ELEMENTWISE:
        return Precision.UNKNOWN, None
    return (Precision.FP8, None) if named else (Precision.UNKNOWN, None)


def _element(symbol: Symbol) -> str | None:
    """Return the first FP8 or FP4 element type among the template arguments and parameters."""
    return next((_LOW[name] for name in symbol.identifiers if name in _LOW), None)
