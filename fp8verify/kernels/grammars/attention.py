"""Attention kernels: FlashAttention 2 and 3, CUTLASS FMHA, cuDNN SDPA, paged attention.

They contain matrix products, also in FP8, but never count as GEMM time of linear layers.
"""

from __future__ import annotations

from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.describe import CPP, both
from fp8verify.kernels.symbol import Symbol, Type, split, walk
from fp8verify.kernels.words import word_set
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import KernelName, Role

_NAMESPACES: Final = {
    "flash": "FlashAttention",
    "pytorch_flash": "FlashAttention",
    "FLASH_NAMESPACE": "FlashAttention",
    "flashinfer": "FlashInfer",
    "PyTorchMemEffAttention": "PyTorch",
    "sparse_attn": "FlashMLA",
    "sm90": "FlashMLA",
    "aotriton": "AOTriton",
}
# Functions whose names do not say attention, or not in words.
_CUDNN: Final = lazy_pattern(r"cudnn_generated_\w*(?:sdpa|flash_[fb]prop|attention)\w*")
_SGLANG: Final = lazy_pattern(r"_fwd_(?:grouped_)?kernel(?:_stage\d)?")
_CUDNN_PARTS: Final = lazy_pattern(
    r"compute_dot_do_o(?:_\w+)?|convert_d[qkv]{1,3}_to_\w+"
)
_FLASHINFER_HELPERS: Final = word_set(
    "quantization sampling norm activation pos_enc trtllm_allreduce_fusion"
)
# Words of attention in the names of other libraries, unless the kernel only prepares or stores.
WORDS: Final = word_set("attn attention mla mha mqa fmha sdpa")
_WORDS: Final = WORDS | word_set("alibi dkdv dkdvdq hstu sage mmha")
_BACKWARD: Final = word_set("dq dkv dk dv")
_PASSES: Final = word_set("fwd bwd forward backward prefill decode bmm")
_AROUND: Final = word_set(
    "quant quantize amax scale cat concat rope norm rmsnorm scaling cast sum cumsum"
)
_NEVER: Final = word_set("metadata gemm")


def by_words(symbol: Symbol) -> KernelName | None:
    """Decode an attention kernel of a library without a grammar, by the words of its name."""
    ordered = split(symbol.base)
    words = frozenset(ordered)
    names = (
        bool(words & _WORDS)
        or ordered[:1] == ("pa",)
        or words >= {"prefill", "kv"}
        or ("flash" in words and words & _PASSES)
        or ("bwd" in words and words & _BACKWARD)
    )
    if not names or words & _NEVER or (words & _AROUND and not words & _PASSES):
        return None
    return _described(symbol, symbol.library, f"function name {symbol.base}: attention")


def decode(symbol: Symbol) -> KernelName | None:
    """Decode an attention kernel."""
    library = _library(symbol)
    if library is None:
        return None
    return _described(symbol, library, f"an attention kernel of {library}")


def _library(symbol: Symbol) -> str | None:
    first, *rest = symbol.path or ("",)
    if first in _NAMESPACES and rest:
        helps = _FLASHINFER_HELPERS & set(symbol.path) or "gemm" in split(symbol.base)
        if helps:
            return None
        return _NAMESPACES[first]
    if (first == "cudnn" and _CUDNN_PARTS.fullmatch(symbol.base)) or _CUDNN.fullmatch(
        first
    ):
        return "cuDNN"
    if (
        symbol.base == "device_kernel"
    ):  # the attention is what CUTLASS's kernel is given
        for node in walk(symbol.tree)[:4]:
            if node.parts[:1] == ("flash",):
                return "FlashAttention"
            if "fmha" in node.parts or "fmha" in split(node.name):
                return "CUTLASS"
    if _SGLANG.fullmatch(symbol.base):
        return "SGLang"
    return None


def _described(symbol: Symbol, library: str, reason: str) -> KernelName:
    # The first of CUTLASS's types is that of Q, K and V, after the head dimension.
    elements = (CPP[node.name] for node in walk(symbol.tree) if _is_element(node))
    element = next(elements, None)
    if element is None:
        return describe.other(library, Role.ATTENTION, reason)
    return describe.gemm(library, reason, both(element), role=Role.ATTENTION)


def _is_element(node: Type) -> bool:
    return (
        len(node.parts) == 2
        and node.name in CPP
        and node.parts[0].startswith("cutlass")
    )
