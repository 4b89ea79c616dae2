"""Libraries with small grammars: TensorRT-LLM, DeepGEMM, Marlin, NCCL, cuDNN, copies."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import CPP, SHORT
from fp8verify.kernels.symbol import Symbol, Type, split
from fp8verify.terms import KernelName, Role, Scaling

# Copies and fills that the driver runs, as Kineto and roctracer name them.
_COPY: Final = re.compile(
    r"(?:Memcpy|Memset)(?: .*)?|\[CUDA mem(?:cpy|set).*|(?:Copy|Fill)(?:Device|Host|Buffer)\w*|"
    r"__amd_rocclr_\w+",
    re.DOTALL,
)


def memory(symbol: Symbol) -> KernelName | None:
    """Decode a copy or fill."""
    if not _COPY.fullmatch(symbol.text):
        return None
    return describe.other("driver", Role.MEMORY, "a copy or fill of memory")


# cuDNN and MIOpen kernels other than xmma, CUTLASS and attention ones.
# MIOpen's assembly implicit GEMMs: igemm_<direction>_gtcx<n>_<layout>_<type>_...
_IGEMM: Final = re.compile(r"igemm_(?:fwd|bwd|wrw)_gtcx\d*_\w+?_(?P<type>fp32|fp16|bf16|int8)_\w+")
_CUDNN_SPACES: Final = ("cudnn", "cask_cudnn", "cask_cudnn_infer", "cask_cudnn_train")
_BATCH_NORM: Final = re.compile(r"bn_\w+|MIOpenBatchNorm\w*")
_CONVOLUTIONS: Final = re.compile(
    r"(?:im|ex)plicit_convolve_\w+|fft[12]d_[cr]2[cr]_\w+|wgrad_alg\d_engine|dgrad_\w*engine|"
    r"nchwToNhwcKernel|nhwcToNchwKernel|miopenSp3Asm\w+|naive_conv_\w+|gridwise_convolution_\w+|"
    r"conv2d_c1_k1_\w+|conv_depthwise\w+|winograd\w+|[sd]gemm_convolve_\w+|Im2d2Col\w*"
)


def convolution(symbol: Symbol) -> KernelName | None:
    """Decode a convolution kernel, its layout changes included."""
    igemm = _IGEMM.fullmatch(symbol.text)
    if igemm:
        element = SHORT[igemm["type"]]
        evidence = f"MIOpen implicit GEMM type {element}"
        return describe.gemm("MIOpen", evidence, element, element, role=Role.CONV)
    if _BATCH_NORM.fullmatch(symbol.base):
        return describe.other("cuDNN", Role.REDUCTION, "batch normalization")
    if symbol.path[:1] and symbol.path[0] in _CUDNN_SPACES and len(symbol.path) > 1:
        return describe.other("cuDNN", Role.CONV, "a cuDNN kernel without types")
    if _CONVOLUTIONS.fullmatch(symbol.base):
        return describe.other("cuDNN", Role.CONV, "part of a convolution")
    if symbol.base == "Kernel" and symbol.path[0].startswith("cutlass_cudnn"):
        return describe.other("cuDNN", Role.CONV, "a convolution without plain types")
    return None


def marlin(symbol: Symbol) -> KernelName | None:
    """Decode a Marlin kernel: its operands differ in type, and B is converted first."""
    if not symbol.base.startswith("Marlin"):
        return None
    role = Role.GROUPED_GEMM if "moe" in symbol.path[0] else Role.GEMM
    reason = "a Marlin GEMM, whose weights are of another format and are converted first"
    return describe.other("Marlin", role, reason)


# DeepGEMM's JIT kernels: `deep_gemm::sm90_fp8_gemm_1d2d_impl<...>` and their siblings.
#
# Older kernels have their type in the function name only; since 2026 `sm100_fp8_fp4_gemm_1d1d_impl`
# serves FP8 and FP4 operands and says which in its dtype template arguments.
# Source: github.com/deepseek-ai/DeepGEMM, deep_gemm/include/deep_gemm/impls.
_DEEPGEMM: Final = "DeepGEMM"
_DEEPGEMM_NAME: Final = re.compile(
    r"(?:sm\d+_)?(?:[mk]_grouped_)?(?:(?P<types>fp8_fp4|fp4_fp8|fp8|fp4|bf16|tf32)_)?"
    r"(?P<kind>(?:\w+_)?gemm(?:_\w+)?|(?:paged_)?mqa_logits(?:_\w+)?|mega_moe(?:_\w+)?)"
)
# Its einsums name their dimensions, and exist for BF16 (impls/sm{90,100}_bmk_bnk_mn.cuh).
_DEEPGEMM_EINSUM: Final = re.compile(r"[bhdmnkr]{2,3}_[bhdmnkr]{2,3}_[bhdmnkr]{2,3}_gemm\w*")
_DEEPGEMM_GROUPED: Final = re.compile(r"(?:\([\w:]*GemmType\)[123]|[MK]Grouped\w*)")


def deepgemm(symbol: Symbol) -> KernelName | None:
    """Decode a DeepGEMM kernel, with or without its namespace."""
    ours = symbol.path[:1] == ("deep_gemm",)
    if not ours and not (symbol.base.startswith("sm") and symbol.base.endswith("_impl")):
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
        return describe.gemm(_DEEPGEMM, f"einsum {symbol.base}", "bf16", "bf16")
    a, b, out = _deepgemm_operands(match["types"].split("_"), symbol.tree.args)
    # Activations by weights, each with UE8M0 scales for 32 elements (sm100_fp8_fp4_mega_moe.cuh).
    mixed = match["types"] == "fp8_fp4" and match["kind"].startswith("mega_moe")
    if mixed:
        a, b = "e4m3", "e2m1"
    grouped = {"grouped", "moe"} & set(symbol.base.split("_")) or any(
        map(_is_grouped, symbol.tree.args)
    )
    return describe.gemm(
        _DEEPGEMM,
        f"function name {symbol.base}",
        a,
        b,
        out,
        role=Role.GROUPED_GEMM if grouped else Role.GEMM,
        scale="ue8m0" if mixed else None,
        scaling=Scaling.BLOCKWISE if "fp8" in match["types"] and not mixed else None,
    )


def _deepgemm_operands(
    names: list[str], arguments: tuple[Type, ...]
) -> tuple[str | None, str | None, str | None]:
    """Return A, B and D: for the kernel of two formats from its consecutive dtype arguments."""
    first = next((i for i, argument in enumerate(arguments) if argument.name in CPP), None)
    types = [] if first is None else [CPP.get(a.name) for a in arguments[first : first + 3]]
    if len(names) == 2:
        a, b, out = (*types, None, None, None)[:3]
        return a, b, out
    element = "e4m3" if names[0] == "fp8" else SHORT[names[0]]
    return element, element, types[0] if types else None


def _is_grouped(argument: Type) -> bool:
    return bool(
        _DEEPGEMM_GROUPED.fullmatch("::".join(argument.parts))
        or _DEEPGEMM_GROUPED.fullmatch(argument.name)
    )


# TensorRT-LLM: trtllm-gen's `bmm_<D>_<A><B>_<acc>_...`, `fmhaSm100fKernel_Qkv<T>O<T>...`.
# Source: names of the cubins in TensorRT-LLM and FlashInfer, checked on B200 traces of gpt-oss.
_TRTLLM_TYPE: Final = r"Mx(?:E4m3|E2m1|Int4)|E4m3|E5m2|E2m1|Bfloat16|Fp16|Fp32|Int8|Int4|UE8m0"
_TRTLLM_GEMM: Final = re.compile(
    rf"(?P<kind>bmm|gemm|gemmGatedAct|batchedGemm)_(?P<out>{_TRTLLM_TYPE})_(?P<a>{_TRTLLM_TYPE})(?P<b>{_TRTLLM_TYPE})?_"
    r"(?:Fp32|Fp16|Int32)_\w*"
)
_TRTLLM_ATTENTION: Final = re.compile(
    rf"fmhaSm\d+[af]?(?:Kernel)?_Qkv?(?P<qkv>{_TRTLLM_TYPE})(?:O(?P<out>{_TRTLLM_TYPE}))?\w*"
)


def tensorrt_llm(symbol: Symbol) -> KernelName | None:
    """Decode a TensorRT-LLM GEMM or attention kernel."""
    gemm = _TRTLLM_GEMM.fullmatch(symbol.text)
    if gemm:
        return _trtllm_gemm(gemm)
    attention = _TRTLLM_ATTENTION.fullmatch(symbol.text)
    if attention:
        element, out = _trtllm_element(attention["qkv"])[0], _trtllm_element(attention["out"])[0]
        evidence = f"trtllm-gen attention, Qkv{attention['qkv']}"
        return describe.gemm("TensorRT-LLM", evidence, element, element, out, role=Role.ATTENTION)
    if symbol.base == "cudaCoreGemm" and symbol.tree.args:
        a = CPP.get(symbol.tree.args[0].name)
        return describe.gemm("TensorRT-LLM", "cudaCoreGemm element type", a, a)
    return None


def _trtllm_gemm(match: re.Match[str]) -> KernelName:
    (a, scale_a), (b, scale_b) = (
        _trtllm_element(match["a"]),
        _trtllm_element(match["b"] or match["a"]),
    )
    role = Role.GROUPED_GEMM if match["kind"] in ("bmm", "batchedGemm") else Role.GEMM
    return describe.gemm(
        "TensorRT-LLM",
        f"trtllm-gen {match['kind']} types {match['a']}{match['b'] or ''}",
        a,
        b,
        _trtllm_element(match["out"])[0],
        role=role,
        scale=scale_a if scale_a == scale_b else None,
    )


def _trtllm_element(text: str | None) -> tuple[str | None, str | None]:
    """Return element type and block scale: `MxE4m3` has E8M0 scales, a bare `E2m1` is NVFP4."""
    if text is None:
        return None, None
    element = SHORT.get(text.removeprefix("Mx").lower())
    if text.startswith("Mx"):
        return element, "ue8m0"
    return element, "ue4m3" if text == "E2m1" else None


# Communication: NCCL and RCCL, DeepEP, custom all-reduces, NVSHMEM, user buffers.
_NCCL: Final = re.compile(
    r"(?:nccl|rccl|msccl|mscclpp)(?:Dev|Symk?Dev|Symk)?Kernel\w*|(?:nccl|rccl)_(?:ep|gin)_\w+"
)
_COMMUNICATION_SPACES: Final = {
    "deep_ep": "DeepEP",
    "mscclpp": "MSCCL++",
    "nvshmem": "NVSHMEM",
    "mori": "MoRI",
}
_COMMUNICATION_FUNCTIONS: Final = re.compile(
    r"multimem_\w+|(?:one|two)_shot_all_?reduce\w*|cross_device_reduce\w*|"
    r"nvshmemi?_\w+|k?userbuffers_\w+"
)
_COLLECTIVES: Final = frozenset(
    {"allreduce", "all reduce", "allgather", "all gather", "reduce scatter", "reducescatter",
     "alltoall", "all to"}
)  # fmt: skip
_MULTIPLIES: Final = frozenset({"gemm", "matmul", "mm"})


def communication(symbol: Symbol) -> KernelName | None:
    """Decode a communication kernel."""
    library = _communication_library(symbol)
    if library is None:
        return None
    return describe.other(library, Role.COMMUNICATION, f"{library} communication kernel")


def _communication_library(symbol: Symbol) -> str | None:
    if not symbol.path:
        return None
    if _NCCL.fullmatch(symbol.base):
        return "NCCL"
    if symbol.path[0] in _COMMUNICATION_SPACES:
        return _COMMUNICATION_SPACES[symbol.path[0]]
    if symbol.path[:2] == ("dpsk", "ep"):
        return "DeepEP"
    if _COMMUNICATION_FUNCTIONS.fullmatch(symbol.base) or _is_collective(symbol.base):
        return "a custom collective"
    return None


def _is_collective(function: str) -> bool:
    """Whether the words of a function's name name a collective, and no GEMM fused with it."""
    words = split(function)
    pairs = {f"{first} {second}" for first, second in pairwise(words)}
    return bool(_COLLECTIVES & (pairs | set(words))) and not _MULTIPLIES & set(words)
