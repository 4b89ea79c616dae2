"""Messages with which FP8 trainings end or fall back, what causes them, and the next step.

Gathered on 2026-11-22 from the sources and threads named in each row.
"""

from __future__ import annotations

from typing import NamedTuple


class KnownFailure(NamedTuple):
    """One message.

    Attributes:
        pattern: a regular expression found anywhere in a line.
        cause: why it appears.
        remedy: the next step.
        source: where the message is written, or was reported.
        check: the doctor's check that tells it before the run; "" for none.
        near: a second expression that must be found in the lines before.
    """

    pattern: str
    cause: str
    remedy: str
    source: str
    check: str = ""
    near: str = ""


KNOWN_FAILURES: tuple[KnownFailure, ...] = (
    KnownFailure(
        pattern=r"Rowwise scaling is not currently supported on your device",
        cause="this torch has no FP8 GEMM with row scales for this GPU: cuBLAS has it from 12.9 on "
        "compute capability 9.0, CUTLASS on 8.9 from torch 2.7 on, and Windows builds lack it",
        remedy="Use the tensorwise recipe, or a later torch.",
        source="torch aten ScaledBlas.cpp",
        check="known-bad-versions",
    ),
    KnownFailure(
        pattern=r"Expected trailing dimension of mat1 to be divisible by 16"
        r"|mat2 shape \(\d+x\d+\) must be divisible by 16",
        cause="a converted layer has a side, or a batch of tokens, that 16 does not divide",
        remedy="Leave that layer out (module_filter_fn, filter_fqns), pad (pad_inner_dim), or make "
        "batch x sequence a multiple of 16.",
        source="torch aten ScaledBlas.cpp; ao#571, #3111",
        check="dims-not-multiple-of-16",
    ),
    KnownFailure(
        pattern=r"FP8 execution requires the product of all dimensions except the last"
        r"|FP8 execution requires 2D input matrices with height divisible by 8",
        cause="Transformer Engine was given a tensor whose tokens 8, or whose width 16, does not "
        "divide",
        remedy="Pad the batch (drop_last, pad_to_multiple_of=16), and choose layer sizes that 16 "
        "divides.",
        source="transformer_engine/pytorch/utils.py:614",
        check="dims-not-multiple-of-16",
    ),
    KnownFailure(
        pattern=r"FP8 \+ Tensor Parallelism is not yet supported",
        cause='KempnerForge refuses mixed_precision = "fp8" with tp > 1',
        remedy="Set tp = 1 and shard with dp_shard, or train in bf16.",
        source="kempnerforge/config/job.py, validate()",
        check="fp8-with-tensor-parallel",
    ),
    KnownFailure(
        pattern=r"aten\.is_pinned.{0,200}(?:DTensor|sharding strategy)"
        r"|(?:DTensor|sharding strategy).{0,200}aten\.is_pinned",
        cause="FP8 all-gather wraps weights that tensor parallelism has made DTensors",
        remedy="Set enable_fsdp_float8_all_gather=False with tensor parallelism, or tp = 1.",
        source="KempnerForge docs/distributed/fp8.md; kempnerforge/distributed/parallel.py",
        check="fp8-with-tensor-parallel",
    ),
    KnownFailure(
        pattern=r"torch\._scaled_mm is only supported on CUDA devices with compute capability",
        cause="this GPU has no units that multiply FP8",
        remedy="Train in BF16 here, or on a GPU of compute capability 8.9 or above or an MI300.",
        source="torch aten ScaledBlas.cpp",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"type fp8e4nv not supported in this architecture",
        cause="Triton cannot compile FP8 for this GPU, which has no units for it",
        remedy="Train in BF16 here, or on a GPU of compute capability 8.9 or above.",
        source="pytorch#167082",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"Multiplication of two Float8_e5m2 matrices is not supported",
        cause="both operands were cast to E5M2, which no GEMM multiplies",
        remedy="Keep weights and activations in E4M3; E5M2 is for gradients.",
        source="torch aten ScaledBlas.cpp",
    ),
    KnownFailure(
        pattern=r"Expected b\.dtype\(\) == at::kFloat8_e4m3fnuz",
        cause="MI300 multiplies the fnuz types of FP8 only",
        remedy="Use torch.float8_e4m3fnuz there (torchao chooses it by itself), or an MI350.",
        source="torch aten ScaledBlas.cpp; hipBLASLt data types",
    ),
    KnownFailure(
        pattern=r"CUBLAS_STATUS_NOT_SUPPORTED.{0,300}cublasLtMatmulAlgoGetHeuristic"
        r"|cublasLtMatmulAlgoGetHeuristic.{0,300}CUBLAS_STATUS_NOT_SUPPORTED",
        cause="cuBLAS has no FP8 GEMM for these scales on this GPU",
        remedy="Use the tensorwise recipe, or a later CUDA.",
        source="pytorch#192707",
        check="known-bad-versions",
    ),
    KnownFailure(
        pattern=r"Arch conditional MMA instruction used without targeting appropriate compute",
        cause="this torch's CUTLASS kernel for FP8 with row scales was not built for this GPU",
        remedy="Use a later torch, or the tensorwise recipe.",
        source="ao#2904",
        check="known-bad-versions",
    ),
    KnownFailure(
        pattern=r"Device compute capability (?:8\.9|9\.0|10\.0)(?:\.x)? or higher required for",
        cause="Transformer Engine refuses the recipe on this GPU",
        remedy="Choose a format that the GPU multiplies: fp8verify doctor names them.",
        source="transformer_engine/pytorch/quantization.py:151-175",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"MXFP8 \(for all gemm layouts\) is not supported on 12\.0\+ architectures",
        cause="Transformer Engine has no MXFP8 for this GPU",
        remedy="Use Float8CurrentScaling there.",
        source="transformer_engine/pytorch/quantization.py:164",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"(?:CublasLt version 12\.1\.3\.x|Cuda version 12\.1) or higher required for FP8",
        cause="this CUDA is too old for FP8 on Ada",
        remedy="Use CUDA 12.1 or above.",
        source="transformer_engine/pytorch/quantization.py:156",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"FP8 block scaled GEMM requires compute capability 9\.0",
        cause="block-scaled FP8 needs compute capability 9.0 and CUDA 12.9",
        remedy="Use a later CUDA, or another recipe.",
        source="transformer_engine/pytorch/quantization.py:184",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"DelayedScaling is not supported under torch\.compile",
        cause="Transformer Engine refuses delayed scaling in a compiled model",
        remedy="Take another recipe (Float8CurrentScaling), or leave the model uncompiled.",
        source="transformer_engine/pytorch/quantization.py:228",
        check="delayed-scaling-compiled",
    ),
    KnownFailure(
        pattern=r"Failed to swap to Float8Linear because float8 is only supported on",
        cause="torchtitan refuses FP8 on this GPU, or goes on in BF16 in older versions",
        remedy="Train in BF16 here, or on a GPU of compute capability 8.9 or above or an MI300.",
        source="torchtitan components/quantization/float8.py",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"Failed to use Float8 with recipe lookup because the torchao version is too old",
        cause="torchao is below 0.9, and torchtitan goes on in BF16",
        remedy="Install torchao 0.9 or above.",
        source="torchtitan components/quantization/float8.py:106",
        check="torchao-too-old",
    ),
    KnownFailure(
        pattern=r"insufficient for FP8 mixed precision training .{0,200}Will use (?:FP16|BF16)",
        cause="accelerate found no FP8 units and changed the precision by itself",
        remedy="Set mixed_precision: bf16 yourself, or train on a GPU with FP8 units.",
        source="accelerate state.py:937",
        check="no-fp8-units",
    ),
    KnownFailure(
        pattern=r"Using `fp8` precision requires `transformer_engine` or `MS-AMP` to be installed"
        r"|no FP8-compatible backend was installed",
        cause="accelerate found neither torchao nor Transformer Engine nor MS-AMP",
        remedy="pip install torchao, or Transformer Engine.",
        source="accelerate state.py:933, accelerator.py:500",
        check="te-not-installed",
    ),
    KnownFailure(
        pattern=r"Passing in an FP8 configuration requires setting `mixed_precision='fp8'`",
        cause="accelerate was given an FP8 recipe and another mixed precision",
        remedy="Set mixed_precision: fp8, or leave the recipe out.",
        source="accelerate accelerator.py:511",
        check="config-section-inert",
    ),
    KnownFailure(
        pattern=r"You must pass a model and an optimizer together to `accelerate\.prepare\(\)`"
        r".{0,80}(?:TransformerEngine|Transformer Engine)",
        cause="Transformer Engine replaces layers in prepare(), which needs the optimizer too",
        remedy="Pass the model and its optimizer to one accelerator.prepare().",
        source="accelerate accelerator.py, _prepare_te",
    ),
    KnownFailure(
        pattern=r"torchao with FSDP2 and cpu_ram_efficient_loading is not supported",
        cause="accelerate refuses torchao's FP8 with cpu_ram_efficient_loading",
        remedy="Set fsdp_cpu_ram_efficient_loading: false.",
        source="accelerate accelerator.py:524",
        check="fp8-with-ram-efficient-loading",
    ),
    KnownFailure(
        pattern=r"DelayedScaling\.__init__\(\) got an unexpected keyword argument"
        r"|__init__\(\) got an unexpected keyword argument '(?:interval|override_linear_)",
        cause="accelerate hands Transformer Engine's DelayedScaling an argument that it dropped",
        remedy="Leave interval and override_linear_precision at their defaults.",
        source="accelerate utils/transformer_engine.py; TE common/recipe",
        check="config-value-unknown",
    ),
    KnownFailure(
        pattern=r"recipe_name \S+ not in valid names",
        cause="torchao has no recipe of that name",
        remedy="Use tensorwise, rowwise or rowwise_with_gw_hp.",
        source="torchao float8/config.py",
        check="config-value-unknown",
    ),
    KnownFailure(
        pattern=r"Delayed scaling does not support first / last layer in BF16",
        cause="Megatron's --first-last-layers-bf16 does not go with delayed scaling",
        remedy="Choose --fp8-recipe tensorwise, blockwise or mxfp8.",
        source="megatron/core/transformer/transformer_config.py:1529",
        check="fp8-with-bf16-layers",
    ),
    KnownFailure(
        pattern=r"NVFP4 requires (?:in_features|out_features) divisible by 128",
        cause="a layer has a side that 128 does not divide",
        remedy="Leave it out of the converter's fqns.",
        source="torchtitan components/quantization/nvfp4.py",
        check="dims-not-multiple-of-16",
    ),
    KnownFailure(
        pattern=r"\bend_step must be greater than start_step",
        cause="KempnerForge's profiling window ends before it begins",
        remedy="Set profiling.end_step above start_step.",
        source="kempnerforge/config/profiling.py",
        check="profiling-window",
    ),
    KnownFailure(
        pattern=r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError\b|CUDA out of memory",
        near=r"torchao[/\\.]float8|transformer_engine|Float8(?:Linear|Tensor)|float8_",
        cause="memory ran out in an FP8 cast: FP8 keeps the weights in high precision and holds "
        "FP8 copies of weights and activations beside them; uncompiled, also what lies between",
        remedy="Compile the model, shard it (FSDP), checkpoint activations, or lower the batch.",
        source="ao#1102, TE#1119, TE#1429, Megatron-LM#1236",
        check="compile-off",
    ),
)
