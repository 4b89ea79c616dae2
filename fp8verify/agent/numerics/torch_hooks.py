"""What is put into torch while a step is measured, each taken off again when the step ends.

`torch._scaled_mm` is replaced: classes of a script's own that call it say nowhere how they cast,
but its operands do. Saved-tensor hooks see the FP8 bytes that Transformer Engine's modules keep for
the backward pass. The functions that clip gradients are replaced to see the norm before clipping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from .cast_reference import FORMATS, ROWWISE, TENSORWISE, Cast

LEAST_BYTES = 1 << 10  # smaller ones hold scales
# `clip_grad_norm_` looks up the first one, from whatever module it was imported; torchtitan and
# others call the second one: torch/nn/utils/clip_grad.py and __init__.py, from 2.6 on.
PLACES = ((clip_grad, "_clip_grads_with_norm_"), (torch.nn.utils, "clip_grads_with_norm_"))
_AGAINST_ZERO = 1e-6  # as clip_grad.py has it
# Its first arguments, all of which may be given by name: native_functions.yaml, `_scaled_mm`.
NAMES = ("input", "mat2", "scale_a", "scale_b")


class Operand(NamedTuple):
    """One operand of a product, as torch was given it; few of them are asked for more.

    Attributes:
        values: the matrix.
        inverse: its scale.
    """

    values: Any
    inverse: Any

    def transposed(self) -> Operand:
        """Return the second operand as the first one lies: columns are summed over."""
        return self._replace(values=self.values.t())

    def cast(self) -> Cast | None:
        """Return how the operand was cast; None where its scale does not tell."""
        values, inverse = self
        if not isinstance(inverse, Tensor) or values.dtype not in FORMATS:
            return None
        if inverse.dtype != torch.float32 or inverse.numel() not in (1, values.shape[0]):
            return None
        if max(inverse.shape, default=1) != inverse.numel():
            return None  # a grid of blocks
        scale = inverse.detach().reciprocal()
        by_row = inverse.numel() > 1
        return Cast(
            FORMATS[values.dtype],
            ROWWISE if by_row else TENSORWISE,
            scale=scale.reshape(-1) if by_row else scale.reshape(()),
        )


Listener = Callable[[Operand, Operand], None]


class ScaledMMHook:
    """Gives `listener` the two operands of each call.

    The function is the original again after `remove`.
    """

    def __init__(self, listener: Listener) -> None:
        self._original: Any = torch._scaled_mm
        original = self._original

        def fp8verify_scaled_mm(*args: Any, **kwargs: Any) -> Any:
            given: list[Any] = [*args[:4], *map(kwargs.get, NAMES[len(args) :])]
            a, b, scale_a, scale_b = given
            listener(Operand(a, scale_a), Operand(b, scale_b))
            return original(*args, **kwargs)

        self._ours = fp8verify_scaled_mm
        torch._scaled_mm = fp8verify_scaled_mm

    def remove(self) -> None:
        """Put the original back, unless somebody else has replaced it since."""
        if torch._scaled_mm is self._ours:
            torch._scaled_mm = self._original


class SavedTensorHook:
    """Shows `seen` every tensor of bytes that is saved, as long as it is open.

    Where hooks of others are in place, as inside activation checkpointing, it does not open: hooks
    nest, and theirs would miss what goes to ours.
    """

    def __init__(self, seen: Callable[[Tensor], None]) -> None:
        self._seen = seen
        self._hooks: Any = None

    def open(self) -> bool:
        """Begin, if that disturbs nobody."""
        top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if top is None or top(False) is not None:
            return False
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        try:
            hooks.__enter__()
        except RuntimeError:  # somebody has forbidden them
            return False
        self._hooks = hooks
        return True

    def close(self) -> None:
        """End."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.__exit__(None, None, None)

    def _pack(self, tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.uint8 and tensor.numel() >= LEAST_BYTES:
            self._seen(tensor)
        return tensor


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


class ClippingHook:
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
