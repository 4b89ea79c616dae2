"""AMD aiter's assembly kernels: `fp8gemm_bf16_blockscale_...`, `fmoe_bf16_blockscaleFp8_...`.

In them the type joined to `gemm` is that of the operands, the one after it is the output; for
fmoe the operands' type stands in the quantization word. Source: aiter/hsa/*/ (kernel names in
the registries), aiter/ops/gemm_op_a8w8.py.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision, Role, Scaling
from fp8verify.text import lazy_pattern

_LIBRARY: Final = "aiter"
# aiter writes these names by hand, and not all with the length of the name in them right.
_MANGLED: Final = lazy_pattern(r"_ZN5aiter\d+(?P<base>[a-zA-Z]\w*)E")
_TYPE: Final = r"fp8|bf8|f8|fp4|f4|bf16|fp16|f16|[iI]8|int8|fp32"
_GEMM: Final = lazy_pattern(rf"(?P<in>{_TYPE})gemm_(?:(?P<out>fp32bf16|{_TYPE})_)?\w*")
# Blocks of 32 with E8M0 scales: of both operands alike, or of A and B apart (mxfp8fp4).
_MX: Final = lazy_pattern(r"(?:mx(?P<a>fp8|fp4)(?P<b>fp8|fp4)?|per1x32(?P<c>Fp[84]))")
_HGEMM: Final = lazy_pattern(r"hgemm_(?P<in>bf16|fp16|f16)_\w*")
_FMOE: Final = lazy_pattern(
    rf"fmoe_(?:stage[12]_)?(?P<out>{_TYPE})_"
    r"(?:(?P<unit>blockscale|pertoken|perToken|per1x128|per1x32|noquant)"
    r"(?P<in>Fp8|Int8|Fp4|(?<=noquant)(?:Bf16|Fp16))?)?(?P<rest>\w*)"
)
_ATTENTION: Final = lazy_pattern(
    r"(?:fmha|mla|pa|mha)_(?:(?:\w+_)?(?P<in>bf16|fp16|fp8|f16)(?:_\w+)?|\w+)"
)
_SCALINGS: Final = {
    "blockscale": Scaling.BLOCKWISE,
    "per1x128": Scaling.BLOCKWISE,
    "pertoken": Scaling.ROWWISE,
    "perToken": Scaling.ROWWISE,
}
_JOINED: Final = lazy_pattern(r"(?<![a-zA-Z])(blockscale|perToken|pertoken|per1x128)(?![a-z])")


def decode(symbol: Symbol) -> KernelName | None:
    """Decode an aiter assembly kernel, in its namespace or bare."""
    mangled = _MANGLED.fullmatch(symbol.text)
    ours = mangled is not None or symbol.path[:1] == ("aiter",)
    if not ours and not symbol.is_identifier:
        return None
    base = mangled["base"] if mangled else symbol.base
    gemm = _GEMM.fullmatch(base) or _HGEMM.fullmatch(base)
    if gemm:
        return _gemm(symbol, base, gemm)
    if not ours:
        return None
    moe = _FMOE.fullmatch(base)
    if moe:
        return _moe(symbol, moe)
    attention = _ATTENTION.fullmatch(base)
    if attention:
        element = SHORT.get(attention["in"] or "")
        evidence = f"aiter attention, type {attention['in'] or 'not plain'}"
        return describe.gemm(symbol.name, _LIBRARY, evidence, element, element, role=Role.ATTENTION)
    return None


def _gemm(symbol: Symbol, base: str, match: re.Match[str]) -> KernelName:
    element = _element(match["in"].lower())
    mx = next((found for word in base.split("_") if (found := _MX.fullmatch(word))), None)
    if mx:
        a = SHORT[mx["a"] or mx["c"].lower()]
        b = SHORT[mx["b"]] if mx["b"] else a
        evidence = f"aiter name {base.split('_')[0]}_{mx[0]}"
        return describe.gemm(symbol.name, _LIBRARY, evidence, a, b, scale="ue8m0")
    unit = _JOINED.search(base.replace("_", " "))
    fp8 = element in ("fp8", "e5m2")
    return describe.gemm(
        symbol.name,
        _LIBRARY,
        f"aiter name {base.split('_')[0]}",
        element,
        element,
        _element(match.groupdict().get("out")),
        scaling=_SCALINGS[unit[1]] if unit and fp8 else None,
    )


def _moe(symbol: Symbol, match: re.Match[str]) -> KernelName:
    quantized = match["in"]
    unit = "blockscale" if "_blockscale_" in match["rest"] else match["unit"] or ""
    element = _element(quantized.lower()) if quantized else None
    if quantized is None and match["unit"] in (None, "noquant"):
        element = _element(match["out"])
    return describe.gemm(
        symbol.name,
        _LIBRARY,
        f"aiter fused MoE, {match['unit'] or ''}{quantized or match['out']}",
        element,
        element,
        _element(match["out"]),
        role=Role.GROUPED_GEMM,
        scaling=_SCALINGS.get(unit) if element == "fp8" else None,
        precision=None if quantized or match["unit"] == "noquant" else Precision.UNKNOWN,
    )


def _element(text: str | None) -> str | None:
    return {"bf8": "e5m2", "fp32bf16": None}.get(text or "", SHORT.get(text or ""))
