"""The counters of tensor operations by source type, as Nsight Compute names them for each GPU.

Named by `ncu --query-metrics`; a name is asked of the machine before it is measured, because they
differ between versions. On a GB10x one counter may cover FP4, FP6 and FP8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

FP8_FP6_FP4: Final = "fp4/fp6/fp8"
CUDA_CORES: Final = frozenset({"fp32"})  # counted in epilogues too, so that they decide last

_TENSOR: Final = "sm__ops_path_tensor_"
_SPARSITY: Final = re.compile(r"_sparsity_(?:off|on)$")  # two halves of the count without it
_QUERIED: Final = "ncu --query-metrics; not yet compared with a product of known size"


class Counter(NamedTuple):
    """Operations of one source type: the first of `patterns` that names metrics counts.

    `operations` is how many operations one count is; `measured` are names that were compared with
    2·M·N·K on the GPU itself.
    """

    source: str
    patterns: tuple[str, ...]
    evidence: str = _QUERIED
    operations: int = 1
    measured: tuple[str, ...] = ()


class Chip(NamedTuple):
    """The counters of one architecture, by the GPUs that people know it by."""

    gpus: str
    counters: tuple[Counter, ...]


_FFMA: Final = Counter(
    "fp32", ("smsp__sass_thread_inst_executed_op_ffma_pred_on",),
    "Nsight Compute's own FP32 roofline: a fused multiply-add is two operations", 2,
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on",),
)  # fmt: skip


def _tensor(source: str, *patterns: str, evidence: str = _QUERIED, measured: str = "") -> Counter:
    names = (_TENSOR + measured,) if measured else ()
    return Counter(source, tuple(_TENSOR + p for p in patterns), evidence, 1, names)


_GH100: Final = Chip(
    "H100, H200, GH200, H800, H20",
    (
        _tensor("fp8", "src_fp8", measured="src_fp8_sparsity_off",
                evidence="H200, 4096 x 1024 x 2048: 17,179,869,184 = 2MNK for E4M3 x E4M3, E5M2 "
                "and row-wise"),
        _tensor("bf16", "op_hg?mma_src_bf16_dst_fp32",
                measured="op_hgmma_src_bf16_dst_fp32_sparsity_off",
                evidence="H200, 4096 x 1024 x 2048: 17,179,869,184 = 2MNK; hmma counts what is no "
                "wgmma"),
        _tensor("fp16", "op_hg?mma_src_fp16(?:_dst_fp(?:16|32))?"),
        _tensor("tf32", "op_hg?mma_src_tf32_dst_fp32"),
        _tensor("int8", "op_ig?mma_src_int8"),
        _tensor("fp64", "src_fp64", r"op_dmma\w*?"),
        _FFMA,
    ),
)  # fmt: skip
_BY_SOURCE: Final = (
    _tensor("bf16", "src_bf16_dst_fp32"),
    _tensor("fp16", "src_fp16", "src_fp16_dst_fp(?:16|32)"),
    _tensor("tf32", "src_tf32_dst_fp32"),
    _tensor("int8", "src_int8"),
    _tensor("fp64", "src_fp64"),
    _FFMA,
)
_AD10X: Final = Chip(
    "RTX 40, L4, L40, L40S",
    (
        _tensor("fp8", "src_fp8", "src_fp8_dst_fp(?:16|32)", measured="src_fp8",
                evidence="RTX 4090, 4096 x 3072 x 768: 19,327,352,832 = 2MNK"),
        *_BY_SOURCE,
    ),
)  # fmt: skip
_GA10X: Final = Chip("A100, A10, RTX 30", _BY_SOURCE)
_GB10X: Final = Chip(
    "B200, GB200, B300, GB300",
    (
        _tensor("fp8", "op_utcqmma_src_fp8_dst_fp(?:16|32)",
                evidence="B300, 4096 x 4096 x 4096: 137,438,953,472 = 2MNK for nvjet_sm103_qqtst "
                "(NVIDIA/DCGM#251)"),
        _tensor(FP8_FP6_FP4, "op_utcqmma_src_fp4_fp6_fp8_dst_fp(?:16|32)"),
        _tensor("fp4", "op_utcomma_src_fp4_dst_fp32",
                evidence="B300, 4096 x 4096 x 4096: 2MNK for nvjet_sm103_ootst (NVIDIA/DCGM#251)"),
        _tensor("bf16", "op_(?:utc)?hmma_src_bf16_dst_fp32"),
        _tensor("fp16", "op_(?:utc)?hmma_src_fp16(?:_dst_fp(?:16|32))?"),
        _tensor("tf32", "op_(?:utc)?hmma_src_tf32_dst_fp32"),
        _tensor("int8", "op_(?:utc)?imma_src_int8"),
        _tensor("fp64", "src_fp64"),
        _FFMA,
    ),
)  # fmt: skip
_GB20X: Final = Chip(
    "RTX 50, RTX PRO Blackwell",
    (
        _tensor("fp8", "src_fp8_dst_fp(?:16|32)"),
        _tensor("fp4", "src_fp4_dst_fp32"),
        _tensor(FP8_FP6_FP4, "src_fp4_fp6(?:_fp8)?_dst_fp(?:16|32)"),
        *_BY_SOURCE,
    ),
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


def choose(chip: Chip, known: Iterable[str]) -> dict[str, Counter]:
    """Return the metrics to measure, each with its counter, out of those that `ncu` knows.

    Where `ncu` does not say what it knows, only the names that were measured before are chosen.
    """
    names = list(known)
    chosen: dict[str, Counter] = {}
    for counter in chip.counters:
        found = _first(counter, names) if names else counter.measured
        chosen |= dict.fromkeys(found, counter)
    return chosen


def _first(counter: Counter, names: list[str]) -> list[str]:
    for pattern in counter.patterns:
        found = [name for name in names if re.fullmatch(pattern, _SPARSITY.sub("", name))]
        if found:  # a name whose halves are there would be counted twice
            whole = {_SPARSITY.sub("", name) for name in found if _SPARSITY.search(name)}
            return [name for name in found if name not in whole]
    return []
