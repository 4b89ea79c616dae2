"""Whether a layer is large enough that FP8 pays, by what others and we have measured."""

from __future__ import annotations

from fp8verify.analysis.gpus import SMALL_SIDE


def too_small(n: int, k: int, recipe: str | None) -> bool:
    """Return whether a layer with N outputs and K inputs is expected to lose by FP8.

    torchao's thresholds for its own recipes (float8_linear_utils.py, `_auto_filter_for_recipe`,
    measured on H100), ours for all others.
    """
    if recipe in ("rowwise", "rowwise_with_gw_hp"):
        return n <= 2048 or k <= 1024 or (n <= 4096 and k <= 2048)
    if recipe == "tensorwise":
        return (k <= 4096 and n <= 1024) or min(n, k) < SMALL_SIDE
    return min(n, k) < SMALL_SIDE
