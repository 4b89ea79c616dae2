"""AMD's kernels: Tensile (hipBLASLt, rocBLAS), Composable Kernel, and aiter's assembly.

Tensile: `Cijk_A<lik>_B<ljk>_<types>_..._MT<tile>_...`. `<types>` is A, B where it differs, D and
the compute type, followed by flags: B is UseBeta, H high-precision accumulation. So `S_B` and `SB`
are FP32 with beta, not BF16; `BBS` is BF16. Source: Tensile/SolutionStructs/Problem.py (operation
identifier), Tensile DataType characters.

Composable Kernel: `ck::kernel_gemm_xdl_cshuffle_v3<ck::Gridwise...<...>>` and ck_tile. The gridwise
argument lists its layouts, then the element types of A, B, the accumulator and the output; BF16 is
`unsigned short` there (ck::bhalf_t). Source: composable_kernel/include/ck.

aiter: `fp8gemm_bf16_blockscale_...`, `fmoe_bf16_blockscaleFp8_...`. The type joined to `gemm` is
that of the operands, the one after it is the output; for fmoe the operands' type is in the
quantization word. Source: aiter/hsa/*/ (kernel names in the registries), aiter/ops/gemm_op_a8w8.py.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import CPP, SHORT
from fp8verify.kernels.symbol import Symbol, Type, split, walk
from fp8verify.terms import KernelName, Precision, Role, Scaling

_TENSILE: Final = re.compile(r"(?:Custom_)?C[i-n]+_A[i-n]+_B[i-n]+_(?P<rest>.+)", re.DOTALL)
_TENSILE_UNIT: Final = re.compile(r"F8N|B8N|F8|B8|F6|B6|F4|I8|4xi8|[XSDCZHBI]")
_TENSILE_CODE: Final = re.compile(rf"(?:{_TENSILE_UNIT.pattern})+")
_TENSILE_MX: Final = re.compile(r"MX[AB](?:E8)?B?32")

CHARACTERS: Final[dict[str, str]] = {
    "F8": "e4m3",
    "F8N": "e4m3",
    "B8": "e5m2",
    "B8N": "e5m2",
    "F6": "e2m3",
    "B6": "e3m2",
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


def tensile(symbol: Symbol) -> KernelName | None:
    """Decode a Tensile name."""
    match = _TENSILE.fullmatch(symbol.text)
    if not match:
        return None
    words = match["rest"].split("_")
    if not _TENSILE_CODE.fullmatch(words[0]):
        return describe.gemm("hipBLASLt", "Tensile name without types", None, None)
    units = _TENSILE_UNIT.findall(words[0])
    code = words[0]
    if (
        len(units) == 1
        and len(words) > 1
        and _TENSILE_CODE.fullmatch(words[1])
        and words[1] != "BH"
    ):
        following = _TENSILE_UNIT.findall(words[1])
        if len(following) == 2:  # `B_BS`: the type of A and B, then D and compute
            units, code = units + following, f"{words[0]}_{words[1]}"
    return _tensile_typed(units, code, words)


def _tensile_typed(units: list[str], code: str, words: list[str]) -> KernelName:
    if len(units) < 3:  # only the type of everything; a second unit is UseBeta
        a = b = out = compute = units[0]
    else:
        *inputs, out, compute = units
        a, b = inputs[0], inputs[-1]
    element_a, element_b = CHARACTERS.get(a), CHARACTERS.get(b)
    if compute == "X" and a == b == "S":
        element_a = element_b = "tf32"
    mx = any(_TENSILE_MX.fullmatch(word) for word in words)
    return describe.gemm(
        "hipBLASLt",
        f"Tensile type code {code}",
        element_a,
        element_b,
        CHARACTERS.get(out),
        scale="ue8m0" if mx else None,
        scaling=_tensile_scaling(words, element_a),
        precision=_COMPLEX.get(a),
    )


def _tensile_scaling(words: list[str], a: str | None) -> Scaling | None:
    if a not in ("e4m3", "e5m2"):
        return None
    if "SABV" in words:
        return Scaling.ROWWISE
    return Scaling.TENSORWISE if "SAB" in words else None


_CK: Final = "Composable Kernel"
_CK_ELEMENTS: Final = {**CPP, "unsigned short": "bf16", "ushort": "bf16"}
_CK_ROLES: Final[tuple[tuple[frozenset[str], Role], ...]] = (
    (frozenset({"fmha", "attention"}), Role.ATTENTION),
    (frozenset({"conv", "convolution"}), Role.CONV),
    (frozenset({"rmsnorm2d", "layernorm2d", "reduce", "softmax", "norm"}), Role.REDUCTION),
    (frozenset({"gemm", "flatmm"}), Role.GEMM),
    (frozenset({"elementwise", "permute"}), Role.ELEMENTWISE),
    (frozenset({"transpose"}), Role.TRANSPOSE),
)


def composable_kernel(symbol: Symbol) -> KernelName | None:
    """Decode a kernel in the namespaces ck and ck_tile."""
    if symbol.path[:1] not in (("ck",), ("ck_tile",)):
        return None
    role = _ck_role(symbol)
    if not role.is_gemm and role is not Role.CONV:
        reason = f"Composable Kernel function {symbol.base}"
        return describe.other(_CK, role, reason)
    types = _ck_types(symbol.tree)
    if len(types) < 2:
        reason = "a Composable Kernel product whose name does not show its types"
        return describe.other(_CK, role, reason)
    evidence = f"template arguments of {symbol.base}"
    out = types[-1] if len(types) > 3 else None
    return describe.gemm(_CK, evidence, types[0], types[1], out, role=role)


def _ck_role(symbol: Symbol) -> Role:
    names = [symbol.base]
    if symbol.base == "kentry":
        names = [argument.name for argument in symbol.tree.args]
    words = {word for name in names for word in split(name)}
    if {"bwd", "weight"} <= words:
        return Role.CONV
    role = next((role for row, role in _CK_ROLES if row & words), Role.OTHER)
    grouped = role is Role.GEMM and words & {"moe", "grouped"}
    return Role.GROUPED_GEMM if grouped else role


def _ck_types(tree: Type) -> list[str]:
    """Return the first run of element types among the arguments of one node: A, B, acc, ..., D."""
    for node in walk(tree):
        types = _run(node.args)
        if len(types) > 1:
            return types
    return []


def _run(arguments: tuple[Type, ...]) -> list[str]:
    elements: list[str] = []
    for argument in arguments:
        element = _CK_ELEMENTS.get(argument.name)
        if element and element != "int32":
            elements.append(element)
        elif elements and argument.name != "Tuple":
            break
    return elements


_AITER: Final = "aiter"
_TYPE: Final = r"fp8|bf8|f8|fp4|f4|bf16|fp16|f16|[iI]8|int8|fp32"
_GEMM: Final = re.compile(rf"(?P<in>{_TYPE})gemm_(?:(?P<out>fp32bf16|{_TYPE})_)?\w*")
# Blocks of 32 with E8M0 scales: of both operands alike, or of A and B apart (mxfp8fp4).
_MX: Final = re.compile(r"(?:mx(?P<a>fp8|fp4)(?P<b>fp8|fp4)?|per1x32(?P<c>Fp[84]))")
_HGEMM: Final = re.compile(r"hgemm_(?P<in>bf16|fp16|f16)_\w*")
_FMOE: Final = re.compile(
    rf"fmoe_(?:stage[12]_)?(?P<out>{_TYPE})_"
    r"(?:(?P<unit>blockscale|pertoken|perToken|per1x128|per1x32|noquant)"
    r"(?P<in>Fp8|Int8|Fp4|(?<=noquant)(?:Bf16|Fp16))?)?(?P<rest>\w*)"
)
_ATTENTION: Final = re.compile(
    r"(?:fmha|mla|pa|mha)_(?:(?:\w+_)?(?P<in>bf16|fp16|fp8|f16)(?:_\w+)?|\w+)"
)
_SCALINGS: Final = {
    "blockscale": Scaling.BLOCKWISE,
    "per1x128": Scaling.BLOCKWISE,
    "pertoken": Scaling.ROWWISE,
    "perToken": Scaling.ROWWISE,
}
_JOINED: Final = re.compile(r"(?<![a-zA-Z])(blockscale|perToken|pertoken|per1x128)(?![a-z])")


def aiter_assembly(symbol: Symbol) -> KernelName | None:
    """Decode an aiter assembly kernel, in its namespace or bare."""
    ours, base = symbol.path[:1] == ("aiter",), symbol.base
    if not ours and not symbol.is_identifier:
        return None
    gemm = _GEMM.fullmatch(base) or _HGEMM.fullmatch(base)
    if gemm:
        return _aiter_gemm(base, gemm)
    if not ours:
        return None
    moe = _FMOE.fullmatch(base)
    if moe:
        return _aiter_moe(moe)
    attention = _ATTENTION.fullmatch(base)
    if attention:
        element = SHORT.get(attention["in"] or "")
        if "Fp8" in base:  # the cache's type; queries may have another
            element = None
        evidence = f"aiter attention, type {attention['in'] or 'not plain'}"
        return describe.gemm(_AITER, evidence, element, element, role=Role.ATTENTION)
    return None


def _aiter_gemm(base: str, match: re.Match[str]) -> KernelName:
    element = _aiter_element(match["in"].lower())
    mx = next(filter(None, map(_MX.fullmatch, base.split("_"))), None)
    if mx:
        a = SHORT[mx["a"] or mx["c"].lower()]
        b = SHORT[mx["b"]] if mx["b"] else a
        evidence = f"aiter name {base.split('_')[0]}_{mx[0]}"
        return describe.gemm(_AITER, evidence, a, b, scale="ue8m0")
    unit = _JOINED.search(base.replace("_", " "))
    fp8 = element in ("fp8", "e5m2")
    return describe.gemm(
        _AITER,
        f"aiter name {base.split('_')[0]}",
        element,
        element,
        _aiter_element(match.groupdict().get("out")),
        scaling=_SCALINGS[unit[1]] if unit and fp8 else None,
    )


def _aiter_moe(match: re.Match[str]) -> KernelName:
    quantized = match["in"]
    unit = "blockscale" if "_blockscale_" in match["rest"] else match["unit"] or ""
    element = _aiter_element(quantized.lower()) if quantized else None
    if quantized is None and match["unit"] in (None, "noquant"):
        element = _aiter_element(match["out"])
    return describe.gemm(
        _AITER,
        f"aiter fused MoE, {match['unit'] or ''}{quantized or match['out']}",
        element,
        element,
        _aiter_element(match["out"]),
        role=Role.GROUPED_GEMM,
        scaling=_SCALINGS.get(unit) if element == "fp8" else None,
        precision=None if quantized or match["unit"] == "noquant" else Precision.UNKNOWN,
    )


def _aiter_element(text: str | None) -> str | None:
    return {"bf8": "e5m2", "fp32bf16": None}.get(text or "", SHORT.get(text or ""))
