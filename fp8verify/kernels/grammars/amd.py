"""AMD's kernels: Tensile (hipBLASLt, rocBLAS), Composable Kernel, and aiter's assembly.

Tensile: `Cijk_A<lik>_B<ljk>_<types>_..._MT<tile>_...`. `<types>` is A, B where it differs, D and
the compute type, followed by flags: B is UseBeta, H high-precision accumulation. So `S_B` and `SB`
are FP32 with beta, not BF16; `BBS` is BF16. Where A and B are converted before they are multiplied,
their types come first and the code of what is multiplied second: `F8H_HHS` reads FP8 and FP16, and
multiplies FP16. `S_MX` multiplies FP32 as TF32. Source: Tensile/SolutionStructs/Problem.py
(operation identifier), Tensile DataType characters.

Composable Kernel: `ck::kernel_gemm_xdl_cshuffle_v3<ck::Gridwise...<...>>` and ck_tile. The gridwise
argument lists its layouts, then the element types of A, B, the accumulator and the output; BF16 is
`unsigned short` there (ck::bhalf_t). Source: composable_kernel/include/ck.

aiter: `fp8gemm_bf16_blockscale_...`, `fmoe_bf16_blockscaleFp8_...`. The type joined to `gemm` is
that of the operands, the one after it is the output; for fmoe the operands' type is in the
quantization word. Source: aiter/hsa/*/ (kernel names in the registries), aiter/ops/gemm_op_a8w8.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import CPP, SHORT, Operands, both
from fp8verify.kernels.symbol import Symbol, Type, split, walk
from fp8verify.kernels.words import first_of, word_rows
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import KernelName, Precision, Role, Scaling

_TENSILE: Final = lazy_pattern(
    r"(?:Custom_)?C[i-n]+_A[i-n]+_B[i-n]+_(?P<rest>.+)", re.DOTALL
)
# Where reports shorten the middle of a name, its types are not told from other words.
_TENSILE_SHORTENED: Final = lazy_pattern(r"(?:Custom_)?C[i-n]{2,}_.*", re.DOTALL)
_TENSILE_UNIT: Final = lazy_pattern(r"F8N|B8N|F8|B8|F6|B6|F4|I8|I4|4xi8|[XSDCZHBI]")
_TENSILE_CODE: Final = lazy_pattern(rf"(?:{_TENSILE_UNIT.pattern})+")
# Of what is multiplied, where the types before it are converted: A and B, D, compute.
_TENSILE_CONVERTED: Final = lazy_pattern(r"[BHS][BHS][SX]")
_TENSILE_MX: Final = lazy_pattern(r"MX[AB](?:E8)?B?32")
_CHARACTERS: Final = {
    "F8": "e4m3", "F8N": "e4m3", "B8": "e5m2", "B8N": "e5m2", "F6": "e2m3", "B6": "e3m2",
    "F4": "e2m1", "H": "fp16", "B": "bf16", "S": "fp32", "X": "tf32", "D": "fp64", "I8": "int8",
    "I4": "int4", "4xi8": "int8", "I": "int32",
}  # fmt: skip
_COMPLEX: Final = {"C": Precision.FP32, "Z": Precision.FP64}


def tensile(symbol: Symbol) -> KernelName | None:
    """Decode a Tensile name."""
    match = _TENSILE.fullmatch(symbol.text)
    without_types = describe.gemm("hipBLASLt", "Tensile name without types", Operands())
    if not match:
        is_shortened = _TENSILE_SHORTENED.fullmatch(symbol.text) is not None
        return without_types if is_shortened else None
    code, *words = match["rest"].split("_")
    if not _TENSILE_CODE.fullmatch(code):
        return without_types
    units = _TENSILE_UNIT.findall(code)
    first = words[0] if words else ""
    following = _tensile_units(first)
    if len(units) > 1 and _TENSILE_CONVERTED.fullmatch(first):
        units = list(first)
        code = f"{code}_{first}"
    elif len(units) == 1 and len(following) == 2:
        # `B_BS`: the type of A and B, then D and compute
        units += following
        code = f"{code}_{first}"
    if len(units) < 3:  # only the type of everything; a second unit is UseBeta
        units = [units[0]] * 3
    *inputs, out, compute = units
    if first == "MX":
        compute = "X"
    types = Operands(
        a=_CHARACTERS.get(inputs[0]),
        b=_CHARACTERS.get(inputs[-1]),
        out=_CHARACTERS.get(out),
    )
    if compute == "X" and types.a == types.b == "fp32":
        types = both("tf32", types.out)
    if any(map(_TENSILE_MX.fullmatch, words)):
        types = types._replace(scale="ue8m0")
    return describe.gemm(
        "hipBLASLt",
        f"Tensile type code {code}",
        types,
        scaling=_tensile_scaling(words, types.a),
        precision=_COMPLEX.get(inputs[0]),
    )


def _tensile_scaling(words: Sequence[str], a: str | None) -> Scaling | None:
    if a not in ("e4m3", "e5m2"):
        return None
    if "SABV" in words:
        return Scaling.ROWWISE
    if "SAB" in words:
        return Scaling.TENSORWISE
    return None


def _tensile_units(word: str) -> list[str]:
    """Return the types of a second code; none of a word that is no code of types."""
    if word == "BH" or not _TENSILE_CODE.fullmatch(word):
        return []
    return _TENSILE_UNIT.findall(word)


_CK: Final = "Composable Kernel"
_CK_ELEMENTS: Final = {**CPP, "unsigned short": "bf16", "ushort": "bf16"}
_CK_ROLES: Final = word_rows(
    Role,
    """
    attention: fmha attention
    conv: conv convolution
    reduction: rmsnorm2d layernorm2d reduce softmax norm
    gemm: gemm mxgemm flatmm
    elementwise: elementwise permute
    transpose: transpose
    """,
)


def composable_kernel(symbol: Symbol) -> KernelName | None:
    """Decode a kernel in the namespaces ck and ck_tile."""
    if symbol.path[:1] not in (("ck",), ("ck_tile",)):
        return None
    role = _ck_role(symbol)
    if not role.is_gemm and role is not Role.CONV:
        return describe.other(_CK, role, f"Composable Kernel function {symbol.base}")
    types = _ck_types(symbol.tree)
    if types is None:
        reason = "a Composable Kernel product whose name does not show its types"
        return describe.other(_CK, role, reason)
    return describe.gemm(_CK, f"template arguments of {symbol.base}", types, role=role)


def _ck_types(tree: Type) -> Operands | None:
    for node in walk(tree):
        elements = _run(node.args)
        if len(elements) > 1:
            types = Operands(elements[0], elements[1])
            if len(elements) > 3:
                types = types._replace(out=elements[-1])
            return types
    return None


def _ck_role(symbol: Symbol) -> Role:
    names = [symbol.base]
    if symbol.base == "kentry":
        names = [argument.name for argument in symbol.tree.args]
    words: set[str] = set()
    for name in names:
        words.update(split(name))
    if {"bwd", "weight"} <= words:
        return Role.CONV
    role = first_of(_CK_ROLES, words) or Role.OTHER
    if role is Role.GEMM and words & {"moe", "grouped"}:
        return Role.GROUPED_GEMM
    return role


def _run(arguments: tuple[Type, ...]) -> list[str]:
    """Return the first run of element types among template arguments: A, B, acc, ..., D."""
    elements: list[str] = []
    for argument in arguments:
        element = _CK_ELEMENTS.get(argument.name)
        if element and element != "int32":
            elements.append(element)
        elif elements and argument.name != "Tuple":
            break
    return elements


_AITER: Final = "aiter"
_ELEMENTS: Final = {**SHORT, "bf8": "e5m2"}
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
    **dict.fromkeys(("blockscale", "per1x128"), Scaling.BLOCKWISE),
    **dict.fromkeys(("pertoken", "perToken"), Scaling.ROWWISE),
}
_JOINED: Final = lazy_pattern(
    r"(?<![a-zA-Z])(blockscale|perToken|pertoken|per1x128)(?![a-z])"
)


def aiter_assembly(symbol: Symbol) -> KernelName | None:
    """Decode an aiter assembly kernel, in its namespace or bare."""
    ours = symbol.path[:1] == ("aiter",)
    base = symbol.base
    if not ours and not symbol.is_identifier:
        return None
    gemm = _GEMM.fullmatch(base) or _HGEMM.fullmatch(base)
    if gemm:
        return _aiter_gemm(base, gemm)
    moe = _FMOE.fullmatch(base)
    if moe:
        return _aiter_moe(moe)
    attention = _ATTENTION.fullmatch(base)
    if attention is None or not ours:
        return None
    types = Operands()
    if "Fp8" not in base:  # it is the cache's type; queries may have another
        types = both(SHORT.get(attention["in"] or ""))
    evidence = f"aiter attention, type {attention['in'] or 'not plain'}"
    return describe.gemm(_AITER, evidence, types, role=Role.ATTENTION)


def _aiter_gemm(base: str, match: re.Match[str]) -> KernelName:
    first, *words = base.split("_")
    for mx in map(_MX.fullmatch, words):
        if mx is not None:
            a = SHORT[mx["a"] or mx["c"].lower()]
            types = both(a, scale="ue8m0")
            if mx["b"]:
                types = types._replace(b=SHORT[mx["b"]])
            return describe.gemm(_AITER, f"aiter name {first}_{mx[0]}", types)
    element = _ELEMENTS.get(match["in"].lower())
    out = match.groupdict().get("out") or ""
    types = both(element, _ELEMENTS.get(out))
    scaling = None
    unit = _JOINED.search(base.replace("_", " "))
    if unit is not None and element in ("fp8", "e5m2"):
        scaling = _SCALINGS[unit[1]]
    return describe.gemm(_AITER, f"aiter name {first}", types, scaling=scaling)


def _aiter_moe(match: re.Match[str]) -> KernelName:
    out = match["out"]
    unit = match["unit"] or ""
    quantized = match["in"] or ""
    element = None
    if quantized:
        element = _ELEMENTS.get(quantized.lower())
    elif unit in ("", "noquant"):
        element = _ELEMENTS.get(out)
    precision = None
    if not quantized and unit != "noquant":
        precision = Precision.UNKNOWN
    scaling = None
    if element == "fp8" and "_blockscale_" in match["rest"]:
        scaling = Scaling.BLOCKWISE
    elif element == "fp8":
        scaling = _SCALINGS.get(unit)
    return describe.gemm(
        _AITER,
        f"aiter fused MoE, {unit}{quantized or out}",
        both(element, _ELEMENTS.get(out)),
        role=Role.GROUPED_GEMM,
        scaling=scaling,
        precision=precision,
    )
