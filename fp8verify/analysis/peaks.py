"""Dense matrix peaks of the GPUs that train in FP8, and of those people compare them with."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fp8verify.report.model import Precision
from fp8verify.text import lazy_pattern


class Peak(NamedTuple):
    """Dense peak rates in TFLOP/s (10^12 a second, no sparsity); 0 where the unit is missing.

    Each is the highest rate of the hardware in that format. `proves` is whether a GEMM that beats
    `bf16` must have read operands of fewer bits.
    """

    fp8: float
    bf16: float
    tf32: float
    fp4: float
    evidence: str
    proves: bool = True


_AMD: Final = "AMD Instinct {} data sheet, {}"
_ADA: Final = "NVIDIA Ada whitepaper v2.1, 2023 (FP8 with FP16 accumulation)"
_RTX_BLACKWELL: Final = "NVIDIA RTX Blackwell whitepaper, 2025 (FP8 with FP16 accumulation)"
_PRO_BLACKWELL: Final = "NVIDIA RTX PRO Blackwell whitepaper, 2025"

# By the words of the device name that a trace gives, without maker, memory and form factor. Data
# sheets that quote sparse rates are halved here. GeForce GPUs multiply FP8 and FP16 with FP16
# accumulation at twice the rate that they do with FP32 (on an RTX 5090 torch._scaled_mm was
# measured at 706 to 739 TFLOP/s, against 419 listed for FP32 accumulation), so that there a higher
# rate than that of BF16 proves nothing.
PEAKS: Final[dict[str, Peak]] = {
    "GB300": Peak(5000, 2500, 1250, 15000, "NVIDIA Blackwell Ultra GB300 datasheet, 2025"),
    "B300": Peak(4500, 2250, 1100, 14000, "NVIDIA DGX B300 datasheet, 2025, per GPU"),
    "GB200": Peak(5000, 2500, 1250, 10000, "NVIDIA GB200 NVL72 datasheet, 2024, per GPU"),
    "B200": Peak(4500, 2250, 1100, 9000, "NVIDIA DGX B200 datasheet, 2024, per GPU"),
    "GH200": Peak(1979, 989.4, 494.7, 0, "NVIDIA GH200 datasheet, 2024"),
    "H200": Peak(1979, 989.4, 494.7, 0, "NVIDIA H200 datasheet, 2024 (SXM)"),
    "H200 NVL": Peak(1671, 835.5, 417.5, 0, "NVIDIA H200 datasheet, 2024 (NVL)"),
    "H100": Peak(1979, 989.4, 494.7, 0, "NVIDIA H100 whitepaper, 2023 (SXM5)"),
    "H100 NVL": Peak(1671, 835.5, 417.5, 0, "NVIDIA H100 datasheet, 2024 (NVL)"),
    "H100 PCIE": Peak(1513, 756, 378, 0, "NVIDIA H100 whitepaper, 2023 (PCIe)"),
    "H800": Peak(1979, 989.4, 494.7, 0, "NVIDIA H800 product brief: the H100's rates"),
    "H800 PCIE": Peak(1513, 756, 378, 0, "NVIDIA H800 PCIe product brief: the H100 PCIe's rates"),
    "H20": Peak(296, 148, 74, 0, "NVIDIA H20 product brief, 2024"),
    "A100": Peak(0, 312, 156, 0, "NVIDIA A100 datasheet, 2021 (SXM and PCIe)"),
    "A800": Peak(0, 312, 156, 0, "NVIDIA A800 product brief: the A100's rates"),
    "L40S": Peak(733, 362.05, 183, 0, "NVIDIA L40S datasheet, 2023"),
    "L40": Peak(362, 181.05, 90.5, 0, "NVIDIA L40 datasheet, 2023"),
    "L20": Peak(239, 119.5, 59.8, 0, "NVIDIA L20 product brief, 2024"),
    "L4": Peak(242.5, 121, 60, 0, "NVIDIA L4 datasheet, 2023 (sparse rates halved)"),
    "RTX 6000 ADA GENERATION": Peak(
        728.5, 364.2, 182.1, 0, "NVIDIA RTX 6000 Ada datasheet, 2023 (sparse rates halved)"
    ),
    "RTX PRO 6000 BLACKWELL WORKSTATION EDITION": Peak(
        1007.6, 503.8, 251.9, 2015.2, _PRO_BLACKWELL
    ),
    "RTX PRO 6000 BLACKWELL MAX Q WORKSTATION EDITION": Peak(
        877.9, 438.9, 219.5, 1755.7, _PRO_BLACKWELL
    ),
    "RTX PRO 6000 BLACKWELL SERVER EDITION": Peak(
        1000, 500, 250, 2000, "NVIDIA RTX PRO 6000 Server Edition datasheet, 2025 (rounded up)"
    ),
    "RTX 5090": Peak(838, 209.5, 104.8, 1676, _RTX_BLACKWELL, False),
    "RTX 5080": Peak(450.2, 112.6, 56.3, 900.4, _RTX_BLACKWELL, False),
    "RTX 4090": Peak(660.6, 165.2, 82.6, 0, _ADA, False),
    "RTX 4080": Peak(389.9, 97.5, 48.7, 0, _ADA, False),
    "MI355X": Peak(5033, 2516, 0, 10066, _AMD.format("MI355X", 2025)),
    "MI350X": Peak(4614, 2307, 0, 9228, _AMD.format("MI350X", 2025)),
    "MI325X": Peak(2614.9, 1307.4, 653.7, 0, _AMD.format("MI325X", 2024)),
    "MI300X": Peak(2614.9, 1307.4, 653.7, 0, _AMD.format("MI300X", 2023)),
    "MI300A": Peak(1961.2, 980.6, 490.3, 0, _AMD.format("MI300A", 2023)),
}

# Words of a device name that do not make it another part: maker, memory, form factor. Any other
# word that a row does not have does: a Laptop GPU, a D, a Ti, a MIG slice is not the part itself.
_MAKERS: Final = frozenset({"NVIDIA", "AMD", "GEFORCE", "INSTINCT", "TESLA", "GPU"})
_MEMORY: Final = lazy_pattern(r"\d+GB?|HBM\d[E]?")
_FORMS: Final[dict[str, frozenset[str]]] = {
    "A100": frozenset({"SXM4", "SXM", "PCIE", "PG509", "200"}),
    "A800": frozenset({"SXM4", "SXM", "PCIE", "ACTIVE"}),
    "H100": frozenset({"SXM5", "SXM"}),
    "H200": frozenset({"SXM5", "SXM"}),
    "H800": frozenset({"SXM5", "SXM"}),
    "H20": frozenset({"3E", "SXM5"}),
    "B200": frozenset({"SXM6", "SXM", "AC", "LC"}),
    "B300": frozenset({"SXM6", "SXM", "AC", "LC"}),
    # VF: the virtual function of a whole GPU; AMD's SR-IOV driver makes one of each MI300X.
    "MI300X": frozenset({"OAM", "VF"}),
    "MI325X": frozenset({"OAM", "VF"}),
    "MI350X": frozenset({"OAM"}),
    "MI355X": frozenset({"OAM"}),
}


def peak_of(gpu: str | None) -> Peak | None:
    """Return the peaks of the GPU that a trace names, or None for one that is not listed."""
    key = peak_key(gpu)
    return PEAKS[key] if key is not None else None


def peak_key(gpu: str | None) -> str | None:
    """Return the key in `PEAKS` of the GPU that a trace names."""
    words = _part(gpu or "")
    for key in PEAKS:
        if [word for word in words if word not in _FORMS.get(key, ())] == key.split():
            return key
    return None


def _part(gpu: str) -> list[str]:
    """Return the words of a device name that say which part it is."""
    words = re.split(r"[\s\-_/()]+", gpu.upper())
    return [word for word in words if word and word not in _MAKERS and not _MEMORY.fullmatch(word)]


def peak_tflops(peak: Peak | None, precision: Precision) -> float | None:
    """Return the dense peak of one precision class in TFLOP/s, or None where it has none.

    On GeForce GPUs FP16 may be accumulated in FP16, at a rate that the table does not have.
    """
    if peak is None or (precision is Precision.FP16 and not peak.proves):
        return None
    rate = {
        Precision.FP8: peak.fp8,
        Precision.MXFP8: peak.fp8,
        Precision.NVFP4: peak.fp4,
        Precision.MXFP4: peak.fp4,
        Precision.FP4: peak.fp4,
        Precision.BF16: peak.bf16,
        Precision.FP16: peak.bf16,
        Precision.TF32: peak.tf32,
    }.get(precision)
    return rate or None
