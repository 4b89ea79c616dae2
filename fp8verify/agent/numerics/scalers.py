"""The loss scales of torch's GradScalers."""

from __future__ import annotations

import math
import weakref
from typing import Any

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
