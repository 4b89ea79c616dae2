"""What follows from the scales and tensors of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

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

FORWARD = ("input", "weight")


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
    """Return the layers that the measured step saw run in FP8 and be recomputed without it."""
    measured = rank.numerics.record.measured if rank.numerics is not None else None
    return measured.recomputed_high if measured is not None else ()


def trend_of(rank: RankEvidence) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the steps of a rank's series and their scalars by name."""
    series = rank.numerics.series if rank.numerics is not None else ()
    losses, ahead = _losses_by_step(rank), _steps_ahead(rank)
    for line in series:
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
        scalars.GRAD_NORM: gradient.norm if gradient is not None else None,
        scalars.GRAD_NORM_CLIP_RATIO: gradient.clip_ratio if gradient is not None else None,
        scalars.LOSS: loss,
    }
    return {scalar.name: value for scalar, value in found.items() if value is not None}


def _at(column: Sequence[float | None], places: Iterable[int]) -> list[float]:
    found = [column[place] for place in places if place < len(column)]
    return [value for value in found if value is not None]


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
