"""What the blocks and layers of a model gain together, each as often as the model has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fp8verify.doctor.probes import Use
from fp8verify.doctor.timings import BF16, Gain, Measured, gain_of, total_saved

Uses = Sequence[tuple[Measured, Use]]


class WholeModel(NamedTuple):
    """The gain of a model by its fastest recipe.

    Attributes:
        recipe: its name.
        layers_us: the time in BF16 of the linear layers.
        gain: how these gain, casts included.
        step_us: the time in BF16 of all that was measured, attention and norms included.
        saved_us: what the recipe saves of it.
    """

    recipe: str
    layers_us: float
    gain: Gain
    step_us: float
    saved_us: float


def whole_model(uses: Uses) -> WholeModel | None:
    """Return what a model gains; None where no recipe ran on all of it, or there is no model."""
    of_model = [(one, use) for one, use in uses if use.repeats]
    recipes = dict.fromkeys(name for one, _ in of_model for name in one.recipes)
    complete = [name for name in recipes if all(name in one.times for one, _ in of_model)]
    sums = [_by_recipe(of_model, name) for name in complete]
    return max(sums, key=lambda model: model.gain.speed_up, default=None)


def _by_recipe(uses: Uses, recipe: str) -> WholeModel:
    layers_us = sum(one.layers_us * use.repeats for one, use in uses)
    step_us = sum(one.times[BF16].us * use.repeats for one, use in uses)
    saved = total_saved((one.saved(recipe), use.repeats - use.in_bf16) for one, use in uses)
    return WholeModel(recipe, layers_us, gain_of(layers_us, saved), step_us, saved.us)
