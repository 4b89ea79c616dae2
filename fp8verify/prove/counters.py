"""The counters of tensor operations by source type, as Nsight Compute names them for each GPU.

Named by `ncu --query-metrics`; a name is asked of the machine before it is measured, because they
differ between versions. On a GB10x one counter may cover FP4, FP6 and FP8.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

FP8_FP6_FP4: Final = "fp4/fp6/fp8"
CUDA_CORES: Final = frozenset({"fp32"})  # counted in epilogues too, so they decide last

_TENSOR: Final = "sm__ops_path_tensor_"
# As in Nsight Compute's own FP32 roofline: a fused multiply-add is two operations.
_FFMA: Final = "smsp__sass_thread_inst_executed_op_ffma_pred_on"
_SPARSITY: Final = re.compile(r"_sparsity_(?:off|on)$")  # two halves of the count without it


class Counter(NamedTuple):
    """What a metric counts: operations of one source type, and how many per count."""

    source: str
    operations: int = 1


class Chip(NamedTuple):
    """The counters of one architecture, by the GPUs that people know it by.

    `patterns` are the names of a source type's metrics without what all begin with; the first one
    that the machine knows counts.
    """

    gpus: str
    patterns: dict[str, tuple[str, ...]]


# The names that were compared with 2·M·N·K on a GPU say so; the others are from --query-metrics.
_GH100: Final = Chip(
    "H100, H200, GH200, H800, H20",
    {
        "fp8": ("src_fp8",),  # H200: E4M3 x E4M3, E5M2 and row-wise, 4096 x 1024 x 2048
        "bf16": ("op_hg?mma_src_bf16_dst_fp32",),  # H200; hmma counts what is no wgmma
        "fp16": ("op_hg?mma_src_fp16(?:_dst_fp(?:16|32))?",),
        "tf32": ("op_hg?mma_src_tf32_dst_fp32",),
        "int8": ("op_ig?mma_src_int8",),
        "fp64": ("src_fp64", r"op_dmma\w*?"),
    },
)
_BY_SOURCE: Final = {
    "bf16": ("src_bf16_dst_fp32",),
    "fp16": ("src_fp16", "src_fp16_dst_fp(?:16|32)"),
    "tf32": ("src_tf32_dst_fp32",),
    "int8": ("src_int8",),
    "fp64": ("src_fp64",),
}
_GA10X: Final = Chip("A100, A10, RTX 30", _BY_SOURCE)
_AD10X: Final = Chip(
    "RTX 40, L4, L40, L40S",
    {"fp8": ("src_fp8", "src_fp8_dst_fp(?:16|32)"), **_BY_SOURCE},  # RTX 4090, 4096 x 3072 x 768
)
_GB10X: Final = Chip(
    "B200, GB200, B300, GB300",
    {
        # B300, 4096 x 4096 x 4096: nvjet_sm103_qqtst and nvjet_sm103_ootst (NVIDIA/DCGM#251).
        "fp8": ("op_utcqmma_src_fp8_dst_fp(?:16|32)",),
        "fp4": ("op_utcomma_src_fp4_dst_fp32",),
        FP8_FP6_FP4: ("op_utcqmma_src_fp4_fp6_fp8_dst_fp(?:16|32)",),
        "bf16": ("op_(?:utc)?hmma_src_bf16_dst_fp32",),
        "fp16": ("op_(?:utc)?hmma_src_fp16(?:_dst_fp(?:16|32))?",),
        "tf32": ("op_(?:utc)?hmma_src_tf32_dst_fp32",),
        "int8": ("op_(?:utc)?imma_src_int8",),
        "fp64": ("src_fp64",),
    },
)
_GB20X: Final = Chip(
    "RTX 50, RTX PRO Blackwell",
    {
        "fp8": ("src_fp8_dst_fp(?:16|32)",),
        "fp4": ("src_fp4_dst_fp32",),
        FP8_FP6_FP4: ("src_fp4_fp6(?:_fp8)?_dst_fp(?:16|32)",),
        **_BY_SOURCE,
    },
)

# By compute capability, as nvidia-smi reports it.
CHIPS: Final[dict[str, Chip]] = {
    "8.0": _GA10X,
    "8.6": _GA10X,
    "8.9": _AD10X,
    "9.0": _GH100,
    "10.0": _GB10X,
    "10.3": _GB10X,
    "12.0": _GB20X,
}


def choose(chip: Chip, known: Collection[str]) -> dict[str, Counter]:
    """Return the metrics to measure, each with its counter, out of those that `ncu` knows."""
    chosen = {name: Counter("fp32", operations=2) for name in known if name == _FFMA}
    for source, patterns in chip.patterns.items():
        chosen |= dict.fromkeys(_first(patterns, known), Counter(source))
    return chosen


def _first(patterns: tuple[str, ...], known: Collection[str]) -> list[str]:
    for pattern in patterns:
        shape = re.compile(_TENSOR + pattern)
        found = [name for name in known if shape.fullmatch(_SPARSITY.sub("", name))]
        if found:  # a name whose halves are there would be counted twice
            whole = {_SPARSITY.sub("", name) for name in found if _SPARSITY.search(name)}
            return [name for name in found if name not in whole]
    return []
