"""CUTLASS kernels with procedural names, inside cuBLAS, cuBLASLt and cuDNN.

2.x: `cutlass_80_tensorop_[<out>_]<acc><mma>gemm[_<epilogue>][_<operand>]_<tile>_...`, usually as
the template argument of `cutlass::Kernel2<...>`. 3.x: `cutlass3x_sm100_[bs]tensorop_
<acc><mma>[<via>]gemm[_block_scaled]_<A>_<B>_<acc>_<C>_<D>_<tile>_...`.
Source: cutlass/python/cutlass_library/gemm_operation.py, and the symbols in libcublasLt 12.9, 13.1.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import SCALES, SHORT
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision, Role
from fp8verify.text import lazy_pattern

_V2: Final = lazy_pattern(
    r"cutlass_(?:\d+_)?(?:wmma_)?(?P<unit>tensorop|simt|sptensorop)_(?P<rest>\w+)"
)
_V3: Final = lazy_pattern(r"cutlass3x_sm\d+[af]?_(?:bs|sp)*(?P<unit>tensorop|simt)_(?P<rest>\w+)")
_TILE: Final = lazy_pattern(r"\d+x\d+(?:x\d+)?")
_OPERATION: Final = lazy_pattern(
    r"(?P<letter>gz|[shdicz])(?P<mma>\d+(?:x\d+x\d+)?)?(?P<via>bf16|f16|tf32)?"
    r"(?P<op>gemm|symm|hemm|syrk|herk|syr2k|her2k|trmm|fprop|dgrad|wgrad)"
)
_SPLIT_OPERATION: Final = lazy_pattern(r"(?P<letter>)(?P<mma>)(?P<via>9xbf16|3xtf32)(?P<op>gemm)")
_SCALED: Final = lazy_pattern(r"(?P<scale>ue8m0|ue4m3)x(?P<element>\w+)")
_CONVOLUTION: Final = frozenset({"fprop", "dgrad", "wgrad"})

# The accumulator's letter, where the name has no operand tag. Tensor-core m16n8k8 on 32-bit
# operands exists for TF32 only (PTX ISA); FP64 tensor cores are m8n8k4.
_SIMT_LETTERS: Final = {
    "s": "fp32", "c": "fp32", "d": "fp64", "z": "fp64", "gz": "fp64", "h": "fp16",
}  # fmt: skip
_TENSOR_LETTERS: Final = {"h": "fp16", "d": "fp64", "z": "fp64", "gz": "fp64"}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a procedural name, bare or as the first template argument of a CUTLASS kernel."""
    text = _procedural(symbol)
    if text is None:
        return None
    library = "cuDNN" if any("cudnn" in part for part in symbol.path) else "cuBLAS"
    match = _V3.fullmatch(text) or _V2.fullmatch(text)
    if not match:
        return None
    words = match["rest"].split("_")
    found = _operation(words)
    if not found:
        return None
    at, operation = found
    types, complete = _types(words[at + 1 :])
    if text.startswith("cutlass3x"):
        return _typed(symbol, library, operation, match["unit"], types)
    if not types and not complete:
        reason = "a CUTLASS kernel whose name is cut off before its operand types"
        return describe.other(symbol.name, library, Role.GEMM, reason)
    return _tagged(symbol, library, operation, match["unit"], types, words[:at])


def _procedural(symbol: Symbol) -> str | None:
    if symbol.text.startswith("cutlass"):
        return symbol.path[0] if len(symbol.path) == 1 else _argument(symbol)
    return _argument(symbol) if symbol.path[:1] and symbol.path[0].startswith("cutlass") else None


def _argument(symbol: Symbol) -> str | None:
    arguments = symbol.tree.args
    first = arguments[0] if arguments else None
    return first.name if first and first.name.startswith("cutlass") else None


def _operation(words: list[str]) -> tuple[int, re.Match[str]] | None:
    for index, word in enumerate(words[:3]):
        match = _OPERATION.fullmatch(word) or _SPLIT_OPERATION.fullmatch(word)
        if match:
            return index, match
    return None


def _types(words: list[str]) -> tuple[list[str], bool]:
    """Return the element words before the tile, and whether the name goes on to the tile."""
    found: list[str] = []
    for word in words:
        if _TILE.fullmatch(word):
            return found, True
        if word in SHORT or _SCALED.fullmatch(word):
            found.append(word)
    return found, False


def _element(word: str) -> tuple[str | None, str | None]:
    """Return the element type and the block scale format of `e4m3` or `ue8m0xe4m3`."""
    match = _SCALED.fullmatch(word)
    if match:
        return SHORT.get(match["element"]), SCALES[match["scale"]]
    return SHORT.get(word), None


def _typed(
    symbol: Symbol, library: str, operation: re.Match[str], unit: str, types: list[str]
) -> KernelName:
    """Describe a 3.x name, which has all five types: A, B, accumulator, C, D."""
    if len(types) != 5:
        reason = "a CUTLASS kernel whose name does not have all five types"
        return describe.other(symbol.name, library, Role.GEMM, reason)
    (a, scale), (b, _), (out, _) = (_element(types[i]) for i in (0, 1, 4))
    precision = None
    if unit == "tensorop" and a == b == "fp32":
        precision = _fp32_on_tensor_cores(operation["via"])
        a = b = "tf32" if precision is Precision.TF32 else "fp32"
    evidence = f"CUTLASS 3.x type fields {'_'.join(types)}"
    return describe.gemm(
        symbol.name, library, evidence, a, b, out, scale=scale, precision=precision
    )


def _fp32_on_tensor_cores(via: str | None) -> Precision:
    """FP32 operands are rounded to TF32, unless several BF16 or TF32 products emulate FP32."""
    if via == "tf32":
        return Precision.TF32
    return Precision.FP32 if via in ("9xbf16", "3xtf32") else Precision.UNKNOWN


def _tagged(
    symbol: Symbol,
    library: str,
    operation: re.Match[str],
    unit: str,
    types: list[str],
    before: list[str],
) -> KernelName:
    """Describe a 2.x name, whose operand tag is left out where the accumulator implies it."""
    role = Role.CONV if operation["op"] in _CONVOLUTION else Role.GEMM
    if role is Role.GEMM and operation["op"] != "gemm":
        reason = f"BLAS-3 {operation['op']}, a matrix product but not a GEMM"
        return describe.other(symbol.name, library, Role.OTHER, reason)
    tags = [SHORT[word] for word in types if word in SHORT]
    a, b = (tags[0], tags[-1]) if tags else (_implied(operation, unit),) * 2
    out = next((SHORT[word] for word in before if word in SHORT), None)
    evidence = f"CUTLASS {unit} {operation[0]}" + (f" on {'_'.join(types)}" if types else "")
    return describe.gemm(symbol.name, library, evidence, a, b, out, role=role)


def _implied(operation: re.Match[str], unit: str) -> str | None:
    """Return the operand type of a name without operand tag."""
    letter, mma, via = operation["letter"], operation["mma"], operation["via"]
    if via:
        return SHORT.get(via, "fp32")  # 9xbf16 and 3xtf32 emulate FP32
    if unit == "simt":
        return _SIMT_LETTERS.get(letter)
    if mma == "1688" and letter in ("s", "c"):
        return "tf32"
    return _TENSOR_LETTERS.get(letter)
