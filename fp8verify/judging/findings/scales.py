"""Findings on the scales that Transformer Engine keeps under delayed scaling, and on the loss."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from fp8verify.capture.numerics import RecipeRecord, SeriesRecord
from fp8verify.evidence.facts import RankFacts
from fp8verify.evidence.numerics import (
    Kept,
    gradients_of,
    histories_of,
    kept_scales,
    loss_scales_of,
)
from fp8verify.evidence.promises import Promises
from fp8verify.judging.findings.numerics import is_clipped
from fp8verify.model import Finding, Severity
from fp8verify.wording import counted, listed

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
_SHOWN = 4
Key = tuple[tuple[int, ...], str, str, int, int]
_BETTER_SCALING = "Raise margin by one, lengthen amax_history_len, or use current scaling"


def scale_stuck(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Scales that stay while their amax asks for others."""
    stuck = [kept for kept in kept_scales(facts.rank.numerics) if _is_stuck(kept)]
    if stuck:
        first = stuck[0]
        wants = first.expected()
        should = (
            f"while its amax asks for {wants:.4g}"
            if wants
            else "and its amax never enters the history"
        )
        yield _of(
            stuck,
            "scale-stuck",
            Severity.ERROR,
            f"the scale of {_name(first)} stays at {first.scale:.4g} through the window {should}",
            "The amax is not reduced into the scale: recomputation outside of the autocast "
            "(use transformer_engine.pytorch.checkpoint; TE#1190), or an autocast left early.",
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
        yield _of(
            found,
            "amax-spike",
            Severity.WARNING,
            f"the amax of {_name(worst)} jumped to {_spike(worst):.1f} times the largest of the "
            f"steps before (from {SPIKE:.0f} on, ours)",
            f"{_better(worst)}: a scale of earlier steps clips what jumps.",
        )


def _spike(kept: Kept) -> float:
    earlier = [amax for amax in kept.slot.amax[:-1] if amax]
    if len(earlier) < LEAST_HISTORY or not kept.newest:
        return 0.0
    return kept.newest / max(earlier)


def delayed_saturates(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """An amax that the scale of the step before the window clipped, if nothing else tells of it."""
    numerics = facts.rank.numerics
    measured = {(r.layer, r.tensor) for r in (numerics.rows if numerics else ()) if is_clipped(r)}
    found = [
        kept
        for kept in kept_scales(numerics)
        if _clipped(kept) >= CLIPPED
        and (kept.slot.layer, kept.slot.tensor) not in measured
        and not (_spike(kept) >= SPIKE and kept.first_of_window == kept.newest)
    ]
    if found:
        worst = max(found, key=_clipped)
        yield _of(
            found,
            "saturates",
            Severity.WARNING,
            f"the largest value of {_name(worst)} was {_clipped(worst):.1f} times what its scale "
            f"can hold (from {CLIPPED:.0f} on, ours)",
            f"{_better(worst)} (fp8_margin {_margin(worst)} → {_margin(worst) + 1}).",
        )


def _clipped(kept: Kept) -> float:
    amax, scale = kept.first_of_window, kept.slot.scale_before
    if not amax or scale is None or not 0 < float(scale) < math.inf:
        return 0.0
    return amax * float(scale) / kept.slot.largest


def _better(kept: Kept) -> str:
    interval = kept.recipe.interval or 1
    if interval > 1:
        return f"{_BETTER_SCALING}; interval is {interval}: Transformer Engine before 1.8 obeys it"
    return _BETTER_SCALING


def _margin(kept: Kept) -> int:
    return kept.recipe.margin or 0


def history_unused(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Histories of amax that the algorithm does not look at."""
    for recipe in _recipes(facts):
        if recipe.name != "DelayedScaling" or recipe.history_length is None:
            continue
        if recipe.algorithm == "most_recent" and recipe.history_length > LONG_HISTORY:
            fact = f"{recipe.history_length} steps of amax are kept and only the newest is used"
        elif recipe.algorithm == "max" and recipe.history_length == 1:
            fact = "the largest amax of a history of one step is its only one"
        else:
            continue
        yield Finding(
            code="history-unused",
            severity=Severity.INFO,
            message=f"{fact} (amax_compute_algo={recipe.algorithm})",
            hint='Set amax_compute_algo="max" with a history of 16 to 1024 steps, or a history of '
            "one with most_recent.",
        )


def _recipes(facts: RankFacts) -> list[RecipeRecord]:
    numerics = facts.rank.numerics
    windows = numerics.record.windows if numerics is not None else ()
    return list(dict.fromkeys(recipe for window in windows for recipe in window.recipes))


def scale_unstable(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Scales at zero or infinity, or that keep changing by octaves."""
    kept = [one for one in kept_scales(facts.rank.numerics) if one.used]
    broken = [one for one in kept if not 0 < one.scale < math.inf]
    if broken:
        yield _of(
            broken,
            "scale-unstable",
            Severity.WARNING,
            f"the scale of {_name(broken[0])} is {broken[0].scale:g}",
            "An amax was zero or not finite: look for NaN in the steps before, clip gradients, "
            "lower the learning rate.",
        )
    restless = [one for one in kept if one not in broken and _octaves(one.slot.amax) > MOST_OCTAVES]
    if restless:
        worst = max(restless, key=lambda one: _octaves(one.slot.amax))
        yield _of(
            restless,
            "scale-unstable",
            Severity.WARNING,
            f"the amax of {_name(worst)} keeps changing, over {_octaves(worst.slot.amax):.1f} "
            f"octaves in {len(worst.slot.amax)} steps (from {MOST_OCTAVES:.0f} on, ours)",
            f"{_better(worst)}; clip gradients or lower the learning rate if the loss jumps too.",
        )
    yield from _loss_scales(facts)
    yield from _trends(facts)


def _loss_scales(facts: RankFacts) -> Iterator[Finding]:
    """Loss scales that GradScaler has halved to less than one, and infinite ones."""
    scales = loss_scales_of(facts.rank.numerics)
    low = [scale for scale in scales if scale is None or scale < LEAST_LOSS_SCALE]
    if low:
        now = "infinite" if low[0] is None else f"{low[0]:g} (below {LEAST_LOSS_SCALE:g}, ours)"
        yield Finding(
            code="scale-unstable",
            severity=Severity.WARNING,
            message=f"the loss scale of GradScaler is {now}",
            hint="It is halved at each step whose gradients are not finite: look for NaN in the "
            "steps before, clip gradients, lower the learning rate; BF16 needs no GradScaler.",
        )


def _octaves(values: Sequence[float | None]) -> float:
    """Return how far values swing to and fro; a steady rise or fall is no swing."""
    known = [math.log2(value) for value in values if value]
    steps = [after - before for before, after in pairwise(known)]
    turns = sum(a * b < 0 for a, b in pairwise(steps))
    if len(known) < LEAST_POINTS or 2 * turns < len(steps):
        return 0.0
    return max(known) - min(known)


def _trends(facts: RankFacts) -> Iterator[Finding]:
    """Tensors whose amax keeps growing after the warm-up of a long run."""
    numerics = facts.rank.numerics
    if numerics is None:
        return
    late = _after_warm_up(numerics.series)
    grown: list[tuple[float, str, str]] = []
    for (layer, tensor), points in histories_of(late, "amax").items():
        values = [amax for _, amax in points]
        if _rises(values) and values[-1] >= GROWN * values[0]:
            grown.append((values[-1] / values[0], layer, tensor))
    if grown:
        times, layer, tensor = max(grown)
        yield Finding(
            code="scale-unstable",
            severity=Severity.WARNING,
            message=f"the amax of the {tensor} of {layer} grew {times:.0f} times from step "
            f"{late[0].step} to {late[-1].step} (from {GROWN:.0f} on, ours)",
            hint="Outliers that grow at down projections are SwiGLU's (arXiv 2409.12517): keep "
            "this layer in BF16, use Smooth-SwiGLU, or scale by row or block.",
            layers=tuple(dict.fromkeys(name for _, name, _ in grown)),
        )


def _after_warm_up(series: Sequence[SeriesRecord]) -> Sequence[SeriesRecord]:
    """Return the later half of a series: while a model begins to learn, every amax grows."""
    half = series[len(series) // 2 :]
    return [line for line in half if line.step >= WARM_UP_STEPS]


def _rises(values: Sequence[float]) -> bool:
    if len(values) < LEAST_POINTS or values[0] <= 0:
        return False
    up = sum(after >= before for before, after in pairwise(values))
    return up >= 0.75 * (len(values) - 1)


def scales_differ(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Scales of one tensor that differ between ranks which should share its amax."""
    seen: dict[Key, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for facts in ranks:
        number = facts.rank.rank
        for kept in kept_scales(facts.rank.numerics) if number is not None else ():
            if kept.used and number is not None:
                for group in _sharing(kept, number):
                    slot = kept.slot
                    step = kept.window.last_step
                    key = (group, slot.layer, slot.tensor, slot.gemm, step)
                    seen[key][slot.scale].append(number)
    differ = {key: scales for key, scales in seen.items() if len(scales) > 1}
    if differ:
        first, scales = next(iter(differ.items()))
        told = {rank for found in differ.values() for those in found.values() for rank in those}
        shown = [f"{float(s):.4g} on {_ranks(found)}" for s, found in scales.items()]
        yield Finding(
            code="scales-differ-between-ranks",
            severity=Severity.ERROR,
            message=f"{counted(differ, 'scale')} differ{'s' if len(differ) == 1 else ''} between "
            f"ranks that share {'it' if len(differ) == 1 else 'them'}; the {first[2]} of "
            f"{first[1]} has {listed(shown, between=' and ')}",
            hint="The amax is reduced over the wrong group, or over none: pass fp8_group with the "
            "ranks that share the tensor (Megatron-LM#442).",
            ranks=tuple(sorted(told)),
            layers=tuple(dict.fromkeys(str(found[1]) for found in differ)),
        )


def _ranks(found: Sequence[int]) -> str:
    return f"rank{'' if len(found) == 1 else 's'} {listed(list(map(str, found)))}"


def _sharing(kept: Kept, rank: int) -> Iterator[tuple[int, ...]]:
    """Yield the groups of ranks in which a scale is to be the same."""
    groups, slot = kept.window.groups, kept.slot
    wanted = [slot.group] if kept.recipe.reduces_amax else []
    if slot.tensor == "input":  # ranks that share a layer see parts of one input
        wanted.append(slot.tensor_parallel)
    for place in wanted:
        if 0 <= place < len(groups) and rank in groups[place] and len(groups[place]) > 1:
            yield groups[place]


def loss_not_finite(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """Look at the log and at the gradients of the first rank that is there."""
    for facts in ranks[:1]:
        losses = facts.rank.losses
        points = losses.points if losses is not None else {}
        bad = next((step for step in sorted(points) if not math.isfinite(points[step])), None)
        if losses is not None and bad is not None:
            where = f"{'logged value' if losses.counted else 'step'} {bad}"
            yield _not_finite(f"the loss in the log is {points[bad]:g} at {where}", facts)
        elif steps := _broken_gradients(facts):
            yield _not_finite(
                f"the gradients of steps {listed(list(map(str, steps)))} are not finite", facts
            )


def _not_finite(message: str, facts: RankFacts) -> Finding:
    """A loss in the log, or gradients in the run, that are not finite."""
    numerics = facts.rank.numerics
    rows = numerics.rows if numerics is not None else ()
    named = any(not row.finite for row in rows)
    first = (
        "Begin with the tensor that the other finding names"
        if named
        else "`run --numerics` with a window just before it names the first layer"
    )
    return Finding(
        code="nan-or-inf",
        severity=Severity.ERROR,
        message=message,
        hint=f"{first}; try gradient clipping, a lower learning rate{_remedies(facts)}.",
    )


def _remedies(facts: RankFacts) -> str:
    """Add what else may help, as far as the recipe has it."""
    margin = ", a larger margin" if kept_scales(facts.rank.numerics) else ""
    rows = facts.rank.numerics.rows if facts.rank.numerics is not None else ()
    formats = {row.format for row in rows if row.tensor == "grad_output" and row.scaling != "mxfp8"}
    return f"{margin}, E5M2 for gradients" if "e4m3" in formats else margin


def _broken_gradients(facts: RankFacts) -> list[int]:
    """Return the steps whose gradients were seen, if none of them were finite.

    A GradScaler goes on after some such steps, and so may one that is not torch's after one.
    """
    found = gradients_of(facts.rank)
    broken = [norm.step for norm in found if not norm.finite]
    scaled = loss_scales_of(facts.rank.numerics)
    return broken if len(broken) > 1 and len(broken) == len(found) and not scaled else []


def _of(found: Iterable[Kept], code: str, severity: Severity, message: str, hint: str) -> Finding:
    kept = list(found)
    names = list(dict.fromkeys(map(_name, kept)))
    more = f"; likewise {listed(names[1:], _SHOWN)}" if len(names) > 1 else ""
    return Finding(
        code=code,
        severity=severity,
        message=f"{message}{more}",
        hint=hint,
        layers=tuple(dict.fromkeys(one.slot.layer for one in kept)),
    )


def _name(kept: Kept) -> str:
    gemm = f" (GEMM {kept.slot.gemm + 1})" if kept.slot.gemm else ""
    return f"the {kept.slot.tensor} of {kept.slot.layer}{gemm}"
