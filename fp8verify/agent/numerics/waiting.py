"""Samples that wait to be measured together with others of their shape, on one stream of a GPU.

A hook starts two kernels for a tensor: one reads all of it for the largest magnitude of each row,
one copies some rows. All else is done for many tensors at once, when enough of them wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .measure import EXACT, as_lines, measure
from .replay import Cast
from .rows import Sampler

MOST_WAITING = 48 << 20  # bytes of samples
MOST_AT_ONCE = 1 << 23  # elements: 32 MB in float32, of which there are four at a time

Item = TypeVar("Item")


class Sample(NamedTuple):
    """What is left of a tensor: `ticket` is whose it is, `rows` a copy of some rows.

    Attributes:
        maxima: the largest magnitude of every row.
        scale: what the recipe keeps as the scale of these rows, a copy.
    """

    ticket: int
    rows: Tensor
    maxima: Tensor
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
        self._samples: list[Sample] = []
        self._bytes = 0

    def add(self, sample: Sample) -> None:
        """Take a sample; measure all that wait if they are many."""
        self._samples.append(sample)
        self._bytes += sample.rows.nbytes + sample.maxima.nbytes
        if self._bytes >= MOST_WAITING:
            self.measure()

    def measure(self) -> None:
        """Measure all samples that wait, on their stream."""
        samples, self._samples, self._bytes = self._samples, [], 0
        whole = dict(_exact(samples))
        for batch in _batches(samples, _alike, lambda sample: sample.rows.numel()):
            tickets = [sample.ticket for sample in batch]
            exact = torch.stack([whole[ticket] for ticket in tickets])
            rows = torch.stack([sample.rows for sample in batch])
            figures = measure(rows, exact[:, EXACT.index("amax")], _cast_of(batch))
            self.lines.append((tickets, as_lines(figures, exact)))

    def on_stream(self) -> Any:
        """Return the context in which its kernels belong."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def finish(self) -> None:
        """Measure what is left; the current stream waits for it."""
        with self.on_stream():
            self.measure()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def _exact(samples: Sequence[Sample]) -> Iterator[tuple[int, Tensor]]:
    """Yield what is known of whole tensors, from the maxima of all their rows: see `EXACT`."""
    for batch in _batches(
        samples, lambda s: (s.maxima.shape, s.maxima.dtype), lambda s: s.maxima.numel()
    ):
        maxima = torch.stack([sample.maxima for sample in batch])
        amax = maxima.amax(dim=1)
        zero = (maxima == 0).sum(dim=1)
        # Not "less than infinity": a NaN is neither.
        broken = maxima.shape[1] - (maxima < float("inf")).sum(dim=1)
        found = torch.stack((amax.double(), zero.double(), broken.double()), dim=1)
        yield from zip((sample.ticket for sample in batch), found.unbind(), strict=True)


def _alike(sample: Sample) -> tuple[Any, ...]:
    scale = None if sample.scale is None else sample.scale.shape
    return (sample.rows.shape, sample.rows.dtype, sample.cast, scale)


def _cast_of(batch: Sequence[Sample]) -> Cast | None:
    cast, scales = batch[0].cast, [s.scale for s in batch if s.scale is not None]
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
