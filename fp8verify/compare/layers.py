"""Layers of both runs paired by name."""

from __future__ import annotations

from collections.abc import Mapping

from fp8verify.compare.measure import Measured
from fp8verify.report.model.comparison import LayerPair
from fp8verify.report.model.diagnosis import NamedLayerRow


def pair_layers(baseline: Measured, candidate: Measured) -> tuple[LayerPair, ...]:
    """Pair the layers that both runs name, the longest of the candidate first."""
    before, after = _rows(baseline), _rows(candidate)
    pairs = [
        _pair(before[name], after[name], baseline, candidate) for name in before.keys() & after
    ]
    return tuple(sorted(pairs, key=lambda pair: (-(pair.candidate_us or 0.0), pair.layer)))


def _rows(side: Measured) -> Mapping[str, NamedLayerRow]:
    named = side.rank.named_layers
    return {row.layer: row for row in named.rows} if named is not None else {}


def _pair(
    before: NamedLayerRow, after: NamedLayerRow, baseline: Measured, candidate: Measured
) -> LayerPair:
    old, new = _step_us(before, baseline), _step_us(after, candidate)
    return LayerPair(
        layer=before.layer,
        baseline_precision=_precisions(before),
        candidate_precision=_precisions(after),
        baseline_us=old,
        candidate_us=new,
        speedup=round(old / new, 4) if old and new else None,
    )


def _step_us(row: NamedLayerRow, side: Measured) -> float | None:
    """Return µs a step; an eager step of compiled code has other times than the run."""
    named = side.rank.named_layers
    if named is None or named.source != "window":
        return None
    total = sum(time_us for leg in row.legs for time_us in leg.time_us.values())
    return round(total / side.times.steps, 3)


def _precisions(row: NamedLayerRow) -> str:
    return ", ".join(dict.fromkeys(name for leg in row.legs for name in leg.kernels))
