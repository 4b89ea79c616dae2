"""Lay out the numbers of a rank: measured tensors, kept scales, gradients."""

from __future__ import annotations

import math

from fp8verify.analysis.assembly.units import rounded
from fp8verify.analysis.numerics import Kept, gradients_of, kept_scales, loss_scales_of, trend_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.numerics import GradientRecord, RankNumerics, RecipeRecord, TensorRecord
from fp8verify.report.model.numerics import (
    GradientNorm,
    NumericsReport,
    RecipeSettings,
    ScaleRow,
    TensorRow,
    TrendPoint,
)


def numerics_report(rank: RankEvidence) -> NumericsReport | None:
    """Lay out the numbers of a rank; None where the run looked at none."""
    gradients = tuple(map(_gradient, gradients_of(rank)))
    found = rank.numerics
    if found is None:
        return _gradients_alone(gradients) if gradients else None
    measured = found.record.measured
    return NumericsReport(
        step=measured.step if measured is not None else None,
        reason=found.record.reason,
        rows=tuple(map(_tensor_row, found.rows)),
        recipes=_recipes(found),
        scales=tuple(_scale_row(kept) for kept in kept_scales(found) if kept.used),
        loss_scales=loss_scales_of(found),
        gradients=gradients,
        trend=tuple(TrendPoint(step=step, scalars=named) for step, named in trend_of(rank)),
        notes=measured.notes if measured is not None else (),
    )


def _gradients_alone(gradients: tuple[GradientNorm, ...]) -> NumericsReport:
    return NumericsReport(
        step=None,
        reason=None,
        rows=(),
        recipes=(),
        scales=(),
        gradients=gradients,
        trend=(),
        notes=(),
    )


def _tensor_row(row: TensorRecord) -> TensorRow:
    return TensorRow(
        layer=row.layer,
        tensor=row.tensor,
        source=row.source,
        format=row.format,
        scaling=row.scaling,
        elements=row.elements,
        sampled=row.sampled,
        amax=row.amax,
        rms=row.rms,
        zeros=rounded(row.zeros),
        flushed=rounded(row.flushed),
        saturated=rounded(row.saturated),
        subnormal=rounded(row.subnormal),
        nan=row.nan,
        inf=row.inf,
        zero_rows=rounded(row.zero_rows),
        sqnr_db=row.sqnr_db,
        what_if=row.what_if,
    )


def _recipes(found: RankNumerics) -> tuple[RecipeSettings, ...]:
    recipes = [recipe for window in found.record.windows for recipe in window.recipes]
    return tuple(map(_recipe, dict.fromkeys(recipes)))


def _recipe(recipe: RecipeRecord) -> RecipeSettings:
    return RecipeSettings(
        name=recipe.name,
        forward=recipe.forward,
        backward=recipe.backward,
        margin=recipe.margin,
        interval=recipe.interval,
        history_length=recipe.history_length,
        algorithm=recipe.algorithm,
    )


def _scale_row(kept: Kept) -> ScaleRow:
    slot = kept.slot
    return ScaleRow(
        layer=slot.layer,
        tensor=slot.tensor,
        gemm=slot.gemm,
        format=slot.format,
        scale=kept.scale if math.isfinite(kept.scale) else None,
        amax=kept.newest,
        headroom_octaves=rounded(kept.headroom),
        changed=None if slot.scale_before is None else not kept.frozen,
    )


def _gradient(found: GradientRecord) -> GradientNorm:
    return GradientNorm(step=found.step, norm=found.norm, sharded=found.sharded)
