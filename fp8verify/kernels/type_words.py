"""Operand types in the words of a function's name: `fp8_gemm`, `f8f8bf16`, `a8w8`.

These rules apply to the names of many libraries that spell types in words. A type that may be the
output's, only the weights' or the scales' decides nothing.
"""

from __future__ import annotations

import itertools
import re
from typing import Final, NamedTuple

from fp8verify.kernels.describe import CPP, SHORT, product_class, scaling_of
from fp8verify.terms import Precision, Scaling

_Type = tuple[str, str | None]  # an element and its hardware block scale

# Spellings in addition to those of `SHORT`, with the block scale that the word implies. MX: OCP
# Microscaling Formats v1.0; `mx8`, `mx4`: MSLK; `nvf4`: CUTLASS; fp8e4nv, fp8e5: Triton.
_SPELLED: Final[dict[str, _Type]] = {
    **{word: (element, None) for word, element in SHORT.items() if element != "int32"},
    **dict.fromkeys(("mxfp8", "mxf8", "mx8"), ("fp8", "ue8m0")),
    **dict.fromkeys(("mxfp4", "mxf4", "mx4"), ("fp4", "ue8m0")),
    **dict.fromkeys(("nvfp4", "nvf4", "nv4"), ("fp4", "ue4m3")),
    **dict.fromkeys(("e4m3fn", "e4m3fnuz", "fp8e4m3", "fp8e4nv", "f8e4m3"), ("e4m3", None)),
    **dict.fromkeys(("e5m2fnuz", "fp8e5m2", "fp8e5", "f8e5m2"), ("e5m2", None)),
    "float8": ("fp8", None),
    "float16": ("fp16", None),
    "float32": ("fp32", None),
}
_TYPE: Final = "|".join(sorted(_SPELLED, key=len, reverse=True))
PRODUCTS: Final = frozenset(
    {"gemm", "gemv", "matmul", "mm", "bmm", "gmm", "tgmm", "gemms", "gemm1", "gemm2"}
)
_JOINED: Final = re.compile(rf"(?P<types>(?:{_TYPE})+)(?P<product>gemm|gemv|matmul|mm|bmm)?")
_ONE: Final = re.compile(_TYPE)
# a8w8, afp4wfp4, w4a16: the formats of activations and weights; a number is only a width.
_WIDTH: Final = rf"{_TYPE}|\d{{1,2}}"
_PAIR: Final = re.compile(rf"(?P<first>[aw])({_WIDTH})(?!(?P=first))[aw]({_WIDTH})")
_NOT_OPERANDS: Final = frozenset(
    {"out", "output", "acc", "accum", "to", "scale", "scales", "kv", "cache", "bias", "return",
     "quant", "quantize", "quantized", "cast", "epilogue", "store"}
)  # fmt: skip
_WEIGHT_ONLY: Final = frozenset(
    {"weightonly", "wo", "woq", "marlin", "gptq", "awq", "mixed", "lut", "dequant", "dequantize",
     "dequantization"}
)  # fmt: skip
_WEIGHTS: Final = frozenset({"weight", "weights", "only"})
_SCALINGS: Final[tuple[tuple[Scaling, frozenset[str]], ...]] = (
    (Scaling.BLOCKWISE, frozenset({"blockwise", "blockscale", "blockscaled", "groupwise",
                                   "1x128", "128x128", "128x1"})),
    (Scaling.ROWWISE, frozenset({"row", "rowwise", "pertoken"})),
    (Scaling.TENSORWISE, frozenset({"tensorwise", "pertensor"})),
)  # fmt: skip


class Operands(NamedTuple):
    """The types of A, B and D, and the block scale of A and B."""

    a: str | None = None
    b: str | None = None
    out: str | None = None
    scale: str | None = None

    @property
    def known(self) -> bool:
        """Whether the class of the product is certain."""
        return product_class(self.a, self.b, self.scale) is not Precision.UNKNOWN


_NONE: Final = Operands()


def is_pair(word: str) -> bool:
    """Whether a word names the formats of activations and weights, as `a8w8` does."""
    return _PAIR.fullmatch(word) is not None


def is_compound(word: str) -> bool:
    """Whether a word lists the types of A, B and D, as `f8f8bf16` does."""
    match = _JOINED.fullmatch(word)
    return match is not None and len(_ONE.findall(match["types"])) == 3


def is_low(word: str) -> bool:
    """Whether a word is a format of FP8 or FP4."""
    element, scale = _SPELLED.get(word, (None, None))
    return product_class(element, element, scale).is_low


def count_low(words: tuple[str, ...]) -> int:
    """Return how often words name a format of FP8 or FP4, also joined to each other."""
    joined = (match["types"] for word in words if (match := _JOINED.fullmatch(word)))
    return sum(is_low(element) for types in joined for element in _ONE.findall(types))


def product_of(word: str) -> str | None:
    """Return the word of a product, also of one that its types are joined to (`fp8gemm`)."""
    if word in PRODUCTS:
        return word
    match = _JOINED.fullmatch(word)
    return match["product"] if match else None


def joined(words: tuple[str, ...]) -> tuple[str, ...]:
    """Join the halves of a pair that are two words: `a16`, `w16`."""
    joined_words: list[str] = []
    for word in words:
        if joined_words and is_pair(joined_words[-1] + word):
            joined_words[-1] += word
        else:
            joined_words.append(word)
    return tuple(joined_words)


def operands(words: tuple[str, ...]) -> Operands:
    """Return the operand types that the words of a product's name are certain of."""
    pairs = [match for word in words if (match := _PAIR.fullmatch(word))]
    singles = _singles(words)
    if len(pairs) > 1:  # two products in one kernel
        return _NONE
    if pairs:
        return _of_pair(pairs[0], singles)
    for word in words:
        match = _JOINED.fullmatch(word)
        types = _ONE.findall(match["types"]) if match else []
        if len(types) > 1:
            return _of_compound(types)
    if _is_weight_only(words) or not 1 <= len(singles) <= 2:
        return _NONE
    (a, scale), (b, other) = singles[0], singles[-1]
    both = Operands(a, b, None, scale)
    alike = product_class(a, a) is product_class(b, b)
    return both if scale == other and alike and (a == b or both.known) else _NONE


def scaling(words: tuple[str, ...], types: Operands) -> Scaling | None:
    """Return the scaling that the words name, for FP8 without hardware block scales."""
    if types.scale is not None or product_class(types.a, types.b) is not Precision.FP8:
        return scaling_of(types.a, types.scale)
    for kind, row in _SCALINGS:
        if row & set(words):
            return kind
    for first, second in itertools.pairwise(words):
        if "block" in (first, second) and (first in _SPELLED or second in _SPELLED):
            return Scaling.BLOCKWISE
        if first == "per" and second in ("token", "tensor"):
            return Scaling.ROWWISE if second == "token" else Scaling.TENSORWISE
    return None


def fast_accumulation(words: tuple[str, ...]) -> bool | None:
    """Return whether the name says that products are added up in reduced precision."""
    text = "_".join(words)
    if "no_fast_acc" in text or "slowacc" in words:
        return False
    return True if "imprecise_acc" in text or "fastacc" in words else None


def named_element(text: str) -> str | None:
    """Return the element type of a C++ type's name, with its namespace or without."""
    return CPP.get(text.rpartition("::")[2])


def _singles(words: tuple[str, ...]) -> list[_Type]:
    """Return the types that are whole words, as far as they may be those of operands."""
    types: dict[_Type, None] = {}
    for at, word in enumerate(words):
        match = _JOINED.fullmatch(word)
        near = {words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""}
        if match and len(_ONE.findall(match["types"])) == 1 and not near & _NOT_OPERANDS:
            types[_SPELLED[match["types"]]] = None
    return _without_vague(list(types))


def _without_vague(types: list[_Type]) -> list[_Type]:
    """Drop `fp8` if there is `mxfp8` or `e4m3`: the same operands, less exactly."""
    exact = {
        product_class(element, element)
        for element, scale in types
        if scale or element not in ("fp8", "fp4")
    }
    return [
        (element, scale)
        for element, scale in types
        if scale or element not in ("fp8", "fp4") or product_class(element, element) not in exact
    ]


def _is_weight_only(words: tuple[str, ...]) -> bool:
    """Whether the type that a name gives may be that of the weights alone."""
    if _WEIGHT_ONLY & set(words):
        return True
    neighbors = itertools.pairwise(words)
    return any(
        (first in _WEIGHTS and second in _SPELLED) or (second in _WEIGHTS and first in _SPELLED)
        for first, second in neighbors
    )


def _of_pair(match: re.Match[str], singles: list[_Type]) -> Operands:
    """Read `a8w8`: a width alone is no type, unless another word of the name gives it.

    aiter writes formats out (afp4wfp4, afp8wfp8) and a4w4 where tl.dot_scaled multiplies with
    E8M0 scales (aiter/ops/triton/_triton_kernels/gemm/basic, moe/moe_op_gemm_a4w4.py).
    """
    activations_first, first, second = match["first"] == "a", match[2], match[3]
    if first != second:
        a, w = (first, second) if activations_first else (second, first)
        return Operands(SHORT.get(a), SHORT.get(w))
    a = first
    written_out = activations_first and a in ("4", "fp4", "fp8")
    if written_out and not singles:
        return Operands(*(("fp8", "fp8") if a == "fp8" else ("fp4", "fp4")), None, "ue8m0")
    if a in _SPELLED:
        element, scale = _SPELLED[a]
        return Operands(element, element, None, scale)
    if len(singles) == 1:
        ((element, scale),) = singles
        if element.endswith(a) or (a == "8" and element in ("e4m3", "e5m2")):
            return Operands(element, element, None, scale)
    return _NONE


def _of_compound(types: list[str]) -> Operands:
    """Read `f8f8bf16`: A, B and D; of two types the second is B's."""
    (a, scale_a), (b, scale_b) = _SPELLED[types[0]], _SPELLED[types[1]]
    out = _SPELLED[types[2]][0] if len(types) == 3 else None
    alike = product_class(a, a) is product_class(b, b)
    # `mxfp8fp8` is MX on both sides, `mx8mx4` too.
    scale = scale_a or scale_b if alike or scale_a == scale_b else None
    return Operands(a, b, out, scale)
