"""What one linear-like module says about the number format of each of its GEMMs."""

from __future__ import annotations

from typing import NamedTuple

LEGS = ("fprop", "dgrad", "wgrad")
HIGH = "high_precision"


class Promise(NamedTuple):
    """What a module would compute.

    Attributes:
        state: "fp8", "fp8_emulated", "fp8_module_off", "fp4", "fp4_emulated", "high_precision" or
            "unknown".
        recipe: the casts of each GEMM, or the recipe's name.
        formats: the format of each leg, or "high_precision"; no leg where it is not known.
        scaling: how the recipe scales, in words for the reader.
        gradients: the element type of gradients, where the recipe says it.
    """

    state: str
    recipe: str | None = None
    formats: dict[str, str] = {}  # noqa: RUF012  (never changed)
    scaling: str | None = None
    gradients: str | None = None


HIGH_PRECISION = Promise("high_precision")
UNKNOWN = Promise("unknown")


def every_leg(name: str, *, high: tuple[str, ...] = ()) -> dict[str, str]:
    """Return one format for all legs but those of `high`."""
    return {leg: HIGH if leg in high else name for leg in LEGS}


def state_of(formats: dict[str, str], *, emulated: bool = False) -> str:
    """Return the state of a module by the formats of its legs."""
    low = [name for name in formats.values() if name != HIGH]
    if not low:
        return "high_precision"
    state = "fp8" if any(name.endswith(("fp8", "fp8_block")) for name in low) else "fp4"
    return f"{state}_emulated" if emulated else state
