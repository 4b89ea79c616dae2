"""Kernels of CUTLASS's Python (CuTe DSL): `kernel_cutlass_<function>_<arguments>_<n>`.

The function's name is words (FlashAttention 4, quack, FlashInfer, user code); the arguments are
spelled out behind it and cut off at 180 characters: `tensorptrf8E4M3FNgmem...` is a tensor with
its element type, `CopyAtom_..._Valuetypef16` a TMA load, of A first and of B second.
Source: nvidia-cutlass-dsl, names in public IR dumps.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fp8verify.kernels import describe
from fp8verify.kernels.describe import SCALES, SHORT
from fp8verify.kernels.grammars import attention, gemm_names, helper_names
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision
from fp8verify.text import lazy_pattern

_LIBRARY: Final = "CuTe DSL"
_PREFIX: Final = "kernel_cutlass_"
_ARGUMENTS: Final = lazy_pattern(r"_object_at_|_(?=tensorptr|tensor\d|TiledMMA|CopyAtom)")
_ELEMENT: Final = r"f8E4M3FN|f8E5M2|f8E8M0FNU|f4E2M1FN|bf16|f16|tf32|f32|i8"
_TENSOR: Final = lazy_pattern(rf"_*tensorptr({_ELEMENT})_?[gs]mem\w*?(?=_tensor|$)")
_LOADED: Final = lazy_pattern(rf"Valuetype({_ELEMENT})_")
_ELEMENTS: Final = {
    **SHORT,
    "f8E4M3FN": "e4m3",
    "f8E5M2": "e5m2",
    "f4E2M1FN": "e2m1",
    "f8E8M0FNU": "ue8m0",
}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a kernel of the CuTe DSL by its function's words, then by its arguments' types."""
    if not symbol.text.startswith(_PREFIX):
        return None
    function, arguments = _split(symbol.text.removeprefix(_PREFIX))
    inner = Symbol(function)
    for grammar in (attention.by_words, gemm_names.decode, helper_names.decode):
        found = grammar(inner)
        if found is not None:
            return _typed(found, arguments)
    return None


def _split(text: str) -> tuple[str, str]:
    match = _ARGUMENTS.search(text)
    return (text[: match.start()], text[match.end() :]) if match else (text, "")


def _typed(found: KernelName, arguments: str) -> KernelName:
    """Read A and B from the arguments where the words left the types of a GEMM open."""
    if not found.role.is_gemm or found.precision is not Precision.UNKNOWN:
        return msgspec.structs.replace(found, library=_LIBRARY)
    types = _tensors(arguments) or _LOADED.findall(arguments)[:2]
    a, b = (*(_ELEMENTS[name] for name in types[:2]), None, None)[:2]
    scale = SCALES.get(_ELEMENTS[types[2]]) if len(types) > 2 else None
    if a == b == "e2m1" and len(types) > 2 and types[2] == "f8E4M3FN":
        scale = "ue4m3"
    if b is None or "ue8m0" in (a, b):
        return msgspec.structs.replace(found, library=_LIBRARY)
    return describe.gemm(_LIBRARY, "types of its arguments", a, b, role=found.role, scale=scale)


def _tensors(arguments: str) -> list[str]:
    """Return the element types of the tensors that the arguments begin with."""
    found, at = [], 0
    while match := _TENSOR.match(arguments, at):
        found.append(match[1])
        at = match.end()
    return found
