"""Marlin weight-only GEMMs: `marlin::Marlin<a, b, c, s, ...>` with vLLM ScalarType ids.

An id packs exponent bits, mantissa bits, sign, bias, finite and NaN flags (vllm/scalar_type.hpp:
exponent | mantissa << 8 | signed << 16 | bias << 17 | finite << 49 | nan << 50). The operands
differ in type, and the kernel converts B first, so the class of the product is not in the name:
a=bf16, b=e4m3 is W8A16 and no FP8 GEMM.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Role

_NAMESPACES: Final = {
    "marlin": Role.GEMM,
    "gptq_marlin": Role.GEMM,
    "marlin_24": Role.GEMM,
    "marlin_dense": Role.GEMM,
    "marlin_moe_wna16": Role.GROUPED_GEMM,
    "marlin_moe": Role.GROUPED_GEMM,
}
_ID: Final = re.compile(r"\d{1,19}(?=l?$|ll$)")
# (exponent bits, mantissa bits, signed) of the floating and the integer ids.
_FORMATS: Final = {
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
    return _FORMATS.get((number & 0xFF, number >> 8 & 0xFF, number >> 16 & 1))


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a Marlin kernel."""
    role = _NAMESPACES.get(symbol.path[0]) if symbol.path else None
    bare = symbol.path == ("Marlin",)
    if not bare and (role is None or not symbol.base.startswith("Marlin")):
        return None
    found = [_ID.match(argument.name) for argument in symbol.tree.args[:3]]
    types = [scalar_type(int(match[0])) if match else None for match in found]
    a, b, out = (*types, None, None, None)[:3]
    evidence = "Marlin ScalarType ids" if a and b else "Marlin, weight-only"
    return describe.gemm(symbol.name, "Marlin", evidence, a, b, out, role=role or Role.GEMM)
