"""Findings on FP8 copies of weights: cast too seldom, or more often than once a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.casts import weight_casts
from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import WeightCopyRecord
from fp8verify.layer_names import pattern, shorten
from fp8verify.report.model import Finding
from fp8verify.text import listed
from fp8verify.verdict.findings.numerics.tensors import SHOWN
from fp8verify.verdict.findings_table import finding

OFF = 0.01  # ours; of the sampled values: a sound copy has none
RECAST = 0.02  # ours; of GPU time
LIKE = 0.5  # ours; a tensor that resembles a weight less is no copy of it


def weight_stale(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Copies that stayed the same over a window in which their masters moved away from them."""
    windows = facts.rank.numerics.record.windows if facts.rank.numerics is not None else ()
    stale = {window.last_step: stale_copies(window.weights) for window in windows}
    step, found = max(stale.items(), key=lambda pair: len(pair[1]), default=(0, []))
    if found:
        worst = max(found, key=_off)
        layers = [one.layer for one in found]
        others = shorten(layers, layers)
        yield finding(
            "weight-stale",
            layer=worst.layer,
            kind=worst.kind,
            share=_off(worst),
            sampled=worst.sampled,
            step=step,
            others=f"; stale in {len(layers)} layers: {listed(others, SHOWN)}"
            if len(layers) > 1
            else "",
            layers=layers,
        )


def stale_copies(copies: Sequence[WeightCopyRecord]) -> list[WeightCopyRecord]:
    """Return the copies of one window that are stale."""
    found = [one for one in copies if _is_stale(one)]
    # Experts that got no token need no new copy: all of them must be stale.
    sound = {pattern(one.layer) for one in copies if not _is_stale(one)}
    return [one for one in found if "expert" not in one.layer or pattern(one.layer) not in sound]


def _is_stale(one: WeightCopyRecord) -> bool:
    return one.unchanged and one.moved > 0 and _off(one) > OFF and one.likeness >= LIKE


def _off(one: WeightCopyRecord) -> float:
    """Return the share of values that neither end of the window explains."""
    return min(one.off, one.off_before)


def weight_recast(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Weights that are cast in each micro-batch, though they change once a step."""
    found, gpu_ns = weight_casts(facts.rank), sum(facts.gpu_time.values())
    if found is None or not gpu_ns or found.casts < found.passes:
        return
    share = found.time_ns * (1 - 1 / found.passes) / gpu_ns
    if share >= RECAST:
        yield finding(
            "weight-recast",
            casts=found.casts,
            passes=found.passes,
            size=" x ".join(map(str, found.size)),
            share=share,
            threshold=RECAST,
        )
