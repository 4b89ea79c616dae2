"""FBGEMM GenAI's matrix-vector kernels: `gemv_quantized_<A>_<B>`, `bf16fp8bf16_fast_gemv`.

`bf16fp8bf16` reads BF16 activations, FP8 weights, and writes BF16: weight-only, no FP8 product.
Source: fbgemm_gpu/experimental/gen_ai/src/quantize/fast_gemv.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName

_TYPE: Final = "bf16|fp16|fp8|int4|int8|fp32"
_QUANTIZED: Final = re.compile(rf"gemv_quantized_(?P<a>{_TYPE})_(?P<b>{_TYPE})")
_PLAIN: Final = re.compile(rf"gemv_(?P<a>{_TYPE})(?P<b>)")
_FAST: Final = re.compile(rf"(?P<a>{_TYPE})(?:(?P<b>{_TYPE})(?P<out>{_TYPE}))?_fast_gemv(?:_meta)?")


def decode(symbol: Symbol) -> KernelName | None:
    """Decode an FBGEMM matrix-vector kernel."""
    for pattern in (_QUANTIZED, _PLAIN, _FAST):
        match = pattern.fullmatch(symbol.base)
        if match:
            a = SHORT[match["a"]]
            b = SHORT[match["b"]] if match["b"] else a
            out = SHORT.get(match.groupdict().get("out") or "")
            return describe.gemm(symbol.name, "FBGEMM", f"name {symbol.base}", a, b, out)
    return None
