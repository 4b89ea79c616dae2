"""The format that a log's words promise: of all legs, of single legs, and of how many layers."""

from __future__ import annotations

import re

from fp8verify.text import lazy_pattern

HIGH_PRECISION = "high_precision"
_FORMATS = (
    ("nvfp4", lazy_pattern(r"nv[- ]?fp4|nvfloat4", re.IGNORECASE)),
    ("mxfp4", lazy_pattern(r"mx[- ]?fp4", re.IGNORECASE)),
    ("mxfp8", lazy_pattern(r"mx[- ]?fp8|\bMX", re.IGNORECASE)),
    ("fp4", lazy_pattern(r"(?:fp|float)[- ]?4", re.IGNORECASE)),
    ("fp8", lazy_pattern(r"(?:fp|float)[- ]?8", re.IGNORECASE)),
)
_RECIPE = lazy_pattern(
    r"\brecipe(?:_name)?['\"]?\s*[=: ]\s*['\"]?(?P<named>\w+)"
    r"|\b(?P<known>row-?wise(?:_with_gw_hp)?|tensor-?wise|block-?wise|delayed|"
    r"mxfp[48]_\w+|nvfp4_\w+)\b",
    re.IGNORECASE,
)
_ALL_GATHER = lazy_pattern(
    r"all[-_ ]?gather\w*(?: enabled)?\s*[=:]\s*\{?(True|False)", re.IGNORECASE
)
_COUNTS = (
    lazy_pattern(r"\b(?P<converted>\d{1,7}) Float8Linear modules, (?P<total>\d{1,7}) total"),
    lazy_pattern(
        r"\b(?:convert|swapp|replac|wrapp)(?:ed|ing) (?P<converted>\d{1,7})"
        r"(?:\s*(?:/|of|out of)\s*(?P<total>\d{1,7}))?(?= (?:[\w.]+ ){0,2}(?:layers?|modules?|"
        r"linears?)\b)",
        re.IGNORECASE,
    ),
    lazy_pattern(
        r"\b(?P<converted>\d{1,7})\s*(?:/|of|out of)\s*(?P<total>\d{1,7}) "
        r"(?:[\w.]+ ){0,2}(?:layers|modules|linears)\b",
        re.IGNORECASE,
    ),
)


def format_of(text: str, recipe: str | None = None) -> str | None:
    """Return the narrowest format that a recipe or, failing that, a line names."""
    for words in (recipe or "", text):
        for name, pattern in _FORMATS:
            if pattern.search(words):
                return name
    return None


def recipe_of(text: str) -> str | None:
    """Return the recipe that a line names in words of its own."""
    found = _RECIPE.search(text)
    return (found["named"] or found["known"]) if found else None


def all_gather_of(text: str) -> bool | None:
    """Return whether a line says that FSDP gathers the weights in FP8; None where it does not."""
    found = _ALL_GATHER.search(text)
    return found[1].lower() == "true" if found else None


def legs_of(format_: str | None, recipe: str | None) -> dict[str, str]:
    """Return the format of each leg where the recipe's name tells them apart.

    torchao's rowwise_with_gw_hp (float8/config.py) and mxfp8_rceil_wgrad_with_hp
    (prototype/moe_training/config.py) compute the gradient of the weights in high precision.
    """
    name = (recipe or "").lower()
    if format_ is None or not ("gw_hp" in name or "wgrad_with_hp" in name):
        return {}
    return {"fprop": format_, "dgrad": format_, "wgrad": HIGH_PRECISION}


def counts_of(text: str) -> tuple[int | None, int | None]:
    """Return how many layers a line says were converted, and of how many."""
    for pattern in _COUNTS:
        if found := pattern.search(text):
            return int(found["converted"]), int(found["total"]) if found["total"] else None
    return None, None
