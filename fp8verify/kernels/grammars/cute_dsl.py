"""Kernels that other code instantiates: CUTLASS's Python (CuTe DSL), and ThunderKittens.

CuTe DSL: `kernel_cutlass_<function>_<arguments>_<n>`.

The function's name is words (FlashAttention 4, quack, FlashInfer, user code); the arguments are
spelled out behind it and cut off at 180 characters: `tensorptrf8E4M3FNgmem...` is a tensor with
its element type, `CopyAtom_..._Valuetypef16` a TMA load, of A first and of B second, and
`MMAAtom_..._ShapeMNK12812816` the instruction, whose K is 256 bits of its operands (PTX ISA 9.0,
tcgen05.mma and wgmma: 8 of TF32, 16 of 16 bits, 32 of 8 bits, 64 of 4 bits).
Source: nvidia-cutlass-dsl, names in public IR dumps.

ThunderKittens: `kernel_entrypoint<mxfp8_gemm::config<...>>(...)`, `kittens::...<...>`: the words
are those of the first template argument. Source: HazyResearch/ThunderKittens, kernels/.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from fp8verify.kernels import describe, type_words
from fp8verify.kernels.describe import SCALES, SHORT, Operands, both
from fp8verify.kernels.grammars import attention, gemm_names, helper_names
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.terms import Hint, KernelName, Precision, Role

_LIBRARY: Final = "CuTe DSL"
_KITTENS: Final = "ThunderKittens"
_PREFIX: Final = "kernel_cutlass_"
_ARGUMENTS: Final = re.compile(r"_object_at_|_(?=tensorptr|tensor\d|TiledMMA|CopyAtom)")
_ELEMENT: Final = r"f8E4M3FN|f8E5M2|f8E8M0FNU|f4E2M1FN|bf16|f16|tf32|f32|i8"
_TENSOR: Final = re.compile(rf"_*tensorptr({_ELEMENT})_?[gs]mem\w*?(?=_tensor|$)")
_LOADED: Final = re.compile(rf"Valuetype({_ELEMENT})_")
# Of tcgen05 and wgmma; the instructions of a warp have M 16, and K 8 of BF16 too.
_INSTRUCTION: Final = re.compile(r"_ShapeMNK(?:64|128|256)(\d{2,5})(?![\dx])")
_BLOCK_SCALED: Final = re.compile(r"block_?scaled", re.IGNORECASE)
_ATTENTION: Final = re.compile(r"attention|mla_(?:decode|prefill)|fmha", re.IGNORECASE)
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
    function, *rest = _ARGUMENTS.split(symbol.text.removeprefix(_PREFIX), maxsplit=1)
    kernel = _by_words(function)
    if kernel is None and _ATTENTION.search(function):
        # modules' names are joined without a separator
        return describe.other(_LIBRARY, Role.ATTENTION, "the name of an attention module")
    if kernel is None:
        return None
    if not kernel.role.is_gemm or kernel.precision is not Precision.UNKNOWN:
        return replace(kernel, library=_LIBRARY)
    return _typed(kernel, function, rest[0] if rest else "")


def thunderkittens(symbol: Symbol) -> KernelName | None:
    """Decode a kernel of ThunderKittens by the words of what it is instantiated with."""
    ours = symbol.base == "kernel_entrypoint" or symbol.path[:1] == ("kittens",)
    if not ours or not symbol.tree.args:
        return None
    words = "_".join(symbol.tree.args[0].parts)
    kernel = _by_words(words)
    if kernel is None:
        return None
    types = type_words.operands(split(words))
    if not kernel.role.is_gemm or types.precision is Precision.UNKNOWN:
        return replace(kernel, library=_KITTENS)
    evidence = f"the name of its configuration, {words}"
    return describe.gemm(_KITTENS, evidence, types._replace(out=None), role=kernel.role)


def _by_words(function: str) -> KernelName | None:
    inner = Symbol(function)
    grammars = (attention.by_words, gemm_names.decode, helper_names.decode)
    return next((kernel for grammar in grammars if (kernel := grammar(inner))), None)


def _typed(kernel: KernelName, function: str, arguments: str) -> KernelName:
    """Read A and B from the arguments where the words left the types of a GEMM open."""
    spelled, at = [], 0
    while match := _TENSOR.match(arguments, at):
        spelled.append(match[1])
        at = match.end()
    elements = [_ELEMENTS[name] for name in spelled or _LOADED.findall(arguments)[:2]]
    a, b, scale = (*elements, None, None, None)[:3]
    if b is None or "ue8m0" in (a, b):
        return _by_instruction(kernel, function, arguments)
    if scale == "e4m3" and a == b == "e2m1":
        scale = "ue4m3"
    types = Operands(a, b, scale=SCALES.get(scale or ""))
    return describe.gemm(_LIBRARY, "types of its arguments", types, role=kernel.role)


def _by_instruction(kernel: KernelName, function: str, arguments: str) -> KernelName:
    """Read the width of the operands from the K of the instruction; 16 bits are of two types."""
    match = _INSTRUCTION.search(arguments)
    depths = [k for k in (8, 16, 32, 64) if match and _is_shape(match[1], str(k))]
    k = depths[0] if len(depths) == 1 else 0
    types = {8: both("tf32"), 64: both("fp4")}.get(k)
    if k == 32 and _BLOCK_SCALED.search(function):
        types = both("fp8", scale="ue8m0")
    if types is not None:
        return describe.gemm(_LIBRARY, f"the K of its MMA, {k}", types, role=kernel.role)
    return replace(kernel, library=_LIBRARY, hint=Hint.SIXTEEN_BITS if k == 16 else None)


def _is_shape(digits: str, k: str) -> bool:
    """Whether N and K are these digits: N is a multiple of 8 up to 256."""
    n = digits.removesuffix(k)
    return n != digits and n.isdigit() and n[0] != "0" and int(n) <= 256 and int(n) % 8 == 0
