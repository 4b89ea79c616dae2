from __future__ import annotations

import pytest

from fp8verify.evidence.peaks import PEAKS, peak_of, peak_tflops
from fp8verify.model import Precision


@pytest.mark.parametrize(
    ("device", "fp8", "bf16"),
    [
        ("NVIDIA H200", 1979, 989.4),
        ("NVIDIA H100 80GB HBM3", 1979, 989.4),
        ("NVIDIA H100 PCIe", 1513, 756),
        ("NVIDIA H100 NVL", 1671, 835.5),
        ("NVIDIA GH200 480GB", 1979, 989.4),
        ("NVIDIA GB200", 5000, 2500),
        ("NVIDIA B200", 4500, 2250),
        ("NVIDIA L40S", 733, 362.05),
        ("NVIDIA GeForce RTX 4090", 330.3, 165.2),
        ("AMD Instinct MI300X", 2614.9, 1307.4),
    ],
)
def test_a_device_name_finds_its_own_row(device: str, fp8: float, bf16: float) -> None:
    peak = peak_of(device)
    assert peak_tflops(peak, Precision.FP8) == fp8
    assert peak_tflops(peak, Precision.BF16) == bf16


@pytest.mark.parametrize("device", [None, "", "Tesla V100-SXM2-16GB", "NVIDIA H2000"])
def test_an_unlisted_device_has_no_peak(device: str | None) -> None:
    assert peak_of(device) is None


def test_a_gpu_without_fp8_units_has_no_fp8_peak() -> None:
    assert peak_tflops(peak_of("NVIDIA A100-SXM4-80GB"), Precision.FP8) is None


def test_rates_are_dense_and_ordered() -> None:
    for key, peak in PEAKS:
        assert peak.fp8 == 0 or peak.fp8 >= 1.9 * peak.bf16, key
        assert peak.tf32 <= 0.51 * peak.bf16, key
