"""cuDNN and MIOpen kernels other than xmma, CUTLASS and attention ones."""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Role

# MIOpen's assembly implicit GEMMs: igemm_<direction>_gtcx<n>_<layout>_<type>_...
_IGEMM: Final = re.compile(r"igemm_(?:fwd|bwd|wrw)_gtcx\d*_\w+?_(?P<type>fp32|fp16|bf16|int8)_\w+")
_CUDNN_SPACES: Final = ("cudnn", "cask_cudnn", "cask_cudnn_infer", "cask_cudnn_train")
_BATCH_NORM: Final = re.compile(r"bn_\w+|MIOpenBatchNorm\w*")
_FUNCTIONS: Final = re.compile(
    r"(?:im|ex)plicit_convolve_\w+|fft[12]d_[cr]2[cr]_\w+|wgrad_alg\d_engine|dgrad_\w*engine|"
    r"nchwToNhwcKernel|nhwcToNchwKernel|miopenSp3Asm\w+|naive_conv_\w+|gridwise_convolution_\w+|"
    r"conv2d_c1_k1_\w+|conv_depthwise\w+|winograd\w+|[sd]gemm_convolve_\w+|Im2d2Col\w*"
)


def decode(symbol: Symbol) -> KernelName | None:
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
    if _FUNCTIONS.fullmatch(symbol.base):
        return describe.other(symbol.name, "cuDNN", Role.CONV, "part of a convolution")
    if symbol.base == "Kernel" and symbol.path[0].startswith("cutlass_cudnn"):
        return describe.other(symbol.name, "cuDNN", Role.CONV, "a convolution without plain types")
    return None
