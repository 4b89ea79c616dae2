"""Findings on what is kept from step to step: scales, FP8 copies of weights, the loss.

None makes a verdict. Each threshold has its source; those called "ours" lie well outside what sound
runs showed on an H200 (docs/numerics.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import (
    Kept,
    gradients_of,
    histories_of,
    kept_scales,
    loss_scales_of,
    measured_rows,
    steps_of,
)
from fp8verify.analysis.promises import Promises
from fp8verify.capture.schema import RecipeRecord, SeriesRecord, WeightCopyRecord
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model import Finding
from fp8verify.text import counted, listed, pattern, shorten
from fp8verify.verdict.findings.tensors import BETTER_SCALING, SHOWN, is_clipped
from fp8verify.verdict.findings_table import finding

TOLERANCE_OCTAVES = 0.02
SPIKE = 4.0  # ours: times the largest amax that the history held before
LEAST_HISTORY = 4
CLIPPED = 2.0  # ours: a value clipped by half; less is hard to distinguish from rounding
LONG_HISTORY = 16  # TE's DelayedScaling keeps 1024 by default, Megatron 1
MOST_OCTAVES = 4.0  # ours, over a series or a history
LEAST_POINTS = 5
GROWN = 8.0  # ours, after the warm-up: a sound small model grew 27 times in its first 150 steps
WARM_UP_STEPS = 200  # ours
LEAST_LOSS_SCALE = 1.0  # ours; torch's GradScaler begins with 65,536
STALE = 0.01  # ours; of the sampled values of a weight: a sound copy has none
LIKE = 0.5  # ours; a tensor that resembles a weight less is no copy of it


# ---- scales that delayed scaling keeps


def kept_scales_off(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Scales that do not follow their amax, that clip it, or that it jumps away from."""
    kept = kept_scales(facts.rank.numerics)
    used = [one for one in kept if one.used]
    broken = [one for one in used if not 0 < one.scale < math.inf]
    sound = [one for one in used if 0 < one.scale < math.inf]
    yield from _accuse("scale-stuck", "", list(filter(_is_stuck, kept)), _first, _stuck)
    yield from _accuse("saturates", "delayed", _clipping(kept, facts), _clipped, _saturates)
    spikes = [one for one in kept if _spike(one) >= SPIKE]
    yield from _accuse("amax-spike", "", spikes, _spike, _jumped)
    yield from _accuse("scale-unstable", "", broken, _first, lambda one: {"scale": one.scale})
    restless = [one for one in sound if _octaves(one) > MOST_OCTAVES]
    yield from _accuse("scale-unstable", "swinging", restless, _octaves, _swinging)


def _accuse(
    code: str,
    case: str,
    accused: Sequence[Kept],
    badness: Callable[[Kept], float],
    facts: Callable[[Kept], Mapping[str, Any]],
) -> Iterator[Finding]:
    """Make one finding of the scales that are accused: it names the worst, and the others."""
    if accused:
        worst = max(accused, key=badness)
        names = dict.fromkeys(map(_name, accused))
        others = [name for name in names if name != _name(worst)]
        yield finding(
            code,
            case,
            name=_name(worst),
            others=f"; also {listed(others, SHOWN)}" if others else "",
            layers=[one.slot.layer for one in accused],
            **facts(worst),
        )


def _first(_: Kept) -> float:
    return 0.0


def _name(kept: Kept) -> str:
    gemm = f" (GEMM {kept.slot.gemm + 1})" if kept.slot.gemm else ""
    return f"the {kept.slot.tensor} of {kept.slot.layer}{gemm}"


def _better_scaling(kept: Kept) -> str:
    """Say what suits values that jump better than the scale at hand."""
    interval = kept.recipe.interval or 1
    if interval > 1:
        return f"{BETTER_SCALING}; interval is {interval}: Transformer Engine before 1.8 obeys it"
    return BETTER_SCALING


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


def _stuck(kept: Kept) -> Mapping[str, Any]:
    wants = kept.expected()
    should = (
        f"although its amax requires {wants:.4g}"
        if wants
        else "and its amax never enters the history"
    )
    return {"scale": kept.scale, "should": should}


def _spike(kept: Kept) -> float:
    """Return how many times the largest amax of the steps before the newest one is."""
    earlier = [amax for amax in kept.slot.amax[:-1] if amax]
    if len(earlier) < LEAST_HISTORY or not kept.newest:
        return 0.0
    return kept.newest / max(earlier)


def _jumped(kept: Kept) -> Mapping[str, Any]:
    return {"times": _spike(kept), "threshold": SPIKE, "remedy": _better_scaling(kept)}


def _clipping(kept: Sequence[Kept], facts: RankFacts) -> list[Kept]:
    """Return the scales that clipped an amax of the window, if no other finding says so."""
    found = [
        one
        for one in kept
        if _clipped(one) >= CLIPPED
        and not (_spike(one) >= SPIKE and one.first_of_window == one.newest)
    ]
    rows = (row for step in steps_of(facts.rank.numerics) for row in step.rows) if found else ()
    measured = {(row.layer, row.tensor) for row in rows if is_clipped(row)}
    return [one for one in found if (one.slot.layer, one.slot.tensor) not in measured]


def _clipped(kept: Kept) -> float:
    """Return how many times what its scale can hold the first amax of the window was."""
    amax, scale = kept.first_of_window, kept.slot.scale_before
    if not amax or scale is None or not 0 < float(scale) < math.inf:
        return 0.0
    return amax * float(scale) / kept.slot.largest


def _saturates(kept: Kept) -> Mapping[str, Any]:
    margin = kept.recipe.margin or 0
    return {
        "times": _clipped(kept),
        "threshold": CLIPPED,
        "remedy": _better_scaling(kept),
        "margin": margin,
        "more": margin + 1,
    }


def _octaves(kept: Kept) -> float:
    """Return how far an amax swings to and fro; a steady rise or fall is no swing."""
    known = [math.log2(value) for value in kept.slot.amax if value]
    steps = [after - before for before, after in pairwise(known)]
    turns = sum(a * b < 0 for a, b in pairwise(steps))
    if len(known) < LEAST_POINTS or 2 * turns < len(steps):
        return 0.0
    return max(known) - min(known)


def _swinging(kept: Kept) -> Mapping[str, Any]:
    return {
        "octaves": _octaves(kept),
        "steps": len(kept.slot.amax),
        "threshold": MOST_OCTAVES,
        "remedy": _better_scaling(kept),
    }


def recipes_of(facts: RankFacts) -> list[RecipeRecord]:
    """Return the recipes of a rank's windows, each once."""
    numerics = facts.rank.numerics
    windows = numerics.record.windows if numerics is not None else ()
    return list(dict.fromkeys(recipe for window in windows for recipe in window.recipes))


def history_unused(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Histories of amax that the algorithm does not look at."""
    for recipe in recipes_of(facts):
        length, algorithm = recipe.history_length, recipe.algorithm
        if recipe.name != "DelayedScaling" or length is None:
            continue
        if algorithm == "most_recent" and length > LONG_HISTORY:
            what = f"the history keeps {length} steps of amax, but only the newest is used"
            yield finding("history-unused", what=what, algorithm=algorithm)
        if algorithm == "max" and length == 1:
            what = "the history has one step, so its largest amax is always the newest"
            yield finding("history-unused", what=what, algorithm=algorithm)


# ---- loss scales, and trends of a long run


def loss_scales_off(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Loss scales that GradScaler has halved to less than one, and infinite ones."""
    scales = loss_scales_of(facts.rank.numerics)
    low = [scale for scale in scales if scale is None or scale < LEAST_LOSS_SCALE]
    if low:
        now = "infinite" if low[0] is None else f"{low[0]:g} (threshold: {LEAST_LOSS_SCALE:g})"
        yield finding("scale-unstable", "loss-scale", now=now)


def growing_amax(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Tensors whose amax keeps growing after the warm-up of a long run."""
    series = facts.rank.numerics.series if facts.rank.numerics is not None else ()
    # While a model begins to learn, every amax grows.
    late = [line for line in series[len(series) // 2 :] if line.step >= WARM_UP_STEPS]
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


def _grown(series: Sequence[SeriesRecord]) -> Iterator[tuple[float, str, str]]:
    """Yield how many times the amax of a tensor grew, its layer, and which tensor it is."""
    for (layer, tensor), points in histories_of(series, "amax").items():
        values = [amax for _, amax in points]
        up = sum(after >= before for before, after in pairwise(values))
        rises = len(values) >= LEAST_POINTS and values[0] > 0 and up >= 0.75 * (len(values) - 1)
        if rises and values[-1] >= GROWN * values[0]:
            yield values[-1] / values[0], layer, tensor


# ---- scales that ranks share


class Shared(NamedTuple):
    """A scale that is to be the same in a group of ranks after a step."""

    group: tuple[int, ...]
    layer: str
    tensor: str
    gemm: int
    step: int


def scales_differ(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Scales of one tensor that differ between ranks which should share its amax."""
    # The ranks that have each value of a scale, as its record spells it.
    held: dict[Shared, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for facts in ranks:
        for rank in facts.rank.numbers:
            for kept in kept_scales(facts.rank.numerics):
                for shared in _shared(kept, rank) if kept.used else ():
                    held[shared][kept.slot.scale].append(rank)
    differ = {key: values for key, values in held.items() if len(values) > 1}
    if differ:
        first, values = next(iter(differ.items()))
        apart = {rank for one in differ.values() for those in one.values() for rank in those}
        shown = [f"{float(scale):.4g} on {_ranks(those)}" for scale, those in values.items()]
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


def _shared(kept: Kept, rank: int) -> Iterator[Shared]:
    """Yield a scale for each group of ranks in which it is to be the same."""
    groups, slot = kept.window.groups, kept.slot
    wanted = [slot.group] if kept.recipe.reduces_amax else []
    if slot.tensor == "input":  # ranks that share a layer see parts of one input
        wanted.append(slot.tensor_parallel)
    for place in wanted:
        if 0 <= place < len(groups) and rank in groups[place] and len(groups[place]) > 1:
            yield Shared(groups[place], slot.layer, slot.tensor, slot.gemm, kept.window.last_step)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {listed(list(map(str, numbers)))}"


# ---- FP8 copies of weights


def weight_stale(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Copies that stayed the same over a window in which their masters moved away from them."""
    windows = facts.rank.numerics.record.windows if facts.rank.numerics is not None else ()
    stale = {window.last_step: stale_copies(window.weights) for window in windows}
    step, found = max(stale.items(), key=lambda pair: len(pair[1]), default=(0, []))
    if found:
        worst = max(found, key=_off)
        layers = [one.layer for one in found]
        named = listed(shorten(layers, layers), SHOWN)
        yield finding(
            "weight-stale",
            layer=worst.layer,
            kind=worst.kind,
            share=_off(worst),
            sampled=worst.sampled,
            step=step,
            others=f"; stale in {len(layers)} layers: {named}" if len(layers) > 1 else "",
            layers=layers,
        )


def stale_copies(copies: Sequence[WeightCopyRecord]) -> list[WeightCopyRecord]:
    """Return the copies of one window that are stale."""
    found = [one for one in copies if _is_stale(one)]
    # Experts that got no token need no new copy: all of them must be stale.
    sound = {pattern(one.layer) for one in copies if not _is_stale(one)}
    return [one for one in found if "expert" not in one.layer or pattern(one.layer) not in sound]


def _is_stale(one: WeightCopyRecord) -> bool:
    return one.unchanged and one.moved > 0 and _off(one) > STALE and one.likeness >= LIKE


def _off(one: WeightCopyRecord) -> float:
    """Return the share of values that neither end of the window explains."""
    return min(one.off, one.off_before)


# ---- the loss


def loss_not_finite(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """A loss in the log, or gradients of the first rank, that are not finite."""
    for facts in ranks[:1]:
        what = _broken_loss(facts.rank.losses) or _broken_gradients(facts)
        if what is not None:
            rows = [row for step in steps_of(facts.rank.numerics) for row in step.rows]
            first = (
                "`run --numerics` with a window just before it shows the first layer"
                if all(row.finite for row in rows)
                else "Start with the tensor in the other finding"
            )
            also = f"; try gradient clipping, a lower learning rate{_also(facts)}."
            yield finding("nan-or-inf", "loss", what=what, remedy=first + also)


def _broken_loss(losses: LossSeries | None) -> str | None:
    """Name the first loss in the log that is not finite."""
    points = losses.points if losses is not None else {}
    bad = next((step for step in sorted(points) if not math.isfinite(points[step])), None)
    if losses is None or bad is None:
        return None
    where = f"{'logged value' if losses.counted else 'step'} {bad}"
    return f"the loss in the log is {points[bad]:g} at {where}"


def _broken_gradients(facts: RankFacts) -> str | None:
    """Name the steps whose gradients were seen, if none of them were finite.

    A GradScaler goes on after some such steps, and so may one that is not torch's after one.
    """
    found = gradients_of(facts.rank)
    broken = [str(norm.step) for norm in found if not norm.finite]
    if len(broken) < 2 or len(broken) < len(found) or loss_scales_of(facts.rank.numerics):
        return None
    return f"the gradients of steps {listed(broken)} are not finite"


def _also(facts: RankFacts) -> str:
    """Add what else may help, as far as the recipe has it."""
    margin = ", a larger margin" if kept_scales(facts.rank.numerics) else ""
    gradients = [row for row in measured_rows(facts.rank.numerics) if row.tensor == "grad_output"]
    formats = {row.format for row in gradients if row.scaling != "mxfp8"}
    return f"{margin}, E5M2 for gradients" if "e4m3" in formats else margin
