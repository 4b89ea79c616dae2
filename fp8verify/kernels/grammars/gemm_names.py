"""GEMMs known by the words of their function's name, in libraries without a grammar of their own.

Primus-Turbo, MSLK, aiter's and vLLM's Triton kernels, torchao, FlashInfer, DeepSeek, modded-
nanogpt and whatever comes next. A product's helpers (`gemm_args`, `gemm_output_tail`, a cast for
a GEMM) multiply nothing. Types come from the words, or for C++ from the parameters; where neither
is certain of them, the precision is UNKNOWN.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from fp8verify.kernels import describe, type_words
from fp8verify.kernels.describe import CPP, Operands, both, element_class
from fp8verify.kernels.grammars import attention
from fp8verify.kernels.grammars.helper_names import SETS_UP, sets_up
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.kernels.words import word_set
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import KernelName, Precision, Role

_LETTERED: Final = lazy_pattern(r"(?P<letter>[sdh])gemm|gemv[nt]?")
_LETTERS: Final = {"h": "fp16", "d": "fp64"}
# Products of a matrix with its own transpose, as Muon's kernels are called: XXT, XTX, cAA.
_ALGEBRA: Final = lazy_pattern(
    r"(?P<m>[A-Z])(?:(?P=m)T|T(?P=m))|[a-z](?P<n>[A-MO-SU-Z])(?P=n)T?"
)
# Products of experts: scattermoe's, and MegaBlocks' of sparse and dense matrices (stk).
_EXPERTS: Final = lazy_pattern(
    r"_?(?:s[ds]d|d[ds]s|dsd|group[A-Z]t[A-Z]|scatter2scatter)(?:_\w+)?"
)
# Uppercase words after a Triton kernel's name are its constants: ..._kernel_BLOCK_SIZE_M_128.
_CONSTANT: Final = lazy_pattern(r"(?<=[a-z0-9])_(?=[A-Z][A-Z0-9]+_[A-Z0-9])")

_SETS_UP: Final = SETS_UP | word_set(
    "args arguments ptrs pointers schedule indices align sort routing interleave shuffle "
    "unshuffle rearrange fill starts inputs overflow stats preprocess postprocess"
)
# What a name begins with that only handles a product's operands or looks at its result.
_HANDLES: Final = word_set("zero copy pad check validate verify print")
_CASTS: Final = word_set("cast quantize quant convert downcast upcast swizzle")
_DEQUANTIZES: Final = word_set("dequant dequantize dequantization")
# Behind the product: a cast for it, or a product that also casts its output.
_CASTS_BEHIND: Final = _CASTS - {"swizzle"} | word_set("quantization amax absmax")
# Copies of a product that another format or plain code imitates.
_IMITATES: Final = word_set(
    "emulated emulation emulate simulated simulate fake mock dummy ref reference naive golden"
)
_HADAMARD: Final = word_set("rht hadamard")
_GROUPED: Final = word_set("grouped moe gmm tgmm expert experts ragged")
_MOE: Final = word_set("fused e2e mega persistent")
_MOE_PARTS: Final = word_set(
    "gate gating topk sum combine dispatch permute unpermute softmax index histogram count counts "
    "map router scatter gather reduce sigmoid route loss"
)
# Words beside which formats of activations and weights name no product.
_NO_PAIRS: Final = _CASTS | _DEQUANTIZES | _MOE_PARTS | {"act"}
# Products of a fused MoE's layers, as Liger's `_moe_bwd_dW2_kernel`, `_moe_bwd_down_proj_kernel`.
_MOE_PRODUCT: Final = lazy_pattern(
    r"_(?:fwd|bwd)_(?:\w{1,40}_)?(?:proj|d[WX]\d?)(?:_|$)"
)
_LINEAR: Final = word_set("relu gelu silu swiglu bias act square")
# Parts of a linear layer that may have a kernel of their own.
_PARTLY_LINEAR: Final = word_set("grad add dbias reduce")
# Products with a library's own word as a prefix, as `tinygemm2`.
_PREFIXED: Final = lazy_pattern(r"(?!implicit|non)[a-z]{2,}gemm\d?")
_POINTER: Final = lazy_pattern(r"(?P<type>[\w:]+(?: char)?)(?P<const> const)?\*")
_SCALAR: Final = lazy_pattern(
    r"(?:(?:unsigned|signed) )?(?:int|long(?: long)?|short|char|bool|float|double)(?: const)?"
    r"|u?int\d\d?_t|size_t|__half|__nv_bfloat16"
)
_BYTES: Final = lazy_pattern(r"(?:(?:un)?signed )?(?:char|int)|void|u?int\d\d?_t")
_TEMPLATE_TYPE: Final = lazy_pattern(r"T([1-9]\d?)")


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a GEMM with a name of words, or one of its split-K reductions and casts."""
    base = _CONSTANT.split(symbol.base, maxsplit=1)[0]
    words = type_words.joined(split(base))
    place = _product(words, base)
    if _EXPERTS.fullmatch(base):
        return _gemm(symbol, base, words, role=Role.GROUPED_GEMM, doubts=True)
    if place is None or attention.WORDS & set(words):
        return None
    if "chunk" in words:
        reason = (
            "a product inside a chunked scan (state-space models, linear attention)"
        )
        return describe.other(symbol.library, Role.OTHER, reason)
    before = words[:place]
    after = words[place:]
    if _HADAMARD & set(words):
        reason = f"function name {symbol.base}: a Hadamard transform with a cast, and no GEMM"
        return describe.other("unknown", Role.CAST_QUANTIZE, reason)
    precomputes = ("pre", "compute") in pairwise(words)
    if _SETS_UP & set(words) or precomputes or "for" in before:
        return sets_up(symbol)
    if _CASTS & set(before) or words[0] in _HANDLES:
        return None  # `quantize_..._gemm`: the helpers' grammar says what it casts
    if "tail" in after:
        reason = (
            f"function name {symbol.base}: fills what a grouped GEMM left of its output"
        )
        return describe.other("unknown", Role.ELEMENTWISE, reason)
    if "reduce" in after and "all" not in after and "scatter" not in after:
        reason = f"function name {symbol.base}: adds up the parts of a GEMM"
        return describe.other("unknown", Role.REDUCTION, reason)
    return _gemm(symbol, base, words, doubts=_doubts(words, after))


def _product(words: tuple[str, ...], base: str) -> int | None:
    """Return the place of the word that says that matrices are multiplied."""
    for at, word in enumerate(words):
        if type_words.product_of(word) or _LETTERED.fullmatch(word):
            return at
    whole = set(words)
    for at, word in enumerate(words):
        is_compound = type_words.is_compound(word) and not _CASTS & whole
        if is_compound or type_words.is_pair(word):
            return None if whole & _NO_PAIRS else at
    is_part = bool(whole & (_MOE_PARTS | _CASTS))
    is_fused = whole & _MOE or _MOE_PRODUCT.search(base)
    if "moe" in whole and is_fused and not is_part:
        return words.index("moe")
    if "linear" in whole and whole & _LINEAR:
        return words.index("linear")
    for at, word in enumerate(words):
        if _PREFIXED.fullmatch(word):
            return at
    if any(map(_ALGEBRA.fullmatch, base.split("_"))):
        return 0
    return None


def _doubts(words: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Whether the types in a product's name may not be those that are multiplied."""
    whole = set(words)
    if _IMITATES & whole or any(map(_PREFIXED.fullmatch, words)):
        return True
    if "linear" in whole and whole & _PARTLY_LINEAR:
        return True
    return bool(_CASTS_BEHIND & set(after)) or "epilogue" in after[-2:]


def _gemm(
    symbol: Symbol,
    base: str,
    words: tuple[str, ...],
    *,
    doubts: bool,
    role: Role | None = None,
) -> KernelName:
    types = Operands()
    if not doubts:
        types = _operands(symbol, words)
    if role is None:
        role = Role.GROUPED_GEMM if _is_grouped(words) else Role.GEMM
    if types.a is None and types.b is None:
        reason = f"the name {symbol.base} shows a GEMM, but not its types"
        return describe.other(symbol.library, role, reason)
    return describe.gemm(
        symbol.library,
        f"function name {base}",
        types,
        role=role,
        scaling=type_words.scaling(words, types),
        fast_accum=type_words.fast_accumulation(words),
    )


def _is_grouped(words: tuple[str, ...]) -> bool:
    """Whether the product is of many matrices at once; `group_gemm` is, `per_group` is not."""
    for first, second in pairwise(words):
        if first == "group" and type_words.product_of(second):
            return True
    return not _GROUPED.isdisjoint(words)


def _operands(symbol: Symbol, words: tuple[str, ...]) -> Operands:
    """Return the types that the words give, else the parameters of a C++ function."""
    types = type_words.operands(words)
    has_product = any(map(type_words.product_of, words))
    has_pair = any(map(type_words.is_pair, words))
    if "moe" in words and not has_product and not has_pair:
        # A type in the name of a fused MoE may be that of its weights.
        return Operands()
    is_doubtful = _reads_otherwise(symbol, words, types) or _is_alone(words, types)
    has_types = types.a is not None or types.b is not None
    if has_types and not is_doubtful:
        return types
    element = None
    if types.a is None:
        element = _lettered(words)
    if element or symbol.is_identifier:
        return both(element)
    return _parameters(symbol)


def _lettered(words: tuple[str, ...]) -> str | None:
    """Return the type that BLAS' letter before the product gives, as `hgemm` does."""
    for match in map(_LETTERED.fullmatch, words):
        if match is not None:
            return _LETTERS.get(match["letter"] or "")
    return None


def _is_alone(words: tuple[str, ...], types: Operands) -> bool:
    """Whether a hand-written name mentions FP8 or FP4 once and no other operand type.

    One in three public kernels called `fp8_gemm` reads FP8 weights and multiplies BF16, or reads
    FP8 and multiplies FP16. Two types, or a scaling, are evidence.
    """
    if not types.precision.is_low:
        return False
    if any(map(type_words.is_pair, words)) or type_words.scaling(words, types):
        return False
    return type_words.count_low(words) < 2


def _reads_otherwise(symbol: Symbol, words: tuple[str, ...], types: Operands) -> bool:
    """Whether FP8 or FP4 in a name may be only the weights' type, by the function's parameters.

    A matrix-vector product streams weights, and a single type is theirs. A function that reads at
    most one such matrix, and others in high precision, multiplies something else. Parameters that
    are bytes, structs or tensor maps show nothing.
    """
    if not types._replace(scale=None).precision.is_low:
        return False
    matrices = _plain_matrices(symbol)
    low = 0
    high = 0
    unsaid = 0
    for name in matrices:
        element = _element(name)
        low += element_class(element).is_low
        high += element in ("bf16", "fp16")
        unsaid += element is None and _BYTES.fullmatch(name) is not None
    if low >= 2:
        return False
    if "gemv" in words:
        low_words = sum(map(type_words.is_low, words))
        return low_words < 2
    if len(matrices) < 2:
        return False
    return high > 0 or low + unsaid < 2


def _plain_matrices(symbol: Symbol) -> list[str]:
    """Return the types behind pointers of a function that takes nothing but these and scalars."""
    for part in symbol.parameters:
        argument = _argument(symbol, part)
        if not argument.endswith("*") and not _SCALAR.fullmatch(argument):
            return []
    return _pointed(symbol)


def _parameters(symbol: Symbol) -> Operands:
    """Return the type of A and B where every matrix that a C++ function only reads has one."""
    read = _pointed(symbol)
    elements = {_element(name) for name in read}
    if not symbol.parameters:  # only the template's types: one, and it has 16 bits
        listed = [CPP.get(argument.name) for argument in symbol.tree.args]
        typed = [element for element in listed if element is not None]
        if typed in (["bf16"], ["fp16"]):
            return both(typed[0])
        return Operands()
    if len(elements) != 1:
        return Operands()
    if len(read) == 1:
        # A demangler's cut may have left one: the template's types count too.
        others = {CPP.get(argument.name) for argument in symbol.tree.args} - {None}
        if elements != others or not others <= {"bf16", "fp16"}:
            return Operands()
    single = both(elements.pop())
    # FP8 may be widened before it is multiplied.
    known = single.precision is not Precision.UNKNOWN
    if known and not single.precision.is_low:
        return single
    return Operands()


def _pointed(symbol: Symbol) -> list[str]:
    """Return the types behind pointers to constants, or behind all if none is constant."""
    constant = []
    every = []
    for match in map(_POINTER.search, symbol.parameters):
        if match is None:
            continue
        name = _argument(symbol, match["type"])
        every.append(name)
        if match["const"]:
            constant.append(name)
    return constant or every


def _argument(symbol: Symbol, name: str) -> str:
    """Return the type of a parameter; `T2` is the second template argument (NVIDIA's demangler).

    Behind a pack, which counts as its elements, the number says nothing.
    """
    match = _TEMPLATE_TYPE.fullmatch(name)
    if match is None or "..." in symbol.text:
        return name
    arguments = symbol.tree.args
    number = int(match[1])
    if number > len(arguments):
        return name
    return "::".join(arguments[number - 1].parts)


def _element(name: str) -> str | None:
    """Return the element type of a C++ type's name, with its namespace or without."""
    return CPP.get(name.rpartition("::")[2])
