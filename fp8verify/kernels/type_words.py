"""Operand types in the words of a function's name: `fp8_gemm`, `f8f8bf16`, `a8w8`.

These rules apply to the names of many libraries that spell types in words. A type that may be the
output's, only the weights' or the scales' decides nothing.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from fp8verify.kernels.describe import SHORT, Operands, both, element_class
from fp8verify.kernels.words import first_of, word_rows, word_set
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Precision, Scaling

# Spellings in addition to those of `SHORT`, with the block scale that the word implies. MX: OCP
# Microscaling Formats v1.0; `mx8`, `mx4`: MSLK; `nvf4`: CUTLASS; fp8e4nv, fp8e5: Triton.
_SPELLED: Final[dict[str, Operands]] = {
    **{word: both(element) for word, element in SHORT.items() if element != "int32"},
    **dict.fromkeys(("mxfp8", "mxf8", "mx8"), both("fp8", scale="ue8m0")),
    **dict.fromkeys(("mxfp4", "mxf4", "mx4"), both("fp4", scale="ue8m0")),
    **dict.fromkeys(("nvfp4", "nvf4", "nv4"), both("fp4", scale="ue4m3")),
    **dict.fromkeys(
        ("e4m3fn", "e4m3fnuz", "fp8e4m3", "fp8e4nv", "f8e4m3"), both("e4m3")
    ),
    **dict.fromkeys(("e5m2fnuz", "fp8e5m2", "fp8e5", "f8e5m2"), both("e5m2")),
    "float8": both("fp8"),
    "float16": both("fp16"),
    "float32": both("fp32"),
}
_TYPE: Final = "|".join(sorted(_SPELLED, key=len, reverse=True))
_PRODUCTS: Final = word_set("gemm gemv matmul mm bmm gmm tgmm gemms gemm1 gemm2")
_JOINED: Final = lazy_pattern(
    rf"(?P<types>(?:{_TYPE})+)(?P<product>gemm|gemv|matmul|mm|bmm)?"
)
_ONE: Final = lazy_pattern(_TYPE)
# a8w8, afp4wfp4, w4a16: the formats of activations and weights; a number is only a width.
_WIDTH: Final = rf"{_TYPE}|\d{{1,2}}"
_PAIR: Final = lazy_pattern(rf"(?P<first>[aw])({_WIDTH})(?!(?P=first))[aw]({_WIDTH})")
_NOT_OPERANDS: Final = word_set(
    "out output acc accum to scale scales kv cache bias return quant quantize quantized cast "
    "epilogue store"
)
_WEIGHT_ONLY: Final = word_set(
    "weightonly wo woq marlin gptq awq mixed lut dequant dequantize dequantization"
)
_WEIGHTS: Final = word_set("weight weights only")
_SCALINGS: Final = word_rows(
    Scaling,
    """
    blockwise: blockwise blockscale blockscaled groupwise 1x128 128x128 128x1
    rowwise: row rowwise pertoken
    tensorwise: tensorwise pertensor
    """,
)


def _types(word: str) -> list[Operands]:
    """Return the types that a word consists of, none if it is no word of types."""
    match = _JOINED.fullmatch(word)
    if match:
        return [_SPELLED[one] for one in _ONE.findall(match["types"])]
    return []


def is_pair(word: str) -> bool:
    """Whether a word names the formats of activations and weights, as `a8w8` does."""
    return _PAIR.fullmatch(word) is not None


def is_compound(word: str) -> bool:
    """Whether a word lists the types of A, B and D, as `f8f8bf16` does."""
    return len(_types(word)) == 3


def is_low(word: str) -> bool:
    """Whether a word is a format of FP8 or FP4."""
    return word in _SPELLED and _SPELLED[word].precision.is_low


def count_low(words: tuple[str, ...]) -> int:
    """Return how often words name a format of FP8 or FP4, also joined to each other."""
    count = 0
    for word in words:
        for types in _types(word):
            count += types.precision.is_low
    return count


def product_of(word: str) -> str | None:
    """Return the word of a product, also of one that its types are joined to (`fp8gemm`)."""
    if word in _PRODUCTS:
        return word
    match = _JOINED.fullmatch(word)
    if match:
        return match["product"]
    return None


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
    pairs = list(filter(None, map(_PAIR.fullmatch, words)))
    singles = _singles(words)
    if len(pairs) > 1:  # two products in one kernel
        return Operands()
    if pairs:
        return _of_pair(pairs[0], singles)
    for word in words:
        listed = _types(word)
        if len(listed) > 1:
            return _of_compound(listed)
    if _is_weight_only(words) or len(singles) not in (1, 2):
        return Operands()
    first = singles[0]
    last = singles[-1]
    has_one_class = element_class(first.a) is element_class(last.a)
    if has_one_class and first.scale == last.scale:
        return first._replace(b=last.b)
    return Operands()


def scaling(words: tuple[str, ...], types: Operands) -> Scaling | None:
    """Return the scaling that the words name, for FP8 without hardware block scales."""
    if types.precision is not Precision.FP8:
        return types.scaling
    named = first_of(_SCALINGS, set(words))
    if named is not None:
        return named
    for first, second in pairwise(words):
        has_type = first in _SPELLED or second in _SPELLED
        if has_type and "block" in (first, second):
            return Scaling.BLOCKWISE
        if (first, second) == ("per", "token"):
            return Scaling.ROWWISE
        if (first, second) == ("per", "tensor"):
            return Scaling.TENSORWISE
    return None


def fast_accumulation(words: tuple[str, ...]) -> bool | None:
    """Return whether the name says that products are added up in reduced precision."""
    text = "_".join(words)
    if "no_fast_acc" in text or "slowacc" in words:
        return False
    if "imprecise_acc" in text or "fastacc" in words:
        return True
    return None


def _singles(words: tuple[str, ...]) -> list[Operands]:
    """Return the types that are whole words, as far as they may be those of operands.

    `fp8` is left out beside `mxfp8` or `e4m3`: the same operands, less exactly.
    """
    found: dict[Operands, None] = {}
    behind = (*words, "")[1:]
    before = ""
    for word, after in zip(words, behind, strict=True):
        types = _types(word)
        if len(types) == 1 and _NOT_OPERANDS.isdisjoint((before, after)):
            found[types[0]] = None
        before = word
    exact = set()
    for single in found:
        if single not in _VAGUE:
            exact.add(element_class(single.a))
    singles = []
    for single in found:
        if single not in _VAGUE or element_class(single.a) not in exact:
            singles.append(single)
    return singles


_VAGUE: Final = (both("fp8"), both("fp4"))


def _is_weight_only(words: tuple[str, ...]) -> bool:
    """Whether the type that a name gives may be that of the weights alone."""
    if not _WEIGHT_ONLY.isdisjoint(words):
        return True
    for first, second in pairwise(words):
        if first in _WEIGHTS and second in _SPELLED:
            return True
        if second in _WEIGHTS and first in _SPELLED:
            return True
    return False


def _of_pair(match: re.Match[str], singles: list[Operands]) -> Operands:
    """Read `a8w8`: a width alone is no type, unless another word of the name gives it.

    aiter writes formats out (afp4wfp4, afp8wfp8) and a4w4 where tl.dot_scaled multiplies with
    E8M0 scales (aiter/ops/triton/_triton_kernels/gemm/basic, moe/moe_op_gemm_a4w4.py).
    """
    activations_first = match["first"] == "a"
    first = match[2]
    second = match[3]
    if first != second:
        types = Operands(SHORT.get(first), SHORT.get(second))
        if not activations_first:
            types = Operands(types.b, types.a)
        return types
    if activations_first and not singles:
        if first == "fp8":
            return both("fp8", scale="ue8m0")
        if first in ("4", "fp4"):
            return both("fp4", scale="ue8m0")
    if first in _SPELLED:
        return _SPELLED[first]
    if len(singles) != 1:
        return Operands()
    element = str(singles[0].a)
    is_fp8 = element in ("e4m3", "e5m2")
    if element.endswith(first) or (first == "8" and is_fp8):
        return singles[0]
    return Operands()


def _of_compound(types: list[Operands]) -> Operands:
    """Read `f8f8bf16`: A, B and D; of two types the second is B's.

    `mxfp8fp8` is MX on both sides, `mx8mx4` too.
    """
    a, b, *rest = types
    scale = None
    has_one_class = element_class(a.a) is element_class(b.a)
    if has_one_class or a.scale == b.scale:
        scale = a.scale or b.scale
    out = None
    if len(rest) == 1:
        out = rest[0].a
    return Operands(
        a=a.a,
        b=b.a,
        out=out,
        scale=scale,
    )
