"""TensorRT-LLM kernels: trtllm-gen's `bmm_<D>_<A><B>_<acc>_...`, `fmhaSm100fKernel_Qkv<T>O<T>...`.

Source: names of the cubins in TensorRT-LLM and FlashInfer, checked on B200 traces of gpt-oss.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import CPP, SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision, Role
from fp8verify.text import lazy_pattern

_TYPE: Final = r"Mx(?:E4m3|E2m1|Int4)|E4m3|E5m2|E2m1|Bfloat16|Fp16|Fp32|Int8|Int4|UE8m0"
_GEMM: Final = lazy_pattern(
    rf"(?P<kind>bmm|gemm|gemmGatedAct|batchedGemm)_(?P<out>{_TYPE})_(?P<a>{_TYPE})(?P<b>{_TYPE})?_"
    r"(?:Fp32|Fp16|Int32)_\w*"
)
_ATTENTION: Final = lazy_pattern(
    rf"fmhaSm\d+[af]?(?:Kernel)?_Qkv?(?P<qkv>{_TYPE})(?:O(?P<out>{_TYPE}))?\w*"
)
_QUANTIZE: Final = lazy_pattern(r"quantize_with_block_size")
_SCALE_TYPE: Final = lazy_pattern(r"(?:\([\w:]*BlockScaleQuantizationType\)|Type::)(\d)")
# BlockScaleQuantizationType (tensorrt_llm/kernels/quantization.h): 0 and 1 write FP4, 2 MXFP8.
# Which FP4 the block's size tells, the third argument: 16 elements for NVFP4, 32 for MXFP4.
_WRITES: Final = {"0": Precision.FP4, "1": Precision.FP4, "2": Precision.MXFP8}
_BLOCKS: Final = {"16": Precision.NVFP4, "32": Precision.MXFP4}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a TensorRT-LLM GEMM, attention or block-quantize kernel."""
    gemm = _GEMM.fullmatch(symbol.text)
    if gemm:
        return _gemm(symbol, gemm)
    attention = _ATTENTION.fullmatch(symbol.text)
    if attention:
        element, out = _element(attention["qkv"])[0], _element(attention["out"])[0]
        evidence = f"trtllm-gen attention, Qkv{attention['qkv']}"
        return describe.gemm(
            symbol.name, "TensorRT-LLM", evidence, element, element, out, role=Role.ATTENTION
        )
    if _QUANTIZE.fullmatch(symbol.base):
        return _quantize(symbol)
    if symbol.base == "cudaCoreGemm" and symbol.tree.args:
        a = CPP.get(symbol.tree.args[0].name)
        return describe.gemm(symbol.name, "TensorRT-LLM", "cudaCoreGemm element type", a, a)
    return None


def _gemm(symbol: Symbol, match: re.Match[str]) -> KernelName:
    (a, scale_a), (b, scale_b) = _element(match["a"]), _element(match["b"] or match["a"])
    role = Role.GROUPED_GEMM if match["kind"] in ("bmm", "batchedGemm") else Role.GEMM
    return describe.gemm(
        symbol.name,
        "TensorRT-LLM",
        f"trtllm-gen {match['kind']} types {match['a']}{match['b'] or ''}",
        a,
        b,
        _element(match["out"])[0],
        role=role,
        scale=scale_a if scale_a == scale_b else None,
    )


def _element(text: str | None) -> tuple[str | None, str | None]:
    """Return element type and block scale: `MxE4m3` has E8M0 scales, a bare `E2m1` is NVFP4."""
    if text is None:
        return None, None
    element = SHORT.get(text.removeprefix("Mx").lower())
    if text.startswith("Mx"):
        return element, "ue8m0"
    return element, "ue4m3" if text == "E2m1" else None


def _quantize(symbol: Symbol) -> KernelName:
    arguments = symbol.tree.args
    first = "::".join(arguments[0].parts) if arguments else ""
    match = _SCALE_TYPE.fullmatch(first)
    precision = _WRITES.get(match[1], Precision.UNKNOWN) if match else Precision.UNKNOWN
    if precision is Precision.FP4 and len(arguments) > 2:
        precision = _BLOCKS.get(arguments[2].name, precision)
    return describe.other(
        symbol.name,
        "TensorRT-LLM",
        Role.CAST_QUANTIZE,
        "quantizes to a block-scaled format; the type is its first template argument",
        precision=precision,
    )
