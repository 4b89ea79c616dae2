"""Small families: copies, FBGEMM's matrix-vector kernels, convolutions, Marlin."""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Role
from fp8verify.text import lazy_pattern

# Copies and fills that the driver runs, as Kineto and roctracer name them.
_COPY: Final = lazy_pattern(
    r"(?:Memcpy|Memset)(?: .*)?|\[CUDA mem(?:cpy|set).*|(?:Copy|Fill)(?:Device|Host|Buffer)\w*|"
    r"__amd_rocclr_\w+",
    re.DOTALL,
)


def memory(symbol: Symbol) -> KernelName | None:
    """Decode a copy or fill."""
    if not _COPY.fullmatch(symbol.text):
        return None
    return describe.other(symbol.name, "driver", Role.MEMORY, "a copy or fill of memory")


# FBGEMM GenAI's matrix-vector kernels: `gemv_quantized_<A>_<B>`, `bf16fp8bf16_fast_gemv`.
#
# `bf16fp8bf16` reads BF16 activations, FP8 weights, and writes BF16: weight-only, no FP8 product.
# Source: fbgemm_gpu/experimental/gen_ai/src/quantize/fast_gemv.
_GEMV_TYPE: Final = "bf16|fp16|fp8|int4|int8|fp32"
_GEMV_QUANTIZED: Final = lazy_pattern(rf"gemv_quantized_(?P<a>{_GEMV_TYPE})_(?P<b>{_GEMV_TYPE})")
_GEMV_PLAIN: Final = lazy_pattern(rf"gemv_(?P<a>{_GEMV_TYPE})(?P<b>)")
_GEMV_FAST: Final = lazy_pattern(
    rf"(?P<a>{_GEMV_TYPE})(?:(?P<b>{_GEMV_TYPE})(?P<out>{_GEMV_TYPE}))?_fast_gemv(?:_meta)?"
)


def fbgemm(symbol: Symbol) -> KernelName | None:
    """Decode an FBGEMM matrix-vector kernel."""
    for pattern in (_GEMV_QUANTIZED, _GEMV_PLAIN, _GEMV_FAST):
        match = pattern.fullmatch(symbol.base)
        if match:
            a = SHORT[match["a"]]
            b = SHORT[match["b"]] if match["b"] else a
            out = SHORT.get(match.groupdict().get("out") or "")
            return describe.gemm(symbol.name, "FBGEMM", f"name {symbol.base}", a, b, out)
    return None


# cuDNN and MIOpen kernels other than xmma, CUTLASS and attention ones.
# MIOpen's assembly implicit GEMMs: igemm_<direction>_gtcx<n>_<layout>_<type>_...
_IGEMM: Final = lazy_pattern(
    r"igemm_(?:fwd|bwd|wrw)_gtcx\d*_\w+?_(?P<type>fp32|fp16|bf16|int8)_\w+"
)
_CUDNN_SPACES: Final = ("cudnn", "cask_cudnn", "cask_cudnn_infer", "cask_cudnn_train")
_BATCH_NORM: Final = lazy_pattern(r"bn_\w+|MIOpenBatchNorm\w*")
_CONVOLUTIONS: Final = lazy_pattern(
    r"(?:im|ex)plicit_convolve_\w+|fft[12]d_[cr]2[cr]_\w+|wgrad_alg\d_engine|dgrad_\w*engine|"
    r"nchwToNhwcKernel|nhwcToNchwKernel|miopenSp3Asm\w+|naive_conv_\w+|gridwise_convolution_\w+|"
    r"conv2d_c1_k1_\w+|conv_depthwise\w+|winograd\w+|[sd]gemm_convolve_\w+|Im2d2Col\w*"
)


def convolution(symbol: Symbol) -> KernelName | None:
    """Decode a convolution kernel, its layout changes included."""
    igemm = _IGEMM.fullmatch(symbol.text)
    if igemm:
        element = SHORT[igemm["type"]]
        evidence = f"MIOpen implicit GEMM type {element}"
        return describe.gemm(symbol.name, "MIOpen", evidence, element, element, role=Role.CONV)
    if _BATCH_NORM.fullmatch(symbol.base):
        return describe.other(symbol.name, "cuDNN", Role.REDUCTION, "batch normalization")
    if symbol.path[:1] and symbol.path[0] in _CUDNN_SPACES and len(symbol.path) > 1:
        return describe.other(symbol.name, "cuDNN", Role.CONV, "a cuDNN kernel without types")
    if _CONVOLUTIONS.fullmatch(symbol.base):
        return describe.other(symbol.name, "cuDNN", Role.CONV, "part of a convolution")
    if symbol.base == "Kernel" and symbol.path[0].startswith("cutlass_cudnn"):
        return describe.other(symbol.name, "cuDNN", Role.CONV, "a convolution without plain types")
    return None


# Marlin weight-only GEMMs: `marlin::Marlin<a, b, c, s, ...>` with vLLM ScalarType ids.
#
# An id packs exponent bits, mantissa bits, sign, bias, finite and NaN flags (vllm/scalar_type.hpp:
# exponent | mantissa << 8 | signed << 16 | bias << 17 | finite << 49 | nan << 50). The operands
# differ in type, and the kernel converts B first, so the class of the product is not in the name:
# a=bf16, b=e4m3 is W8A16 and no FP8 GEMM.
_MARLIN_SPACES: Final = {
    "marlin": Role.GEMM,
    "gptq_marlin": Role.GEMM,
    "marlin_24": Role.GEMM,
    "marlin_dense": Role.GEMM,
    "marlin_moe_wna16": Role.GROUPED_GEMM,
    "marlin_moe": Role.GROUPED_GEMM,
}
_MARLIN_ID: Final = lazy_pattern(r"\d{1,19}(?=l?$|ll$)")
# (exponent bits, mantissa bits, signed) of the floating and the integer ids.
_MARLIN_FORMATS: Final = {
    (8, 7, 1): "bf16",
    (5, 10, 1): "fp16",
    (4, 3, 1): "e4m3",
    (5, 2, 1): "e5m2",
    (2, 1, 1): "e2m1",
    (8, 0, 0): "ue8m0",
    (0, 4, 0): "int4",
    (0, 8, 0): "uint8",
    (0, 7, 1): "int8",
}


def scalar_type(number: int) -> str | None:
    """Return the element type of a vLLM ScalarType id."""
    return _MARLIN_FORMATS.get((number & 0xFF, number >> 8 & 0xFF, number >> 16 & 1))


def marlin(symbol: Symbol) -> KernelName | None:
    """Decode a Marlin kernel."""
    role = _MARLIN_SPACES.get(symbol.path[0]) if symbol.path else None
    bare = symbol.path == ("Marlin",)
    if not bare and (role is None or not symbol.base.startswith("Marlin")):
        return None
    found = [_MARLIN_ID.match(argument.name) for argument in symbol.tree.args[:3]]
    types = [scalar_type(int(match[0])) if match else None for match in found]
    a, b, out = (*types, None, None, None)[:3]
    evidence = "Marlin ScalarType ids" if a and b else "Marlin, weight-only"
    return describe.gemm(symbol.name, "Marlin", evidence, a, b, out, role=role or Role.GEMM)
