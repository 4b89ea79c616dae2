"""Which hardware multiplies in which number format.

Where it does not, a GEMM "in FP8" is a kernel that converts its operands first. What no row says
is not known, and None.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from fp8verify.report.model import Precision
from fp8verify.text import lazy_pattern

_EVERYWHERE: Final = frozenset({Precision.FP32, Precision.FP64})
_FP4: Final = frozenset({Precision.NVFP4, Precision.MXFP4, Precision.FP4})

# NVIDIA: the lowest compute capability with matrix units for the format (PTX ISA 9.0: mma, wgmma,
# tcgen05.mma and mma with .block_scale; CUDA C++ Programming Guide, "Compute Capabilities").
_NVIDIA: Final[dict[Precision, tuple[int, int]]] = {
    Precision.FP16: (7, 0),
    Precision.INT8: (7, 2),
    Precision.BF16: (8, 0),
    Precision.TF32: (8, 0),
    Precision.FP8: (8, 9),
    Precision.MXFP8: (10, 0),
    Precision.NVFP4: (10, 0),
    Precision.MXFP4: (10, 0),
    Precision.FP4: (10, 0),
}


class Family(NamedTuple):
    """GPUs of one instruction set: names that tell it, formats of its matrix units, source."""

    name: re.Pattern[str]
    capability: str | None
    formats: frozenset[Precision]
    evidence: str


_CDNA1_2: Final = frozenset({Precision.FP16, Precision.BF16, Precision.INT8})
_CDNA3: Final = _CDNA1_2 | {Precision.FP8, Precision.TF32}
_CDNA4: Final = _CDNA1_2 | {Precision.FP8, Precision.MXFP8, Precision.MXFP4, Precision.FP4}
_FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        lazy_pattern(r"MI35[05]X|GFX950"), "9.5", _CDNA4,
        "AMD CDNA 4 ISA: v_mfma_scale_f32_*_f8f6f4; no xf32 any more",
    ),
    Family(
        lazy_pattern(r"MI3(?:00[XA]|08X|25X)|GFX942"), "9.4", _CDNA3,
        "AMD CDNA 3 ISA: v_mfma_f32_*_fp8_fp8 (the FNUZ encodings), xf32",
    ),
    Family(
        lazy_pattern(r"MI2[15]0X?|GFX90A"), None, _CDNA1_2,
        "AMD CDNA 2 ISA: no FP8 instructions",
    ),
    Family(
        lazy_pattern(r"MI100|GFX908"), None, _CDNA1_2,
        "AMD CDNA 1 ISA: no FP8 instructions",
    ),
    Family(
        lazy_pattern(r"DATA CENTER GPU MAX"), None,
        frozenset({Precision.FP16, Precision.BF16, Precision.TF32, Precision.INT8}),
        "Intel oneAPI GPU optimization guide: XMX of Xe-HPC, no FP8",
    ),
)  # fmt: skip
_NVIDIA_NAME: Final = lazy_pattern(
    r"\b(?:NVIDIA|TESLA|GEFORCE|QUADRO)\b|^(?:[ABHL]\d{1,3}|GB?H?\d00)\b"
)
# Names of libraries' GEMMs that tell what they were compiled for; those of Hopper use wgmma, which
# sm_90a alone has (PTX ISA 9.0: wgmma.mma_async).
_FOR_NVIDIA: Final = lazy_pattern(
    r"(?:void )?(?:(?P<own>nvjet_|deep_gemm::)sm(?P<a>\d{2,3})|(?:cutlass3x_)?sm(?P<b>\d{2,3}))_"
)
_FOR_AMD: Final = lazy_pattern(r"(?:Custom_)?Cijk_|_ZN5aiter|aiter::")
_HOPPER: Final = (9, 0)
_AMD_NAME: Final = lazy_pattern(r"\b(?:AMD|RADEON|INSTINCT)\b|^MI\d{2,3}")


def multiplies(
    gpu: str | None, compute_capability: str | None, precision: Precision
) -> bool | None:
    """Say whether a GPU has matrix units for a format; None where no source says so.

    `compute_capability` is what PyTorch reports: "9.0" is a Hopper of NVIDIA's, and a CDNA 2 of
    AMD's, so that without a name it tells nothing.
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
    """Return the row of a GPU that is not NVIDIA's, by its name, else by what HIP reports."""
    name = (gpu or "").upper()
    for row in _FAMILIES:
        if row.name.search(name) or (
            row.capability == compute_capability and _AMD_NAME.search(name)
        ):
            return row
    return None


def fp8_encoding(gpu: str | None, compute_capability: str | None) -> Literal["ocp", "fnuz"] | None:
    """Return the FP8 encoding that a GPU multiplies, None where it has none or is not known.

    MI300 multiplies e4m3fnuz and e5m2fnuz; tensors of torch.float8_e4m3fn are converted there.
    """
    if not multiplies(gpu, compute_capability, Precision.FP8):
        return None
    found = family(gpu, compute_capability)
    return "fnuz" if found is not None and found.formats is _CDNA3 else "ocp"


def runs_elsewhere(name: str, gpu: str | None, compute_capability: str | None) -> bool:
    """Whether the name of a kernel says that it was compiled for other GPUs than this one."""
    found = _FOR_NVIDIA.match(name)
    if _AMD_NAME.search((gpu or "").upper()):
        return found is not None
    if not _NVIDIA_NAME.search((gpu or "").upper()):
        return False
    capability = _capability(compute_capability)
    if found is None or capability is None:
        return _FOR_AMD.match(name) is not None
    digits = found["a"] or found["b"]
    compiled_for = (int(digits[:-1]), int(digits[-1]))
    only_there = compiled_for == _HOPPER and found["own"] is not None
    return compiled_for[0] > capability[0] or (only_there and compiled_for != capability)


def _capability(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text or "")
    return (int(match[1]), int(match[2])) if match else None
