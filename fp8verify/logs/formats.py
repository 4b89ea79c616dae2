"""The formats that names and texts speak of."""

from __future__ import annotations

import re

from fp8verify.logs.statements import HIGH_PRECISION

# The narrowest first: a text may name several.
_FORMATS = {
    "nvfp4": re.compile(r"(?i)nv[- ]?fp4|nvfloat4"),
    "mxfp4": re.compile(r"(?i)mx[- ]?fp4"),
    "mxfp8": re.compile(r"(?i)mx[- ]?fp8|\bMX"),
    "fp4": re.compile(r"(?i)(?:fp|float)[- ]?4"),
    "fp8": re.compile(r"(?i)(?:fp|float)[- ]?8"),
}
_HIGH = re.compile(r"(?i)bf16|bfloat16|fp16|fp32|high|none$")


def format_of(text: str, recipe: str | None = None) -> str | None:
    """Return the narrowest format that a recipe or, failing that, a text names."""
    if recipe is not None:
        of_recipe = _narrowest_in(recipe)
        if of_recipe is not None:
            return of_recipe
    return _narrowest_in(text)


def _narrowest_in(text: str) -> str | None:
    for name, pattern in _FORMATS.items():
        if pattern.search(text):
            return name
    return None


def format_or_high(name: str) -> str | None:
    """Return the format in the name of a type or configuration, high precision included."""
    low = format_of(name)
    if low is None and _HIGH.match(name):
        return HIGH_PRECISION
    return low
