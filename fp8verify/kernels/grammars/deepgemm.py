"""DeepGEMM's JIT kernels: `deep_gemm::sm90_fp8_gemm_1d2d_impl<...>` and their siblings.

Older kernels have their type in the function name only; since 2026 `sm100_fp8_fp4_gemm_1d1d_impl`
serves FP8 and FP4 operands and says which in its dtype template arguments.
Source: github.com/deepseek-ai/DeepGEMM, deep_gemm/include/deep_gemm/impls.
"""

from __future__ import annotations

from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.cxx import Type
from fp8verify.kernels.elements import CPP, SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Role, Scaling
from fp8verify.text import lazy_pattern

_LIBRARY: Final = "DeepGEMM"
_NAME: Final = lazy_pattern(
    r"(?:sm\d+_)?(?:[mk]_grouped_)?(?:(?P<types>fp8_fp4|fp4_fp8|fp8|fp4|bf16|tf32)_)?"
    r"(?P<kind>(?:\w+_)?gemm(?:_\w+)?|(?:paged_)?mqa_logits(?:_\w+)?|mega_moe(?:_\w+)?)"
)
_HELPER: Final = lazy_pattern(r"transpose_\w*|smxx_\w+|pack_\w+")
_GROUPED: Final = lazy_pattern(r"(?:\([\w:]*GemmType\)[123]|[MK]Grouped\w*)")


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a DeepGEMM kernel, with or without its namespace."""
    ours = symbol.path[:1] == ("deep_gemm",)
    if not ours and not (symbol.base.startswith("sm") and symbol.base.endswith("_impl")):
        return None
    match = _NAME.fullmatch(symbol.base)
    if not match:
        helper = ours and _HELPER.fullmatch(symbol.base)
        return _helper(symbol) if helper else None
    if "mqa_logits" in match["kind"]:
        reason = "DeepGEMM indexer logits, part of attention"
        return describe.other(symbol.name, _LIBRARY, Role.ATTENTION, reason)
    if not match["types"]:
        return None  # the words of the name say that it is a GEMM, and no more
    a, b, out = _operands(match["types"].split("_"), symbol.tree.args)
    grouped = {"grouped", "moe"} & set(symbol.base.split("_")) or any(
        map(_is_grouped, symbol.tree.args)
    )
    return describe.gemm(
        symbol.name,
        _LIBRARY,
        f"function name {symbol.base}",
        a,
        b,
        out,
        role=Role.GROUPED_GEMM if grouped else Role.GEMM,
        scaling=Scaling.BLOCKWISE if "fp8" in match["types"] else None,
    )


def _operands(
    names: list[str], arguments: tuple[Type, ...]
) -> tuple[str | None, str | None, str | None]:
    """Return A, B and D: for the kernel of two formats from its consecutive dtype arguments."""
    first = next((i for i, argument in enumerate(arguments) if argument.name in CPP), None)
    types = [] if first is None else [CPP.get(a.name) for a in arguments[first : first + 3]]
    if len(names) == 2:
        a, b, out = (*types, None, None, None)[:3]
        return a, b, out
    element = "e4m3" if names[0] == "fp8" else SHORT[names[0]]
    return element, element, types[0] if types else None


def _is_grouped(argument: Type) -> bool:
    return bool(_GROUPED.fullmatch("::".join(argument.parts)) or _GROUPED.fullmatch(argument.name))


def _helper(symbol: Symbol) -> KernelName:
    role = Role.TRANSPOSE if symbol.base.startswith("transpose") else Role.OTHER
    return describe.other(symbol.name, _LIBRARY, role, "a DeepGEMM layout kernel")
