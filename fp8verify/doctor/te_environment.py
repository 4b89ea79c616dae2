"""Variables of Transformer Engine that change what runs; read there on 2026-11-22 (TE d0067d0)."""

from __future__ import annotations

from typing import NamedTuple

_RECIPE = "transformer_engine/common/recipe/__init__.py"


class Variable(NamedTuple):
    """A variable, the values at which it changes nothing, and what it does at others."""

    name: str
    idle: tuple[str, ...]
    effect: str
    source: str
    keeps_fp8: bool = True


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "NVTE_BACKWARD_OVERRIDE",
        ("",),
        "the backward pass runs in high precision or on dequantized tensors, and delayed scaling "
        "refuses it (AssertionError)",
        f"{_RECIPE}:261",
        keeps_fp8=False,
    ),
    Variable(
        "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES",
        ("", "0"),
        "current scaling rounds its scales to powers of two",
        f"{_RECIPE}:302",
    ),
    Variable(
        "NVTE_FP8_BLOCK_SCALING_FP32_SCALES",
        ("", "0"),
        "block scaling keeps FP32 scales, which MXFP8 cannot emulate",
        f"{_RECIPE}:429; miles#1340",
    ),
    Variable(
        "NVTE_NVFP4_DISABLE_RHT",
        ("", "0"),
        "NVFP4 runs without random Hadamard transforms",
        f"{_RECIPE}:558",
    ),
    Variable(
        "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING",
        ("", "0"),
        "NVFP4 rounds gradients to nearest",
        f"{_RECIPE}:560",
    ),
    Variable(
        "NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
        ("", "0"),
        "NVFP4 scales weights by row only",
        f"{_RECIPE}:562",
    ),
    Variable("NVTE_NVFP4_4OVER6", ("", "none"), "NVFP4 scales by 4/6", f"{_RECIPE}:564"),
    Variable(
        "NVTE_NVFP4_ROW_SCALED_ACTIVATION",
        ("", "0"),
        "NVFP4 scales activations by row",
        f"{_RECIPE}:563",
    ),
    Variable(
        "NVTE_FP8_DPA_BWD",
        ("", "1"),
        "FP8 attention computes its backward pass in high precision",
        "TE attention/dot_product_attention/backends.py",
        keeps_fp8=False,
    ),
    Variable(
        "NVTE_UNFUSED_FP8_UPDATE",
        ("", "0"),
        "scales are updated by several kernels",
        "transformer_engine/pytorch/quantization.py:688",
    ),
)
# Variables that look as if they did something: accelerate reads other names.
UNREAD = {
    "ACCELERATE_FP8_AMAX_HISTORY_LENGTH": "ACCELERATE_FP8_AMAX_HISTORY_LEN",
    "ACCELERATE_FP8_AMAX_COMPUTE_ALGORITHM": "ACCELERATE_FP8_AMAX_COMPUTE_ALGO",
    "ACCELERATE_FP8_OPTIMIZATION_LEVEL": "ACCELERATE_FP8_OPT_LEVEL",
    "FP8_BACKEND": "ACCELERATE_FP8_BACKEND",
    "FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER": "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER",
}
