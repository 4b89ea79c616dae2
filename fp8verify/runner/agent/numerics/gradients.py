"""The norm of all gradients that the optimizers are about to use, or have used."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .tensors import local


def gradient_norm(optimizers: Iterable[Any]) -> dict[str, Any] | None:
    """Return the L2 norm of this rank's gradients; None where none is left to see.

    Waits for the GPU. It is the norm after clipping, since the optimizer has stepped. `sharded` is
    whether other ranks hold parts of these gradients; `clip_ratio` is for a measured step to tell.
    """
    by_kind: defaultdict[Any, list[Any]] = defaultdict(list)
    seen: set[int] = set()
    sharded = False
    for parameter in _parameters(optimizers):
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        part = local(gradient)
        sharded = sharded or part is not gradient
        by_kind[part.device, part.dtype].append(part.detach())
    if not by_kind:
        return None
    squares = [_squares(parts) for parts in by_kind.values()]
    total = math.sqrt(sum(squares)) if all(map(math.isfinite, squares)) else None
    return {"norm": total, "finite": total is not None, "sharded": sharded, "clip_ratio": None}


def _parameters(optimizers: Iterable[Any]) -> Iterable[Any]:
    return (p for found in optimizers for group in found.param_groups for p in group["params"])


def _squares(parts: list[Any]) -> float:
    norms = torch.stack([norm.double() for norm in _norms(parts)])
    return float(norms.square().sum())


def _norms(parts: list[Any]) -> Sequence[Any]:
    """Return the norm of each in float32: that of FP16 gradients leaves the range of FP16."""
    try:
        found: Sequence[Any] = torch._foreach_norm(parts, 2, dtype=torch.float32)
    except TypeError:  # torch before 2.4
        found = [torch.linalg.vector_norm(part, dtype=torch.float32) for part in parts]
    return found
