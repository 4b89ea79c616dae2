"""cuBLAS kernels: nvjet, xmma, classic GEMMs, matrix-vector kernels and split-K reductions.

nvjet are cuBLASLt's run-time generated GEMMs for Hopper and Blackwell. Grammar from the format
strings in libcublasLt 12.9 and 13.1:
`nvjet_[sm<arch>_]<types>_<tile>_<k>x<stages>_<cluster>[_2cta]_<h|v>_<b?>[_modifiers]_<layout>`,
for sm120 `nvjet_sm120_<types>_mma_<tile>_...`. The tensor layout is no evidence: FP8 is TN only
on Hopper, and runs in every layout on Blackwell.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import (
    BLAS,
    CPP,
    FP8_ELEMENTS,
    SCALES,
    SHORT,
    Operands,
    both,
)
from fp8verify.kernels.symbol import Symbol, Type, walk
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Hint, KernelName, Precision, Role, Scaling

_LIBRARY: Final = "cuBLAS"
_NVJET: Final = lazy_pattern(
    r"nvjet_(?:sm(?P<arch>\d+)[af]?_)?(?P<types>[a-z]{3,6}(?:_[sz]\dz?\dm\d+)?)(?P<tf32>_tf32)?"
    r"_(?P<rest>(?:(?:mma_)?\d+x\d+|…|\.\.\.).*)",
    re.DOTALL,
)
_NVJET_CUT: Final = lazy_pattern(r"nvjet(?:_(?:sm\d+[af]?_?)?[a-z]*)?(?:_(?:mma)?)?\.*")

# Letters of the type code. t, h, s: launched by aten::mm with those inputs; q, r: HW counters
# and torch._scaled_mm on an H200; o: NVFP4 torch._scaled_mm; b: libcublasLt RTTI (signed char).
LETTERS: Final[dict[str, str]] = {
    "t": "bf16", "h": "fp16", "s": "fp32", "q": "e4m3", "r": "e5m2", "o": "e2m1", "b": "int8",
    "i": "int32",
}  # fmt: skip
# Exact modifier tokens that name a scaling, with the format of a hardware block scale.
_SCALING: Final = lazy_pattern(r"[AB](?:vec|blk)\d+(?P<format>UE8M0|UE4M3)?")
_LAYOUT: Final = lazy_pattern(r"[TN]{3,4}")


def nvjet(symbol: Symbol) -> KernelName | None:
    """Decode an nvjet name: 3 letters are A=B, compute, D; 5 are A, B, C, compute, D."""
    match = _NVJET.fullmatch(symbol.text)
    if match is None and _NVJET_CUT.fullmatch(symbol.text):
        reason = "an nvjet GEMM whose name is cut off before the tile, so its types are not certain"
        return describe.other(_LIBRARY, Role.GEMM, reason)
    if match is None:
        return None
    modifiers = match["rest"].split("_")
    types = _nvjet_types(match["types"])
    scaling, scale = _nvjet_scaling(modifiers, match["arch"], types.a)
    if types.a == types.b == "e2m1" and scale is None:
        scale = (
            "ue4m3"  # cuBLASLt takes no other scales for FP4 (its documentation, 13.1)
        )
    precision = None
    if types.a == types.b == "fp32":  # the only FP32 code in the library carries _tf32
        if match["tf32"]:
            precision = Precision.TF32
        else:
            precision = Precision.UNKNOWN
        types = both("tf32" if match["tf32"] else "fp32", types.out)
    # FP8 products may be added up in reduced precision, a Hopper-only choice.
    if "algo2" in modifiers:
        fast = False
    elif match["arch"] == "90":
        fast = True
    else:
        fast = None
    return describe.gemm(
        _LIBRARY,
        f"nvjet type code {match['types']}{match['tf32'] or ''}",
        types._replace(scale=scale),
        scaling=scaling,
        precision=precision,
        fast_accum=fast if types.a in FP8_ELEMENTS else None,
    )


def _nvjet_types(code: str) -> Operands:
    joined, _, _ = code.partition("_")
    letters = [LETTERS.get(letter) for letter in joined]
    if len(letters) == 3:
        return both(letters[0], letters[2])
    out = None
    if len(letters) == 5:
        out = letters[4]
    return Operands(letters[0], letters[1], out)


def _nvjet_scaling(
    modifiers: list[str], arch: str | None, a: str | None
) -> tuple[Scaling | None, str | None]:
    """Return the scaling and the hardware scale format of the modifiers."""
    for modifier in modifiers:
        if modifier == "ovscale":
            return Scaling.ROWWISE, None
        match = _SCALING.fullmatch(modifier)
        if match is None:
            continue
        if match["format"]:
            return None, match["format"].lower()
        return Scaling.BLOCKWISE, None
    # From sm100 on a name without scaling token may also be row-wise (outer vector) scaled, and
    # a name that was cut off before its layout may have lost the token.
    is_older = arch == "90" or (arch is None and "2cta" not in modifiers)
    is_whole = _LAYOUT.fullmatch(modifiers[-1]) is not None
    if is_older and is_whole and a in FP8_ELEMENTS:
        return Scaling.TENSORWISE, None
    return None, None


# Products in the libraries' own logs: fp8verify.trace.blas_log.
_LOGGED: Final = lazy_pattern(
    r"(cublas|hipblas)LtMatmul_([a-z0-9]+)_([a-z0-9]+)_([a-z0-9]+)(?:_([a-z0-9]+))?"
)


def logged(symbol: Symbol) -> KernelName | None:
    """Decode the name of a product that cuBLASLt or hipBLASLt logged."""
    match = _LOGGED.fullmatch(symbol.text)
    if not match:
        return None
    prefix, *words, scale = match.groups()
    a, b, out = (None if word == "other" else word for word in words)
    types = Operands(a, b, out)
    if scale in SCALES:
        types = types._replace(scale=scale)
    scaling = None
    if scale in {kind.value for kind in Scaling}:
        scaling = Scaling(scale)
    library = "hipBLASLt"
    if prefix == "cublas":
        library = _LIBRARY
    return describe.gemm(library, f"logged by {prefix}Lt", types, scaling=scaling)


_CLASSIC: Final = lazy_pattern(
    r"(?:cudnn_(?:infer_|train_)?)?(?:kepler|maxwell|pascal|volta|turing|ampere|ada|hopper)_"
    r"(?:(?P<out>fp16|bf16|fp32|int8|int32)_)?"
    r"(?P<letter>gc|gz|[shdiczb])(?P<mma>\d+)?(?P<op>gemm|cudnn)"
    r"(?:_(?P<operand>fp16|bf16|int8|int4|tf32))?(?P<tile>_\d+x\d+)?(?=_|$)\w*"
)
# Function names of the matrix-vector and small-matrix kernels, launched by aten::mm and addmm.
_GEMV: Final = lazy_pattern(
    r"gemv[\dNx]\w*|gemmSN_[NT]{2}_kernel|gemmk1_kernel|dot_kernel"
)
_LARGE_K: Final = lazy_pattern(r"(?P<letter>[shd])gemm_largek_lds\d+|[sd]gemm_\w+")
_TENSOR: Final = lazy_pattern(r"cublasGemvTensor\w*")
_MAGMA: Final = lazy_pattern(r"magma_(?P<letter>[sd])gemmEx_kernel\w*")
# What cuBLAS launches around a GEMM: its scaling of C by beta, cuBLASLt's unfused epilogue.
_AROUND: Final = lazy_pattern(r"scal_(?:\w+_)?kernel(?:_val)?")
# m16n8k8 with 32-bit operands exists for TF32 only, m8n8k4 with FP32 sums for FP16 (PTX).
_UNTAGGED: Final = {"1688": "tf32", "884": "fp16"}
_FLOATS: Final = frozenset({"fp32", "fp64", "fp16", "bf16", "e4m3", "e5m2"})


def decode(symbol: Symbol) -> KernelName | None:
    """Decode classic GEMMs, gemv and dot kernels, and split-K reductions."""
    base = symbol.base
    if symbol.path[:1] == ("std",):
        base = symbol.tree.name
    if base == "splitKreduce_kernel":
        # Its types are those of partial sums and of the output.
        reason = "adds up the parts of a split-K GEMM; the GEMM's operand types are not in its name"
        return describe.other(_LIBRARY, Role.REDUCTION, reason, hint=Hint.SPLIT_K)
    is_epilogue = symbol.path[-3:] == ("epilogue", "impl", "globalKernel")
    if is_epilogue or _AROUND.fullmatch(base):
        reason = "a part of the GEMM beside it: scales or finishes its output"
        return describe.other(_LIBRARY, Role.OTHER, reason)
    magma = _MAGMA.fullmatch(base)
    if magma:  # CUDA cores multiply in the letter's type, whatever type is stored
        return describe.gemm(
            _LIBRARY, f"{base} computes in", both(BLAS[magma["letter"]])
        )
    if symbol.is_identifier:
        return _classic(symbol.text)
    return _vector(symbol, base)


def _classic(text: str) -> KernelName | None:
    match = _CLASSIC.fullmatch(text)
    if not match:
        return None
    library = _LIBRARY
    role = Role.GEMM
    if match["op"] == "cudnn":
        library = "cuDNN"
        role = Role.CONV
    letter = match["letter"]
    mma = match["mma"] or ""
    operand = SHORT.get(match["operand"] or "")
    evidence = f"{library} kernel type {letter}{mma}{match['op']}"
    if operand:
        evidence += f" on {operand}"
    element = BLAS.get(letter)
    if mma and letter == "s":
        element = operand
        if element is None and match["tile"]:
            element = _UNTAGGED.get(mma)
    elif operand == "int4" and letter == "i":
        element = operand
    elif operand == "int8" and letter == "s":
        element = None  # INT8 is read, FP32 is multiplied
    out = SHORT.get(match["out"] or "")
    if out is None and letter == "i":
        out = "int32"
    return describe.gemm(library, evidence, both(element, out), role=role)


def _vector(symbol: Symbol, base: str) -> KernelName | None:
    tree = symbol.tree
    is_large = _LARGE_K.fullmatch(base) is not None
    is_gemvx = tree.parts[-2:] == ("gemvx", "kernel")
    is_known = is_large or is_gemvx or _GEMV.fullmatch(base) is not None
    if not is_known or "<" not in symbol.text:
        return None
    element = None
    if is_large:
        element = BLAS[base[0]]
    for argument in _vector_inputs(tree, base):
        named = CPP.get(argument.name)
        if named in _FLOATS:
            element = named
            break
    return describe.gemm(_LIBRARY, f"{base} operand type", both(element))


def _vector_inputs(tree: Type, base: str) -> tuple[Type, ...]:
    """Return the template arguments that may be the types of the operands."""
    for node in walk(tree):
        if node.args and _TENSOR.fullmatch(node.name):
            return node.args[:1]
    if base == "dot_kernel":  # the first of its arguments is the accumulator
        return ()
    return tree.args


# xmma kernels of cuBLAS, cuDNN and TensorRT: `sm<arch>_xmma_<op>_<F1>_<F2>_<acc>_...`.
#
# F1 is A, B where it differs, and C/D; F2 is what the MMA reads (A, B) and its accumulator: NVIDIA
# on TransformerEngine issue 1391, "`e4m3bf16` means tensor A/B in fp8, C/D in bf16". So FP8 names
# contain bf16, and `f16f16_f32f32_f32` multiplies in FP32.
_XMMA: Final = lazy_pattern(r"sm(\d+)_xmma_(\w+)")
_XMMA_ELEMENT: Final = lazy_pattern(r"e4m3|e5m2|bf16|tf32|f16|f32|f64|i8|u8|i32|i4")
_XMMA_FIELD: Final = lazy_pattern(rf"(?:{_XMMA_ELEMENT.pattern})+")
_XMMA_CONVOLUTION: Final = frozenset({"fprop", "dgrad", "wgrad", "conv", "deconv"})
_XMMA_COMPLEX: Final = {"cc": Precision.FP32, "zz": Precision.FP64}
# Counted on an H200 (scripts/prove_names.py): 2·M·N additions and the GEMM's 2·M·N·K.
_XMMA_SPLIT_K: Final = "_execute_split_k_kernel"


def xmma(symbol: Symbol) -> KernelName | None:
    """Decode an xmma name from its type fields, the first two words that are only types."""
    match = _XMMA.match(symbol.text)
    if not match:
        return None
    words = match[2].split("_")
    fields = [at for at, word in enumerate(words) if _XMMA_FIELD.fullmatch(word)]
    first_field, *_ = (*fields, len(words))
    role = Role.GEMM
    if _XMMA_CONVOLUTION & set(words[:first_field]):
        role = Role.CONV
    if "cudnn" in words:
        library = "cuDNN"
    elif "trt" in words:
        library = "TensorRT"
    else:
        library = _LIBRARY
    if len(fields) < 2 or fields[1] != fields[0] + 1:
        return _xmma_untyped(library, role, words)
    first, second = (words[at] for at in fields[:2])
    stored = _XMMA_ELEMENT.findall(first)
    read = _XMMA_ELEMENT.findall(second)
    types = both(SHORT[read[0]], SHORT[stored[-1]])
    if len(read) > 2:
        types = types._replace(b=SHORT[read[1]])
    fast_accum = None
    if "algo2" in words and types.a in FP8_ELEMENTS:
        fast_accum = False
    hint = None
    if _XMMA_SPLIT_K in symbol.text:
        hint = Hint.SPLIT_K
    return describe.gemm(
        library,
        f"xmma type fields {first}_{second}",
        types,
        role=role,
        fast_accum=fast_accum,
        hint=hint,
    )


def _xmma_untyped(library: str, role: Role, words: list[str]) -> KernelName:
    for word in words:
        if word in _XMMA_COMPLEX and "ffma" in words:
            reason = (
                f"xmma type field {word}: complex numbers, multiplied in CUDA cores"
            )
            return describe.other(library, role, reason, precision=_XMMA_COMPLEX[word])
    return describe.other(library, role, "an xmma kernel without type fields")
