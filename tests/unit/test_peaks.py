from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.analysis.gpus import PEAKS, peak_of, peak_tflops
from fp8verify.terms import Precision


@pytest.mark.parametrize(
    ("device", "fp8", "bf16"),
    [
        ("NVIDIA H200", 1979, 989.4), ("NVIDIA H100 80GB HBM3", 1979, 989.4),
        ("NVIDIA H100 PCIe", 1513, 756), ("NVIDIA H100 NVL", 1671, 835.5),
        ("NVIDIA GH200 480GB", 1979, 989.4), ("NVIDIA GB200", 5000, 2500),
        ("NVIDIA B200", 4500, 2250), ("NVIDIA L40S", 733, 362.05),
        ("NVIDIA GeForce RTX 4090", 660.6, 165.2), ("NVIDIA GeForce RTX 5090", 838, 209.5),
        ("NVIDIA H800 PCIe", 1513, 756), ("NVIDIA H20-3e", 296, 148), ("NVIDIA L40", 362, 181.05),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1007.6, 503.8),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 877.9, 438.9),
        ("NVIDIA B300 SXM6 AC", 4500, 2250), ("NVIDIA GH200 144G HBM3e", 1979, 989.4),
        ("AMD Instinct MI300X", 2614.9, 1307.4), ("AMD Instinct MI300X VF", 2614.9, 1307.4),
        ("AMD Instinct MI300A", 1961.2, 980.6), ("AMD Instinct MI350X", 4614, 2307),
    ],
)  # fmt: skip
def test_a_device_name_finds_its_own_row(device: str, fp8: float, bf16: float) -> None:
    peak = peak_of(device)
    assert peak_tflops(peak, Precision.FP8) == fp8
    assert peak_tflops(peak, Precision.BF16) == bf16


@pytest.mark.parametrize(
    "device",
    [
        None, "", "Tesla V100-SXM2-16GB", "NVIDIA H2000", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA GeForce RTX 5090 D v2", "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA RTX PRO 6000 Blackwell", "AMD Instinct MI308X",
    ],
)  # fmt: skip
def test_an_unlisted_device_has_no_peak(device: str | None) -> None:
    assert peak_of(device) is None


def test_a_gpu_without_fp8_units_has_no_fp8_peak() -> None:
    assert peak_tflops(peak_of("NVIDIA A100-SXM4-80GB"), Precision.FP8) is None


@pytest.mark.parametrize(
    "device", ["NVIDIA A100-PG509-200", "NVIDIA A100 80GB PCIe", "A800 PCIe"]
)
def test_form_factors_of_one_part_share_its_row(device: str) -> None:
    assert peak_tflops(peak_of(device), Precision.BF16) == 312


@given(
    st.sampled_from(sorted(PEAKS)),
    st.sampled_from(["Laptop", "MIG 1g.5gb", "D", "Ti", "vGPU"]),
)
def test_no_word_that_is_not_known_is_ignored(key: str, word: str) -> None:
    assert peak_of(f"NVIDIA {key} {word}") is None


def test_a_gpu_that_multiplies_fp8_at_two_rates_proves_nothing_by_the_higher_one() -> (
    None
):
    unproved = {key for key, peak in PEAKS.items() if not peak.proves}
    assert unproved == {"RTX 4080", "RTX 4090", "RTX 5080", "RTX 5090"}


def test_rates_are_dense_and_ordered() -> None:
    for key, peak in PEAKS.items():
        assert peak.fp8 == 0 or peak.fp8 >= 1.9 * peak.bf16, key
        assert peak.tf32 <= 0.51 * peak.bf16, key
