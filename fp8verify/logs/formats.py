"""The formats that names and texts speak of."""

from __future__ import annotations

import re

from fp8verify.logs.statements import HIGH_PRECISION
from fp8verify.patterns import lazy_pattern

# The narrowest first: a text may name several.
_FORMATS = (
    ("nvfp4", lazy_pattern(r"nv[- ]?fp4|nvfloat4", re.IGNORECASE)),
    ("mxfp4", lazy_pattern(r"mx[- ]?fp4", re.IGNORECASE)),
    ("mxfp8", lazy_pattern(r"mx[- ]?fp8|\bMX", re.IGNORECASE)),
    ("fp4", lazy_pattern(r"(?:fp|float)[- ]?4", re.IGNORECASE)),
    ("fp8", lazy_pattern(r"(?:fp|float)[- ]?8", re.IGNORECASE)),
)
_HIGH = lazy_pattern(r"(?:bf16|bfloat16|fp16|fp32|high|none$)", re.IGNORECASE)


def format_of(text: str, recipe: str | None = None) -> str | None:
    """Return the narrowest format that a recipe or, failing that, a text names."""
    for said in (recipe or "", text):
        for name, pattern in _FORMATS:
            if pattern.search(said):
                return name
    return None


def format_or_high(name: str) -> str | None:
    """Return the format in the name of a type or configuration, high precision included."""
    low = format_of(name)
    if low is None and _HIGH.match(name):
        return HIGH_PRECISION
    return low
