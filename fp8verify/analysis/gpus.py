"""What GPUs can do: formats of their matrix units, dense peaks, and sizes too small for FP8.

Where a GPU cannot multiply a format, a GEMM "in FP8" is a kernel that converts its operands first.
What no row says is not known, and None.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Precision

_EVERYWHERE: Final = frozenset({Precision.FP32, Precision.FP64})


class Capability(NamedTuple):
    """A compute capability of NVIDIA's: 9.0 is Hopper."""

    major: int
    minor: int


# NVIDIA: the lowest compute capability with matrix units for the format (PTX ISA 9.0: mma, wgmma,
# tcgen05.mma and mma with .block_scale; CUDA C++ Programming Guide, "Compute Capabilities").
_NVIDIA: Final[dict[Precision, Capability]] = {
    Precision.FP16: Capability(7, 0),
    Precision.INT8: Capability(7, 2),
    Precision.BF16: Capability(8, 0),
    Precision.TF32: Capability(8, 0),
    Precision.FP8: Capability(8, 9),
    Precision.MXFP8: Capability(10, 0),
    Precision.MXFP6: Capability(10, 0),
    Precision.NVFP4: Capability(10, 0),
    Precision.MXFP4: Capability(10, 0),
    Precision.FP4: Capability(10, 0),
    Precision.BELOW16: Capability(8, 9),  # the lowest of what it may be
}


class Family(NamedTuple):
    """GPUs of one instruction set: their names, and the formats of their matrix units."""

    name: re.Pattern[str]
    capability: str | None
    formats: frozenset[Precision]


_CDNA1_2: Final = frozenset(
    {
        Precision.FP16,
        Precision.BF16,
        Precision.INT8,
    }
)
_CDNA3: Final = _CDNA1_2 | {
    Precision.FP8,
    Precision.BELOW16,
    Precision.TF32,
}
_MX: Final = frozenset(
    {
        Precision.MXFP8,
        Precision.MXFP6,
        Precision.MXFP4,
        Precision.FP4,
    }
)
_CDNA4: Final = _CDNA3 - {Precision.TF32} | _MX
_FAMILIES: Final[tuple[Family, ...]] = (
    # AMD CDNA 4 ISA: v_mfma_scale_f32_*_f8f6f4; no xf32 any more
    Family(lazy_pattern(r"MI35[05]X|GFX950"), "9.5", _CDNA4),
    # AMD CDNA 3 ISA: v_mfma_f32_*_fp8_fp8 (the FNUZ encodings), xf32
    Family(lazy_pattern(r"MI3(?:00[XA]|08X|25X)|GFX942"), "9.4", _CDNA3),
    # AMD CDNA 1 and CDNA 2 ISA: no FP8 instructions
    Family(lazy_pattern(r"MI2[15]0X?|GFX90A|MI100|GFX908"), None, _CDNA1_2),
    # Intel oneAPI GPU optimization guide: XMX of Xe-HPC, no FP8
    Family(lazy_pattern(r"DATA CENTER GPU MAX"), None, _CDNA1_2 | {Precision.TF32}),
)
_NVIDIA_NAME: Final = lazy_pattern(
    r"\b(?:NVIDIA|TESLA|GEFORCE|QUADRO)\b|^(?:[ABHL]\d{1,3}|GB?H?\d00)\b"
)
# Names of libraries' GEMMs that tell what they were compiled for; those of Hopper use wgmma, which
# sm_90a alone has (PTX ISA 9.0: wgmma.mma_async).
_FOR_NVIDIA: Final = lazy_pattern(
    r"(?:void )?(?:(?P<own>nvjet_|deep_gemm::)|(?:cutlass3x_)?)sm(?P<major>\d{1,2})(?P<minor>\d)_"
)
_XMMA: Final = lazy_pattern(r"(?P<arch>sm(?P<major>\d{1,2})(?P<minor>\d))_xmma_")
_FOR_AMD: Final = lazy_pattern(r"(?:Custom_)?Cijk_|_ZN5aiter|aiter::")
_HOPPER: Final = Capability(9, 0)
_AMD_NAME: Final = lazy_pattern(r"\b(?:AMD|RADEON|INSTINCT)\b|^MI\d{2,3}")


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
    is_everywhere = precision in _EVERYWHERE
    found = family(gpu, compute_capability)
    if found is not None:
        return is_everywhere or precision in found.formats
    capability = _capability(compute_capability)
    if not _NVIDIA_NAME.search(name) or capability is None:
        return None
    return is_everywhere or capability >= _NVIDIA[precision]


def family(gpu: str | None, compute_capability: str | None) -> Family | None:
    """Return the row of a GPU of another vendor, by its name, else by HIP's architecture."""
    name = (gpu or "").upper()
    capability = compute_capability if _AMD_NAME.search(name) else ""
    for row in _FAMILIES:
        if row.name.search(name) or row.capability == capability:
            return row
    return None


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
    device = (gpu or "").upper()
    if _AMD_NAME.search(device):
        return found is not None
    if not _NVIDIA_NAME.search(device):
        return False
    capability = _capability(compute_capability)
    if found is None or capability is None:
        return _FOR_AMD.match(name) is not None
    compiled_for = _compiled_for(found)
    only_there = compiled_for == _HOPPER and found["own"] is not None
    if only_there and compiled_for != capability:
        return True
    return compiled_for.major > capability.major


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
    return found["arch"] if _compiled_for(found) < capability else None


def _compiled_for(found: re.Match[str]) -> Capability:
    """Return what the name of a kernel, as matched, says that it was compiled for."""
    return Capability(
        major=int(found["major"]),
        minor=int(found["minor"]),
    )


def _capability(text: str | None) -> Capability | None:
    """Return a capability that a trace gives as text, as "9.0"."""
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text or "")
    if match is None:
        return None
    return Capability(
        major=int(match[1]),
        minor=int(match[2]),
    )


class Peak(NamedTuple):
    """Dense peak rates in TFLOP/s (10^12 a second, no sparsity); 0 if the unit is missing.

    Each is the highest rate of the hardware in that format. `proves` is whether a GEMM that beats
    `bf16` must have read operands of fewer bits.
    """

    fp8: float
    bf16: float
    tf32: float
    fp4: float = 0
    proves: bool = True


# By the words of the device name that a trace gives, without maker, memory and form factor. Data
# sheets that quote sparse rates are halved here. GeForce GPUs multiply FP8 and FP16 with FP16
# accumulation at twice the rate that they do with FP32 (on an RTX 5090 torch._scaled_mm was
# measured at 706 to 739 TFLOP/s, against 419 listed for FP32 accumulation), so there a higher
# rate than that of BF16 proves nothing.
# NVIDIA GH200 and H200 datasheets, 2024; H100 whitepaper, 2023 (SXM5); H800 product brief
_HOPPER_SXM: Final = Peak(
    fp8=1979,
    bf16=989.4,
    tf32=494.7,
)
# NVIDIA H200 and H100 datasheets, 2024 (NVL)
_HOPPER_NVL: Final = Peak(
    fp8=1671,
    bf16=835.5,
    tf32=417.5,
)
# NVIDIA H100 whitepaper, 2023 (PCIe); H800 PCIe product brief
_HOPPER_PCIE: Final = Peak(
    fp8=1513,
    bf16=756,
    tf32=378,
)
# NVIDIA A100 datasheet, 2021 (SXM and PCIe); A800 product brief
_AMPERE: Final = Peak(
    fp8=0,
    bf16=312,
    tf32=156,
)
# AMD Instinct MI325X data sheet, 2024; MI300X data sheet, 2023
_MI300X: Final = Peak(
    fp8=2614.9,
    bf16=1307.4,
    tf32=653.7,
)
PEAKS: Final[dict[str, Peak]] = {
    # NVIDIA Blackwell Ultra GB300 datasheet, 2025
    "GB300": Peak(
        fp8=5000,
        bf16=2500,
        tf32=1250,
        fp4=15000,
    ),
    # NVIDIA DGX B300 datasheet, 2025, per GPU
    "B300": Peak(
        fp8=4500,
        bf16=2250,
        tf32=1100,
        fp4=14000,
    ),
    # NVIDIA GB200 NVL72 datasheet, 2024, per GPU
    "GB200": Peak(
        fp8=5000,
        bf16=2500,
        tf32=1250,
        fp4=10000,
    ),
    # NVIDIA DGX B200 datasheet, 2024, per GPU
    "B200": Peak(
        fp8=4500,
        bf16=2250,
        tf32=1100,
        fp4=9000,
    ),
    "GH200": _HOPPER_SXM,
    "H200": _HOPPER_SXM,
    "H100": _HOPPER_SXM,
    "H800": _HOPPER_SXM,
    "H200 NVL": _HOPPER_NVL,
    "H100 NVL": _HOPPER_NVL,
    "H100 PCIE": _HOPPER_PCIE,
    "H800 PCIE": _HOPPER_PCIE,
    # NVIDIA H20 product brief, 2024
    "H20": Peak(
        fp8=296,
        bf16=148,
        tf32=74,
    ),
    "A100": _AMPERE,
    "A100 PCIE": _AMPERE,
    "A100 PG509 200": _AMPERE,
    "A800": _AMPERE,
    "A800 PCIE": _AMPERE,
    # NVIDIA L40S datasheet, 2023
    "L40S": Peak(
        fp8=733,
        bf16=362.05,
        tf32=183,
    ),
    # NVIDIA L40 datasheet, 2023
    "L40": Peak(
        fp8=362,
        bf16=181.05,
        tf32=90.5,
    ),
    # NVIDIA L20 product brief, 2024
    "L20": Peak(
        fp8=239,
        bf16=119.5,
        tf32=59.8,
    ),
    # NVIDIA L4 datasheet, 2023 (sparse rates halved)
    "L4": Peak(
        fp8=242.5,
        bf16=121,
        tf32=60,
    ),
    # NVIDIA RTX 6000 Ada datasheet, 2023 (sparse rates halved)
    "RTX 6000 ADA GENERATION": Peak(
        fp8=728.5,
        bf16=364.2,
        tf32=182.1,
    ),
    # NVIDIA RTX PRO Blackwell whitepaper, 2025
    "RTX PRO 6000 BLACKWELL WORKSTATION EDITION": Peak(
        fp8=1007.6,
        bf16=503.8,
        tf32=251.9,
        fp4=2015.2,
    ),
    "RTX PRO 6000 BLACKWELL MAX Q WORKSTATION EDITION": Peak(
        fp8=877.9,
        bf16=438.9,
        tf32=219.5,
        fp4=1755.7,
    ),
    # NVIDIA RTX PRO 6000 Server Edition datasheet, 2025 (rounded up)
    "RTX PRO 6000 BLACKWELL SERVER EDITION": Peak(
        fp8=1000,
        bf16=500,
        tf32=250,
        fp4=2000,
    ),
    # NVIDIA RTX Blackwell whitepaper, 2025 (FP8 with FP16 accumulation)
    "RTX 5090": Peak(
        fp8=838,
        bf16=209.5,
        tf32=104.8,
        fp4=1676,
        proves=False,
    ),
    "RTX 5080": Peak(
        fp8=450.2,
        bf16=112.6,
        tf32=56.3,
        fp4=900.4,
        proves=False,
    ),
    # NVIDIA Ada whitepaper v2.1, 2023 (FP8 with FP16 accumulation)
    "RTX 4090": Peak(
        fp8=660.6,
        bf16=165.2,
        tf32=82.6,
        proves=False,
    ),
    "RTX 4080": Peak(
        fp8=389.9,
        bf16=97.5,
        tf32=48.7,
        proves=False,
    ),
    # AMD Instinct MI355X data sheet, 2025
    "MI355X": Peak(
        fp8=5033,
        bf16=2516,
        tf32=0,
        fp4=10066,
    ),
    # AMD Instinct MI350X data sheet, 2025
    "MI350X": Peak(
        fp8=4614,
        bf16=2307,
        tf32=0,
        fp4=9228,
    ),
    "MI325X": _MI300X,
    "MI300X": _MI300X,
    # AMD Instinct MI300A data sheet, 2023
    "MI300A": Peak(
        fp8=1961.2,
        bf16=980.6,
        tf32=490.3,
    ),
}

# Words of a device name that do not make it another part: maker, memory, form factor (VF is the
# virtual function of a whole GPU; AMD's SR-IOV driver makes one of each MI300X). Any other word
# that a row does not have does: a Laptop GPU, a D, a Ti, a MIG slice is not the part itself.
_NO_PART: Final = lazy_pattern(
    r"NVIDIA|AMD|GEFORCE|INSTINCT|TESLA|GPU|\d+GB?|HBM\d[E]?|SXM\d?|OAM|VF|AC|LC|3E|ACTIVE"
)


def part_of(gpu: str | None) -> str:
    """Return the words of a device name that say which part it is, as `PEAKS` has them."""
    words = []
    for word in re.split(r"[\s\-_/()]+", (gpu or "").upper()):
        if word and not _NO_PART.fullmatch(word):
            words.append(word)
    return " ".join(words)


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
    if precision.is_fp8:
        return peak.fp8 or None
    if precision.is_low:
        return peak.fp4 or None
    high = {
        Precision.BF16: peak.bf16,
        Precision.FP16: peak.bf16,
        Precision.TF32: peak.tf32,
    }
    return high.get(precision) or None
