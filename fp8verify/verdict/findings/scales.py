"""Findings on what is kept from step to step: scales and the loss.

None makes a verdict. Each threshold has its source; those called "ours" lie well outside what sound
runs showed on an H200 (docs/numerics.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, filterfalse, islice, pairwise
from typing import Final, NamedTuple

from fp8verify import thresholds as limits
from fp8verify.analysis import recorded
from fp8verify.analysis.kinds import grouped
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import Kept
from fp8verify.capture.schema import TensorRecord
from fp8verify.logs.signs import LogSigns
from fp8verify.model.verdict import Finding
from fp8verify.text import counted, label_of_ranks, listed
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings.tensors import (
    Accused,
    Rule,
    accuse,
    by_rules,
    is_clipped,
)
from fp8verify.verdict.findings_table import finding, told

# ---- scales that delayed scaling keeps


def kept_scales_off(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Scales that do not follow their amax, that clip it, or that it jumps away from."""
    rules = list(_RULES)
    if _are_clipped(rank):  # then the finding on the tensor says so
        rules = list(filterfalse(_is_of_clipping, _RULES))
    seen = []
    for scale in recorded.kept_scales(rank):
        seen.append((0, scale, scale.slot))
    yield from by_rules(rules, seen)


def _is_of_clipping(rule: Rule) -> bool:
    return rule.code == "saturates"


def _are_clipped(rank: RankEvidence) -> bool:
    """Whether casts clip a measured tensor."""
    steps = recorded.steps_of(rank)
    rows = chain.from_iterable(step.rows for step in steps)
    return any(map(is_clipped, rows))


def _is_stuck(kept: Kept) -> bool:
    # Transformer Engine before 1.8 computed scales anew only every so many steps.
    interval = kept.recipe.interval or 1
    if not kept.frozen or interval > 1:
        return False
    slot = kept.slot
    if not slot.largest_amax:  # recorded, and never rolled into the history
        return bool(slot.staged and slot.staged_before)
    # A history just loses its oldest step: one end of the window alone may be explained by that.
    after = kept.expected()
    before = kept.expected(before=True)
    return _is_off(kept, after) and _is_off(kept, before)


def _is_off(kept: Kept, wanted: float | None) -> bool:
    """Whether the scale is not what the recipe makes of the history."""
    if not wanted or not kept.is_usable:
        return False
    octaves = math.log2(kept.scale) - math.log2(wanted)
    return abs(octaves) > limits.SCALE_TOLERANCE


def _spike(kept: Kept) -> float:
    """Return how many times the largest amax of the steps before the newest one is."""
    earlier = [amax for amax in kept.slot.amax[:-1] if amax]
    is_short = len(earlier) < limits.LEAST_HISTORY
    if is_short or not kept.newest:
        return 0.0
    return kept.newest / max(earlier)


def _clipped(kept: Kept) -> float:
    """Return how many times what its scale can hold the first amax of the window was."""
    amax = kept.first_of_window
    slot = kept.slot
    if not amax or slot.scale_before is None:
        return 0.0
    scale = float(slot.scale_before)
    if not 0 < scale < math.inf:
        return 0.0
    return amax * scale / slot.largest


def _octaves(kept: Kept) -> float:
    """Return how far an amax swings to and fro; a steady rise or fall is no swing."""
    known = [math.log2(value) for value in kept.slot.amax if value]
    are_few = len(known) < limits.LEAST_POINTS
    if are_few or not kept.is_usable:
        return 0.0
    changes = []
    for before, after in pairwise(known):
        changes.append(after - before)
    turns = 0
    for before, after in pairwise(changes):
        if before * after < 0:
            turns += 1
    if 2 * turns < len(changes):
        return 0.0
    return max(known) - min(known)


_RULES: Final[tuple[Rule, ...]] = (
    Rule("scale-stuck", lambda kept: kept.scale, 0.0, _is_stuck),
    Rule(
        "saturates",
        _clipped,
        limits.CLIPPED,
        lambda x: _spike(x) < limits.SPIKE,
        case="delayed",
    ),
    Rule("amax-spike", _spike, limits.SPIKE),
    # NaN too.
    Rule(
        "scale-unstable",
        lambda kept: kept.scale,
        -math.inf,
        lambda kept: not kept.is_usable,
    ),
    Rule("scale-unstable", _octaves, limits.MOST_OCTAVES, case="swinging"),
)


def history_unused(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Histories of amax of which the algorithm looks at one step only."""
    for recipe in recorded.recipes_of(rank):
        length = recipe.history_length or 0
        unused = {
            "most_recent": length > limits.LONG_HISTORY,
            "max": length == 1,
        }
        is_unused = unused.get(recipe.algorithm or "")
        is_delayed = recipe.name == "DelayedScaling"
        yield from told(
            "history-unused",
            when=is_unused and is_delayed,
            length=length,
            algorithm=recipe.algorithm,
        )


# ---- loss scales, and trends of a long run


def loss_scales_off(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Loss scales that GradScaler has halved to less than one, and infinite ones."""
    bad = filter(_is_off_scale, recorded.loss_scales_of(rank))
    for scale in islice(bad, 1):
        now = "infinite" if scale is None else f"{scale:g}"
        yield finding("scale-unstable", "loss-scale", now=now)


def _is_off_scale(loss_scale: float | None) -> bool:
    return loss_scale is None or loss_scale < limits.LEAST_LOSS_SCALE


def growing_amax(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Tensors whose amax keeps growing after the warm-up of a long run."""
    steps = recorded.steps_of(rank)
    # While a model begins to learn, every amax grows.
    half = (len(steps) + 1) // 2
    late = []
    for step in steps[half:]:
        if step.step >= limits.WARM_UP_STEPS:
            late.append(step)
    seen: list[TensorRecord] = []
    for step in late:
        seen += step.rows
    grown = []
    by_tensor = grouped(seen, _tensor_of)
    for rows in by_tensor.values():
        growth = _growth(rows)
        if growth >= limits.GROWN:
            accused = Accused(growth, late[-1].step, rows[-1])
            grown.append(accused)
    first = late[0].step if late else 0
    yield from accuse("scale-unstable", grown, case="growing", first=first)


def _tensor_of(row: TensorRecord) -> tuple[str, str]:
    return row.layer, row.tensor


def _growth(rows: Sequence[TensorRecord]) -> float:
    """Return how many times the first amax the last one is, 0 unless nearly every step rises."""
    values = [row.amax for row in rows if row.amax is not None]
    if len(values) < limits.LEAST_POINTS or not values[0]:
        return 0.0
    steps = len(values) - 1
    rises = 0
    for before, after in pairwise(values):
        if after >= before:
            rises += 1
    if rises < limits.RISING * steps:
        return 0.0
    return values[-1] / values[0]


# ---- scales that ranks share


def scales_differ(ranks: Sequence[RankEvidence], _: Requested) -> Iterator[Finding]:
    """Scales of one tensor that differ between ranks which should share its amax."""
    # The ranks that have each value of a scale, as its record spells it.
    held: dict[_Shared, dict[str, list[int]]] = {}
    for rank in ranks:
        for number in rank.numbers:
            for shared, spelled in _shared_scales(rank, number):
                on_ranks = held.setdefault(shared, {})
                same = on_ranks.setdefault(spelled, [])
                same.append(number)
    differ = {}
    numbers: set[int] = set()
    for shared, on_ranks in held.items():
        if len(on_ranks) > 1:
            differ[shared] = on_ranks
            numbers.update(chain.from_iterable(on_ranks.values()))
    for shared, on_ranks in islice(differ.items(), 1):
        shown = []
        for scale, on in on_ranks.items():
            value = float(scale)
            shown.append(f"{value:.4g} on {label_of_ranks(on)}")
        yield finding(
            "scales-differ-between-ranks",
            name=f"the {shared.tensor} of {shared.layer}",
            values=listed(shown, between=" and "),
            count=len(differ),
            ranks=sorted(numbers),
            layers=[one.layer for one in differ],
        )


class _Shared(NamedTuple):
    """A scale in the last step of a window, and the ranks that share it."""

    layer: str
    tensor: str
    gemm: int
    step: int
    group: tuple[int, ...]


def _shared_scales(rank: RankEvidence, number: int) -> Iterator[tuple[_Shared, str]]:
    """Yield the scales of a rank that others share, each as its record spells it."""
    for scale in recorded.kept_scales(rank):
        slot = scale.slot
        for group in _sharing(scale, number):
            shared = _Shared(
                layer=slot.layer,
                tensor=slot.tensor,
                gemm=slot.gemm,
                step=scale.window.last_step,
                group=group,
            )
            yield shared, slot.scale


def _sharing(kept: Kept, rank: int) -> Iterator[tuple[int, ...]]:
    """Yield each group of ranks in which a scale is to be the same."""
    groups = kept.window.groups
    slot = kept.slot
    wanted = []
    if kept.recipe.reduces_amax:
        wanted.append(slot.group)
    if slot.tensor == "input":  # ranks that share a layer see parts of one input
        wanted.append(slot.tensor_parallel)
    for index in wanted:
        if 0 <= index < len(groups):
            group = groups[index]
            if rank in group and len(group) > 1:
                yield group


# ---- the loss


def loss_not_finite(ranks: Sequence[RankEvidence], _: Requested) -> Iterator[Finding]:
    """A loss or a gradient in the log, or gradients of the first rank, that are not finite.

    A GradScaler goes on after some steps with such gradients, and so may one that is not torch's
    after one.
    """
    for rank in ranks[:1]:
        what, is_grave = _not_finite(rank)
        case = "loss" if is_grave else "passed"
        yield from told("nan-or-inf", case, when=what, what=what)


def _not_finite(rank: RankEvidence) -> tuple[str, bool]:
    """Say what is not finite, of the log first, and whether that is grave; "" if nothing is."""
    losses = rank.recorded.losses
    signs = rank.recorded.signs
    norms = recorded.gradients_of(rank)
    bad = []
    for step in sorted(losses.points):
        if not math.isfinite(losses.points[step]):
            bad.append(step)
    broken = [str(norm.step) for norm in norms if not norm.finite]
    if bad:
        first = bad[0]
        counted_as = "logged value" if losses.counted else "step"
        value = losses.points[first]
        what = f"the loss in the log is {value:g} at {counted_as} {first}"
        is_last = first == max(losses.points)
        repeats = len(bad) > 1 or is_last
        return what, repeats or signs.is_grave
    if signs.broken:
        return _steps_lost(signs), signs.is_grave
    are_all = 1 < len(broken) == len(norms)
    is_scaled = bool(recorded.loss_scales_of(rank))
    if is_scaled or not are_all:
        return "", True
    return f"the gradients of steps {listed(broken)} are not finite", True


def _steps_lost(signs: LogSigns) -> str:
    """Say which steps the log says were lost, by the first of them."""
    first = signs.broken[0]
    said = f"{first.text} {first.place}".rstrip()
    said = f"{said} (log line {first.line})"
    others = len(signs.broken) + signs.more - 1
    if not others:
        return said
    said = f"{said}, and {counted(others, 'more step')}"
    last = signs.broken[-1]
    if last is first:
        return said
    where = f"the last {last.place}".rstrip()
    return f"{said}; {where} (line {last.line})"
