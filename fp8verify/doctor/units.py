"""Which GPU trains in which low-precision format: its units, and what libraries make of them."""

from __future__ import annotations

from fp8verify.analysis.gpus import multiplies
from fp8verify.doctor.gpus import Gpu
from fp8verify.report.model import Precision

NAMES = {"fp8": "FP8", "fp8_block": "block-scaled FP8", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
_PRECISIONS = {
    "fp8": Precision.FP8,
    "fp8_block": Precision.FP8,
    "mxfp8": Precision.MXFP8,
    "nvfp4": Precision.NVFP4,
}
_NEEDS = {
    "fp8": "NVIDIA compute capability 8.9 or above, or AMD MI300 or above",
    "fp8_block": "NVIDIA compute capability 9.0 or above, or AMD MI300 or above",
    "mxfp8": "NVIDIA compute capability 10.x, or AMD MI350 or above",
    "nvfp4": "NVIDIA compute capability 10.0 or above",
}
# NVIDIA's units are not all: the first compute capability for which Transformer Engine has the
# format, and the first for which it no longer does (pytorch/quantization.py:164-184, TE d0067d0).
_LIBRARY: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "fp8_block": ((9, 0), None),
    "mxfp8": ((10, 0), (12, 0)),
}


def trains_in(gpu: Gpu, fmt: str) -> bool | None:
    """Return whether a GPU can train in a format; None where that is not known."""
    name = f"{gpu.name} {gpu.capability or ''}"
    has_units = multiplies(name, gpu.capability, _PRECISIONS[fmt])
    found = _capability(gpu.capability)
    if not has_units or found is None or fmt not in _LIBRARY:
        return has_units
    first, end = _LIBRARY[fmt]
    return found >= first and (end is None or found < end)


def needs(fmt: str) -> str:
    """Say what a format needs."""
    return _NEEDS[fmt]


def _capability(text: str | None) -> tuple[int, int] | None:
    major, _, minor = (text or "").partition(".")
    if major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return None
