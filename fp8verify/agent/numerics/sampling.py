"""Choose the rows of a large tensor that are measured: its largest rows, and rows spread over it.

The largest rows are a stratum of their own: they are all measured, so that an outlier weighs in
sampled figures exactly what it weighs in the tensor. The other rows count for those left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MOST_ELEMENTS = 1 << 18
LEAST_ROWS, LEAST_GROUPS = 32, 6  # also of wide tensors, such as those of an output layer
WIDEST = 1 << 22
TOP_SHARE, MOST_TOP = 8, 64  # one in so many sampled units is from the largest, at most
_GOLDEN = 0.6180339887498949


class Plan(NamedTuple):
    """How a tensor is sampled.

    Attributes:
        units: how many units it has; a unit is `height` neighbouring rows.
        height: rows of a unit, those of a square block.
        spread: units taken from all over the tensor; all of them if `top` is 0.
        top: units with the largest values.
    """

    units: int
    height: int
    spread: int
    top: int


def plan_of(shape: tuple[int, ...], height: int) -> Plan:
    """Return how a tensor of two dimensions or more is sampled."""
    rows, width = rows_of(shape), shape[-1]
    units = rows // height
    least = LEAST_ROWS if height == 1 else LEAST_GROUPS * height
    wanted = max(MOST_ELEMENTS // width, min(least, WIDEST // width), 1)
    count = max(wanted // height, 1 if height == 1 else 2)
    if count >= units:
        return Plan(units, height, units, 0)
    top = min(-(-count // TOP_SHARE), MOST_TOP) if count > 1 else 0
    return Plan(units, height, count - top, top)


def rows_of(shape: tuple[int, ...]) -> int:
    """Return the number of rows of a tensor whose last dimension is their length."""
    return math.prod(shape[:-1])


class Sampler:
    """Copies rows of tensors; keeps the spread places by shape, on the GPU, for one step."""

    def __init__(self) -> None:
        self._places: dict[tuple[torch.device, Plan], Tensor] = {}

    def take(self, x: Tensor, plan: Plan, maxima: Tensor) -> tuple[Tensor, Tensor | None]:
        """Sample a tensor of two dimensions or more, with any strides.

        Args:
            x: the tensor.
            plan: how it is sampled.
            maxima: the largest magnitude of each of its rows, flat.

        Returns:
            A copy of some rows (units * height, columns), the spread ones first; and which units
            are the largest ones (plan.top), None where none are taken for that.
        """
        if plan.spread == plan.units:
            return _rows(x, None), None
        units, top = self.spread(x.device, plan), None
        if plan.top:
            by_unit = maxima if plan.height == 1 else maxima.view(-1, plan.height).amax(dim=1)
            top = by_unit.topk(plan.top, sorted=False).indices
            units = torch.cat((units, top))
        if plan.height > 1:
            within = torch.arange(plan.height, device=x.device)
            units = (units.unsqueeze(1) * plan.height + within).flatten()
        return _rows(x, units), top

    def spread(self, device: torch.device, plan: Plan) -> Tensor:
        """Return the spread units: one in each of equal parts, at a different place in each.

        Every n-th row could always be the first token of its sequence.
        """
        key = (device, plan)
        if key not in self._places:
            part = torch.arange(plan.spread, device=device, dtype=torch.float64)
            found = (part + ((part + 1) * _GOLDEN).frac()) * (plan.units / plan.spread)
            self._places[key] = found.long().clamp_(max=plan.units - 1)
        return self._places[key]


def _rows(x: Tensor, places: Tensor | None) -> Tensor:
    """Return a copy of the rows at `places`, or of all, as a matrix."""
    x = x[..., :WIDEST]
    try:
        flat = x.view(-1, x.shape[-1])
    except RuntimeError:  # a view would be a copy of the whole tensor, as of an expanded one
        if places is None:
            return x.reshape(-1, x.shape[-1]).clone()
        return x[torch.unravel_index(places, x.shape[:-1])]
    return flat.clone() if places is None else flat.index_select(0, places)


class Weights(NamedTuple):
    """What each sampled unit of n tensors counts for.

    Attributes:
        each: (n, units) in float64; 1 for the largest, 0 for a spread one that is among these.
        spread: which are spread ones that count, (n, units) of 0 and 1; None where all are taken.
        rest: how many units of a tensor are not among its largest.
    """

    each: Tensor
    spread: Tensor | None
    rest: int

    def add_up(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the totals over whole tensors of figures by unit, and the variances of these.

        Args:
            values: (figures, n, units) in float64.
        """
        total = (values * self.each).sum(dim=-1)
        if self.spread is None:
            return total, torch.zeros_like(total)
        count = self.spread.sum(dim=-1)
        mean = ((values * self.spread).sum(dim=-1) / count).unsqueeze(-1)
        squares = ((values - mean).square_() * self.spread).sum(dim=-1)
        # Of a sample without replacement: a stratum that is nearly all taken is nearly exact.
        left = (1 - count / self.rest).clamp_(min=0)
        variance = squares / (count - 1).clamp_(min=1) / count
        return total, variance * left * float(self.rest) ** 2


def weights_of(plan: Plan, spread: Tensor | None, tops: Tensor | None, like: Tensor) -> Weights:
    """Return the weights of n tensors that were sampled by one plan.

    Args:
        plan: of all of them.
        spread: the units that `Sampler.spread` returns.
        tops: the largest units of each tensor, (n, plan.top).
        like: a tensor of the same device whose first dimension is n.
    """
    n, units = like.shape[0], plan.spread + plan.top
    each = like.new_ones((n, units), dtype=torch.float64)
    if spread is None or plan.spread == plan.units:
        return Weights(each, None, plan.units)
    counts = like.new_zeros((n, units), dtype=torch.float64)
    counts[:, : plan.spread] = 1
    for neighbour in (0, 1):
        if tops is None:
            break
        # A unit can only be the spread one of its own part, or of the next for rounding.
        part = (tops * plan.spread // plan.units + neighbour).clamp(max=plan.spread - 1)
        taken_twice = (spread[part] == tops).double()
        counts.scatter_add_(1, part, -taken_twice)
    counts.clamp_(min=0)
    rest = plan.units - plan.top
    factor = rest / counts.sum(dim=1, keepdim=True).clamp_(min=1)
    each[:, : plan.spread] = (counts * factor)[:, : plan.spread]
    return Weights(each, counts, rest)
