"""Load the GPU code that the measured step will use, before that step.

CUDA loads a kernel when it is first called, in a fraction of a millisecond each: for all of them
together that would be the longest part of the first measured step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .casts import casts_of
from .hooks import weights_of
from .measurements import Measurements
from .replay import Cast
from .rows import MOST_ELEMENTS

WIDTH = 256  # of an input that all blocks divide


def rehearse(modules: Sequence[tuple[str, Any]], on: str = "cuda") -> int:
    """Measure zeros under the casts of modules on GPUs; return how many tensors that took."""
    measured = Measurements()
    found = set(_kinds(modules, on))
    with torch.no_grad():
        for place, (device, dtype, cast, scaled) in enumerate(found):
            x = torch.zeros(2 * MOST_ELEMENTS // WIDTH, WIDTH, dtype=dtype, device=device)
            scale = torch.ones((), device=device) if scaled else None
            known = cast if cast is None else cast._replace(scale=scale)
            measured.add(f"{place}", "input", x, known)
        measured.records()
    return len(found)


def _kinds(
    modules: Iterable[tuple[str, Any]], on: str
) -> Iterator[tuple[torch.device, torch.dtype, Cast | None, bool]]:
    """Yield device, type, cast without its scale, and whether it keeps one."""
    for _, module in modules:
        for _, weight in weights_of(module)[:1]:
            casts = casts_of(module, weight)
            if weight.device.type != on or not (casts is None or casts):
                continue
            for cast in (None,) if casts is None else casts.values():
                known = cast if cast is None else cast._replace(scale=None)
                scaled = cast is not None and cast.scale is not None
                for dtype in {weight.dtype, torch.bfloat16}:
                    if dtype.is_floating_point and dtype.itemsize > 1:
                        yield weight.device, dtype, known, scaled
