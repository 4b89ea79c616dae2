"""Libraries with small grammars: DeepGEMM, TensorRT-LLM, CuTe DSL, and those without types."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from fp8verify.kernels import describe, type_words
from fp8verify.kernels.describe import CPP, SCALES, SHORT, Operands, both
from fp8verify.kernels.grammars import attention, gemm_names, helper_names
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.kernels.words import word_set
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Hint, KernelName, Precision, Role, Scaling

_MARLIN: Final = (
    "a Marlin GEMM, whose weights are of another format and are converted first"
)
_COLLECTIVE: Final = "a custom collective"
# Functions that say what they do, and no types: a row for each group of the pattern. Copies and
# fills are called as Kineto and roctracer call them.
_ROWS: Final = (
    (Role.MEMORY, "driver", "a copy or fill of memory"),
    (Role.COMMUNICATION, "NCCL", "NCCL communication kernel"),
    (Role.COMMUNICATION, _COLLECTIVE, f"{_COLLECTIVE} communication kernel"),
    (Role.GEMM, "Marlin", _MARLIN),
    (Role.REDUCTION, "cuDNN", "batch normalization"),
)
_FUNCTION: Final = lazy_pattern(
    r"(Memcpy|Memset|\[CUDA mem(?:cpy|set).*|(?:Copy|Fill)(?:Device|Host|Buffer)\w*"
    r"|__amd_rocclr_\w+)"
    r"|((?:nccl|rccl|msccl|mscclpp)(?:Dev|Symk?Dev|Symk)?Kernel\w*|(?:nccl|rccl)_(?:ep|gin)_\w+)"
    r"|(multimem_\w+|(?:one|two)_shot_all_?reduce\w*|cross_device_reduce\w*|nvshmemi?_\w+"
    r"|k?userbuffers_\w+)"
    r"|(Marlin\w*)"
    r"|(bn_\w+|MIOpenBatchNorm\w*)",
    re.DOTALL,
)
_COMMUNICATION: Final = {
    "deep_ep": "DeepEP",
    "mscclpp": "MSCCL++",
    "nvshmem": "NVSHMEM",
    "mori": "MoRI",
}
_COLLECTIVES: Final = frozenset(
    {"allreduce", "all reduce", "allgather", "all gather", "reduce scatter", "reducescatter",
     "alltoall", "all to"}
)  # fmt: skip
_MULTIPLIES: Final = word_set("gemm matmul mm")


def untyped(symbol: Symbol) -> KernelName | None:
    """Decode a kernel that says what it does, and no types."""
    match = _FUNCTION.fullmatch(symbol.base or symbol.text)
    if match:
        role, library, reason = _ROWS[(match.lastindex or 1) - 1]
        grouped = role is Role.GEMM and "moe" in symbol.path[0]
        return describe.other(library, Role.GROUPED_GEMM if grouped else role, reason)
    words = split(symbol.base)
    pairs = {f"{first} {second}" for first, second in pairwise(words)}
    name = None
    if symbol.path:
        name = _COMMUNICATION.get(symbol.path[0])
    if symbol.path[:2] == ("dpsk", "ep"):
        name = "DeepEP"
    elif _COLLECTIVES & pairs.union(words) and _MULTIPLIES.isdisjoint(words):
        name = name or _COLLECTIVE
    if name is None:
        return None
    return describe.other(name, Role.COMMUNICATION, f"{name} communication kernel")


# MIOpen's assembly implicit GEMMs: igemm_<direction>_gtcx<n>_<layout>_<type>_...
_IGEMM: Final = lazy_pattern(
    r"igemm_(?:fwd|bwd|wrw)_gtcx\d*_\w+?_(?P<type>fp32|fp16|bf16|int8)_\w+"
)
_CONVOLUTION: Final = lazy_pattern(
    r"(?:im|ex)plicit_convolve_\w+|fft[12]d_[cr]2[cr]_\w+|wgrad_alg\d_engine|dgrad_\w*engine"
    r"|nchwToNhwcKernel|nhwcToNchwKernel|miopenSp3Asm\w+|naive_conv_\w+|gridwise_convolution_\w+"
    r"|conv2d_c1_k1_\w+|conv_depthwise\w+|winograd\w+|[sd]gemm_convolve_\w+|Im2d2Col\w*"
)
_CUDNN: Final = lazy_pattern(r"(?:cask_)?cudnn(?:_infer|_train)?")


def convolution(symbol: Symbol) -> KernelName | None:
    """Decode kernels of MIOpen and cuDNN other than those of xmma, CUTLASS and attention."""
    match = _IGEMM.fullmatch(symbol.text)
    if match:
        types = both(SHORT[match["type"]])
        evidence = f"MIOpen implicit GEMM type {types.a}"
        return describe.gemm("MIOpen", evidence, types, role=Role.CONV)
    if symbol.path[1:] and _CUDNN.fullmatch(symbol.path[0]):
        return describe.other("cuDNN", Role.CONV, "a cuDNN kernel without types")
    if _CONVOLUTION.fullmatch(symbol.base):
        return describe.other("cuDNN", Role.CONV, "part of a convolution")
    if symbol.base == "Kernel" and symbol.path[0].startswith("cutlass_cudnn"):
        return describe.other("cuDNN", Role.CONV, "a convolution without plain types")
    return None


# DeepGEMM's JIT kernels: `deep_gemm::sm90_fp8_gemm_1d2d_impl<...>` and their siblings.
#
# Older kernels have their type in the function name only; since 2026 `sm100_fp8_fp4_gemm_1d1d_impl`
# serves FP8 and FP4 operands and says which in its dtype template arguments.
# Source: github.com/deepseek-ai/DeepGEMM, deep_gemm/include/deep_gemm/impls.
_DEEPGEMM: Final = "DeepGEMM"
_DEEPGEMM_NAME: Final = lazy_pattern(
    r"(?:sm\d+_)?(?:[mk]_grouped_)?"
    r"(?:(?P<types>mxfp4_mxfp4|fp8_fp4|fp4_fp8|fp8|fp4|bf16|tf32)_)?"
    r"(?P<kind>(?:\w+_)?gemm(?:_\w+)?|(?:paged_)?mqa_logits(?:_\w+)?|mega_moe(?:_\w+)?)"
)
# Its einsums name their dimensions, and exist for BF16 (impls/sm{90,100}_bmk_bnk_mn.cuh).
_DEEPGEMM_EINSUM: Final = lazy_pattern(
    r"[bhdmnkr]{2,3}_[bhdmnkr]{2,3}_[bhdmnkr]{2,3}_gemm\w*"
)
_DEEPGEMM_GROUPED: Final = lazy_pattern(
    r"(?:.*::)?(?:\([\w:]*GemmType\)[123]|[MK]Grouped\w*)"
)


def deepgemm(symbol: Symbol) -> KernelName | None:
    """Decode a DeepGEMM kernel, with or without its namespace."""
    is_impl = symbol.base.startswith("sm") and symbol.base.endswith("_impl")
    if symbol.path[:1] != ("deep_gemm",) and not is_impl:
        return None
    match = _DEEPGEMM_NAME.fullmatch(symbol.base)
    if not match:
        return None
    if "mqa_logits" in match["kind"]:
        reason = "DeepGEMM indexer logits, part of attention"
        return describe.other(_DEEPGEMM, Role.ATTENTION, reason)
    if not match["types"]:
        if not _DEEPGEMM_EINSUM.fullmatch(match["kind"]):
            return None  # the words of the name say that it is a GEMM, and no more
        return describe.gemm(_DEEPGEMM, f"einsum {symbol.base}", both("bf16"))
    types = _deepgemm_types(symbol, match)
    role = Role.GEMM
    if _is_grouped_deepgemm(symbol):
        role = Role.GROUPED_GEMM
    scaling = None
    if "fp8" in match["types"] and not _multiplies_mixed(match):
        scaling = Scaling.BLOCKWISE
    return describe.gemm(
        _DEEPGEMM,
        f"function name {symbol.base}",
        types,
        role=role,
        scaling=scaling,
    )


def _is_grouped_deepgemm(symbol: Symbol) -> bool:
    words = symbol.base.split("_")
    if "grouped" in words or "moe" in words:
        return True
    arguments = ("::".join(argument.parts) for argument in symbol.tree.args)
    return any(map(_DEEPGEMM_GROUPED.fullmatch, arguments))


def _multiplies_mixed(match: re.Match[str]) -> bool:
    """Whether a kernel multiplies FP8 activations by FP4 weights (sm100_fp8_fp4_mega_moe.cuh)."""
    return match["types"] == "fp8_fp4" and match["kind"].startswith("mega_moe")


def _deepgemm_types(symbol: Symbol, match: re.Match[str]) -> Operands:
    """Return the types of a DeepGEMM kernel by its name and its consecutive dtype arguments."""
    names = [argument.name for argument in symbol.tree.args]
    listed = Operands()
    for place, name in enumerate(names):
        if name in CPP:
            listed = Operands(*map(CPP.get, names[place : place + 3]))
            break
    types = match["types"]
    if _multiplies_mixed(match):  # each with UE8M0 scales for 32 elements
        return Operands("e4m3", "e2m1", listed.out, "ue8m0")
    if types == "mxfp4_mxfp4":
        return both("e2m1", scale="ue8m0")
    if "_" in types:  # of two formats
        if listed.a is not None:
            return listed
        return both(Precision.BELOW16.value)
    element = SHORT[types]
    if types == "fp8":
        element = "e4m3"
    return both(element, listed.a)


# TensorRT-LLM: trtllm-gen's `bmm_<D>_<A><B>_<acc>_...`, `fmhaSm100fKernel_Qkv<T>O<T>...`.
# Source: names of the cubins in TensorRT-LLM and FlashInfer, checked on B200 traces of gpt-oss.
_TRTLLM: Final = "TensorRT-LLM"
_TRTLLM_TYPE: Final = (
    r"Mx(?:E4m3|E2m1|Int4)|E4m3|E5m2|E2m1|Bfloat16|Fp16|Fp32|Int8|Int4|UE8m0"
)
_TRTLLM_GEMM: Final = lazy_pattern(
    rf"(?P<kind>bmm|gemm|gemmGatedAct|batchedGemm)_(?P<out>{_TRTLLM_TYPE})_(?P<a>{_TRTLLM_TYPE})(?P<b>{_TRTLLM_TYPE})?_"
    r"(?:Fp32|Fp16|Int32)(?:_\w*)?"
)
_TRTLLM_ATTENTION: Final = lazy_pattern(
    rf"fmhaSm\d+[af]?(?:Kernel)?_Qkv?(?P<qkv>{_TRTLLM_TYPE})(?:O(?P<out>{_TRTLLM_TYPE}))?\w*"
)


def tensorrt_llm(symbol: Symbol) -> KernelName | None:
    """Decode a TensorRT-LLM GEMM or attention kernel."""
    gemm = _TRTLLM_GEMM.fullmatch(symbol.text)
    if gemm:
        a = _trtllm_element(gemm["a"])
        b = _trtllm_element(gemm["b"] or gemm["a"])
        out = _trtllm_element(gemm["out"])
        types = Operands(a.a, b.a, out.a)
        if a.scale == b.scale:
            types = types._replace(scale=a.scale)
        role = Role.GEMM
        if gemm["kind"] in ("bmm", "batchedGemm"):
            role = Role.GROUPED_GEMM
        evidence = f"trtllm-gen {gemm['kind']} types {gemm['a']}{gemm['b'] or ''}"
        return describe.gemm(_TRTLLM, evidence, types, role=role)
    attention = _TRTLLM_ATTENTION.fullmatch(symbol.text)
    if attention:
        qkv = _trtllm_element(attention["qkv"])
        out = _trtllm_element(attention["out"])
        types = both(qkv.a, out.a)
        evidence = f"trtllm-gen attention, Qkv{attention['qkv']}"
        return describe.gemm(_TRTLLM, evidence, types, role=Role.ATTENTION)
    if symbol.base == "cudaCoreGemm" and symbol.tree.args:
        types = both(CPP.get(symbol.tree.args[0].name))
        return describe.gemm(_TRTLLM, "cudaCoreGemm element type", types)
    return None


def _trtllm_element(text: str | None) -> Operands:
    """Return element type and block scale: `MxE4m3` has E8M0 scales, a bare `E2m1` is NVFP4."""
    if text is None:
        return Operands()
    element = SHORT.get(text.removeprefix("Mx").lower())
    if text.startswith("Mx"):
        return both(element, scale="ue8m0")
    if text == "E2m1":
        return both(element, scale="ue4m3")
    return both(element)


# CUTLASS's Python (CuTe DSL): `kernel_cutlass_<function>_<arguments>_<n>`. The function's name is
# words (FlashAttention 4, quack, FlashInfer, user code); the arguments are spelled out behind it
# and cut off at 180 characters: `tensorptrf8E4M3FNgmem...` is a tensor with its element type,
# `CopyAtom_..._Valuetypef16` a TMA load, of A first and of B second, and
# `MMAAtom_..._ShapeMNK12812816` the instruction, whose K is 256 bits of its operands (PTX ISA 9.0,
# tcgen05.mma and wgmma: 8 of TF32, 16 of 16 bits, 32 of 8 bits, 64 of 4 bits).
# Source: nvidia-cutlass-dsl, names in public IR dumps.
_CUTE: Final = "CuTe DSL"
_CUTE_PREFIX: Final = "kernel_cutlass_"
_CUTE_ARGUMENTS: Final = lazy_pattern(
    r"_object_at_|_(?=tensorptr|tensor\d|TiledMMA|CopyAtom)"
)
_CUTE_ELEMENT: Final = r"f8E4M3FN|f8E5M2|f8E8M0FNU|f4E2M1FN|bf16|f16|tf32|f32|i8"
_CUTE_TENSOR: Final = lazy_pattern(
    rf"_*tensorptr({_CUTE_ELEMENT})_?[gs]mem\w*?(?=_tensor|$)"
)
_CUTE_LOADED: Final = lazy_pattern(rf"Valuetype({_CUTE_ELEMENT})_")
# Of tcgen05 and wgmma; the instructions of a warp have M 16, and K 8 of BF16 too.
_CUTE_INSTRUCTION: Final = lazy_pattern(r"_ShapeMNK(?:64|128|256)(\d{2,5})(?![\dx])")
_CUTE_BLOCK_SCALED: Final = lazy_pattern(r"block_?scaled", re.IGNORECASE)
_CUTE_ATTENTION: Final = lazy_pattern(
    r"attention|mla_(?:decode|prefill)|fmha", re.IGNORECASE
)
_CUTE_ELEMENTS: Final = {
    **SHORT,
    "f8E4M3FN": "e4m3",
    "f8E5M2": "e5m2",
    "f4E2M1FN": "e2m1",
    "f8E8M0FNU": "ue8m0",
}


# A kernel's class may end with the type that it multiplies, or the layers of an MLP: Fc1, Fc12.
_CUTE_TYPE: Final = r"(?:Bf16|Fp16|Mxfp8|Fp8|Nvfp4|Mxfp4|Fp4)"
_CUTE_CLASS: Final = lazy_pattern(
    rf"(?<!{_CUTE_TYPE[3:-1].replace('|', ')(?<!')})"
    rf"(?P<type>{_CUTE_TYPE})(?P<layers>Fc\d{{1,2}})?Kernel$"
)
# A class without its module, as some reports shorten it.
_CUTE_BARE: Final = lazy_pattern(r"[A-Z]\w{0,200}Kernel_object_at_")


def cute_dsl(symbol: Symbol) -> KernelName | None:
    """Decode a kernel of the CuTe DSL by its function's words, then by its arguments' types."""
    is_bare = symbol.is_identifier and _CUTE_BARE.match(symbol.text)
    if not is_bare and not symbol.text.startswith(_CUTE_PREFIX):
        return None
    text = symbol.text.removeprefix(_CUTE_PREFIX)
    function, *rest = _CUTE_ARGUMENTS.split(text, maxsplit=1)
    named = _CUTE_CLASS.search(function)
    if named is not None and named["layers"]:
        types = type_words.operands((named["type"].lower(), "gemm"))
        evidence = f"the class of a fused MoE, {named[0]}"
        return describe.gemm(_CUTE, evidence, types, role=Role.GROUPED_GEMM)
    kernel = _by_words(function)
    if kernel is None and _CUTE_ATTENTION.search(function):
        # modules' names are joined without a separator
        return describe.other(_CUTE, Role.ATTENTION, "the name of an attention module")
    if kernel is None:
        return None
    if not kernel.role.is_gemm or kernel.precision is not Precision.UNKNOWN:
        return replace(kernel, library=_CUTE)
    if named is not None:
        types = type_words.operands((named["type"].lower(), "gemm"))
        evidence = f"the name of its class, {named[0]}"
        return describe.gemm(_CUTE, evidence, types, role=kernel.role)
    return _cute_typed(kernel, function, rest[0] if rest else "")


def _by_words(function: str) -> KernelName | None:
    inner = Symbol(function)
    for grammar in (attention.by_words, gemm_names.decode, helper_names.decode):
        kernel = grammar(inner)
        if kernel is not None:
            return kernel
    return None


def _cute_typed(kernel: KernelName, function: str, arguments: str) -> KernelName:
    """Read A and B from the arguments where the words left the types of a GEMM open."""
    spelled: list[str] = []
    match = _CUTE_TENSOR.match(arguments)
    while match is not None:
        spelled.append(match[1])
        match = _CUTE_TENSOR.match(arguments, match.end())
    if not spelled:
        spelled = _CUTE_LOADED.findall(arguments)[:2]
    elements: list[str | None] = [_CUTE_ELEMENTS[name] for name in spelled]
    elements += [None, None, None]
    a, b, scale, *_ = elements
    if b is None or "ue8m0" in (a, b):
        return _cute_by_instruction(kernel, function, arguments)
    if scale == "e4m3" and a == b == "e2m1":
        scale = "ue4m3"
    types = Operands(a, b, scale=SCALES.get(scale or ""))
    return describe.gemm(_CUTE, "types of its arguments", types, role=kernel.role)


def _cute_by_instruction(
    kernel: KernelName, function: str, arguments: str
) -> KernelName:
    """Read the width of the operands from the K of the instruction; 16 bits are of two types."""
    k = _cute_depth(arguments)
    has_block_scales = _CUTE_BLOCK_SCALED.search(function) is not None
    types = {8: both("tf32"), 64: both("fp4")}.get(k)
    if k == 32 and has_block_scales:
        types = both("fp8", scale="ue8m0")
    if types is not None:
        return describe.gemm(_CUTE, f"the K of its MMA, {k}", types, role=kernel.role)
    if not k and has_block_scales:
        evidence = "MMA instructions with block scales"
        types = both(Precision.BELOW16.value)
        return describe.gemm(_CUTE, evidence, types, role=kernel.role)
    hint = None
    if k == 16:
        hint = Hint.SIXTEEN_BITS
    return replace(kernel, library=_CUTE, hint=hint)


def _cute_depth(arguments: str) -> int:
    """Return the K of the instruction, 0 if it is open."""
    match = _CUTE_INSTRUCTION.search(arguments)
    if match is None:
        return 0
    depths = [k for k in (8, 16, 32, 64) if _is_cute_shape(match[1], str(k))]
    if len(depths) == 1:
        return depths[0]
    return 0


def _is_cute_shape(digits: str, k: str) -> bool:
    """Whether N and K are these digits: N is a multiple of 8 up to 256."""
    n = digits.removesuffix(k)
    if n == digits or not n.isdigit() or n.startswith("0"):
        return False
    return int(n) <= 256 and int(n) % 8 == 0


# ThunderKittens: `kernel_entrypoint<mxfp8_gemm::config<...>>(...)`, `kittens::...<...>`: the words
# are those of the first template argument. Source: HazyResearch/ThunderKittens, kernels/.
_KITTENS: Final = "ThunderKittens"


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
