"""What GPUs can do: formats of their matrix units, dense peaks, and sizes too small for FP8.

Where a GPU cannot multiply a format, a GEMM "in FP8" is a kernel that converts its operands first.
What no row says is not known, and None.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fp8verify.terms import Precision

_EVERYWHERE: Final = frozenset({Precision.FP32, Precision.FP64})

# NVIDIA: the lowest compute capability with matrix units for the format (PTX ISA 9.0: mma, wgmma,
# tcgen05.mma and mma with .block_scale; CUDA C++ Programming Guide, "Compute Capabilities").
_NVIDIA: Final[dict[Precision, tuple[int, int]]] = {
    Precision.FP16: (7, 0),
    Precision.INT8: (7, 2),
    Precision.BF16: (8, 0),
    Precision.TF32: (8, 0),
    Precision.FP8: (8, 9),
    Precision.MXFP8: (10, 0),
    Precision.MXFP6: (10, 0),
    Precision.NVFP4: (10, 0),
    Precision.MXFP4: (10, 0),
    Precision.FP4: (10, 0),
    Precision.BELOW16: (8, 9),  # the lowest of what it may be
}


class Family(NamedTuple):
    """GPUs of one instruction set: their names, and the formats of their matrix units."""

    name: re.Pattern[str]
    capability: str | None
    formats: frozenset[Precision]


_CDNA1_2: Final = frozenset({Precision.FP16, Precision.BF16, Precision.INT8})
_CDNA3: Final = _CDNA1_2 | {Precision.FP8, Precision.BELOW16, Precision.TF32}
_MX: Final = frozenset(
    {Precision.MXFP8, Precision.MXFP6, Precision.MXFP4, Precision.FP4}
)
_CDNA4: Final = _CDNA3 - {Precision.TF32} | _MX
_FAMILIES: Final[tuple[Family, ...]] = (
    # AMD CDNA 4 ISA: v_mfma_scale_f32_*_f8f6f4; no xf32 any more
    Family(re.compile(r"MI35[05]X|GFX950"), "9.5", _CDNA4),
    # AMD CDNA 3 ISA: v_mfma_f32_*_fp8_fp8 (the FNUZ encodings), xf32
    Family(re.compile(r"MI3(?:00[XA]|08X|25X)|GFX942"), "9.4", _CDNA3),
    # AMD CDNA 1 and CDNA 2 ISA: no FP8 instructions
    Family(re.compile(r"MI2[15]0X?|GFX90A|MI100|GFX908"), None, _CDNA1_2),
    # Intel oneAPI GPU optimization guide: XMX of Xe-HPC, no FP8
    Family(re.compile(r"DATA CENTER GPU MAX"), None, _CDNA1_2 | {Precision.TF32}),
)
_NVIDIA_NAME: Final = re.compile(
    r"\b(?:NVIDIA|TESLA|GEFORCE|QUADRO)\b|^(?:[ABHL]\d{1,3}|GB?H?\d00)\b"
)
# Names of libraries' GEMMs that tell what they were compiled for; those of Hopper use wgmma, which
# sm_90a alone has (PTX ISA 9.0: wgmma.mma_async).
_FOR_NVIDIA: Final = re.compile(
    r"(?:void )?(?:(?P<own>nvjet_|deep_gemm::)|(?:cutlass3x_)?)sm(?P<major>\d{1,2})(?P<minor>\d)_"
)
_XMMA: Final = re.compile(r"(?P<arch>sm(?P<major>\d{1,2})(?P<minor>\d))_xmma_")
_FOR_AMD: Final = re.compile(r"(?:Custom_)?Cijk_|_ZN5aiter|aiter::")
_HOPPER: Final = (9, 0)
_AMD_NAME: Final = re.compile(r"\b(?:AMD|RADEON|INSTINCT)\b|^MI\d{2,3}")


def multiplies(
    gpu: str | None,
    compute_capability: str | None,
    precision: Precision,
) -> bool | None:
    """Return whether a GPU has matrix units for a format; None if not known.

    `compute_capability` is PyTorch's: "9.0" is NVIDIA's Hopper and AMD's CDNA 2, so it means
    nothing without a name.
    """
    name = (gpu or "").upper()
    if precision is Precision.UNKNOWN or not name:
        return None
    found = family(gpu, compute_capability)
    if found is not None:
        return precision in found.formats or precision in _EVERYWHERE
    capability = _capability(compute_capability)
    if not _NVIDIA_NAME.search(name) or capability is None:
        return None
    return precision in _EVERYWHERE or capability >= _NVIDIA[precision]


def family(gpu: str | None, compute_capability: str | None) -> Family | None:
    """Return the row of a GPU of another vendor, by its name, else by HIP's architecture."""
    name = (gpu or "").upper()
    capability = compute_capability if _AMD_NAME.search(name) else ""
    rows = (
        row
        for row in _FAMILIES
        if row.name.search(name) or row.capability == capability
    )
    return next(rows, None)


def reads_fnuz(gpu: str | None, compute_capability: str | None) -> bool:
    """Whether a GPU multiplies e4m3fnuz and e5m2fnuz, as MI300 does, and converts e4m3fn."""
    found = family(gpu, compute_capability)
    return found is not None and found.formats is _CDNA3


def runs_elsewhere(
    name: str,
    gpu: str | None,
    compute_capability: str | None,
) -> bool:
    """Whether the name of a kernel says that it was compiled for other GPUs than this one."""
    found = _FOR_NVIDIA.match(name)
    if _AMD_NAME.search((gpu or "").upper()):
        return found is not None
    if not _NVIDIA_NAME.search((gpu or "").upper()):
        return False
    capability = _capability(compute_capability)
    if found is None or capability is None:
        return _FOR_AMD.match(name) is not None
    compiled_for = int(found["major"]), int(found["minor"])
    only_there = compiled_for == _HOPPER and found["own"] is not None
    return compiled_for[0] > capability[0] or (
        only_there and compiled_for != capability
    )


def compiled_before(
    name: str,
    gpu: str | None,
    compute_capability: str | None,
) -> str | None:
    """Return the architecture of an xmma kernel if the GPU is newer: "sm89" on an RTX 5090."""
    found = _XMMA.match(name)
    capability = _capability(compute_capability)
    if found is None or capability is None:
        return None
    if not _NVIDIA_NAME.search((gpu or "").upper()):
        return None
    compiled_for = int(found["major"]), int(found["minor"])
    return found["arch"] if compiled_for < capability else None


def _capability(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text or "")
    return (int(match[1]), int(match[2])) if match else None


class Peak(NamedTuple):
    """Dense peak rates in TFLOP/s (10^12 a second, no sparsity); 0 if the unit is missing.

    Each is the highest rate of the hardware in that format. `proves` is whether a GEMM that beats
    `bf16` must have read operands of fewer bits.
    """

    fp8: float
    bf16: float
    tf32: float
    fp4: float
    proves: bool = True


# By the words of the device name that a trace gives, without maker, memory and form factor. Data
# sheets that quote sparse rates are halved here. GeForce GPUs multiply FP8 and FP16 with FP16
# accumulation at twice the rate that they do with FP32 (on an RTX 5090 torch._scaled_mm was
# measured at 706 to 739 TFLOP/s, against 419 listed for FP32 accumulation), so there a higher
# rate than that of BF16 proves nothing.
PEAKS: Final[dict[str, Peak]] = {
    "GB300": Peak(
        5000, 2500, 1250, 15000
    ),  # NVIDIA Blackwell Ultra GB300 datasheet, 2025
    "B300": Peak(4500, 2250, 1100, 14000),  # NVIDIA DGX B300 datasheet, 2025, per GPU
    "GB200": Peak(
        5000, 2500, 1250, 10000
    ),  # NVIDIA GB200 NVL72 datasheet, 2024, per GPU
    "B200": Peak(4500, 2250, 1100, 9000),  # NVIDIA DGX B200 datasheet, 2024, per GPU
    # NVIDIA GH200 and H200 datasheets, 2024; H100 whitepaper, 2023 (SXM5); H800 product brief
    **dict.fromkeys(("GH200", "H200", "H100", "H800"), Peak(1979, 989.4, 494.7, 0)),
    # NVIDIA H200 and H100 datasheets, 2024 (NVL)
    **dict.fromkeys(("H200 NVL", "H100 NVL"), Peak(1671, 835.5, 417.5, 0)),
    # NVIDIA H100 whitepaper, 2023 (PCIe); H800 PCIe product brief
    **dict.fromkeys(("H100 PCIE", "H800 PCIE"), Peak(1513, 756, 378, 0)),
    "H20": Peak(296, 148, 74, 0),  # NVIDIA H20 product brief, 2024
    # NVIDIA A100 datasheet, 2021 (SXM and PCIe); A800 product brief
    **dict.fromkeys(("A100", "A100 PCIE", "A100 PG509 200"), Peak(0, 312, 156, 0)),
    **dict.fromkeys(("A800", "A800 PCIE"), Peak(0, 312, 156, 0)),
    "L40S": Peak(733, 362.05, 183, 0),  # NVIDIA L40S datasheet, 2023
    "L40": Peak(362, 181.05, 90.5, 0),  # NVIDIA L40 datasheet, 2023
    "L20": Peak(239, 119.5, 59.8, 0),  # NVIDIA L20 product brief, 2024
    "L4": Peak(242.5, 121, 60, 0),  # NVIDIA L4 datasheet, 2023 (sparse rates halved)
    # NVIDIA RTX 6000 Ada datasheet, 2023 (sparse rates halved)
    "RTX 6000 ADA GENERATION": Peak(728.5, 364.2, 182.1, 0),
    # NVIDIA RTX PRO Blackwell whitepaper, 2025
    "RTX PRO 6000 BLACKWELL WORKSTATION EDITION": Peak(1007.6, 503.8, 251.9, 2015.2),
    "RTX PRO 6000 BLACKWELL MAX Q WORKSTATION EDITION": Peak(
        877.9, 438.9, 219.5, 1755.7
    ),
    # NVIDIA RTX PRO 6000 Server Edition datasheet, 2025 (rounded up)
    "RTX PRO 6000 BLACKWELL SERVER EDITION": Peak(1000, 500, 250, 2000),
    # NVIDIA RTX Blackwell whitepaper, 2025 (FP8 with FP16 accumulation)
    "RTX 5090": Peak(838, 209.5, 104.8, 1676, proves=False),
    "RTX 5080": Peak(450.2, 112.6, 56.3, 900.4, proves=False),
    # NVIDIA Ada whitepaper v2.1, 2023 (FP8 with FP16 accumulation)
    "RTX 4090": Peak(660.6, 165.2, 82.6, 0, proves=False),
    "RTX 4080": Peak(389.9, 97.5, 48.7, 0, proves=False),
    "MI355X": Peak(5033, 2516, 0, 10066),  # AMD Instinct MI355X data sheet, 2025
    "MI350X": Peak(4614, 2307, 0, 9228),  # AMD Instinct MI350X data sheet, 2025
    # AMD Instinct MI325X data sheet, 2024; MI300X data sheet, 2023
    **dict.fromkeys(("MI325X", "MI300X"), Peak(2614.9, 1307.4, 653.7, 0)),
    "MI300A": Peak(1961.2, 980.6, 490.3, 0),  # AMD Instinct MI300A data sheet, 2023
}

# Words of a device name that do not make it another part: maker, memory, form factor (VF is the
# virtual function of a whole GPU; AMD's SR-IOV driver makes one of each MI300X). Any other word
# that a row does not have does: a Laptop GPU, a D, a Ti, a MIG slice is not the part itself.
_NO_PART: Final = re.compile(
    r"NVIDIA|AMD|GEFORCE|INSTINCT|TESLA|GPU|\d+GB?|HBM\d[E]?|SXM\d?|OAM|VF|AC|LC|3E|ACTIVE"
)


def part_of(gpu: str | None) -> str:
    """Return the words of a device name that say which part it is, as `PEAKS` has them."""
    words = re.split(r"[\s\-_/()]+", (gpu or "").upper())
    return " ".join(word for word in words if word and not _NO_PART.fullmatch(word))


def peak_of(gpu: str | None) -> Peak | None:
    """Return the peaks of the GPU that a trace names, or None for one that is not listed."""
    return PEAKS.get(part_of(gpu))


def peak_tflops(peak: Peak | None, precision: Precision) -> float | None:
    """Return the dense peak of one precision class in TFLOP/s, None if there is none.

    On GeForce GPUs FP16 may be accumulated in FP16, at a rate that the table does not have.
    """
    if peak is None or (precision is Precision.FP16 and not peak.proves):
        return None
    if precision is Precision.BELOW16:
        return None
    if precision.is_low:
        return (peak.fp8 if precision.is_fp8 else peak.fp4) or None
    high = {
        Precision.BF16: peak.bf16,
        Precision.FP16: peak.bf16,
        Precision.TF32: peak.tf32,
    }
    return high.get(precision) or None
