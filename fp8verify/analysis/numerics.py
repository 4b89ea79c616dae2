"""What follows from the scales and tensors of one rank, and how the report has them."""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec import convert
from msgspec.structs import replace

from fp8verify.analysis.gemms import rounded
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import (
    GradientRecord,
    MeasuredRecord,
    RecipeRecord,
    ScalesRecord,
    SlotRecord,
    TensorRecord,
)
from fp8verify.report.model.diagnosis import (
    GRAD_NORM,
    GRAD_NORM_CLIP_RATIO,
    LOSS,
    OF_TENSORS,
    NumericsReport,
    ScaleRow,
    TensorRow,
    TrendPoint,
)

_SHARES = ("zeros", "flushed", "saturated", "subnormal", "zero_rows")
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
    def is_usable(self) -> bool:
        """Whether the scale is a positive number."""
        return 0 < self.scale < math.inf

    @property
    def used(self) -> bool:
        """Whether any amax was recorded for it: layers do not use all of their slots."""
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


def windows_of(rank: RankEvidence) -> tuple[ScalesRecord, ...]:
    """Return what each window of a rank saw of its scales."""
    return rank.recorded.numerics.record.windows


def kept_scales(rank: RankEvidence) -> list[Kept]:
    """Return the scales that delayed scaling keeps and uses, as the last window saw them."""
    kept = [
        Kept(slot, window.recipes[slot.recipe], window)
        for window in windows_of(rank)[-1:]
        for slot in window.slots
        if 0 <= slot.recipe < len(window.recipes)
    ]
    return [one for one in kept if one.used]


def recipes_of(rank: RankEvidence) -> tuple[RecipeRecord, ...]:
    """Return the recipes of a rank's windows, each once."""
    every = (recipe for window in windows_of(rank) for recipe in window.recipes)
    return tuple(dict.fromkeys(every))


def steps_of(rank: RankEvidence) -> list[MeasuredRecord]:
    """Return all measured steps of a rank, the first one and those of its series, in order."""
    steps = {line.step: line for line in reversed(_lines(rank))}
    return [steps[number] for number in sorted(steps)]


def _lines(rank: RankEvidence) -> list[MeasuredRecord]:
    numerics = rank.recorded.numerics
    measured = numerics.record.measured
    return [*([] if measured is None else [measured]), *numerics.series]


def loss_scales_of(rank: RankEvidence) -> tuple[float | None, ...]:
    """Return the scales of torch's GradScalers at the end of the last window."""
    windows = windows_of(rank)
    return windows[-1].loss_scales if windows else ()


def gradients_of(rank: RankEvidence) -> list[GradientRecord]:
    """Return the gradient norms of a rank by step."""
    windows = rank.recorded.meta.windows
    found = {norm.step: norm for window in windows for norm in window.gradients}
    noted = (line.gradient for line in _lines(rank))
    found |= {norm.step: norm for norm in noted if norm is not None}
    return [found[step] for step in sorted(found)]


def recomputed_high(rank: RankEvidence) -> tuple[str, ...]:
    """Return the layers that a measured step ran in FP8 and recomputed without FP8."""
    layers = (layer for line in _lines(rank) for layer in line.recomputed_high)
    return tuple(dict.fromkeys(layers))


def _trend(rank: RankEvidence) -> tuple[TrendPoint, ...]:
    """Return the scalars of each step of a rank's series, with the losses of the log."""
    series, known = rank.recorded.numerics.series, rank.recorded.losses
    losses = {} if known.counted else known.points
    # Resumed runs: the framework's steps are ahead of those of this process.
    windows = rank.recorded.meta.windows
    ahead = [window.framework.last - window.last for window in windows if window.framework]
    points = []
    for line in series[:: -(-len(series) // MOST_POINTS) or 1]:
        loss = losses.get(line.step + (ahead[-1] if ahead else 0), math.nan)
        named = scalars_of(line, loss if math.isfinite(loss) else None)
        points.append(TrendPoint(step=line.step, scalars=named))
    return tuple(points)


def scalars_of(line: MeasuredRecord, loss: float | None = None) -> dict[str, float]:
    """Return the scalars of a measured step, by the names of `fp8verify.report.model.diagnosis`."""
    rows, found = line.rows, {}
    for name, of in OF_TENSORS.items():
        values = [getattr(row, of.column) for row in rows if row.tensor in of.tensors]
        known = [value for value in values if value is not None]
        if known:
            found[name] = of.worst(known)
    gradient = line.gradient
    rest = {
        GRAD_NORM: gradient.norm if gradient is not None else None,
        GRAD_NORM_CLIP_RATIO: gradient.clip_ratio if gradient is not None else None,
        LOSS: loss,
    }
    return found | {name: value for name, value in rest.items() if value is not None}


def numerics_report(rank: RankEvidence) -> NumericsReport | None:
    """Return the numerics of a rank; None if none were recorded."""
    gradients = tuple(gradients_of(rank))
    if not rank.recorded.has_numerics and not gradients:
        return None
    record = rank.recorded.numerics.record
    measured, reason = record.measured, record.reason
    if measured is not None and not measured.rows:
        no_layer = f"no FP8 layer was seen in step {measured.step}"
        reason = reason or "; ".join(measured.notes) or no_layer
    return NumericsReport(
        step=measured.step if measured is not None else None,
        reason=reason,
        rows=tuple(map(_tensor_row, measured.rows if measured is not None else ())),
        recipes=recipes_of(rank),
        scales=tuple(
            ScaleRow(
                layer=kept.slot.layer,
                tensor=kept.slot.tensor,
                gemm=kept.slot.gemm,
                format=kept.slot.format,
                scale=kept.scale if math.isfinite(kept.scale) else None,
                amax=kept.newest,
                headroom_octaves=rounded(kept.headroom),
                changed=None if kept.slot.scale_before is None else not kept.frozen,
            )
            for kept in kept_scales(rank)
        ),
        loss_scales=loss_scales_of(rank),
        gradients=gradients,
        trend=_trend(rank),
        notes=measured.notes if measured is not None else (),
    )


def _tensor_row(row: TensorRecord) -> TensorRow:
    shares = {name: rounded(getattr(row, name)) for name in _SHARES}
    return replace(convert(row, TensorRow, from_attributes=True), **shares)
