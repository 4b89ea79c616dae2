"""Which rows of a large tensor are looked at: spread over all of it, the same in every run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST_ELEMENTS = 1 << 18
LEAST_ROWS, LEAST_GROUPS = 32, 4  # of wide tensors, as those of a head
WIDEST = 1 << 22
_GOLDEN = 0.6180339887498949


def samples(shape: tuple[int, ...], height: int) -> int:
    """Return of how many rows a sample is; a multiple of `height`, unless the tensor is lower."""
    width = shape[-1]
    rows = _rows_of(shape)
    least = LEAST_ROWS if height == 1 else LEAST_GROUPS * height
    wanted = max(MOST_ELEMENTS // width, min(least, WIDEST // width), 1)
    count = min(rows, max(wanted // height, 1) * height)
    return count // height * height or rows


class Sampler:
    """Takes rows out of tensors; keeps their places by shape, on the GPU, for one step."""

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    def take(self, x: Tensor, count: int, height: int = 1) -> Tensor:
        """Return a copy of `count` rows of a tensor as a matrix.

        Args:
            x: a tensor of two dimensions or more, with any strides.
            count: as `samples` says.
            height: how many neighbouring rows are taken together.
        """
        x, rows = x[..., :WIDEST], _rows_of(x.shape)
        flat = _as_matrix(x)
        if count == rows:
            return (x.reshape(rows, -1) if flat is None else flat).clone()
        if flat is not None:
            (places,) = self._known(x.device, (rows,), count, height)
            return flat.index_select(0, places)
        return x[self._known(x.device, tuple(x.shape[:-1]), count, height)]

    def _known(
        self, device: torch.device, shape: tuple[int, ...], count: int, height: int
    ) -> tuple[Tensor, ...]:
        key = (device, shape, count, height)
        if key not in self._places:
            self._places[key] = _places(device, shape, count, height)
        return self._places[key]


def _rows_of(shape: tuple[int, ...]) -> int:
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows


def _as_matrix(x: Tensor) -> Tensor | None:
    """Return a view of all rows; None where that would copy the tensor, as of an expanded one."""
    try:
        return x.view(-1, x.shape[-1])
    except RuntimeError:
        return None


def _places(
    device: torch.device, shape: tuple[int, ...], count: int, height: int
) -> tuple[Tensor, ...]:
    """Return the places of rows by dimension: one in each of equal parts, each elsewhere in it.

    Every n-th row could always be the first token of its sequence.
    """
    rows = _rows_of((*shape, 1))
    groups, parts = rows // height, count // height
    part = torch.arange(parts, device=device, dtype=torch.float64)
    found = (
        ((part + ((part + 1) * _GOLDEN).frac()) * (groups / parts)).long().clamp_(max=groups - 1)
    )
    if height > 1:
        within = torch.arange(height, device=device)
        found = (found.unsqueeze(1) * height + within).flatten()
    return (found,) if len(shape) == 1 else tuple(torch.unravel_index(found, shape))
