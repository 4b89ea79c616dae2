"""What follows from the scales and tensors of one rank, and how the report has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fp8verify.analysis.gemms import rounded
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.numerics import (
    GradientRecord,
    RankNumerics,
    RecipeRecord,
    ScalesRecord,
    SeriesRecord,
    SlotRecord,
    TensorRecord,
)
from fp8verify.layer_names import pattern
from fp8verify.report.model import scalars
from fp8verify.report.model.numerics import (
    GradientNorm,
    NumericsReport,
    RecipeSettings,
    ScaleRow,
    TensorRow,
    TrendPoint,
)

FORWARD = ("input", "weight")
_COLUMNS = (
    "amax", "rms", "scale", "flushed", "saturated", "sqnr_db", "nan", "inf", "source", "format",
    "scaling", "rows_not_finite", "zero_rows", "top_blocks", "what_if",
)  # fmt: skip
MOST_POINTS = 4096  # of a trend in the report


class Kept(NamedTuple):
    """A scale that is kept from step to step, with its recipe and its window."""

    slot: SlotRecord
    recipe: RecipeRecord
    window: ScalesRecord

    @property
    def scale(self) -> float:
        """What values are multiplied by."""
        return float(self.slot.scale)

    @property
    def used(self) -> bool:
        """Whether any amax was recorded for it: layers leave some of their slots unused."""
        return bool(self.slot.largest_amax) or any(self.slot.amax) or bool(self.slot.staged)

    @property
    def frozen(self) -> bool:
        """Whether the scale was the same before the window and after it."""
        return self.slot.scale_before is not None and self.slot.scale_before == self.slot.scale

    @property
    def newest(self) -> float | None:
        """The amax of the last step."""
        return self.slot.amax[-1] if self.slot.amax else None

    def expected(self, *, before: bool = False) -> float | None:
        """Return the scale that the recipe would make of the history; None if that is not known.

        transformer_engine/pytorch/quantization.py: `(largest / amax) / 2^margin`.
        """
        slot = self.slot
        of_all = slot.largest_amax_before if before else slot.largest_amax
        of_last = slot.amax_before if before else self.newest
        known = {"max": of_all, "most_recent": of_last}
        amax = known.get(self.recipe.algorithm or "")
        return slot.largest / amax / 2.0 ** (self.recipe.margin or 0) if amax else None

    @property
    def headroom(self) -> float | None:
        """Octaves by which the newest amax may grow before values are clipped."""
        used = (self.newest or 0.0) * self.scale
        return math.log2(self.slot.largest / used) if 0 < used < math.inf else None

    @property
    def first_of_window(self) -> float | None:
        """The amax of the first step that used the scale which the window began with."""
        before, found = self.slot.amax_before, list(self.slot.amax)
        if not before or before not in found:
            return None
        place = len(found) - 1 - found[::-1].index(before)
        return found[place + 1] if place + 1 < len(found) else None


def kept_scales(numerics: RankNumerics | None) -> list[Kept]:
    """Return the scales that delayed scaling keeps, as the last window saw them."""
    if numerics is None or not numerics.record.windows:
        return []
    window = numerics.record.windows[-1]
    return [
        Kept(slot, window.recipes[slot.recipe], window)
        for slot in window.slots
        if 0 <= slot.recipe < len(window.recipes)
    ]


class Step(NamedTuple):
    """One measured step: its tensors in the order in which they were met."""

    number: int
    rows: Sequence[TensorRecord]


def steps_of(numerics: RankNumerics | None) -> list[Step]:
    """Return all measured steps of a rank, the first one and those of its series, in order."""
    if numerics is None:
        return []
    known = {(row.layer, row.tensor): row for row in measured_rows(numerics)}
    steps = {line.step: _rows_of(line, known) for line in numerics.series}
    if numerics.record.measured is not None:
        steps[numerics.record.measured.step] = numerics.record.measured.rows
    return [Step(number, steps[number]) for number in sorted(steps)]


def measured_rows(numerics: RankNumerics | None) -> Sequence[TensorRecord]:
    """Return the tensors of the first measured step."""
    return numerics.rows if numerics is not None else ()


def _rows_of(
    line: SeriesRecord, known: Mapping[tuple[str, str], TensorRecord]
) -> tuple[TensorRecord, ...]:
    """Return a line's columns as rows; how they are cast is `known` where an old line lacks it."""
    columns = {name: getattr(line, name) for name in _COLUMNS}
    rows = []
    for place, key in enumerate(zip(line.layer, line.tensor, strict=False)):
        # A line that was damaged may have columns of different lengths.
        here = {name: column[place] for name, column in columns.items() if place < len(column)}
        cast = known.get(key)
        if cast is not None and "source" not in here:
            here |= {"source": cast.source, "format": cast.format, "scaling": cast.scaling}
        rows.append(TensorRecord(layer=key[0], tensor=key[1], **{"source": "replay", **here}))
    return tuple(rows)


def loss_scales_of(numerics: RankNumerics | None) -> tuple[float | None, ...]:
    """Return the scales of torch's GradScalers at the end of the last window."""
    windows = numerics.record.windows if numerics is not None else ()
    return windows[-1].loss_scales if windows else ()


def gradients_of(rank: RankEvidence) -> list[GradientRecord]:
    """Return the gradient norms of a rank by step."""
    windows = rank.meta.windows if rank.meta is not None else ()
    found = {norm.step: norm for window in windows for norm in window.gradients}
    numerics = rank.numerics
    if numerics is not None:
        measured = numerics.record.measured
        lines = [measured.gradient] if measured is not None else []
        lines += [line.gradient for line in numerics.series]
        found |= {norm.step: norm for norm in lines if norm is not None}
    return [found[step] for step in sorted(found)]


def recomputed_high(rank: RankEvidence) -> tuple[str, ...]:
    """Return the layers that a measured step saw run in FP8 and be recomputed without it."""
    if rank.numerics is None:
        return ()
    measured = rank.numerics.record.measured
    steps = [measured.recomputed_high] if measured is not None else []
    steps += [line.recomputed_high for line in rank.numerics.series]
    return tuple(dict.fromkeys(layer for layers in steps for layer in layers))


def trend_of(rank: RankEvidence) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the steps of a rank's series and their scalars by name."""
    series = rank.numerics.series if rank.numerics is not None else ()
    losses, ahead = _losses_by_step(rank), _steps_ahead(rank)
    for line in series[:: -(-len(series) // MOST_POINTS) or 1]:
        yield line.step, scalars_of(line, losses.get(line.step + ahead))


def _losses_by_step(rank: RankEvidence) -> Mapping[int, float]:
    """Return the losses of the log, if its lines say their steps."""
    losses = rank.losses
    if losses is None or losses.counted:
        return {}
    return {step: loss for step, loss in losses.points.items() if math.isfinite(loss)}


def _steps_ahead(rank: RankEvidence) -> int:
    """Return by how much the framework's steps are ahead of those of this process: resumed runs."""
    windows = rank.meta.windows if rank.meta is not None else ()
    known = [window for window in windows if window.framework is not None]
    if not known or known[-1].framework is None:
        return 0
    return known[-1].framework.last - known[-1].last


def scalars_of(line: SeriesRecord, loss: float | None = None) -> dict[str, float]:
    """Return the scalars of a measured step, by the names of `fp8verify.report.model.scalars`."""
    gradient = line.gradient
    forward = [place for place, tensor in enumerate(line.tensor) if tensor in FORWARD]
    backward = [place for place, tensor in enumerate(line.tensor) if tensor not in FORWARD]
    found = {
        scalars.FWD_SCALE: _least(_at(line.scale, forward)),
        scalars.BWD_SCALE: _least(_at(line.scale, backward)),
        scalars.AMAX_FWD: _most(_at(line.amax, forward)),
        scalars.AMAX_BWD: _most(_at(line.amax, backward)),
        scalars.UNDERFLOW_FWD: _most(_at(line.flushed, forward)),
        scalars.UNDERFLOW_BWD: _most(_at(line.flushed, backward)),
        scalars.SQNR_FWD: _least(_at(line.sqnr_db, forward)),
        scalars.SQNR_BWD: _least(_at(line.sqnr_db, backward)),
        scalars.NOT_FINITE_FWD: _most(_not_finite(line, forward)),
        scalars.NOT_FINITE_BWD: _most(_not_finite(line, backward)),
        scalars.GRAD_NORM: gradient.norm if gradient is not None else None,
        scalars.GRAD_NORM_CLIP_RATIO: gradient.clip_ratio if gradient is not None else None,
        scalars.LOSS: loss,
    }
    return {scalar.name: value for scalar, value in found.items() if value is not None}


def _at(column: Sequence[float | None], places: Iterable[int]) -> list[float]:
    found = [column[place] for place in places if place < len(column)]
    return [value for value in found if value is not None]


def _not_finite(line: SeriesRecord, places: Sequence[int]) -> list[float]:
    shares = zip(_at(line.nan, places), _at(line.inf, places), strict=False)
    return [nan + inf for nan, inf in shares]


def _least(values: Sequence[float]) -> float | None:
    return min(values, default=None)


def _most(values: Sequence[float]) -> float | None:
    return max(values, default=None)


def histories_of(
    series: Iterable[SeriesRecord], column: str
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return (step, value) of every layer's tensors over a series."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for line in series:
        values: Sequence[float | None] = getattr(line, column)
        # A line that was damaged may have columns of different lengths.
        for layer, tensor, value in zip(line.layer, line.tensor, values, strict=False):
            if value is not None:
                found.setdefault((layer, tensor), []).append((line.step, value))
    return found


def by_peers(rows: Iterable[TensorRecord], key: str) -> dict[str, list[TensorRecord]]:
    """Group rows of one kind of tensor by what their layers are called without numbers."""
    found: dict[str, list[TensorRecord]] = {}
    for row in rows:
        if row.tensor == key:
            found.setdefault(pattern(row.layer), []).append(row)
    return found


def numerics_report(rank: RankEvidence) -> NumericsReport | None:
    """Lay out the numbers of a rank; None where the run looked at none."""
    gradients = tuple(map(_gradient, gradients_of(rank)))
    found = rank.numerics
    if found is None:
        return _gradients_alone(gradients) if gradients else None
    measured = found.record.measured
    return NumericsReport(
        step=measured.step if measured is not None else None,
        reason=found.record.reason or _why_no_rows(found),
        rows=tuple(map(_tensor_row, found.rows)),
        recipes=_recipes(found),
        scales=tuple(_scale_row(kept) for kept in kept_scales(found) if kept.used),
        loss_scales=loss_scales_of(found),
        gradients=gradients,
        trend=tuple(TrendPoint(step=step, scalars=named) for step, named in trend_of(rank)),
        notes=measured.notes if measured is not None else (),
    )


def _why_no_rows(found: RankNumerics) -> str | None:
    """Say why a step that was measured has no tensors."""
    measured = found.record.measured
    if measured is None or measured.rows:
        return None
    return "; ".join(measured.notes) or f"no FP8 layer was seen in step {measured.step}"


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
        error=row.error,
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
