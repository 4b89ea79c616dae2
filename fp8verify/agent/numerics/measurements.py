"""Measure tensors as they come by; rows are read on the host once, after the step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .measure import as_lines, measure_bytes
from .replay import BLOCKS, MXFP8, Cast, absolute_maxima, can_block
from .rows import Sampler, samples
from .table import Sizes, Table
from .waiting import Sample, Waiting


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
        waiting = self._of(x.device)
        taken = _take(waiting.sampler, x, cast)
        blocks = _block_count(taken.rows, cast)
        replayed = cast is not None and can_block(taken.rows.shape, cast.scaling)
        ticket = self._table.ticket(
            layer,
            tensor,
            cast,
            "replay" if replayed else "values",
            Sizes(taken.maxima.numel(), x.numel(), taken.rows.numel(), blocks),
        )
        if ticket is None:
            return False
        if as_type is not None:
            taken = taken._replace(rows=taken.rows.to(as_type), maxima=taken.maxima.to(as_type))
        known = cast if cast is None else cast._replace(scale=None)
        waiting.add(Sample(ticket, taken.rows, taken.maxima, known, taken.scale))
        return True

    def add_bytes(self, layer: str, tensor: str, data: Tensor, cast: Cast) -> bool:
        """Count the bytes of an FP8 tensor whose values were not seen."""
        figures, seen = measure_bytes(data, cast.format)
        sizes = Sizes(0, data.numel(), seen, 0)
        ticket = self._table.ticket(layer, tensor, cast, "bytes", sizes)
        if ticket is None:
            return False
        self._of(data.device).lines.append(([ticket], as_lines(figures)))
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


class _Taken(NamedTuple):
    rows: Tensor
    maxima: Tensor
    scale: Tensor | None


def _take(sampler: Sampler, x: Tensor, cast: Cast | None) -> _Taken:
    height = BLOCKS[cast.scaling][0] if cast is not None and cast.scaling in BLOCKS else 1
    count = samples(x.shape, height)
    scale = cast.scale if cast is not None else None
    if scale is not None and scale.numel() > 1:  # one for each row
        scale = sampler.take(scale.detach().reshape(*x.shape[:-1], 1), count, height).flatten()
    elif scale is not None:
        scale = scale.detach().reshape(1).clone()  # it changes when the step ends
    return _Taken(sampler.take(x, count, height), absolute_maxima(x).flatten(), scale)


def _block_count(rows: Tensor, cast: Cast | None) -> int:
    return rows.numel() // BLOCKS[MXFP8][1] if cast is not None and cast.scaling == MXFP8 else 0
