"""CUTLASS kernels: procedural names (cuBLAS, cuBLASLt, cuDNN), and templates.

Procedural names of CUTLASS 2.x:
`cutlass_80_tensorop_[<out>_]<acc><mma>gemm[_<epilogue>][_<operand>]_<tile>_...`, usually as the
template argument of `cutlass::Kernel2<...>`. 3.x: `cutlass3x_sm100_[bs]tensorop_
[<acc><mma>[<via>]]gemm[_block_scaled]_<A>_<B>_<acc>_<C>_<D>_<tile>_...`.
Source: cutlass/python/cutlass_library/gemm_operation.py, and the symbols in libcublasLt 12.9, 13.1.

Templates: `cutlass::device_kernel<...>`, `cutlass::Kernel2<...>`. PyTorch's row-wise and grouped
kernels, FBGEMM, MSLK, SGLang and vLLM instantiate these. The types are at fixed places of the
mainloop's template arguments, and in the MMA atom, which is what the hardware executes. `half_t`
elsewhere (copy atoms, epilogues) is no evidence.
Source: cutlass/include/cutlass/gemm/collective/*.hpp, cute/atom/mma_traits_sm{90,100,120}.hpp.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import BLAS, CPP, SCALES, SHORT, Operands, both
from fp8verify.kernels.symbol import EMPTY, Symbol, Type, segments, walk
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import KernelName, Precision, Role, Scaling

_V2: Final = lazy_pattern(
    r"cutlass_(?:\d+_)?(?:wmma_)?(?P<unit>tensorop|simt|sptensorop)_(?P<rest>\w+)"
)
_V3: Final = lazy_pattern(
    r"cutlass3x_sm\d+[af]?_(?:bs|sp)*(?P<unit>tensorop|simt)_(?P<rest>\w+)"
)
_TILE: Final = lazy_pattern(r"\d+x\d+(?:x\d+)?")
# Without the accumulator's letter and the instruction's shape where these are the builder's choice.
_OPERATION: Final = lazy_pattern(
    r"(?:(?P<letter>gz|[shdicz])(?P<mma>\d+(?:x\d+x\d+)?)?(?P<via>bf16|f16|tf32)?"
    r"|(?P<emulates>9xbf16|3xtf32)(?=gemm))?"
    r"(?:sp)?(?P<op>gemm|symm|hemm|syrk|herk|syr2k|her2k|trmm|fprop|dgrad|wgrad)"
)
_SCALED: Final = lazy_pattern(r"(?P<scale>ue8m0|ue4m3)x(?P<element>\w+)")
_CONVOLUTION: Final = frozenset({"fprop", "dgrad", "wgrad"})


def procedural(symbol: Symbol) -> KernelName | None:
    """Decode a procedural name, bare or as the first template argument of a CUTLASS kernel."""
    if not symbol.path or not symbol.path[0].startswith("cutlass"):
        return None
    text = symbol.path[0]
    if len(symbol.path) > 1:
        text = _first(symbol.tree).name
    library = "cuBLAS"
    if any("cudnn" in part for part in symbol.path):
        library = "cuDNN"
    match = _V3.fullmatch(text) or _V2.fullmatch(text)
    if not match:
        return None
    words = match["rest"].split("_")
    found = list(filter(None, map(_OPERATION.fullmatch, words[:3])))
    if not found:
        return None
    operation = found[0]
    at = words.index(operation[0])
    types, complete = _type_words(words[at + 1 :])
    if text.startswith("cutlass3x"):
        role = Role.GROUPED_GEMM if "grouped" in words else Role.GEMM
        if "_bstensorop_" in text and len(types) != 5:
            return _cut_scaled(library, operation, types, role)
        return _typed(library, operation, match["unit"], types, role)
    if not types and not complete:
        reason = "a CUTLASS kernel whose name is cut off before its operand types"
        return describe.other(library, Role.GEMM, reason)
    return _tagged(library, operation, match["unit"], types, words[:at])


def _first(tree: Type) -> Type:
    if tree.args:
        return tree.args[0]
    return EMPTY


def _type_words(words: list[str]) -> tuple[list[str], bool]:
    """Return the element words before the tile, and whether the name goes on to the tile."""
    types: list[str] = []
    for word in words:
        if _TILE.fullmatch(word):
            return types, True
        if word in SHORT or word == "void" or _SCALED.fullmatch(word):
            types.append(word)
    return types, False


def _typed(
    library: str, operation: re.Match[str], unit: str, words: list[str], role: Role
) -> KernelName:
    """Describe a 3.x name, which has all five types: A, B, accumulator, C, D."""
    if len(words) != 5:
        reason = "a CUTLASS kernel whose name does not have all five types"
        return describe.other(library, role, reason)
    a, b, _, _, d = map(_scaled_element, words)
    types = Operands(
        a=a.a,
        b=b.a,
        out=d.a,
        scale=a.scale,
    )
    precision = None
    if unit == "tensorop" and types.a == types.b == "fp32":
        precision = Precision.UNKNOWN
        if operation["emulates"]:
            precision = Precision.FP32
        if operation["via"] == "tf32":
            precision = Precision.TF32
            types = both("tf32", types.out)
    evidence = f"CUTLASS 3.x type fields {'_'.join(words)}"
    return describe.gemm(library, evidence, types, role=role, precision=precision)


def _scaled_element(word: str) -> Operands:
    """Read a type field, such as `ue8m0xe4m3` or `bf16`."""
    _, _, element = word.rpartition("x")
    match = _SCALED.fullmatch(word)
    scale = None
    if match is not None:
        scale = match["scale"]
    return both(SHORT.get(element), scale=scale)


def _cut_scaled(
    library: str, operation: re.Match[str], words: list[str], role: Role
) -> KernelName:
    """Describe a block-scaled 3.x name that is cut off before its fifth type.

    UE4M3 scales FP4 alone. Without any type the K of the instruction tells: cuBLASLt's with blocks
    of scales have 32 for FP8 and 64 for FP4.
    """
    scale = _SCALED.fullmatch(words[0]) if words else None
    k = _BLOCK_SCALED_K.search(operation["mma"] or "")
    if scale is not None and scale["scale"] == "ue4m3":
        types = both(SHORT.get(scale["element"]), scale="ue4m3")
    elif k is not None and k[0] == "32":
        types = both("fp8", scale="ue8m0")
    elif k is not None:
        types = both("fp4")
    else:
        types = both(Precision.BELOW16.value)
    evidence = f"CUTLASS 3.x block-scaled {operation[0]}, cut off before its types"
    return describe.gemm(library, evidence, types, role=role)


_BLOCK_SCALED_K: Final = lazy_pattern(r"(?:32|64)$")


def _tagged(
    library: str,
    operation: re.Match[str],
    unit: str,
    types: list[str],
    before: list[str],
) -> KernelName:
    """Describe a 2.x name, whose operand tag is left out where the accumulator implies it."""
    if operation["op"] in _CONVOLUTION:
        role = Role.CONV
    else:
        role = Role.GEMM
    if role is Role.GEMM and operation["op"] != "gemm":
        reason = f"BLAS-3 {operation['op']}, a matrix product but not a GEMM"
        return describe.other(library, Role.OTHER, reason)
    tags: list[str | None] = [SHORT[word] for word in types if word in SHORT]
    if not tags:
        tags.append(_implied(operation, unit))
    outputs = [SHORT[word] for word in before if word in SHORT]
    found = Operands(
        a=tags[0],
        b=tags[-1],
        out=outputs[0] if outputs else None,
    )
    evidence = f"CUTLASS {unit} {operation[0]}"
    if types:
        evidence += f" on {'_'.join(types)}"
    return describe.gemm(library, evidence, found, role=role)


def _implied(operation: re.Match[str], unit: str) -> str | None:
    """Return the operand type of a name without operand tag."""
    letter = operation["letter"]
    mma = operation["mma"]
    if operation["via"]:
        return SHORT[operation["via"]]
    if operation["emulates"]:
        return "fp32"
    if unit != "simt" and letter in ("s", "c", "i"):
        # The accumulator's letter. m16n8k8 on 32-bit operands exists for TF32 only (PTX ISA).
        if mma == "1688" and letter != "i":
            return "tf32"
        return None
    return BLAS.get(letter)


_KERNELS: Final = frozenset({"device_kernel", "Kernel", "Kernel2"})
# Mainloops and the places of A, B and, where it is there, D among their template arguments.
_MAINLOOPS: Final[dict[str, tuple[int, ...]]] = {
    "CollectiveMma": (2, 4),
    "CollectiveMmaArrayMixedInput": (2, 4),
    "CollectiveConv": (2, 3),
    "DefaultGemmWithVisitor": (0, 4, 8),
    "DefaultGemmUniversal": (0, 4, 8),
    "DefaultGemm": (0, 3, 6),
}
_GROUPED: Final = frozenset(
    {
        "GroupProblemShape",
        "MoEProblemShape",
        "GemmGrouped",
        "MoeFCGemm",
    }
)
_WEIGHT_ONLY: Final = frozenset({"MacheteCollectiveMma", "GemmFpAIntB", "MoeFCGemm"})

# SM90_64x128x32_F32E4M3E4M3_SS_TN and, in the namespace SM90::GMMA, MMA_64x128x32_F32E4M3E4M3_...
_ATOM: Final = lazy_pattern(
    r"(?:MMA|SM\d+)_\d+x\d+x\d+_(?P<acc>F32|F16|S32|F64)(?P<a>E4M3|E5M2|BF16|TF32|F16|F64|S8|U8)"
    r"(?P<b>E4M3|E5M2|BF16|TF32|F16|F64|S8|U8)(?:F32|F16|F64|S32)?_\w+"
)
# SM100_MMA_F8F6F4_SS<A, B, acc, ...>, SM120_16x8x32_TN<A, B, acc>
_TYPED_ATOM: Final = lazy_pattern(r"SM1\d\d_(?:MMA_\w+|\d+x\d+x\d+_TN\w*)")
_BLOCK_SCALED: Final = {
    "tuple": None, "mx_float8_t": "ue8m0", "mx_float4_t": "ue8m0", "nv_float4_t": "ue4m3"
}  # fmt: skip
_WRAPPER: Final = lazy_pattern(r"cutlass_[23]x_(?P<words>\w+)")
_INTERNAL: Final = lazy_pattern(
    r"(?P<grouped>[mk]_grouped_)?(?P<type>fp8|bf16|fp16)_\w*"
)


def template(symbol: Symbol) -> KernelName | None:
    """Decode a CUTLASS template kernel that multiplies matrices or convolves."""
    if symbol.base not in _KERNELS or not symbol.path[0].startswith("cutlass"):
        return None
    nodes = segments(symbol.tree)
    return _wrapper(symbol) or _mainloop(nodes) or _untyped(nodes) or _cut(symbol)


def _cut(symbol: Symbol) -> KernelName | None:
    """Decode a name that is cut before its types; nearly all such kernels are GEMMs."""
    opened = symbol.text.count("<")
    closed = symbol.text.count(">")
    is_whole = opened == closed and opened > 0
    if is_whole and "..." not in symbol.text:
        return None
    reason = "a CUTLASS kernel whose name is cut off before its types"
    return describe.other("CUTLASS", Role.GEMM, reason)


def _mainloop(nodes: list[Type]) -> KernelName | None:
    mainloops = [node for node in nodes if node.name in _MAINLOOPS and node.args]
    if not mainloops:
        return None
    mainloop = mainloops[0]
    listed = dict(enumerate(mainloop.args))
    elements = []
    for at in _MAINLOOPS[mainloop.name]:
        argument = listed.get(at, EMPTY)
        elements.append(_element(argument))
    a, b, *outputs = elements
    if a == b == Operands():
        return None
    read_a, read_b = _multiplied(nodes) or (a.a, b.a)
    types = Operands(
        a=read_a,
        b=read_b,
        out=outputs[0].a if outputs else _output(nodes),
        scale=a.scale or b.scale,
    )
    policy = mainloop.args[0].name
    return describe.gemm(
        "CUTLASS",
        f"template arguments of {mainloop.name}",
        types,
        role=_role(nodes),
        scaling=_scaling(policy, nodes, types.a),
        fast_accum=_fast_accumulation(policy, types.a),
    )


def _wrapper(symbol: Symbol) -> KernelName | None:
    """Read a wrapper that hides the mainloop: vLLM's cutlass_3x_*, DeepSeek's fp8_ptp128c."""
    kernel = _first(symbol.tree)
    for part, arguments in zip(kernel.parts, kernel.arguments, strict=True):
        wrapper = _WRAPPER.fullmatch(part)
        if wrapper:
            return _vllm(wrapper["words"].split("_"), arguments)
    internal = _INTERNAL.fullmatch("".join(kernel.parts[-2:-1]))
    if not internal or kernel.name != "GemmKernel":
        return None
    types = both(SHORT[internal["type"]])
    role = Role.GROUPED_GEMM if internal["grouped"] else Role.GEMM
    scaling = Scaling.BLOCKWISE if types.a == "fp8" else None
    evidence = f"kernel name {internal[0]}"
    return describe.gemm("CUTLASS", evidence, types, role=role, scaling=scaling)


def _vllm(words: list[str], arguments: tuple[Type, ...]) -> KernelName:
    """Read vLLM's wrappers: <A and B, D, ...>, or for blockwise FP8 only <D, ...>."""
    types = [_element(argument).a for argument in arguments[:2]]
    scaling = None
    if "blockwise" in words:
        scaling = Scaling.BLOCKWISE
        if "fp8" in words:
            types.insert(0, "e4m3")
    a, out, *_ = (*types, None, None)
    role = Role.GEMM
    if "group" in words or "moe" in words:
        role = Role.GROUPED_GEMM
    evidence = f"vLLM wrapper cutlass_{'_'.join(words)}"
    return describe.gemm("vLLM", evidence, both(a, out), role=role, scaling=scaling)


def _untyped(nodes: list[Type]) -> KernelName | None:
    """Describe weight-only kernels, which dequantize B to the type of A or of neither."""
    names = {node.name for node in nodes}
    for node in nodes:
        if node.name in _WEIGHT_ONLY:
            types = both(_of_activations(node))
            evidence = f"weight-only kernel {node.name}"
            return describe.gemm("CUTLASS", evidence, types, role=_role(nodes))
    if names & {"GemmUniversal", "GemmWithEpilogueVisitor", "Gemm", "GemmGrouped"}:
        reason = "a CUTLASS GEMM whose name does not show the types of its operands"
        return describe.other("CUTLASS", _role(nodes), reason)
    return None


def _of_activations(weight_only: Type) -> str | None:
    """Return the type in which a weight-only kernel multiplies, where its name says it."""
    if weight_only.name != "GemmFpAIntB":
        return None
    for node in walk(weight_only):
        element = CPP.get(node.name)
        if element in ("bf16", "fp16"):
            return element
    return None


def _role(nodes: list[Type]) -> Role:
    names = {node.name for node in nodes}
    if names & {"ConvUniversal", "CollectiveConv", "ImplicitGemmConvolution"}:
        return Role.CONV
    if names & _GROUPED:
        return Role.GROUPED_GEMM
    return Role.GEMM


def _multiplied(nodes: list[Type]) -> tuple[str | None, str | None] | None:
    """Return the types that the MMA instruction reads, where the atom's name says so."""
    for node in nodes:
        match = _ATOM.fullmatch(node.name)
        if match:
            return SHORT[match["a"].lower()], SHORT[match["b"].lower()]
        if _TYPED_ATOM.fullmatch(node.name) and len(node.args) > 1:
            a, b = (_element(argument).a for argument in node.args[:2])
            if a and b:
                return a, b
    return None


def _element(node: Type) -> Operands:
    """Return element type and block scale of an operand's template argument."""
    if node.name not in _BLOCK_SCALED or not node.args:
        return both(CPP.get(node.name))
    element, *rest = node.args
    scale = _BLOCK_SCALED[node.name]
    for argument in rest:
        scale = scale or SCALES.get(argument.name)
    return both(CPP.get(element.name), scale=scale)


def _output(nodes: list[Type]) -> str | None:
    """Return D's type: <policy, tile, [subtile,] C, its strides, D, ...>; an unused C is void."""
    epilogues = [node for node in nodes if node.name == "CollectiveEpilogue"]
    if not epilogues:
        return None
    arguments = epilogues[0].args[2:7]
    for argument in reversed(arguments):
        element = _element(argument).a
        if element is not None:
            return element
    return None


def _scaling(policy: str, nodes: list[Type], a: str | None) -> Scaling | None:
    if a not in ("e4m3", "e5m2", "fp8"):
        return None
    if "Blockwise" in policy:
        return Scaling.BLOCKWISE
    if "BlockScaled" in policy:
        return None
    for node in nodes:
        if node.name.startswith(_COLUMN_BROADCASTS):
            return Scaling.ROWWISE
    return None


_COLUMN_BROADCASTS: Final = ("Sm90ColBroadcast", "VisitorColBroadcast")


def _fast_accumulation(policy: str, a: str | None) -> bool | None:
    """On SM90 the mainloop `...FP8` promotes partial sums to FP32; the plain one does not."""
    if a not in ("e4m3", "e5m2") or "Sm90" not in policy or "Blockwise" in policy:
        return None
    return not policy.endswith("FP8")
