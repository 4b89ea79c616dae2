"""AMD Tensile kernels of hipBLASLt and rocBLAS: `Cijk_A<lik>_B<ljk>_<types>_..._MT<tile>_...`.

`<types>` is A, B where it differs, D and the compute type, followed by flags: B is UseBeta, H
high-precision accumulation. So `S_B` and `SB` are FP32 with beta, not BF16; `BBS` is BF16.
Source: Tensile/SolutionStructs/Problem.py (operation identifier), Tensile DataType characters.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Precision, Scaling
from fp8verify.text import lazy_pattern

_NAME: Final = lazy_pattern(r"(?:Custom_)?C[i-n]+_A[i-n]+_B[i-n]+_(?P<rest>.+)", re.DOTALL)
_UNIT: Final = lazy_pattern(r"F8N|B8N|F8|B8|F6|B6|F4|I8|4xi8|[XSDCZHBI]")
_CODE: Final = lazy_pattern(rf"(?:{_UNIT.pattern})+")
_MX: Final = lazy_pattern(r"MX[AB](?:E8)?B32|MX[AB]E8B32_MX[AB]E8B32")

CHARACTERS: Final[dict[str, str]] = {
    "F8": "e4m3",
    "F8N": "e4m3",
    "B8": "e5m2",
    "B8N": "e5m2",
    "F4": "e2m1",
    "H": "fp16",
    "B": "bf16",
    "S": "fp32",
    "X": "tf32",
    "D": "fp64",
    "I8": "int8",
    "4xi8": "int8",
    "I": "int32",
}
_COMPLEX: Final = {"C": Precision.FP32, "Z": Precision.FP64}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a Tensile name."""
    match = _NAME.fullmatch(symbol.text)
    if not match:
        return None
    words = match["rest"].split("_")
    if not _CODE.fullmatch(words[0]):
        return describe.gemm(symbol.name, "hipBLASLt", "Tensile name without types", None, None)
    units = _UNIT.findall(words[0])
    code = words[0]
    if len(units) == 1 and len(words) > 1 and _CODE.fullmatch(words[1]) and words[1] != "BH":
        following = _UNIT.findall(words[1])
        if len(following) == 2:  # `B_BS`: the type of A and B, then D and compute
            units, code = units + following, f"{words[0]}_{words[1]}"
    return _typed(symbol, units, code, words)


def _typed(symbol: Symbol, units: list[str], code: str, words: list[str]) -> KernelName:
    if len(units) < 3:  # only the type of everything; a second unit is UseBeta
        a = b = out = compute = units[0]
    else:
        *inputs, out, compute = units
        a, b = inputs[0], inputs[-1]
    element_a, element_b = CHARACTERS.get(a), CHARACTERS.get(b)
    if compute == "X" and a == b == "S":
        element_a = element_b = "tf32"
    mx = any(_MX.fullmatch(word) for word in words)
    return describe.gemm(
        symbol.name,
        "hipBLASLt",
        f"Tensile type code {code}",
        element_a,
        element_b,
        CHARACTERS.get(out),
        scale="ue8m0" if mx else None,
        scaling=_scaling(words, element_a),
        precision=_COMPLEX.get(a),
    )


def _scaling(words: list[str], a: str | None) -> Scaling | None:
    if a not in ("e4m3", "e5m2"):
        return None
    if "SABV" in words:
        return Scaling.ROWWISE
    return Scaling.TENSORWISE if "SAB" in words else None
