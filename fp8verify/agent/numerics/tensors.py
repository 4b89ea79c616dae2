"""The plain tensor inside what libraries wrap it in."""

from __future__ import annotations

from typing import Any

import torch

from .formats import FORMATS


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor that is spread over ranks."""
    return getattr(tensor, "_local_tensor", tensor)


def plain(tensor: Any) -> Any:
    """Return the tensor of values inside wrappers, or of FP8 bytes if that is all there is."""
    tensor = local(tensor)
    if not isinstance(tensor, torch.Tensor):
        return None
    # torchao: WeightWithDynamicFloat8CastTensor._tensor, Float8TrainingTensor._data,
    # *WrapperTensor._data; Transformer Engine: Float8Tensor._data is uint8.
    for name in ("_tensor", "_data"):
        inner = getattr(tensor, name, None)
        if isinstance(inner, torch.Tensor):
            return plain(inner)
    return tensor.detach()


def is_fp8(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds FP8 values."""
    return tensor.dtype in FORMATS


def measurable(tensor: Any) -> bool:
    """Whether a tensor holds values in high precision."""
    return bool(
        isinstance(tensor, torch.Tensor)
        and tensor.is_floating_point()
        and tensor.element_size() > 1
        and tensor.numel()
        and tensor.device.type != "meta"
    )


def first_tensor(args: Any, kwargs: dict[str, Any] | None = None) -> Any:
    """Return the first tensor of a call's arguments, or of what it returned."""
    candidates = list(args) if isinstance(args, (tuple, list)) else [args]
    candidates += list((kwargs or {}).values())
    return next((found for found in candidates if isinstance(found, torch.Tensor)), None)


def capturing() -> bool:
    """Whether a CUDA graph is being captured, in which nothing of ours may appear."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
