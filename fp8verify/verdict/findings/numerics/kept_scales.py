"""The recipes and scales that a run keeps from step to step, and how findings name them."""

from __future__ import annotations

from collections.abc import Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import Kept
from fp8verify.capture.numerics import RecipeRecord
from fp8verify.text import listed
from fp8verify.verdict.findings.numerics.tensors import SHOWN

BETTER_SCALING = "Raise margin by one, lengthen amax_history_len, or use current scaling"


def recipes_of(facts: RankFacts) -> list[RecipeRecord]:
    """Return the recipes of a rank's windows, each once."""
    numerics = facts.rank.numerics
    windows = numerics.record.windows if numerics is not None else ()
    return list(dict.fromkeys(recipe for window in windows for recipe in window.recipes))


def and_others(kept: Sequence[Kept]) -> str:
    """Name the scales after the one that a message is about."""
    names = list(dict.fromkeys(map(name_of, kept)))
    return f"; also {listed(names[1:], SHOWN)}" if len(names) > 1 else ""


def layers_of(kept: Sequence[Kept]) -> tuple[str, ...]:
    """Return the layers of some scales, each once."""
    return tuple(dict.fromkeys(one.slot.layer for one in kept))


def name_of(kept: Kept) -> str:
    """Return how messages name the tensor of a scale."""
    gemm = f" (GEMM {kept.slot.gemm + 1})" if kept.slot.gemm else ""
    return f"the {kept.slot.tensor} of {kept.slot.layer}{gemm}"


def better_scaling(kept: Kept) -> str:
    """Say what suits values that jump better than the scale at hand."""
    interval = kept.recipe.interval or 1
    if interval > 1:
        return f"{BETTER_SCALING}; interval is {interval}: Transformer Engine before 1.8 obeys it"
    return BETTER_SCALING
