"""NVIDIA cuBLASLt's run-time generated GEMMs for Hopper and Blackwell, `nvjet_...`.

Grammar from the format strings in libcublasLt 12.9 and 13.1:
`nvjet_[sm<arch>_]<types>_<tile>_<k>x<stages>_<cluster>[_2cta]_<h|v>_<b?>[_modifiers]_<layout>`,
for sm120 `nvjet_sm120_<types>_mma_<tile>_...`. The tensor layout is no evidence: FP8 is TN only
on Hopper, and runs in every layout on Blackwell.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import spoken
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision, Role, Scaling
from fp8verify.text import lazy_pattern

_LIBRARY: Final = "cuBLAS"
_NAME: Final = lazy_pattern(
    r"nvjet_(?:sm(?P<arch>\d+)[af]?_)?(?P<types>[a-z]{3,6}(?:_[sz]\dz?\dm\d+)?)(?P<tf32>_tf32)?"
    r"_(?P<rest>(?:(?:mma_)?\d+x\d+|…|\.\.\.).*)",
    re.DOTALL,
)
_CUT: Final = lazy_pattern(r"nvjet(?:_(?:sm\d+[af]?_?)?[a-z]*)?(?:_(?:mma)?)?\.*")

# Letters of the type code. t, h, s: launched by aten::mm with those inputs; q, r: HW counters
# and torch._scaled_mm on an H200; o: NVFP4 torch._scaled_mm; b: libcublasLt RTTI (signed char).
LETTERS: Final[dict[str, str]] = {
    "t": "bf16",
    "h": "fp16",
    "s": "fp32",
    "q": "e4m3",
    "r": "e5m2",
    "o": "e2m1",
    "b": "int8",
    "i": "int32",
}

# Exact modifier tokens that name a scaling, with the format of a hardware block scale.
_SCALING: Final = lazy_pattern(r"[AB](?P<unit>vec|blk)(?P<size>\d+)(?P<format>UE8M0|UE4M3)?")
_LAYOUT: Final = lazy_pattern(r"[TN]{3,4}")
_PAIR: Final = lazy_pattern(r"\d+x\d+")
_PAIRS: Final = (
    "a tile of {0} by {1} outputs",
    "{0} of K at a time, {1} stages in flight",
    "clusters of {0} by {1} thread blocks",
)
_MODIFIERS: Final[dict[str, str]] = {
    "mma": "warp-level MMA",
    "bz": "C is not read (beta is zero)",
    "bx": "C may be read (any beta)",
    "badd": "C is added (beta is one)",
    "2cta": "two thread-block CTAs share one MMA",
    "splitK": "K is split; a second kernel adds the parts",
    "coopA": "two warp groups share A",
    "coopB": "two warp groups share B",
    "algo2": "fast accumulation off",
    "bias": "adds a bias",
    "ovscale": describe.SCALING[Scaling.ROWWISE],
    "h": "tiles run along rows",
    "v": "tiles run along columns",
}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode an nvjet name: 3 letters are A=B, compute, D; 5 are A, B, C, compute, D."""
    if not symbol.text.startswith("nvjet"):
        return None
    match = _NAME.fullmatch(symbol.text)
    if not match:
        return _cut(symbol)
    a, b, out = _types(match["types"])
    modifiers = match["rest"].split("_")
    scaling, scale = _scaling(modifiers, match["arch"], a)
    precision = None
    if a == b == "fp32":  # the only FP32 code in the library carries _tf32
        precision = Precision.TF32 if match["tf32"] else Precision.UNKNOWN
        a = b = "tf32" if match["tf32"] else "fp32"
    return describe.gemm(
        symbol.name,
        _LIBRARY,
        f"nvjet type code {match['types']}{match['tf32'] or ''}",
        a,
        b,
        out,
        scale=scale,
        scaling=scaling,
        precision=precision,
        fast_accum=_fast_accumulation(modifiers, match["arch"], a),
        tokens=_tokens(match, modifiers),
    )


def _cut(symbol: Symbol) -> KernelName | None:
    """Tell of a name that stops before its tile: a GEMM, but nothing more is certain."""
    if not _CUT.fullmatch(symbol.text):
        return None
    reason = "an nvjet GEMM whose name is cut off before the tile, so its types are not certain"
    return describe.other(symbol.name, _LIBRARY, Role.GEMM, reason)


def _types(code: str) -> tuple[str | None, str | None, str | None]:
    letters = [LETTERS.get(letter) for letter in code.split("_")[0]]
    if len(letters) == 3:
        return letters[0], letters[0], letters[2]
    return letters[0], letters[1], letters[4] if len(letters) == 5 else None


def _scaling(
    modifiers: list[str], arch: str | None, a: str | None
) -> tuple[Scaling | None, str | None]:
    """Return the scaling and the hardware scale format of the modifiers."""
    for modifier in modifiers:
        if modifier == "ovscale":
            return Scaling.ROWWISE, None
        found = _SCALING.fullmatch(modifier)
        if found and found["format"]:
            return None, found["format"].lower()
        if found:
            return Scaling.BLOCKWISE, None
    # From sm100 on a name without scaling token may also be row-wise (outer vector) scaled, and
    # a name that was cut off before its layout may have lost the token.
    older = arch == "90" or (arch is None and "2cta" not in modifiers)
    whole = _LAYOUT.fullmatch(modifiers[-1])
    return (Scaling.TENSORWISE if older and whole and a in ("e4m3", "e5m2") else None), None


def _fast_accumulation(modifiers: list[str], arch: str | None, a: str | None) -> bool | None:
    """Return whether FP8 products are added up in reduced precision, a Hopper-only choice."""
    if a not in ("e4m3", "e5m2"):
        return None
    if "algo2" in modifiers:
        return False
    return True if arch == "90" else None


def _tokens(match: re.Match[str], modifiers: list[str]) -> describe.Tokens:
    arch, types = match["arch"], match["types"]
    found = [("nvjet", "cuBLASLt GEMM generated at run time")]
    if arch:
        found.append((f"sm{arch}", f"for compute capability {arch[:-1]}.{arch[-1]}"))
    found += [(letter, meaning) for letter, meaning in zip(types, _places(types), strict=False)]
    if match["tf32"]:
        found.append(("tf32", "FP32 operands are rounded to TF32"))
    found += _sizes(modifiers)
    found += [(token, meaning) for token in modifiers if (meaning := _modifier(token))]
    return (*found, *_layout(modifiers[-1]))


def _places(code: str) -> list[str]:
    """Say the meaning of each letter of a type code at its place."""
    spoken_letters = [spoken(LETTERS.get(letter)) for letter in code.split("_")[0]]
    names = ["operand A is", "operand B is", "operand C is", "computes in", "output D is"]
    if len(spoken_letters) == 3:
        names = ["operands A and B are", "computes in", "output D is"]
    if len(spoken_letters) == 6:
        names = names[:2]
    return [f"{name} {what}" for name, what in zip(names, spoken_letters, strict=False)]


def _sizes(modifiers: list[str]) -> list[tuple[str, str]]:
    """Say the three pairs of sizes that a name begins with; sm120 names have others."""
    pairs = [token for token in modifiers[:3] if _PAIR.fullmatch(token)]
    if len(pairs) < len(_PAIRS):
        return []
    return [
        (token, what.format(*token.split("x"))) for token, what in zip(pairs, _PAIRS, strict=True)
    ]


def _layout(token: str) -> list[tuple[str, str]]:
    """Say how A and B are stored; the third letter is C's."""
    if not _LAYOUT.fullmatch(token):
        return []
    stored = {"T": "transposed", "N": "not transposed"}
    return [(token, f"A is {stored[token[0]]}, B is {stored[token[1]]} (column-major terms)")]


def _modifier(token: str) -> str | None:
    found = _SCALING.fullmatch(token)
    if not found:
        return _MODIFIERS.get(token)
    unit = f"{found['size']}x{found['size']} block" if found["unit"] == "blk" else found["size"]
    return f"operand {token[0]} has one {found['format'] or 'FP32'} scale for each {unit} elements"
