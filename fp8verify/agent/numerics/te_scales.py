"""The scales that Transformer Engine keeps from step to step under delayed scaling.

transformer_engine/pytorch/quantization.py (`DelayedScalingRecipeState`; `TENSORS` is the order of
`FP8FwdTensorIdx` and `FP8BwdTensorIdx`): `fp8_meta` has a state for each direction with `scale` (n)
and `amax_history` (steps, n), whose row 0 is the one that the next step fills. Other recipes keep
no scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .module_casts import formats_of, recipe_class

TENSORS = {
    "scaling_fwd": ("input", "weight", "output"),
    "scaling_bwd": ("grad_output", "grad_input"),
}
KEPT_STEPS = 32
MOST_SLOTS = 1 << 14


class Slot(NamedTuple):
    """One tensor that has a scale of its own: a layer's first, second … GEMM's input and so on."""

    layer: str
    tensor: str
    gemm: int
    format: str
    largest: float
    recipe: int
    group: int
    tensor_parallel: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is known by."""
        return self.layer, self.tensor, self.gemm


class Scales(NamedTuple):
    """Scales and histories of slots, newest amax last, as numbers."""

    scale: float
    amax: list[float]
    largest_amax: float
    staged: float


class State:
    """All that modules of Transformer Engine keep, at one moment."""

    def __init__(self, modules: Iterable[tuple[str, Any]]) -> None:
        self.recipes: list[dict[str, Any]] = []
        self.groups: list[list[int]] = []
        self.slots: list[Slot] = []
        self._parts: list[tuple[Tensor, Tensor]] = []
        for name, module in modules:
            self._read(name, module)
        self.scales = dict(zip((slot.key for slot in self.slots), self._copy(), strict=True))

    def _read(self, name: str, module: Any) -> None:
        meta = getattr(module, "fp8_meta", None)
        if not isinstance(meta, dict) or meta.get("recipe") is None:
            return
        recipe = meta["recipe"]
        number = self._place(self.recipes, describe_recipe(recipe))
        group = self._group(meta.get("fp8_group"))
        parallel = self._group(getattr(module, "tp_group", None))
        formats = dict(zip(TENSORS, formats_of(recipe), strict=True))
        for direction, tensors in TENSORS.items():
            kept = _kept(meta.get(direction))
            if kept is None or len(self.slots) + kept[0].numel() > MOST_SLOTS:
                continue
            self._parts.append(kept)
            for place in range(kept[0].numel()):
                gemm, which = divmod(place, len(tensors))
                found = formats[direction]
                self.slots.append(
                    Slot(
                        name, tensors[which], gemm, found.name, found.largest, number, group,
                        parallel,
                    )
                )  # fmt: skip

    def _copy(self) -> Iterator[Scales]:
        """Copy all scales and histories to the host together."""
        if not self._parts:
            return
        flat = [_flattened(scale, history) for scale, history in self._parts]
        device = flat[0].device
        numbers = torch.cat([part.to(device) for part in flat]).tolist()
        for scale, history in self._parts:
            count, steps = scale.numel(), min(KEPT_STEPS, max(0, history.shape[0] - 1))
            block, numbers = numbers[: count * (steps + 3)], numbers[count * (steps + 3) :]
            for place in range(count):
                column = block[place::count]
                yield Scales(column[0], column[3:], column[1], column[2])

    def _group(self, group: Any) -> int:
        try:
            if group is None or not torch.distributed.is_initialized():
                return -1
            return self._place(self.groups, torch.distributed.get_process_group_ranks(group))
        except Exception:  # not a group, or not this process's
            return -1

    @staticmethod
    def _place(known: list[Any], one: Any) -> int:
        if one not in known:
            known.append(one)
        return known.index(one)


def _kept(state: Any) -> tuple[Tensor, Tensor] | None:
    scale, history = getattr(state, "scale", None), getattr(state, "amax_history", None)
    if not (isinstance(scale, Tensor) and isinstance(history, Tensor)):
        return None
    good = scale.dim() == 1 and history.dim() == 2 and history.shape[1] == scale.numel()
    return (scale.detach(), history.detach()) if good and scale.numel() else None


def _flattened(scale: Tensor, history: Tensor) -> Tensor:
    """Return one vector: scales, the largest amax, the staged one, then rows, the newest last."""
    recorded = history[1:]
    largest = recorded.amax(dim=0) if recorded.shape[0] else torch.zeros_like(scale)
    return torch.cat([scale, largest, history[0], recorded[-KEPT_STEPS:].reshape(-1)]).float()


def describe_recipe(recipe: Any) -> dict[str, Any]:
    """Return what a recipe is configured to do."""
    forward, backward = formats_of(recipe)
    algorithm = getattr(recipe, "amax_compute_algo", None)
    return {
        "name": recipe_class(recipe),
        "forward": forward.name,
        "backward": backward.name,
        "margin": _number(getattr(recipe, "margin", None)),
        "interval": _number(getattr(recipe, "interval", None)),
        "history_length": _number(getattr(recipe, "amax_history_len", None)),
        "algorithm": algorithm if isinstance(algorithm, str) else None,
        "reduces_amax": bool(getattr(recipe, "reduce_amax", False)),
    }


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def in_words(before: State | None, after: State) -> dict[str, Any]:
    """Lay out the scales at the end of a window beside those at its beginning."""
    return {
        "recipes": after.recipes,
        "groups": after.groups,
        "slots": [_record(slot, before, after) for slot in after.slots],
    }


def _record(slot: Slot, before: State | None, after: State) -> dict[str, Any]:
    now = after.scales[slot.key]
    then = before.scales.get(slot.key) if before is not None else None
    return {
        "layer": slot.layer,
        "tensor": slot.tensor,
        "gemm": slot.gemm,
        "format": slot.format,
        "largest": slot.largest,
        "recipe": slot.recipe,
        "group": slot.group,
        "tensor_parallel": slot.tensor_parallel,
        "scale": repr(now.scale),
        "scale_before": None if then is None else repr(then.scale),
        "amax": _finite(now.amax),
        "amax_before": None if then is None or not then.amax else _finite(then.amax[-1:])[0],
        "staged": _finite([now.staged])[0],
        "staged_before": None if then is None else _finite([then.staged])[0],
        "largest_amax": _finite([now.largest_amax])[0],
        "largest_amax_before": None if then is None else _finite([then.largest_amax])[0],
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    """Return magnitudes; None for what is none."""
    return [value if 0 <= value < float("inf") else None for value in values]
