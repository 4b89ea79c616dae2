"""See by how much torch's own functions clip the gradients while a step is measured."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

# `clip_grad_norm_` looks up the first one, from whatever module it was imported; torchtitan and
# others call the second one: torch/nn/utils/clip_grad.py and __init__.py, from 2.6 on.
PLACES = ((clip_grad, "_clip_grads_with_norm_"), (torch.nn.utils, "clip_grads_with_norm_"))
_AGAINST_ZERO = 1e-6  # as clip_grad.py has it


class Clipping:
    """Notes the norm and the limit of each call; the functions are the originals after `remove`."""

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Any]] = []
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        for module, name in PLACES:
            original = getattr(module, name, None)
            if original is not None:
                ours = self._watched(original)
                setattr(module, name, ours)
                self._wrapped.append((module, name, original, ours))

    def remove(self) -> None:
        """Put the originals back, unless somebody else has replaced them since."""
        for module, name, original, ours in self._wrapped:
            if getattr(module, name) is ours:
                setattr(module, name, original)
        self._wrapped.clear()

    def ratio(self) -> float | None:
        """Return what clipping left of the norm; None if not clipped once. Waits for the GPU."""
        if len(self._calls) != 1:
            return None
        limit, norm = self._calls[0]
        # The norm of sharded gradients may be spread too: to add it up takes a collective.
        if not isinstance(norm, Tensor) or type(norm) is not Tensor or norm.numel() != 1:
            return None
        known = float(norm)
        if not (math.isfinite(known) and isinstance(limit, (int, float))):
            return None
        return min(1.0, float(limit) / (known + _AGAINST_ZERO))

    def _watched(self, original: Any) -> Any:
        def fp8verify_clip(
            parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
        ) -> Any:
            self._calls.append((max_norm, total_norm))
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        return fp8verify_clip
