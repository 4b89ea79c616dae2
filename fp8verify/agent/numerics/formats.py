"""The FP8 formats: their limits, and what their bytes mean."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Format(NamedTuple):
    """An FP8 format.

    Attributes:
        name: "e4m3" or "e5m2", with "fnuz" for AMD's of before MI350.
        dtype: torch's type.
        largest: its largest finite value.
        clipped: what lies above it is clipped and not just rounded to `largest`.
        normal: the byte of its smallest normal value.
        emax: exponent of `largest`, which MX scales leave out.
        zeros: bytes that mean zero.
        tops: bytes of `largest`, with both signs.
        not_numbers: bytes that mean NaN or infinity.
    """

    name: str
    dtype: torch.dtype
    largest: float
    clipped: float
    normal: int
    emax: int
    zeros: tuple[int, ...]
    tops: tuple[int, ...]
    not_numbers: tuple[int, ...]


def _format(
    name: str,
    dtype: torch.dtype,
    tops: tuple[int, ...],
    not_numbers: tuple[int, ...],
    zeros: tuple[int, ...] = (0x00, 0x80),
) -> Format:
    found = torch.finfo(dtype)
    emax = math.frexp(found.max)[1] - 1
    half_step = found.eps * 2.0**emax / 2
    normal = round(1 / found.eps)  # all bits of the mantissa zero, the exponent one
    return Format(
        name, dtype, found.max, found.max + half_step, normal, emax, zeros, tops, not_numbers
    )


# Bytes: OCP 8-bit floating point specification 1.0, tables 1 and 2; fnuz: arXiv 2206.02915.
E4M3 = _format("e4m3", torch.float8_e4m3fn, (0x7E, 0xFE), (0x7F, 0xFF))
E5M2 = _format(
    "e5m2",
    torch.float8_e5m2,
    (0x7B, 0xFB),
    (0x7C, 0x7D, 0x7E, 0x7F, 0xFC, 0xFD, 0xFE, 0xFF),
)
FORMATS: dict[torch.dtype, Format] = {
    found.dtype: found
    for found in (
        E4M3,
        E5M2,
        _format("e4m3fnuz", torch.float8_e4m3fnuz, (0x7F, 0xFF), (0x80,), (0x00,)),
        _format("e5m2fnuz", torch.float8_e5m2fnuz, (0x7F, 0xFF), (0x80,), (0x00,)),
    )
}
