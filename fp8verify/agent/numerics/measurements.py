"""Measure tensors as they come by; figures are read on the host once, after the step.

A hook starts few kernels for a tensor: they read all of it for the largest magnitude of each row,
and copy some rows. All else is done for many tensors of one shape at once, when enough of them
wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .casts import BLOCKS, MXFP8, Cast, absolute_maxima, can_block
from .figures import as_lines, measure, measure_bytes
from .sampling import Plan, Sampler, plan_of, rows_of, weights_of
from .table import Row, Sizes

MOST_ROWS = 1 << 14
MOST_CALLS = 1 << 17
MOST_WAITING = 48 << 20  # bytes of samples
MOST_AT_ONCE = 1 << 23  # elements: 32 MB in float32, of which there are four at a time


class Waits(NamedTuple):
    """A sample that waits to be measured.

    Attributes:
        row: takes its figures.
        plan: how it was sampled.
        rows: the sampled rows, the spread ones first.
        maxima: the largest magnitude of each row of the whole tensor.
        top: which units are the largest ones.
        cast: how the tensor is cast, but for its scale.
        scale: what the recipe keeps of the sampled rows.
    """

    row: Row
    plan: Plan
    rows: Tensor
    maxima: Tensor
    top: Tensor | None
    cast: Cast | None
    scale: Tensor | None

    def alike(self) -> tuple[Any, ...]:
        """Return what samples have in common that are measured together."""
        scale = None if self.scale is None else self.scale.shape
        return (self.rows.shape, self.rows.dtype, self.plan, self.maxima.shape, self.cast, scale)


class Measurements:
    """All tensors of a step. Nothing waits for a GPU until `records`."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}  # in the order in which they were met
        self._calls = 0
        self._waiting: dict[tuple[torch.device, int], Waiting] = {}

    def add(
        self,
        layer: str,
        tensor: str,
        x: Tensor,
        cast: Cast | None,
        *,
        as_type: torch.dtype | None = None,
    ) -> bool:
        """Measure a tensor under a cast, or its values alone where none is known.

        Args:
            layer: the layer's name.
            tensor: input, weight or grad_output.
            x: the tensor, which is only read.
            cast: as the layer does.
            as_type: to which type the layer converts it first.

        Returns:
            Whether there was room for it.
        """
        row = self._row(layer, tensor)
        if row is None:
            return False
        x = x.unsqueeze(0) if x.dim() < 2 else x
        matrix = (rows_of(x.shape), x.shape[-1])
        reference = cast if cast is not None and can_block(matrix, cast.scaling) else None
        scaling = reference.scaling if reference is not None else ""
        plan = plan_of(x.shape, BLOCKS[scaling][0] if scaling in BLOCKS else 1)
        waiting = self._of(x.device)
        maxima = absolute_maxima(x).flatten()
        rows, top = waiting.sampler.take(x, plan, maxima)
        sizes = Sizes(
            rows=matrix[0],
            elements=x.numel(),
            sampled=rows.numel(),
            blocks=x.numel() // BLOCKS[MXFP8][1] if scaling == MXFP8 else 0,
            units=plan.units if plan.top else 0,
            spread=plan.spread if plan.top else 0,
        )
        row.begin("values" if reference is None else "replay", cast, sizes)
        if as_type is not None:
            rows, maxima = rows.to(as_type), maxima.to(as_type)
        known = None if reference is None else reference._replace(scale=None)
        scale = _scale_of(waiting.sampler, x, plan, top, reference)
        waiting.add(Waits(row, plan, rows, maxima, top, known, scale))
        return True

    def add_bytes(self, layer: str, tensor: str, data: Tensor, cast: Cast) -> bool:
        """Count the bytes of an FP8 tensor whose values were not seen."""
        row = self._row(layer, tensor)
        if row is None:
            return False
        row.begin("bytes", cast, Sizes(elements=data.numel(), sampled=data.numel()))
        nothing = torch.zeros(1, 4, dtype=torch.float64, device=data.device)
        weights = weights_of(plan_of((1, 1), 1), None, None, nothing)
        lines = as_lines(measure_bytes(data, cast.format), nothing, weights)
        self._of(data.device).lines.append(([row], lines))
        return True

    def records(self) -> list[dict[str, Any]]:
        """Measure what is left, copy all to the host and lay it out; waits for the devices."""
        for waiting in self._waiting.values():
            waiting.finish()
            rows = [row for batch, _ in waiting.lines for row in batch]
            if rows:
                lines = torch.cat([lines for _, lines in waiting.lines]).tolist()
                for row, line in zip(rows, lines, strict=True):
                    row.add(line)
            waiting.lines.clear()
        return [
            {"layer": layer, "tensor": tensor, **row.record()}
            for (layer, tensor), row in self._rows.items()
            if row.calls
        ]

    def _row(self, layer: str, tensor: str) -> Row | None:
        """Return the row of a tensor for one more call; None if there is no room."""
        key = (layer, tensor)
        full = key not in self._rows and len(self._rows) >= MOST_ROWS
        if full or self._calls >= MOST_CALLS:
            return None
        self._calls += 1
        return self._rows.setdefault(key, Row())

    def _of(self, device: torch.device) -> Waiting:
        """Return what waits on the stream that the training uses now: no other may read it."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        key = (device, stream)
        if key not in self._waiting:
            self._waiting[key] = Waiting(device)
        return self._waiting[key]


def _scale_of(
    sampler: Sampler, x: Tensor, plan: Plan, top: Tensor | None, cast: Cast | None
) -> Tensor | None:
    """Return a copy of the scale of the sampled rows: the recipe changes it when the step ends."""
    if cast is None or cast.scale is None:
        return None
    by_row = cast.scale.detach().reshape(-1)  # one for each row: rows of such a tensor are units
    if by_row.numel() == 1 or plan.spread == plan.units:
        return by_row.clone()
    units = sampler.spread(x.device, plan)
    return by_row[units if top is None else torch.cat((units, top))]


class Waiting:
    """Samples taken on one stream, and the lines of figures that became of them.

    Attributes:
        lines: for each batch the rows, and a matrix with a line for each.
        sampler: takes rows on this stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.lines: list[tuple[list[Row], Tensor]] = []
        self.sampler = Sampler()
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._samples: list[Waits] = []
        self._bytes = 0

    def add(self, one: Waits) -> None:
        """Take a sample; measure all that wait if they are many."""
        self._samples.append(one)
        self._bytes += one.rows.nbytes + one.maxima.nbytes
        if self._bytes >= MOST_WAITING:
            self._measure()

    def finish(self) -> None:
        """Measure what is left, on its stream; the current stream waits for it."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._measure()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def _measure(self) -> None:
        samples, self._samples, self._bytes = self._samples, [], 0
        for batch in _batches(samples):
            plan, cast = batch[0].plan, batch[0].cast
            scales = [one.scale for one in batch if one.scale is not None]
            if cast is not None and scales:
                cast = cast._replace(scale=torch.stack(scales).view(len(batch), -1, 1))
            exact = _exact(torch.stack([one.maxima for one in batch]))
            rows = torch.stack([one.rows for one in batch])
            figures = measure(rows, plan.height, exact[:, 0], cast)
            sampled = absolute_maxima(rows).double().square().view(len(batch), -1, plan.height)
            tops = [one.top for one in batch if one.top is not None]
            spread = self.sampler.spread(rows.device, plan) if plan.spread < plan.units else None
            weights = weights_of(plan, spread, torch.stack(tops) if tops else None, exact)
            peaks = (exact[:, 3].clone(), sampled.sum(dim=2))
            # Of many rows the largest are sampled, so that none is left that matters.
            left = peaks[0] - peaks[1].sum(dim=1) if plan.height > 1 else exact.new_zeros(1)
            exact[:, 3] = left.clamp(min=0)
            lines = as_lines(figures, exact, weights, peaks)
            self.lines.append(([one.row for one in batch], lines))


def _exact(maxima: Tensor) -> Tensor:
    """Return what the maxima of all rows tell of n whole tensors: `EXACT`, with their squares."""
    # Not "less than infinity": a NaN is neither.
    broken = maxima.shape[1] - (maxima < float("inf")).sum(dim=1)
    squares = maxima.double().square().sum(dim=1)
    found = (maxima.amax(dim=1), (maxima == 0).sum(dim=1), broken, squares)
    return torch.stack([one.double() for one in found], dim=1)


def _batches(samples: Sequence[Waits]) -> Iterator[list[Waits]]:
    """Yield samples that are alike together, not too many at once."""
    groups: defaultdict[Any, list[Waits]] = defaultdict(list)
    for one in samples:
        groups[one.alike()].append(one)
    for group in groups.values():
        size = max(group[0].rows.numel(), group[0].maxima.numel(), 1)
        count = max(1, MOST_AT_ONCE // size)
        for first in range(0, len(group), count):
            yield group[first : first + count]
