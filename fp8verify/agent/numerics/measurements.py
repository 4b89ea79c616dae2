"""Measure tensors as they come by; rows are read on the host once, after the step.

A hook starts few kernels for a tensor: they read all of it for the largest magnitude of each row,
and copy some rows. All else is done for many tensors of one shape at once, when enough of them
wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .cast_reference import BLOCKS, MXFP8, Cast, absolute_maxima, can_block
from .figures import as_lines, measure, measure_bytes
from .sampling import Sample, Sampler, plan_of, rows_of, weights_of
from .table import Sizes, Table

MOST_WAITING = 48 << 20  # bytes of samples
MOST_AT_ONCE = 1 << 23  # elements: 32 MB in float32, of which there are four at a time

Item = TypeVar("Item")


class Measurements:
    """All tensors of a step. Nothing waits for a GPU until `records`."""

    def __init__(self) -> None:
        self._table = Table()
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
        x = x.unsqueeze(0) if x.dim() < 2 else x
        matrix = (rows_of(x.shape), x.shape[-1])
        reference = cast if cast is not None and can_block(matrix, cast.scaling) else None
        height = BLOCKS[reference.scaling][0] if reference and reference.scaling in BLOCKS else 1
        plan = plan_of(x.shape, height)
        waiting = self._of(x.device)
        maxima = absolute_maxima(x).flatten()
        sample = waiting.sampler.take(x, plan, maxima)
        sizes = Sizes(
            rows=matrix[0],
            elements=x.numel(),
            sampled=sample.rows.numel(),
            blocks=x.numel() // BLOCKS[MXFP8][1] if reference and reference.scaling == MXFP8 else 0,
            units=plan.units if plan.top else 0,
            spread=plan.spread if plan.top else 0,
        )
        source = "values" if reference is None else "replay"
        ticket = self._table.ticket(layer, tensor, cast, source, sizes)
        if ticket is None:
            return False
        if as_type is not None:
            sample = sample._replace(rows=sample.rows.to(as_type), maxima=sample.maxima.to(as_type))
        known = reference if reference is None else reference._replace(scale=None)
        scale = _scale_of(waiting.sampler, x, sample, reference)
        waiting.add(Waits(ticket, sample, known, scale))
        return True

    def add_bytes(self, layer: str, tensor: str, data: Tensor, cast: Cast) -> bool:
        """Count the bytes of an FP8 tensor whose values were not seen."""
        sizes = Sizes(elements=data.numel(), sampled=data.numel())
        ticket = self._table.ticket(layer, tensor, cast, "bytes", sizes)
        if ticket is None:
            return False
        figures = measure_bytes(data, cast.format)
        nothing = torch.zeros(1, 4, dtype=torch.float64, device=data.device)
        weights = weights_of(plan_of((1, 1), 1), None, None, nothing)
        self._of(data.device).lines.append(([ticket], as_lines(figures, nothing, weights)))
        return True

    def records(self) -> list[dict[str, Any]]:
        """Measure what is left, copy all to the host and lay it out; waits for the devices."""
        for waiting in self._waiting.values():
            waiting.finish()
            tickets = [ticket for batch, _ in waiting.lines for ticket in batch]
            if tickets:
                self._table.fill(tickets, torch.cat([lines for _, lines in waiting.lines]).cpu())
            waiting.lines.clear()
        return self._table.records()

    def _of(self, device: torch.device) -> Waiting:
        """Return what waits on the stream that the training uses now: no other may read it."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        key = (device, stream)
        if key not in self._waiting:
            self._waiting[key] = Waiting(device)
        return self._waiting[key]


def _scale_of(sampler: Sampler, x: Tensor, sample: Sample, cast: Cast | None) -> Tensor | None:
    """Return a copy of the scale of the sampled rows: the recipe changes it when the step ends."""
    if cast is None or cast.scale is None:
        return None
    scale = cast.scale.detach()
    if scale.numel() == 1:
        return scale.reshape(1).clone()
    # One for each row; rows of such a tensor are units.
    by_row = scale.reshape(-1)
    if sample.plan.spread == sample.plan.units:
        return by_row.clone()
    units = sampler.spread(x.device, sample.plan)
    return by_row[units if sample.top is None else torch.cat((units, sample.top))]


class Waits(NamedTuple):
    """A sample that waits; `ticket` is its tensor's, `scale` what the recipe keeps of its rows."""

    ticket: int
    sample: Sample
    cast: Cast | None
    scale: Tensor | None


class Waiting:
    """Samples taken on one stream, and the lines that became of them.

    Attributes:
        lines: for each batch the tickets, and a matrix with a line for each.
        sampler: takes rows on this stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.lines: list[tuple[list[int], Tensor]] = []
        self.sampler = Sampler()
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._samples: list[Waits] = []
        self._bytes = 0

    def add(self, one: Waits) -> None:
        """Take a sample; measure all that wait if they are many."""
        self._samples.append(one)
        self._bytes += one.sample.rows.nbytes + one.sample.maxima.nbytes
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
        whole = dict(_exact(samples))
        for batch in _batches(samples, _alike, lambda one: one.sample.rows.numel()):
            plan = batch[0].sample.plan
            tickets = [one.ticket for one in batch]
            exact = torch.stack([whole[ticket] for ticket in tickets])
            rows = torch.stack([one.sample.rows for one in batch])
            figures = measure(rows, plan.height, exact[:, 0], _cast_of(batch))
            sampled = absolute_maxima(rows).double().square().view(len(batch), -1, plan.height)
            tops = [one.sample.top for one in batch if one.sample.top is not None]
            spread = self.sampler.spread(rows.device, plan) if plan.spread < plan.units else None
            weights = weights_of(plan, spread, torch.stack(tops) if tops else None, exact)
            peaks = (exact[:, 3].clone(), sampled.sum(dim=2))
            # Of many rows the largest are sampled, so that none is left that matters.
            left = peaks[0] - peaks[1].sum(dim=1) if plan.height > 1 else exact.new_zeros(1)
            exact[:, 3] = left.clamp(min=0)
            self.lines.append((tickets, as_lines(figures, exact, weights, peaks)))


def _exact(samples: Sequence[Waits]) -> Iterator[tuple[int, Tensor]]:
    """Yield what is known of whole tensors from the maxima of their rows: `EXACT`, squares."""
    for batch in _batches(
        samples,
        lambda one: (one.sample.maxima.shape, one.sample.maxima.dtype),
        lambda one: one.sample.maxima.numel(),
    ):
        maxima = torch.stack([one.sample.maxima for one in batch])
        amax = maxima.amax(dim=1)
        zero = (maxima == 0).sum(dim=1)
        # Not "less than infinity": a NaN is neither.
        broken = maxima.shape[1] - (maxima < float("inf")).sum(dim=1)
        squares = maxima.double().square().sum(dim=1)
        found = torch.stack((amax.double(), zero.double(), broken.double(), squares), dim=1)
        yield from zip((one.ticket for one in batch), found.unbind(), strict=True)


def _alike(one: Waits) -> tuple[Any, ...]:
    scale = None if one.scale is None else one.scale.shape
    return (one.sample.rows.shape, one.sample.rows.dtype, one.sample.plan, one.cast, scale)


def _cast_of(batch: Sequence[Waits]) -> Cast | None:
    cast, scales = batch[0].cast, [one.scale for one in batch if one.scale is not None]
    if cast is None or not scales:
        return cast
    return cast._replace(scale=torch.stack(scales).view(len(batch), -1, 1))


def _batches(
    items: Sequence[Item], key: Callable[[Item], Any], size: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Yield items of equal keys together, not too many at once."""
    groups: defaultdict[Any, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    for group in groups.values():
        count = max(1, MOST_AT_ONCE // max(1, size(group[0])))
        for first in range(0, len(group), count):
            yield group[first : first + count]
