"""cuBLAS kernels other than nvjet: classic GEMMs, matrix-vector, split-K reductions, xmma."""

from __future__ import annotations

from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.cxx import Type, walk
from fp8verify.kernels.elements import CPP, SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision, Role
from fp8verify.text import lazy_pattern

_LIBRARY: Final = "cuBLAS"
_CLASSIC: Final = lazy_pattern(
    r"(?:cudnn_(?:infer_|train_)?)?(?:kepler|maxwell|pascal|volta|turing|ampere|ada|hopper)_"
    r"(?:(?P<out>fp16|bf16|fp32|int8|int32)_)?"
    r"(?P<letter>gc|gz|[shdiczb])(?P<mma>\d+)?(?P<op>gemm|cudnn)"
    r"(?:_(?P<operand>fp16|bf16|int8|int4|tf32))?(?P<tile>_\d+x\d+)?(?=_|$)\w*"
)
# Letters of BLAS; gc and gz are the 3-multiplication complex forms.
_SIMT: Final[dict[str, Precision]] = {
    "s": Precision.FP32,
    "c": Precision.FP32,
    "gc": Precision.FP32,
    "h": Precision.FP16,
    "d": Precision.FP64,
    "z": Precision.FP64,
    "gz": Precision.FP64,
    "i": Precision.INT8,
}
_SIMT_ELEMENTS: Final = {"s": "fp32", "h": "fp16", "d": "fp64", "i": "int8"}

# Function names of the matrix-vector and small-matrix kernels, launched by aten::mm and addmm.
_GEMV: Final = lazy_pattern(r"gemv[\dNx]\w*|gemmSN_[NT]{2}_kernel|gemmk1_kernel|dot_kernel")
_LARGE_K: Final = lazy_pattern(r"(?P<letter>[shd])gemm_largek_lds\d+|[sd]gemm_\w+")
_TENSOR: Final = lazy_pattern(r"cublasGemvTensor\w*")
_MAGMA: Final = lazy_pattern(r"magma_(?P<letter>[sd])gemmEx_kernel\w*")
# What cuBLAS launches around a GEMM: its scaling of C by beta, cuBLASLt's unfused epilogue.
_AROUND: Final = lazy_pattern(r"scal_(?:\w+_)?kernel(?:_val)?")
_FLOATS: Final = frozenset({"fp32", "fp64", "fp16", "bf16", "e4m3", "e5m2"})


def decode(symbol: Symbol) -> KernelName | None:
    """Decode classic GEMMs, gemv and dot kernels, and split-K reductions."""
    base = symbol.tree.name if symbol.path[:1] == ("std",) else symbol.base
    if base == "splitKreduce_kernel":
        return _split_k(symbol)
    around = symbol.path[-3:] == ("epilogue", "impl", "globalKernel") or _AROUND.fullmatch(base)
    if around:
        reason = "a part of the GEMM beside it: scales or finishes its output"
        return describe.other(symbol.name, _LIBRARY, Role.OTHER, reason)
    magma = _MAGMA.fullmatch(base)
    if magma:  # CUDA cores multiply in the letter's type, whatever type is stored
        element = _SIMT_ELEMENTS[magma["letter"]]
        return describe.gemm(symbol.name, _LIBRARY, f"{base} computes in", element, element)
    if symbol.is_identifier:
        return _classic(symbol)
    if base.startswith(("gem", "dot_", "sgemm", "dgemm", "hgemm")) or "gemvx" in symbol.tree.parts:
        return _vector(symbol, base)
    return None


def _classic(symbol: Symbol) -> KernelName | None:
    match = _CLASSIC.fullmatch(symbol.text)
    if not match:
        return None
    role = Role.CONV if match["op"] == "cudnn" else Role.GEMM
    library = "cuDNN" if role is Role.CONV else _LIBRARY
    letter, operand = match["letter"], SHORT.get(match["operand"] or "")
    evidence = f"{letter}{match['mma'] or ''}{match['op']}" + (f" on {operand}" if operand else "")
    precision: Precision | None = _SIMT.get(letter, Precision.UNKNOWN)
    element = _SIMT_ELEMENTS.get(letter)
    if match["mma"] and letter == "s":
        precision, element = None, operand or (_untagged(match["mma"]) if match["tile"] else None)
    elif letter == "s" and operand == "int8":
        precision = Precision.UNKNOWN  # int8 is read, FP32 is multiplied
    elif letter == "i" and operand == "int4":
        precision, element = Precision.UNKNOWN, operand
    return describe.gemm(
        symbol.name,
        library,
        f"{library} kernel type {evidence}",
        element,
        element,
        SHORT.get(match["out"] or "", "int32" if letter == "i" else None),
        role=role,
        precision=precision,
    )


def _untagged(mma: str) -> str | None:
    """m16n8k8 with 32-bit operands exists for TF32 only, m8n8k4 with FP32 sums for FP16 (PTX)."""
    return {"1688": "tf32", "884": "fp16"}.get(mma)


def _split_k(symbol: Symbol) -> KernelName:
    """Describe the kernel that adds up the parts of a split-K GEMM.

    Its types are those of the partial sums and of the output: an FP8 among them says what is
    written, not what was multiplied.
    """
    reason = "adds up the parts of a split-K GEMM; the GEMM's operand types are not in its name"
    return describe.other(symbol.name, _LIBRARY, Role.REDUCTION, reason, tokens=(describe.SPLIT_K,))


def _vector(symbol: Symbol, base: str) -> KernelName | None:
    tree = symbol.tree
    gemvx = tree.parts[-2:] == ("gemvx", "kernel")
    large = _LARGE_K.fullmatch(base)
    if not (gemvx or large or _GEMV.fullmatch(base)) or not symbol.text.count("<"):
        return None
    element = _vector_element(tree, base)
    if large and element is None:
        element = _SIMT_ELEMENTS.get(base[0])
    return describe.gemm(symbol.name, _LIBRARY, f"{base} operand type", element, element)


def _vector_element(tree: Type, base: str) -> str | None:
    """Return the element type of the inputs: of the first tensor argument, or the first float."""
    tensors = [node for node in walk(tree) if _TENSOR.fullmatch(node.name) and node.args]
    arguments = () if base == "dot_kernel" else tree.args  # its first argument is the accumulator
    candidates = (tensors[0].args[0],) if tensors else arguments
    names = (CPP.get(candidate.name) for candidate in candidates)
    return next((name for name in names if name in _FLOATS), None)


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
# Counted on an H200 (scripts/prove_names.py): 2·M·N additions beside the GEMM's 2·M·N·K.
_XMMA_SPLIT_K: Final = "_execute_split_k_kernel"


def xmma(symbol: Symbol) -> KernelName | None:
    """Decode an xmma name from its type fields, the first two words that are only types."""
    match = _XMMA.match(symbol.text)
    if not match:
        return None
    words = match[2].split("_")
    fields = [i for i, word in enumerate(words) if _XMMA_FIELD.fullmatch(word)]
    head = words[: fields[0]] if fields else words
    role = Role.CONV if _XMMA_CONVOLUTION & set(head) else Role.GEMM
    library = _xmma_library(words)
    if len(fields) < 2 or fields[1] != fields[0] + 1:
        return _xmma_untyped(symbol, library, role, words)
    stored, read = (_XMMA_ELEMENT.findall(words[i]) for i in fields[:2])
    a, b = SHORT[read[0]], SHORT[read[1] if len(read) > 2 else read[0]]
    out = SHORT[stored[-1]]
    tokens = (describe.SPLIT_K, *describe.operand_tokens(a, b, out))
    fast = False if "algo2" in words and a in ("e4m3", "e5m2") else None
    return describe.gemm(
        symbol.name,
        library,
        f"xmma type fields {words[fields[0]]}_{words[fields[1]]}",
        a,
        b,
        out,
        role=role,
        fast_accum=fast,
        tokens=tokens if _XMMA_SPLIT_K in symbol.text else (),
    )


def _xmma_untyped(symbol: Symbol, library: str, role: Role, words: list[str]) -> KernelName:
    for word in words:
        if word in _XMMA_COMPLEX and "ffma" in words:
            reason = f"xmma type field {word}: complex numbers, multiplied in CUDA cores"
            return describe.other(symbol.name, library, role, reason, precision=_XMMA_COMPLEX[word])
    return describe.other(symbol.name, library, role, "an xmma kernel without type fields")


def _xmma_library(words: list[str]) -> str:
    if "cudnn" in words:
        return "cuDNN"
    return "TensorRT" if "trt" in words else "cuBLAS"
