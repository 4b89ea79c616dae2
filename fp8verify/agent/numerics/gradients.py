"""The norm of the gradients that the optimizers have used, and what scaled and clipped them."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .module_casts import local

# Between these a norm is sound: outside of them squares may have left the range of float32.
LEAST_SURE, MOST_SURE = 1e-15, 1e18


def gradient_norm(optimizers: Iterable[Any]) -> dict[str, Any] | None:
    """Return the L2 norm of this rank's gradients; None where none is left to see.

    Waits for the GPU. It is the norm after clipping, since the optimizer has stepped. `sharded` is
    whether other ranks hold parts of these gradients; `clip_ratio` is for a measured step to tell.
    """
    by_kind: defaultdict[Any, list[Any]] = defaultdict(list)
    sharded = False
    for gradient in _gradients(optimizers):
        part = local(gradient)
        sharded = sharded or part is not gradient
        by_kind[part.device, part.dtype].append(_real(part.detach()))
    if not by_kind:
        return None
    norms = [_norm(parts) for parts in by_kind.values()]
    total = math.hypot(*norms) if all(map(math.isfinite, norms)) else None
    return {"norm": total, "finite": total is not None, "sharded": sharded, "clip_ratio": None}


def _gradients(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yield the gradient of each parameter once; those that are sparse or without data are not."""
    parameters = {id(p): p for found in optimizers for g in found.param_groups for p in g["params"]}
    for parameter in parameters.values():
        found = parameter.grad
        if found is not None and found.layout == torch.strided and found.device.type != "meta":
            yield found


def _real(part: Any) -> Any:
    return torch.view_as_real(part) if part.is_complex() else part


def _norm(parts: list[Any]) -> float:
    """Return the norm of gradients of one type; NaN or infinity where they hold any."""
    # That of FP16 gradients leaves the range of FP16.
    wide = torch.promote_types(parts[0].dtype, torch.float32)
    total = _total(parts, wide)
    return total if LEAST_SURE < total < MOST_SURE else _total(parts, torch.float64)


def _total(parts: list[Any], kind: torch.dtype) -> float:
    norms = torch.stack([norm.double() for norm in _norms(parts, kind)])
    return float(torch.linalg.vector_norm(norms))


def _norms(parts: list[Any], kind: torch.dtype) -> Sequence[Any]:
    try:
        found: Sequence[Any] = torch._foreach_norm(parts, 2, dtype=kind)
    except TypeError:  # torch before 2.4
        found = [torch.linalg.vector_norm(part, dtype=kind) for part in parts]
    return found


_updated: weakref.WeakSet[Any] = weakref.WeakSet()


def remember(scaler: Any) -> None:
    """Remember a GradScaler that the training updates.

    Looking for them among all objects would hold the training up for half a second.
    """
    _updated.add(scaler)


def used_scalers() -> list[Any]:
    """Return the GradScalers that are alive and have a scale."""
    return [scaler for scaler in _updated if getattr(scaler, "_scale", None) is not None]


def scales_of(scalers: list[Any]) -> list[float | None]:
    """Return their scales, None for one that is not finite; waits for the GPU."""
    scales = [float(scaler.get_scale()) for scaler in scalers]
    return [scale if math.isfinite(scale) else None for scale in scales]
