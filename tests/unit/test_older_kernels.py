"""FP8 kernels of an older generation, and types that a second code of the name decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.kernels import decode

ADA = "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_stage3_warpsize2x2x1"


@pytest.mark.parametrize(
    ("gpu", "capability", "found"),
    [
        ("NVIDIA GeForce RTX 5090", (12, 0), True),
        ("NVIDIA H200", (9, 0), True),
        ("NVIDIA L40S", (8, 9), False),
    ],
)
def test_adas_kernels_on_a_newer_gpu_are_told(
    gpu: str, capability: tuple[int, int], found: bool, tmp_path: Path
) -> None:
    major, minor = capability
    device = {"id": 0, "name": gpu, "computeMajor": major, "computeMinor": minor}
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": ADA,
        "ts": 1,
        "dur": 5,
        "args": {"device": 0},
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": [kernel]}))
    findings = [one for one in inspect(path).findings if one.code == "older-kernels"]
    assert [one.severity.value for one in findings] == ["info"] * found
    assert all("sm89" in one.message and "CUDA 13" in one.hint for one in findings)


@pytest.mark.parametrize(
    ("code", "precision"),
    [
        ("F8H_HHS_BH", "fp16"), ("F8B_BBS_BH", "bf16"), ("F8B8_HHS_BH", "fp16"),
        ("I8H_HHS_BH", "fp16"), ("SS_BSS_BH", "bf16"), ("I4H_HHS_BH", "fp16"), ("S_MX_B", "tf32"),
        ("F8B8S_BH", "fp8"), ("F8BS_BH", "fp8"), ("BBS_BH", "bf16"), ("S_B", "fp32"), ("B_BS_BH", "bf16"),
    ],
)  # fmt: skip
def test_tensiles_second_code_is_what_is_multiplied(code: str, precision: str) -> None:
    name = f"Cijk_Ailk_Bljk_{code}_UserArgs_MT64x64x64_MI16x16x1"
    assert decode(name).precision.value == precision


@pytest.mark.parametrize(
    "name",
    [
        "BlockScaledMoEGroupedGemmQuantKernel_object_at_0x3",
        "void deep_gemm::sm120_fp8_fp4_gemm_1d1d_impl<0u, 4u, 4096u>",
    ],
)
def test_a_format_below_sixteen_bits_is_low_and_not_fp8(name: str) -> None:
    found = decode(name).precision
    assert (found.value, found.is_low, found.is_fp8) == ("below16", True, False)
