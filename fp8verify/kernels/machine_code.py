"""What a kernel's machine code multiplies: its matrix instructions, and on which types.

A kernel's name is what somebody called it; these instructions are what it does. Read are PTX (what
compilers for NVIDIA's GPUs write), SASS (what `nvdisasm` and `cuobjdump` print), AMDGCN assembly,
and Triton's own TTGIR.

Sources: PTX ISA 9.0, sections "mma", "wgmma.mma_async", "tcgen05.mma"; AMD's ISA guides of CDNA 3
and 4 (V_MFMA, V_SMFMAC) and RDNA 4 (V_WMMA); SASS as `nvdisasm` 12.9 and 13.0 print it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fp8verify.kernels.describe import SHORT, Operands, both, element_class
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Precision
from fp8verify.text import counted

# The longest instruction that is kept, in characters; real ones have 100.
MAX_LENGTH: Final = 160
# As many different instructions as a file may have before it is no kernel's.
MAX_DISTINCT: Final = 256

# The type of operands of which an instruction only says their width; "below16" is a class.
SIXTEEN_BITS: Final = "16bit"
WIDE: Final = "16bit or tf32"

FMA: Final = "fma.f32"
EXPONENTIAL: Final = "ex2.f32"

# One instruction a line; PTX may have a predicate before it, SASS an address.
_PTX: Final = (
    r"(?P<ptx>(?:wgmma\.mma_async|mma|wmma\.mma|tcgen05\.mma)\.[\w.:]{1,140})(?=[\s;])"
)
_AMD: Final = (
    r"(?P<amd>v_(?:mfma|smfmac|wmma|swmmac)_[a-z0-9_]{1,80})\b(?P<rest>[^\n;]{0,200})"
)
_SASS: Final = (
    r"(?P<sass>(?:[HQIODB]|UTC[HQIO]|[HQI]G)MMA(?:\.[A-Zx0-9_]{1,16}){0,12})(?=[\s;])"
)
_PLAIN: Final = (
    r"(?P<fma>fma\.rn(?:\.ftz)?\.f32(?:x2)?|v_(?:pk_)?(?:fma|fmac|dual_fmac)_f32|FFMA2?)\b"
    r"|(?P<exp>ex2\.approx(?:\.ftz)?\.f32|v_exp_f32|MUFU\.EX2)\b"
)
_INSTRUCTION: Final = lazy_pattern(
    rf"^[ \t]*(?:/\*[0-9a-f]{{4,6}}\*/[ \t]*)?(?:@!?[%\w]{{1,12}}[ \t]+)?"
    rf"(?:{_PTX}|{_AMD}|{_SASS}|{_PLAIN})",
    re.MULTILINE,
)
# In AMD's instructions of eight bits and less the formats of A and B are operands.
_FORMAT: Final = lazy_pattern(
    r"\b(?P<of>cbsz|blgp|matrix_a_fmt|matrix_b_fmt):(?P<is>[A-Z0-9_]{1,20})\b"
)
# TTGIR: the products of Triton's dialects, and the element types of their operands.
_TTGIR: Final = lazy_pattern(
    r"^[ \t]*(?:%[\w:#]{1,40} = )?(?P<op>tt\.dot|tt\.dot_scaled|ttng\.warp_group_dot"
    r"|ttng\.tc_gen5_mma|ttng\.tc_gen5_mma_scaled)\b[^\n]{0,4000}",
    re.MULTILINE,
)
_TENSOR: Final = lazy_pattern(
    r"(?:tensor|memdesc)<(?:\d+x){1,4}(?P<type>f8E4M3\w*|f8E5M2\w*|bf16|f16|f32|f64|i8|i4)\b"
)
_OF_TTGIR: Final = {"f8E4M3": "e4m3", "f8E5M2": "e5m2"}


class MachineCode(NamedTuple):
    """What the code of a kernel holds.

    Attributes:
        products: its matrix instructions: the types that each multiplies, and how many there are.
        fmas: multiplications with an addition in FP32, outside of matrix instructions.
        exponentials: powers of two, of which softmax consists.
    """

    products: tuple[tuple[Operands, int], ...] = ()
    fmas: int = 0
    exponentials: int = 0

    @property
    def precision(self) -> Precision:
        """The class of all its products; UNKNOWN where they differ, or it has none."""
        classes = {types.precision for types, _ in self.products}
        if len(classes) == 1:
            return classes.pop()
        return Precision.UNKNOWN

    @property
    def types(self) -> Operands:
        """The types that its products have in common."""
        found = Operands()
        if self.precision is Precision.UNKNOWN:
            return found
        for name in ("a", "b", "scale"):
            values = {getattr(types, name) for types, _ in self.products}
            if len(values) == 1:
                found = found._replace(**{name: values.pop()})
        return found

    def __str__(self) -> str:
        """Say what it multiplies: "4 × e5m2 × e4m3"."""  # noqa: RUF002
        if not self.products:
            return "no matrix instruction"
        parts = []
        for types, count in self.products:
            instructions = counted(count, "matrix instruction")
            parts.append(f"{instructions} of {_shown(types)}")
        return " and ".join(parts)


def _shown(types: Operands) -> str:
    a = types.a or "?"
    b = types.b or "?"
    scale = ""
    if types.scale:
        scale = f" with {types.scale} block scales"
    return f"{a} x {b}{scale}"


def instructions_of(text: str) -> dict[str, int]:
    """Count the matrix instructions of machine code, and the FMAs and exponentials beside them.

    The keys are mnemonics with all that says their types; FMAs and exponentials have one key each.
    It takes time linear in the text.

    Raises:
        ValueError: it has more different instructions than any kernel.
    """
    counts = Counter[str]()
    for match in _INSTRUCTION.finditer(text):
        counts[_key(match)] += 1
        if len(counts) > MAX_DISTINCT:
            raise ValueError("it has more kinds of matrix instruction than a kernel")
    return dict(counts)


def _key(match: re.Match[str]) -> str:
    if match["fma"]:
        return FMA
    if match["exp"]:
        return EXPONENTIAL
    if match["amd"] is None:
        return match["ptx"] or match["sass"]
    words = [match["amd"]]
    for operand in _FORMAT.finditer(match["rest"]):
        words.append(f"{operand['of']}:{operand['is']}")
    return " ".join(words)[:MAX_LENGTH]


def machine_code(instructions: Mapping[str, int]) -> MachineCode:
    """Return what counted instructions multiply; keys that are no instructions are left out."""
    products: dict[Operands, int] = {}
    for mnemonic, count in instructions.items():
        types = operands_of(mnemonic)
        if types is not None:
            products[types] = products.get(types, 0) + count
    in_order = sorted(products.items(), key=str)
    return MachineCode(
        products=tuple(in_order),
        fmas=instructions.get(FMA, 0),
        exponentials=instructions.get(EXPONENTIAL, 0),
    )


def operands_of(mnemonic: str) -> Operands | None:
    """Return the types that a matrix instruction multiplies, None if it is no such instruction.

    Types that stand in a descriptor are "below16" or "16bit".
    """
    if mnemonic.startswith("v_"):
        return _of_amd(mnemonic)
    if mnemonic[:1].isupper():
        return _of_sass(mnemonic)
    if mnemonic.startswith("tcgen05.mma"):
        return _of_kind(mnemonic)
    if mnemonic.startswith(("wgmma.mma_async.", "mma.", "wmma.mma.")):
        return _of_ptx(mnemonic)
    return None


# ---- PTX

# The kinds of `tcgen05.mma`, whose types stand in a descriptor.
_KINDS: Final = {
    "f16": both(SIXTEEN_BITS),
    "tf32": both("tf32"),
    "i8": both("int8"),
    "f8f6f4": both("below16"),
    "mxf8f6f4": both("below16", scale="ue8m0"),
    "mxf4": both("e2m1", scale="ue8m0"),
}
_KIND: Final = lazy_pattern(r"\.kind::(\w+)")
_PTX_TYPES: Final = {
    **SHORT,
    "u4": "int4",
    "b1": "b1",
}


def _of_kind(mnemonic: str) -> Operands | None:
    kind = _KIND.search(mnemonic)
    if kind is None:
        return None
    if kind[1] == "mxf4nvf4":  # E2M1 with scales of UE8M0 for each 32, or UE4M3 for 16
        if "scale_vec::4X" in mnemonic or "block16" in mnemonic:
            return both("e2m1", scale="ue4m3")
        return both("e2m1", scale="ue8m0")
    return _KINDS.get(kind[1])


def _of_ptx(mnemonic: str) -> Operands | None:
    """Read `mma` and `wgmma`, which name D, A, B and, except `wgmma`, C, in this order."""
    words = [word for word in mnemonic.split(".") if "::" not in word]
    types = [_PTX_TYPES[word] for word in words if word in _PTX_TYPES]
    if len(types) == 2 and mnemonic.startswith("wmma"):  # D and C; A and B are FP16
        return both("fp16")
    if len(types) < 3:
        return None
    _, a, b, *_ = types
    last = words[-1]
    if "block_scale" in words and last in _SCALES:
        return Operands(a, b, scale=last)
    return Operands(a, b)


_SCALES: Final = frozenset({"ue8m0", "ue4m3"})

# ---- AMD

_AMD_SHAPE: Final = lazy_pattern(
    r"v_(?:mfma|smfmac|wmma|swmmac)(?P<scale>_scale(?:16)?)?_[a-z0-9]{3,7}_"
    r"\d+x\d+x\d+(?:_\d+b)?_?(?P<types>\w*)"
)
_AMD_TYPES: Final = {
    "fp8": "e4m3", "bf8": "e5m2", "f16": "fp16", "bf16": "bf16", "bf16_1k": "bf16",
    "f32": "fp32", "xf32": "tf32", "f64": "fp64", "i8": "int8", "iu8": "int8", "iu4": "int4",
}  # fmt: skip
# CDNA 4: values of cbsz (A) and blgp (B); gfx1250 writes them out.
_F8F6F4: Final = {
    "0": "e4m3", "1": "e5m2", "2": "e2m3", "3": "e3m2", "4": "e2m1",
    "MATRIX_FMT_FP8": "e4m3", "MATRIX_FMT_BF8": "e5m2", "MATRIX_FMT_FP6": "e2m3",
    "MATRIX_FMT_BF6": "e3m2", "MATRIX_FMT_FP4": "e2m1",
}  # fmt: skip


def _of_amd(mnemonic: str) -> Operands | None:
    name, *formats = mnemonic.split(" ")
    match = _AMD_SHAPE.fullmatch(name)
    if match is None:
        return None
    scale = None
    if match["scale"]:
        scale = "ue8m0"
    types = match["types"]
    if types == "f8f6f4":
        chosen = {}
        for word in formats:
            operand, _, number = word.partition(":")
            chosen[operand] = number
        number_a = chosen.get("cbsz") or chosen.get("matrix_a_fmt") or "0"
        number_b = chosen.get("blgp") or chosen.get("matrix_b_fmt") or "0"
        a = _F8F6F4.get(number_a, "below16")
        b = _F8F6F4.get(number_b, "below16")
        return Operands(a, b, scale=scale)
    if types in _AMD_TYPES:
        return both(_AMD_TYPES[types], scale=scale)
    a, _, b = types.partition("_")
    if a in _AMD_TYPES and b in _AMD_TYPES:
        return Operands(_AMD_TYPES[a], _AMD_TYPES[b], scale=scale)
    return None


# ---- SASS

_SASS_TYPES: Final = {
    "E4M3": "e4m3", "E5M2": "e5m2", "E2M1": "e2m1", "E3M2": "e3m2", "E2M3": "e2m3",
    "BF16": "bf16", "TF32": "tf32", "S8": "int8", "U8": "int8", "S4": "int4", "U4": "int4",
}  # fmt: skip
# What instructions multiply that do not name it.
_SASS_FAMILIES: Final = {
    "HMMA": "fp16", "HGMMA": "fp16", "UTCHMMA": WIDE, "QMMA": "below16", "QGMMA": "below16",
    "UTCQMMA": "below16", "OMMA": "e2m1", "UTCOMMA": "e2m1", "IMMA": "int8", "IGMMA": "int8",
    "UTCIMMA": "int8", "DMMA": "fp64", "BMMA": "b1",
}  # fmt: skip


def _of_sass(mnemonic: str) -> Operands | None:
    family, *words = mnemonic.split(".")
    if family not in _SASS_FAMILIES:
        return None
    named = [_SASS_TYPES[word] for word in words if word in _SASS_TYPES]
    scale = None
    if "SF" in words or family in ("OMMA", "UTCOMMA"):
        if {"UE4M3", "4X"} & set(words):
            scale = "ue4m3"
        elif family != "UTCOMMA" or "E8" in words:
            scale = "ue8m0"
    if not named:
        return both(_SASS_FAMILIES[family], scale=scale)
    return Operands(named[0], named[-1], scale=scale)


# ---- TTGIR


def products_of_ttgir(text: str) -> dict[Operands, int]:
    """Count the products in Triton's intermediate code by the element types of A and B."""
    counts: dict[Operands, int] = {}
    for match in _TTGIR.finditer(text):
        _, _, signature = match[0].rpartition(" : ")
        types = [_element(tensor["type"]) for tensor in _TENSOR.finditer(signature)]
        if len(types) < 2:
            continue
        found = Operands(types[0], types[1])
        if "scaled" in match["op"]:
            found = found._replace(scale="ue8m0")
        counts[found] = counts.get(found, 0) + 1
    return counts


def _element(text: str) -> str | None:
    return _OF_TTGIR.get(text[:6]) or SHORT.get(text)


def completed(code: MachineCode, written: Mapping[Operands, int]) -> MachineCode:
    """Fill in types that the instructions leave to a descriptor, from the products of the TTGIR.

    They have to be one pair of types, and of the class that the instructions allow.
    """
    pairs = {(types.a, types.b) for types in written}
    if len(pairs) != 1 or len(code.products) != 1:
        return code
    a, b = pairs.pop()
    types, count = code.products[0]
    are_low = element_class(a).is_low and element_class(b).is_low
    have_16_bits = {a, b} <= {"bf16", "fp16"}
    if types.a != types.b:
        return code
    if (types.a == "below16" and are_low) or (types.a == SIXTEEN_BITS and have_16_bits):
        product = (types._replace(a=a, b=b), count)
        return code._replace(products=(product,))
    return code


def agreed(codes: Iterable[MachineCode]) -> MachineCode | None:
    """Return one of several codes that multiply in the same class, None if they differ."""
    known = list(codes)
    classes = {(code.precision, bool(code.products)) for code in known}
    if len(classes) != 1:
        return None
    return known[0]
