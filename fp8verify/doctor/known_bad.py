"""Combinations of versions and hardware that were seen to fail, as of 2026-11-22.

Each row says where it was seen, what repaired it, and by whose word. A row applies where all that
it names is known to hold; a version that is not known matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fp8verify.doctor.checks import Status

CHECKED = "2026-11-22"


class KnownBad(NamedTuple):
    """One combination.

    Attributes:
        fact: what happens.
        remedy: the next step.
        thread: where it was reported and repaired.
        seen: on what it was seen.
        fixed: what repaired it.
        status: how grave it is.
        versions: a PEP 440 specifier by distribution, or by torch_cuda and torch_rocm for what
            torch was built for; "" for a package that is not there.
        capabilities: beginnings of the GPU's compute capability; empty for any.
        gpu: a word of the GPU's name.
        formats: the formats that must be asked for; empty for any, even none.
        recipes: beginnings of the recipes that must be asked for.
        backend: the backend that must be asked for.
        framework: the framework that must ask.
        checkpointing: whether activations must be computed again.
        environment: variables that must have these values.
    """

    fact: str
    remedy: str
    thread: str
    seen: str
    fixed: str
    status: Status = Status.FAIL
    versions: Mapping[str, str] = {}
    capabilities: tuple[str, ...] = ()
    gpu: str = ""
    formats: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    backend: str = ""
    framework: str = ""
    checkpointing: bool = False
    environment: Mapping[str, str] = {}


KNOWN_BAD: tuple[KnownBad, ...] = (
    KnownBad(
        fact="compiled casts to FP8 are miscompiled by Triton 3.8: the loss becomes NaN",
        remedy="Update torchao to one of 2026-07-31 or later, or use Triton 3.7.",
        thread="ao#4652 and its follow-up #4657; triton#11111",
        seen="torch 2.14 nightlies from 2026-06-14 with triton 3.8",
        fixed="torchao 2026-07-30 (float8/_inductor_patch.py)",
        versions={
            "torch": ">=2.14.0.dev20260614",
            "triton": ">=3.8.0.dev0,<3.9.0.dev0",
            "torchao": ">=0",
            "torchao_inductor_patch": "",
        },
    ),
    KnownBad(
        fact="FP8 scaled by row fails with CUBLAS_STATUS_NOT_SUPPORTED on this GPU",
        remedy="Use the tensorwise recipe, or another torch.",
        thread="pytorch#192707",
        seen="torch 2.10.0+cu130 on sm_120",
        fixed="not known",
        versions={"torch": "==2.10.*"},
        capabilities=("12.",),
        recipes=("rowwise",),
    ),
    KnownBad(
        fact="FP8 scaled by row aborts: “Arch conditional MMA instruction used without targeting "
        "appropriate compute capability”, or asserts use_rowwise == false",
        remedy="Use a later torch, or the tensorwise recipe.",
        thread="ao#2904, ao#2843",
        seen="torch nightlies of August 2025 on B200",
        fixed="torch 2.9",
        versions={"torch": ">=2.9.0.dev20250801,<2.9.0.dev20250915"},
        capabilities=("10.",),
        recipes=("rowwise",),
    ),
    KnownBad(
        fact="FP8 with activation checkpointing computes with wrong scales: the loss is off",
        remedy="Update Transformer Engine to 1.12 or above.",
        thread="TE#1190, repaired by TE#1254",
        seen="transformer_engine 1.10",
        fixed="TE#1254, 2024-10-16",
        versions={"transformer_engine": "<1.12"},
        checkpointing=True,
        backend="te",
    ),
    KnownBad(
        fact="FP8 scaled by row, compiled, with activation checkpointing: the loss becomes NaN",
        remedy="Update torchtitan, or set torch._inductor.config.emulate_precision_casts = True.",
        thread="torchtitan#1056, pytorch#150859, worked around by torchtitan#1110",
        seen="torch 2.7 and torchtitan before 2025-04-16",
        fixed="torchtitan#1110; pytorch#150859 is open",
        status=Status.WARN,
        versions={"torch": ">=2.7.0.dev0", "torchtitan": "<0.1"},
        recipes=("rowwise",),
        framework="torchtitan",
        checkpointing=True,
    ),
    KnownBad(
        fact="with is_first_microbatch, as in gradient accumulation, FP8 layers compute with wrong "
        "scales from the second micro-batch on",
        remedy="Update Transformer Engine, and compare the loss with BF16's.",
        thread="TE#1047",
        seen="transformer_engine 1.7 (1.2.1 was sound)",
        fixed="not known",
        status=Status.WARN,
        versions={"transformer_engine": "==1.7.*"},
        backend="te",
    ),
    KnownBad(
        fact="NVFP4 with stochastic rounding gives gradients of zero on this GPU",
        remedy="Update Transformer Engine to 2.19 or above, or set "
        "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING=1.",
        thread="TE#3281; also TE#3195, #3062",
        seen="Transformer Engine before 2026-08-11 on sm_120 and sm_121",
        fixed="TE#3281",
        versions={"transformer_engine": "<2.19.0.dev0"},
        capabilities=("12.",),
        formats=("nvfp4",),
    ),
    KnownBad(
        fact="NVFP4's full recipe needs compute capability 10.x: random Hadamard transforms are "
        "not there on 12.x",
        remedy="Set NVTE_NVFP4_DISABLE_RHT=1, or use another format.",
        thread="TE#3195, #3062",
        seen="sm_120",
        fixed="not repaired",
        status=Status.WARN,
        capabilities=("12.",),
        formats=("nvfp4",),
        backend="te",
    ),
    KnownBad(
        fact="Transformer Engine refuses block-scaled FP8 with a CUDA below 12.9",
        remedy="Use a torch built for CUDA 12.9 or above, or another recipe.",
        thread="TE pytorch/quantization.py:179 (TE d0067d0)",
        seen="any CUDA below 12.9",
        fixed="CUDA 12.9",
        versions={"torch_cuda": "<12.9"},
        formats=("fp8_block",),
        backend="te",
    ),
    KnownBad(
        fact="Transformer Engine refuses FP8 on Ada with a CUDA below 12.1",
        remedy="Use a torch built for CUDA 12.1 or above.",
        thread="TE pytorch/quantization.py:155 (TE d0067d0)",
        seen="compute capability 8.9 with CUDA 11.8 and 12.0",
        fixed="CUDA 12.1",
        versions={"torch_cuda": "<12.1"},
        capabilities=("8.9",),
        backend="te",
    ),
    KnownBad(
        fact="FP8 scaled by row raises “Rowwise scaling is not currently supported on your device”",
        remedy="Use torch 2.7 or above, or the tensorwise recipe.",
        thread="torch aten ScaledBlas.cpp",
        seen="compute capability 8.9 with torch below 2.7",
        fixed="torch 2.7",
        versions={"torch": "<2.7.0.dev0"},
        capabilities=("8.9",),
        recipes=("rowwise",),
        backend="torchao",
    ),
    KnownBad(
        fact="NVFP4 needs Transformer Engine 2.7 or above",
        remedy="Update Transformer Engine.",
        thread="megatron/training/arguments.py:1108",
        seen="any below",
        fixed="transformer_engine 2.7",
        versions={"transformer_engine": "<2.7.0.dev0"},
        formats=("nvfp4",),
        backend="te",
    ),
    KnownBad(
        fact="NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1 with MXFP8 breaks the training",
        remedy="Unset the variable.",
        thread="miles#1340",
        seen="Transformer Engine on B200",
        fixed="not repaired",
        formats=("mxfp8",),
        environment={"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"},
    ),
    KnownBad(
        fact="MS-AMP was made for CUDA 11 and torch below 2.2, and is no longer maintained",
        remedy="Use backend: TE or AO.",
        thread="Azure/MS-AMP README",
        seen="torch 2.2 and above",
        fixed="not repaired",
        status=Status.WARN,
        versions={"torch": ">=2.2"},
        backend="msamp",
    ),
    KnownBad(
        fact="accelerate made no torchao configuration from its file: no padding, no FP8 "
        "all-gather, and a failing start",
        remedy="Update accelerate to 1.13 or above.",
        thread="accelerate#3830, repaired by #3831",
        seen="accelerate 1.8 to 1.12",
        fixed="accelerate 1.13.0",
        status=Status.WARN,
        versions={"accelerate": ">=1.8,<1.13"},
        backend="torchao",
        framework="accelerate",
    ),
    KnownBad(
        fact="LLaMA-Factory's fp8: true does not reach the Trainer's Accelerator: it trains in "
        "BF16 without a word",
        remedy="Use a LLaMA-Factory of 2026-01-09 or later.",
        thread="LLaMA-Factory#9500, repaired by #9705 and #9742",
        seen="llamafactory 0.9.4",
        fixed="LLaMA-Factory#9705, 2026-01-01",
        versions={"llamafactory": "<=0.9.4"},
        framework="LLaMA-Factory",
        formats=("fp8",),
    ),
    KnownBad(
        fact="torch._scaled_mm reaches about 100 TFLOP/s on MI300X with an old ROCm",
        remedy="Use a torch for ROCm 6.3 or above.",
        thread="pytorch#143465",
        seen="ROCm 6.2",
        fixed="ROCm 6.3",
        status=Status.WARN,
        versions={"torch_rocm": "<6.3"},
        capabilities=("gfx942",),
    ),
    KnownBad(
        fact="H20 multiplies FP8 at 296 TFLOP/s at most, BF16 at 148: the gain is small beside "
        "its memory bandwidth",
        remedy="Measure it here before you rely on it: fp8verify doctor --measure.",
        thread="Megatron-LM#860",
        seen="H20",
        fixed="the hardware",
        status=Status.OK,
        gpu="H20",
    ),
)
