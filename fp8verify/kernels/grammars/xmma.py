"""xmma kernels of cuBLAS, cuDNN and TensorRT: `sm<arch>_xmma_<op>_<F1>_<F2>_<acc>_...`.

F1 is A, B where it differs, and C/D; F2 is what the MMA reads (A, B) and its accumulator: NVIDIA
on TransformerEngine issue 1391, "`e4m3bf16` means tensor A/B in fp8, C/D in bf16". So FP8 names
contain bf16, and `f16f16_f32f32_f32` multiplies in FP32.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision, Role

_NAME: Final = re.compile(r"sm(\d+)_xmma_(\w+)")
_ELEMENT: Final = re.compile(r"e4m3|e5m2|bf16|tf32|f16|f32|f64|i8|u8|i32|i4")
_FIELD: Final = re.compile(rf"(?:{_ELEMENT.pattern})+")
_CONVOLUTION: Final = frozenset({"fprop", "dgrad", "wgrad", "conv", "deconv"})
_COMPLEX: Final = {"cc": Precision.FP32, "zz": Precision.FP64}
# Counted on an H200 (scripts/prove_names.py): 2·M·N additions beside the GEMM's 2·M·N·K.
_SPLIT_K: Final = "_execute_split_k_kernel"


def decode(symbol: Symbol) -> KernelName | None:
    """Decode an xmma name from its type fields, the first two words that are only types."""
    match = _NAME.match(symbol.text)
    if not match:
        return None
    words = match[2].split("_")
    fields = [i for i, word in enumerate(words) if _FIELD.fullmatch(word)]
    head = words[: fields[0]] if fields else words
    role = Role.CONV if _CONVOLUTION & set(head) else Role.GEMM
    library = _library(words)
    if len(fields) < 2 or fields[1] != fields[0] + 1:
        return _untyped(symbol, library, role, words)
    stored, read = (_ELEMENT.findall(words[i]) for i in fields[:2])
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
        tokens=tokens if _SPLIT_K in symbol.text else (),
    )


def _untyped(symbol: Symbol, library: str, role: Role, words: list[str]) -> KernelName:
    for word in words:
        if word in _COMPLEX and "ffma" in words:
            reason = f"xmma type field {word}: complex numbers, multiplied in CUDA cores"
            return describe.other(symbol.name, library, role, reason, precision=_COMPLEX[word])
    return describe.other(symbol.name, library, role, "an xmma kernel without type fields")


def _library(words: list[str]) -> str:
    if "cudnn" in words:
        return "cuDNN"
    return "TensorRT" if "trt" in words else "cuBLAS"
