"""Dense matrix peaks of the GPUs that train in FP8, and of those people compare them with."""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.model import Precision


class Peak(NamedTuple):
    """Dense peak rates in TFLOP/s (10^12 a second, no sparsity); 0 where the unit is missing.

    `proves` is whether a GEMM that beats `bf16` must have read operands of fewer bits.
    """

    fp8: float
    bf16: float
    tf32: float
    fp4: float
    evidence: str
    proves: bool = True


# Matched in this order against the device name of the trace, in which every word of the key has to
# occur. Datasheets that quote sparse rates are halved here. GeForce GPUs multiply FP16 with FP16
# accumulation at twice the rate given, so that a higher rate proves nothing there.
PEAKS: tuple[tuple[str, Peak], ...] = (
    ("GB300", Peak(5000, 2500, 1250, 15000, "NVIDIA Blackwell Ultra GB300 datasheet, 2025")),
    ("B300", Peak(4500, 2250, 1100, 14000, "NVIDIA DGX B300 datasheet, 2025, per GPU")),
    ("GB200", Peak(5000, 2500, 1250, 10000, "NVIDIA GB200 NVL72 datasheet, 2024, per GPU")),
    ("B200", Peak(4500, 2250, 1100, 9000, "NVIDIA DGX B200 datasheet, 2024, per GPU")),
    ("GH200", Peak(1979, 989.4, 494.7, 0, "NVIDIA GH200 datasheet, 2024")),
    ("H200 NVL", Peak(1671, 835.5, 417.5, 0, "NVIDIA H200 datasheet, 2024 (NVL)")),
    ("H200", Peak(1979, 989.4, 494.7, 0, "NVIDIA H200 datasheet, 2024 (SXM)")),
    ("H100 NVL", Peak(1671, 835.5, 417.5, 0, "NVIDIA H100 datasheet, 2024 (NVL)")),
    ("H100 PCIe", Peak(1513, 756, 378, 0, "NVIDIA H100 whitepaper, 2023 (PCIe)")),
    ("H100", Peak(1979, 989.4, 494.7, 0, "NVIDIA H100 whitepaper, 2023 (SXM5)")),
    ("H800", Peak(1979, 989.4, 494.7, 0, "NVIDIA H800 product brief: the H100's rates")),
    ("H20", Peak(296, 148, 74, 0, "NVIDIA H20 product brief, 2024")),
    ("L40S", Peak(733, 362.05, 183, 0, "NVIDIA L40S datasheet, 2023")),
    ("L4", Peak(242.5, 121, 60, 0, "NVIDIA L4 datasheet, 2023 (sparse rates halved)")),
    ("RTX 5090", Peak(419, 209.5, 104.8, 1676, "NVIDIA RTX Blackwell whitepaper, 2025", False)),
    ("RTX 4090", Peak(330.3, 165.2, 82.6, 0, "NVIDIA Ada whitepaper v2.1, 2023", False)),
    ("A100", Peak(0, 312, 156, 0, "NVIDIA A100 datasheet, 2021")),
    ("MI355X", Peak(5033, 2516, 0, 10066, "AMD Instinct MI355X data sheet, 2025")),
    ("MI325X", Peak(2614.9, 1307.4, 653.7, 0, "AMD Instinct MI325X data sheet, 2024")),
    ("MI300X", Peak(2614.9, 1307.4, 653.7, 0, "AMD Instinct MI300X data sheet, 2023")),
)


def peak_of(gpu: str | None) -> Peak | None:
    """Return the peaks of the GPU that a trace names, or None for one that is not listed."""
    if gpu is None:
        return None
    words = gpu.replace("-", " ").upper().split()
    for key, peak in PEAKS:
        if all(word.upper() in words for word in key.split()):
            return peak
    return None


def peak_tflops(peak: Peak | None, precision: Precision) -> float | None:
    """Return the dense peak of one precision class in TFLOP/s, or None where it has none."""
    if peak is None:
        return None
    rate = {
        Precision.FP8: peak.fp8,
        Precision.MXFP8: peak.fp8,
        Precision.FP4: peak.fp4,
        Precision.BF16: peak.bf16,
        Precision.FP16: peak.bf16,
        Precision.TF32: peak.tf32,
    }.get(precision)
    return rate or None
