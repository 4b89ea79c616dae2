from __future__ import annotations

import pytest

from fp8verify.analysis.gpus import multiplies, reads_fnuz, runs_elsewhere
from fp8verify.terms import Precision

MAX_1550 = "Intel(R) Data Center GPU Max 1550"


@pytest.mark.parametrize(
    ("gpu", "capability", "precision", "has"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", Precision.FP8, True),
        ("NVIDIA H100 80GB HBM3", "9.0", Precision.MXFP8, False),
        ("NVIDIA GeForce RTX 4090", "8.9", Precision.FP8, True),
        ("NVIDIA A100-SXM4-80GB", "8.0", Precision.FP8, False),
        ("Tesla V100-SXM2-16GB", "7.0", Precision.FP8, False),
        ("Tesla T4", "7.5", Precision.FP8, False),
        ("Tesla T4", "7.5", Precision.BF16, False),
        ("NVIDIA B200", "10.0", Precision.NVFP4, True),
        ("NVIDIA GeForce RTX 5090", "12.0", Precision.MXFP8, True),
        ("AMD Instinct MI300X", "9.4", Precision.FP8, True),
        ("AMD Instinct MI300X", "9.4", Precision.MXFP8, False),
        ("AMD Instinct MI355X", "9.5", Precision.MXFP4, True),
        ("AMD Instinct MI355X", "9.5", Precision.NVFP4, False),
        ("AMD Radeon Graphics", "9.5", Precision.MXFP8, True),
        ("AMD Instinct MI250X", "9.0", Precision.FP8, False),
        (MAX_1550, None, Precision.FP8, False),
        (MAX_1550, None, Precision.BF16, True),
        ("NVIDIA H200", "9.0", Precision.FP64, True),
    ],
)
def test_hardware_has_units_for_the_formats_of_its_instruction_set(
    gpu: str, capability: str | None, precision: Precision, has: bool
) -> None:
    assert multiplies(gpu, capability, precision) is has


@pytest.mark.parametrize(
    ("gpu", "capability"),
    [
        (None, None),
        (None, "9.0"),  # a Hopper or a CDNA 2
        ("NVIDIA H200", None), ("NVIDIA H200", "nine"), ("AMD Radeon RX 7900 XTX", "11.0"),
        ("Intel(R) Arc(TM) B580 Graphics", "12.0"), ("some accelerator", "9.0"),
    ],
)  # fmt: skip
def test_what_no_source_says_is_not_known(
    gpu: str | None, capability: str | None
) -> None:
    assert multiplies(gpu, capability, Precision.FP8) is None


def test_an_unknown_format_is_not_known_anywhere() -> None:
    assert multiplies("NVIDIA H200", "9.0", Precision.UNKNOWN) is None


def test_mi300_multiplies_the_fnuz_encodings() -> None:
    assert reads_fnuz("AMD Instinct MI300X", "9.4")
    assert not reads_fnuz("AMD Instinct MI355X", "9.5")
    assert not reads_fnuz("NVIDIA H200", "9.0")


@pytest.mark.parametrize(
    ("name", "gpu", "capability", "elsewhere"),
    [
        ("nvjet_sm90_qqtst_128x64", "NVIDIA H200", "9.0", False),
        ("nvjet_sm90_qqtst_128x64", "NVIDIA B200", "10.0", True),
        ("nvjet_sm90_qqtst_128x64", "NVIDIA L40S", "8.9", True),
        ("nvjet_sm100_qqtst_128x256", "NVIDIA B300", "10.3", False),
        ("nvjet_sm103_ootst_128x256", "NVIDIA B200", "10.0", False),
        ("nvjet_sm120_qqtst_mma", "NVIDIA B200", "10.0", True),
        ("nvjet_qqtst_128x64", "NVIDIA B300", "10.3", False),
        (
            "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32",
            "NVIDIA GeForce RTX 5090",
            "12.0",
            False,
        ),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32", "NVIDIA L40S", "8.9", True),
        ("cutlass3x_sm100_tensorop_s128x256x32gemm_e4m3", "NVIDIA H200", "9.0", True),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0>", "NVIDIA B200", "10.0", True),
        ("sm100_tile_kernel", "NVIDIA H200", None, False),
        ("_w8a8_block_fp8_matmul", "NVIDIA L40S", "8.9", False),
        ("Cijk_Alik_Bljk_F8BS_BH", "AMD Instinct MI300X", "9.4", False),
        ("Cijk_Alik_Bljk_F8BS_BH", "NVIDIA H200", "9.0", True),
        ("nvjet_sm90_qqtst_128x64", "AMD Instinct MI300X", "9.4", True),
        ("nvjet_sm90_qqtst_128x64", None, None, False),
    ],
)
def test_a_library_that_names_its_hardware_runs_there(
    name: str, gpu: str | None, capability: str | None, elsewhere: bool
) -> None:
    assert runs_elsewhere(name, gpu, capability) is elsewhere
