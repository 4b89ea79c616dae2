"""What the collectives of a rank moved."""

from __future__ import annotations

from collections import defaultdict

from fp8verify.trace import Trace

# NCCL has no 8-bit float that FSDP2 uses: torchao's FP8 weights travel as bytes (measured on an
# H200, torch 2.11, torchao 0.17).
_EIGHT_BIT = ("Byte", "Char", "Float8_e4m3fn", "Float8_e5m2")
_SCALARS = 4096
_GATHERS = ("allgather", "_allgather_base", "all_gather")


def all_gather_elements(trace: Trace) -> dict[str, int]:
    """Return the elements that all-gathers sent from this rank, by NCCL's element type."""
    elements: dict[str, int] = defaultdict(int)
    for index in trace.kernels.collective:
        if index >= 0:
            collective = trace.collectives[index]
            if collective.name.lower().startswith(_GATHERS):
                elements[collective.dtype] += collective.in_elements
    return dict(elements)


def gathers_weights(elements: dict[str, int]) -> bool:
    """Whether any all-gather of more than scalars ran."""
    return any(count > _SCALARS for count in elements.values())


def gathers_fp8(elements: dict[str, int]) -> bool:
    """Whether eight-bit elements were gathered."""
    return any(dtype in _EIGHT_BIT for dtype in elements)
