"""Findings on the scales and histories that Transformer Engine keeps under delayed scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import Kept, kept_scales
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import RecipeRecord
from fp8verify.report.model import Finding
from fp8verify.verdict.findings.numerics.kept_scales import (
    and_others,
    better_scaling,
    layers_of,
    name_of,
    recipes_of,
)
from fp8verify.verdict.findings.numerics.tensors import is_clipped, measured_rows
from fp8verify.verdict.findings_table import finding

TOLERANCE_OCTAVES = 0.02
SPIKE = 4.0  # ours: times the largest amax that the history held before
LEAST_HISTORY = 4
CLIPPED = 2.0  # ours: a value clipped by half; less is hard to tell from rounding
LONG_HISTORY = 16  # TE's DelayedScaling keeps 1024 by default, Megatron 1


def scale_stuck(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Scales that stay while their amax asks for others."""
    stuck = [kept for kept in kept_scales(facts.rank.numerics) if _is_stuck(kept)]
    if stuck:
        first = stuck[0]
        wants = first.expected()
        should = "and its amax never enters the history"
        if wants:
            should = f"while its amax asks for {wants:.4g}"
        yield finding(
            "scale-stuck",
            name=name_of(first),
            scale=first.scale,
            should=should,
            others=and_others(stuck),
            layers=layers_of(stuck),
        )


def _is_stuck(kept: Kept) -> bool:
    # Transformer Engine before 1.8 computed scales anew only every so many steps.
    if not kept.frozen or (kept.recipe.interval or 1) > 1:
        return False
    if not kept.slot.largest_amax:  # recorded, and never rolled into the history
        return bool(kept.slot.staged and kept.slot.staged_before)
    return _is_off(kept, before=False) and _is_off(kept, before=True)


def _is_off(kept: Kept, *, before: bool) -> bool:
    """Whether the scale is not what the recipe makes of the history, at an end of the window.

    A history just loses its oldest step: one end alone may be explained by that.
    """
    wants = kept.expected(before=before)
    if not wants or not 0 < kept.scale < math.inf:
        return False
    return abs(math.log2(kept.scale) - math.log2(wants)) > TOLERANCE_OCTAVES


def amax_spikes(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A newest amax far above all that the history held."""
    found = [kept for kept in kept_scales(facts.rank.numerics) if _spike(kept) >= SPIKE]
    if found:
        worst = max(found, key=_spike)
        yield finding(
            "amax-spike",
            name=name_of(worst),
            times=_spike(worst),
            threshold=SPIKE,
            others=and_others(found),
            remedy=better_scaling(worst),
            layers=layers_of(found),
        )


def _spike(kept: Kept) -> float:
    """Return how many times the largest amax of the steps before the newest one is."""
    earlier = [amax for amax in kept.slot.amax[:-1] if amax]
    if len(earlier) < LEAST_HISTORY or not kept.newest:
        return 0.0
    return kept.newest / max(earlier)


def delayed_saturates(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """An amax that the scale of the step before the window clipped, if nothing else tells of it."""
    measured = {(row.layer, row.tensor) for row in measured_rows(facts) if is_clipped(row)}
    found = [
        kept
        for kept in kept_scales(facts.rank.numerics)
        if _clipped(kept) >= CLIPPED
        and (kept.slot.layer, kept.slot.tensor) not in measured
        and not (_spike(kept) >= SPIKE and kept.first_of_window == kept.newest)
    ]
    if found:
        worst = max(found, key=_clipped)
        margin = worst.recipe.margin or 0
        yield finding(
            "saturates",
            "delayed",
            name=name_of(worst),
            times=_clipped(worst),
            threshold=CLIPPED,
            others=and_others(found),
            remedy=better_scaling(worst),
            margin=margin,
            more=margin + 1,
            layers=layers_of(found),
        )


def _clipped(kept: Kept) -> float:
    """Return how many times what its scale can hold the first amax of the window was."""
    amax, scale = kept.first_of_window, kept.slot.scale_before
    if not amax or scale is None or not 0 < float(scale) < math.inf:
        return 0.0
    return amax * float(scale) / kept.slot.largest


def history_unused(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Histories of amax that the algorithm does not look at."""
    for recipe in recipes_of(facts):
        unused = _unused(recipe)
        if unused is not None:
            yield finding("history-unused", what=unused, algorithm=recipe.algorithm)


def _unused(recipe: RecipeRecord) -> str | None:
    """Say what of a recipe's history is for nothing, None if nothing is."""
    if recipe.name != "DelayedScaling" or recipe.history_length is None:
        return None
    if recipe.algorithm == "most_recent" and recipe.history_length > LONG_HISTORY:
        return f"{recipe.history_length} steps of amax are kept and only the newest is used"
    if recipe.algorithm == "max" and recipe.history_length == 1:
        return "the largest amax of a history of one step is its only one"
    return None
