"""Findings on what is kept from step to step: scales and the loss.

None makes a verdict. Each threshold has its source; those called "ours" lie well outside what sound
runs showed on an H200 (docs/numerics.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from fp8verify import thresholds as limits
from fp8verify.analysis import recorded
from fp8verify.analysis.kinds import grouped
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import Kept
from fp8verify.logs.signs import LogSigns
from fp8verify.model.verdict import Finding
from fp8verify.text import counted, label_of_ranks, listed
from fp8verify.verdict.expected import Promises
from fp8verify.verdict.findings.tensors import (
    Accused,
    Rule,
    accuse,
    by_rules,
    is_clipped,
)
from fp8verify.verdict.findings_table import finding

# ---- scales that delayed scaling keeps


def kept_scales_off(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Scales that do not follow their amax, that clip it, or that it jumps away from."""
    rows = (row for step in recorded.steps_of(rank) for row in step.rows)
    clipped = any(map(is_clipped, rows))  # then the finding on the tensor says so
    rules = (rule for rule in _RULES if not (rule.code == "saturates" and clipped))
    yield from by_rules(
        rules, [(0, scale, scale.slot) for scale in recorded.kept_scales(rank)]
    )


def _is_stuck(kept: Kept) -> bool:
    # Transformer Engine before 1.8 computed scales anew only every so many steps.
    if not kept.frozen or (kept.recipe.interval or 1) > 1:
        return False
    if not kept.slot.largest_amax:  # recorded, and never rolled into the history
        return bool(kept.slot.staged and kept.slot.staged_before)
    # A history just loses its oldest step: one end of the window alone may be explained by that.
    return _is_off(kept, kept.expected()) and _is_off(kept, kept.expected(before=True))


def _is_off(kept: Kept, wanted: float | None) -> bool:
    """Whether the scale is not what the recipe makes of the history."""
    if not wanted or not kept.is_usable:
        return False
    return abs(math.log2(kept.scale) - math.log2(wanted)) > limits.SCALE_TOLERANCE


def _spike(kept: Kept) -> float:
    """Return how many times the largest amax of the steps before the newest one is."""
    earlier = [amax for amax in kept.slot.amax[:-1] if amax]
    if len(earlier) < limits.LEAST_HISTORY or not kept.newest:
        return 0.0
    return kept.newest / max(earlier)


def _clipped(kept: Kept) -> float:
    """Return how many times what its scale can hold the first amax of the window was."""
    amax = kept.first_of_window
    scale = kept.slot.scale_before
    if not amax or scale is None or not 0 < float(scale) < math.inf:
        return 0.0
    return amax * float(scale) / kept.slot.largest


def _octaves(kept: Kept) -> float:
    """Return how far an amax swings to and fro; a steady rise or fall is no swing."""
    known = [math.log2(value) for value in kept.slot.amax if value]
    steps = [after - before for before, after in pairwise(known)]
    turns = sum(a * b < 0 for a, b in pairwise(steps))
    if not kept.is_usable or len(known) < limits.LEAST_POINTS or 2 * turns < len(steps):
        return 0.0
    return max(known) - min(known)


_RULES = (
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


def history_unused(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Histories of amax of which the algorithm looks at one step only."""
    for recipe in recorded.recipes_of(rank):
        length = recipe.history_length or 0
        unused = {"most_recent": length > limits.LONG_HISTORY, "max": length == 1}
        if recipe.name == "DelayedScaling" and unused.get(recipe.algorithm or ""):
            yield finding("history-unused", length=length, algorithm=recipe.algorithm)


# ---- loss scales, and trends of a long run


def loss_scales_off(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Loss scales that GradScaler has halved to less than one, and infinite ones."""
    bad = [
        s
        for s in recorded.loss_scales_of(rank)
        if s is None or s < limits.LEAST_LOSS_SCALE
    ]
    for scale in bad[:1]:
        now = "infinite" if scale is None else f"{scale:g}"
        yield finding("scale-unstable", "loss-scale", now=now)


def growing_amax(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Tensors whose amax keeps growing after the warm-up of a long run."""
    steps = recorded.steps_of(rank)
    # While a model begins to learn, every amax grows.
    late = [
        step
        for step in steps[(len(steps) + 1) // 2 :]
        if step.step >= limits.WARM_UP_STEPS
    ]
    grown = []
    seen = (row for step in late for row in step.rows)
    for rows in grouped(seen, lambda row: (row.layer, row.tensor)).values():
        values = [row.amax for row in rows if row.amax is not None]
        up = sum(after >= before for before, after in pairwise(values))
        rises = len(values) >= limits.LEAST_POINTS and up >= limits.RISING * (
            len(values) - 1
        )
        if rises and 0 < limits.GROWN * values[0] <= values[-1]:
            grown.append(Accused(values[-1] / values[0], late[-1].step, rows[-1]))
    first = late[0].step if late else 0
    yield from accuse("scale-unstable", grown, case="growing", first=first)


# ---- scales that ranks share


def scales_differ(ranks: Sequence[RankEvidence], _: Promises) -> Iterator[Finding]:
    """Scales of one tensor that differ between ranks which should share its amax."""
    # The ranks that have each value of a scale, as its record spells it.
    held: dict[tuple[object, ...], dict[str, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rank in ranks:
        for number in rank.numbers:
            for scale in recorded.kept_scales(rank):
                for group in _sharing(scale, number):
                    slot = scale.slot
                    step = scale.window.last_step
                    held[slot.layer, slot.tensor, slot.gemm, step, group][
                        slot.scale
                    ].append(number)
    differ = {key: values for key, values in held.items() if len(values) > 1}
    for first, values in [*differ.items()][:1]:
        shown = [
            f"{float(scale):.4g} on {label_of_ranks(on)}"
            for scale, on in values.items()
        ]
        every = (on for scales in differ.values() for on in scales.values())
        yield finding(
            "scales-differ-between-ranks",
            name=f"the {first[1]} of {first[0]}",
            values=listed(shown, between=" and "),
            count=len(differ),
            ranks=sorted({*chain.from_iterable(every)}),
            layers=[str(key[0]) for key in differ],
        )


def _sharing(kept: Kept, rank: int) -> Iterator[tuple[int, ...]]:
    """Yield each group of ranks in which a scale is to be the same."""
    groups = kept.window.groups
    slot = kept.slot
    wanted = [slot.group] if kept.recipe.reduces_amax else []
    if slot.tensor == "input":  # ranks that share a layer see parts of one input
        wanted.append(slot.tensor_parallel)
    for place in wanted:
        if (
            0 <= place < len(groups)
            and rank in groups[place]
            and len(groups[place]) > 1
        ):
            yield groups[place]


# ---- the loss


def loss_not_finite(ranks: Sequence[RankEvidence], _: Promises) -> Iterator[Finding]:
    """A loss or a gradient in the log, or gradients of the first rank, that are not finite.

    A GradScaler goes on after some steps with such gradients, and so may one that is not torch's
    after one.
    """
    for rank in ranks[:1]:
        losses = rank.recorded.losses
        signs = rank.recorded.signs
        norms = recorded.gradients_of(rank)
        bad = [
            step
            for step, loss in sorted(losses.points.items())
            if not math.isfinite(loss)
        ]
        broken = [str(norm.step) for norm in norms if not norm.finite]
        if bad:
            where = f"{'logged value' if losses.counted else 'step'} {bad[0]}"
            what = f"the loss in the log is {losses.points[bad[0]]:g} at {where}"
            repeats = len(bad) > 1 or bad[0] == max(losses.points)
            is_grave = repeats or signs.is_grave
        elif signs.broken:
            what = _steps_lost(signs)
            is_grave = signs.is_grave
        elif 1 < len(broken) == len(norms) and not recorded.loss_scales_of(rank):
            what = f"the gradients of steps {listed(broken)} are not finite"
            is_grave = True
        else:
            return
        yield finding("nan-or-inf", "loss" if is_grave else "passed", what=what)


def _steps_lost(signs: LogSigns) -> str:
    """Say which steps the log says were lost, by the first of them."""
    first = signs.broken[0]
    said = f"{first.text} {first.place}".rstrip()
    said = f"{said} (log line {first.line})"
    others = len(signs.broken) + signs.more - 1
    if not others:
        return said
    last = signs.broken[-1]
    until = f"; the last {last.place}".rstrip() + f" (line {last.line})"
    return f"{said}, and {counted(others, 'more step')}{until if last is not first else ''}"
