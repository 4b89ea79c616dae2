"""Findings on scales that are kept from step to step: Transformer Engine's, and loss scales."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import (
    Kept,
    histories_of,
    kept_scales,
    loss_scales_of,
    steps_of,
)
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import RecipeRecord, SeriesRecord
from fp8verify.report.model import Finding
from fp8verify.text import counted, listed
from fp8verify.verdict.findings.formats import gradients_in_e5m2
from fp8verify.verdict.findings.numerics.remedies import BETTER_SCALING
from fp8verify.verdict.findings.numerics.tensors import SHOWN, is_clipped
from fp8verify.verdict.findings_table import finding

TOLERANCE_OCTAVES = 0.02
SPIKE = 4.0  # ours: times the largest amax that the history held before
LEAST_HISTORY = 4
CLIPPED = 2.0  # ours: a value clipped by half; less is hard to tell from rounding
LONG_HISTORY = 16  # TE's DelayedScaling keeps 1024 by default, Megatron 1
MOST_OCTAVES = 4.0  # ours, over a series or a history
LEAST_POINTS = 5
GROWN = 8.0  # ours, after the warm-up: a sound small model grew 27 times in its first 150 steps
WARM_UP_STEPS = 200  # ours
LEAST_LOSS_SCALE = 1.0  # ours; torch's GradScaler begins with 65,536


def mxfp8_e5m2_gradients(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Gradients in E5M2 under MX scales, where no kernel has told of them already."""
    if any(gradients_in_e5m2(facts, promises)):
        return
    rows = [
        row
        for step in steps_of(facts.rank.numerics)
        for row in step.rows
        if row.scaling == "mxfp8" and (row.format or "").startswith("e5m2")
    ]
    promised = any(
        recipe.name == "MXFP8BlockScaling" and recipe.backward == "e5m2"
        for recipe in recipes_of(facts)
    )
    if rows or promised:
        yield finding(
            "mxfp8-e5m2-gradients",
            what="gradients are cast to MXFP8 in E5M2",
            layers=[row.layer for row in rows],
        )


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
    found = [
        kept
        for kept in kept_scales(facts.rank.numerics)
        if _clipped(kept) >= CLIPPED
        and not (_spike(kept) >= SPIKE and kept.first_of_window == kept.newest)
    ]
    rows = (row for step in steps_of(facts.rank.numerics) for row in step.rows) if found else ()
    measured = {(row.layer, row.tensor) for row in rows if is_clipped(row)}
    found = [kept for kept in found if (kept.slot.layer, kept.slot.tensor) not in measured]
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


def scale_unstable(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Scales at zero or infinity, or that keep changing by octaves."""
    kept = [one for one in kept_scales(facts.rank.numerics) if one.used]
    yield from _broken([one for one in kept if _is_broken(one)])
    yield from _restless([one for one in kept if not _is_broken(one)])
    yield from _loss_scales(facts)
    yield from _trends(facts)


def _is_broken(kept: Kept) -> bool:
    return not 0 < kept.scale < math.inf


def _broken(found: Sequence[Kept]) -> Iterator[Finding]:
    """Scales at zero or infinity."""
    if found:
        yield finding(
            "scale-unstable",
            name=name_of(found[0]),
            scale=found[0].scale,
            others=and_others(found),
            layers=layers_of(found),
        )


def _restless(kept: Sequence[Kept]) -> Iterator[Finding]:
    """Scales whose amax keeps changing by octaves."""
    found = [one for one in kept if _octaves(one.slot.amax) > MOST_OCTAVES]
    if found:
        worst = max(found, key=lambda one: _octaves(one.slot.amax))
        yield finding(
            "scale-unstable",
            "swinging",
            name=name_of(worst),
            octaves=_octaves(worst.slot.amax),
            steps=len(worst.slot.amax),
            threshold=MOST_OCTAVES,
            others=and_others(found),
            remedy=better_scaling(worst),
            layers=layers_of(found),
        )


def _loss_scales(facts: RankFacts) -> Iterator[Finding]:
    """Loss scales that GradScaler has halved to less than one, and infinite ones."""
    scales = loss_scales_of(facts.rank.numerics)
    low = [scale for scale in scales if scale is None or scale < LEAST_LOSS_SCALE]
    if low:
        now = "infinite" if low[0] is None else f"{low[0]:g} (below {LEAST_LOSS_SCALE:g}, ours)"
        yield finding("scale-unstable", "loss-scale", now=now)


def _trends(facts: RankFacts) -> Iterator[Finding]:
    """Tensors whose amax keeps growing after the warm-up of a long run."""
    numerics = facts.rank.numerics
    if numerics is None:
        return
    late = _after_warm_up(numerics.series)
    grown = list(_grown(late))
    if grown:
        times, layer, tensor = max(grown)
        yield finding(
            "scale-unstable",
            "growing",
            tensor=tensor,
            layer=layer,
            times=times,
            first=late[0].step,
            last=late[-1].step,
            threshold=GROWN,
            layers=[name for _, name, _ in grown],
        )


def _after_warm_up(series: Sequence[SeriesRecord]) -> Sequence[SeriesRecord]:
    """Return the later half of a series: while a model begins to learn, every amax grows."""
    half = series[len(series) // 2 :]
    return [line for line in half if line.step >= WARM_UP_STEPS]


def _grown(series: Sequence[SeriesRecord]) -> Iterator[tuple[float, str, str]]:
    """Yield how many times the amax of a tensor grew, its layer, and which tensor it is."""
    for (layer, tensor), points in histories_of(series, "amax").items():
        values = [amax for _, amax in points]
        if _rises(values) and values[-1] >= GROWN * values[0]:
            yield values[-1] / values[0], layer, tensor


def _rises(values: Sequence[float]) -> bool:
    if len(values) < LEAST_POINTS or values[0] <= 0:
        return False
    up = sum(after >= before for before, after in pairwise(values))
    return up >= 0.75 * (len(values) - 1)


def _octaves(values: Sequence[float | None]) -> float:
    """Return how far values swing to and fro; a steady rise or fall is no swing."""
    known = [math.log2(value) for value in values if value]
    steps = [after - before for before, after in pairwise(known)]
    turns = sum(a * b < 0 for a, b in pairwise(steps))
    if len(known) < LEAST_POINTS or 2 * turns < len(steps):
        return 0.0
    return max(known) - min(known)


class Shared(NamedTuple):
    """A scale that is to be the same in a group of ranks after a step."""

    group: tuple[int, ...]
    layer: str
    tensor: str
    gemm: int
    step: int


# The ranks that have each value of a scale, as its record spells it.
Holders = dict[str, list[int]]


def scales_differ(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Scales of one tensor that differ between ranks which should share its amax."""
    differ = {key: held for key, held in _held(ranks).items() if len(held) > 1}
    if differ:
        first, held = next(iter(differ.items()))
        apart = {rank for one in differ.values() for those in one.values() for rank in those}
        shown = [f"{float(scale):.4g} on {_ranks(those)}" for scale, those in held.items()]
        yield finding(
            "scales-differ-between-ranks",
            count=f"{counted(differ, 'scale')} differ{'s' if len(differ) == 1 else ''}",
            them="it" if len(differ) == 1 else "them",
            tensor=first.tensor,
            layer=first.layer,
            values=listed(shown, between=" and "),
            ranks=sorted(apart),
            layers=[key.layer for key in differ],
        )


def _held(ranks: Sequence[RankFacts]) -> dict[Shared, Holders]:
    """Return which ranks have which value of each scale that ranks are to share."""
    held: dict[Shared, Holders] = defaultdict(lambda: defaultdict(list))
    for facts in ranks:
        for rank in facts.rank.numbers:
            for kept in kept_scales(facts.rank.numerics):
                for shared in _shared(kept, rank) if kept.used else ():
                    held[shared][kept.slot.scale].append(rank)
    return held


def _shared(kept: Kept, rank: int) -> Iterator[Shared]:
    slot, step = kept.slot, kept.window.last_step
    for group in _sharing(kept, rank):
        yield Shared(group, slot.layer, slot.tensor, slot.gemm, step)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {listed(list(map(str, numbers)))}"


def _sharing(kept: Kept, rank: int) -> Iterator[tuple[int, ...]]:
    """Yield the groups of ranks in which a scale is to be the same."""
    groups, slot = kept.window.groups, kept.slot
    wanted = [slot.group] if kept.recipe.reduces_amax else []
    if slot.tensor == "input":  # ranks that share a layer see parts of one input
        wanted.append(slot.tensor_parallel)
    for place in wanted:
        if 0 <= place < len(groups) and rank in groups[place] and len(groups[place]) > 1:
            yield groups[place]
