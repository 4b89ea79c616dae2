"""The scales that Transformer Engine keeps from step to step under delayed scaling.

transformer_engine/pytorch/quantization.py (`DelayedScalingRecipeState`; `TENSORS` is the order of
`FP8FwdTensorIdx` and `FP8BwdTensorIdx`): `fp8_meta` has a state for each direction with `scale` (n)
and `amax_history` (steps, n), whose row 0 is the one that the next step fills. Other recipes keep
no scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .module_casts import formats_of, recipe_class

TENSORS = {
    "scaling_fwd": ("input", "weight", "output"),
    "scaling_bwd": ("grad_output", "grad_input"),
}
KEPT_STEPS = 32
MOST_SLOTS = 1 << 14


Slots = dict[tuple[str, str, int], dict[str, Any]]


class State:
    """All that modules of Transformer Engine keep, at one moment.

    Attributes:
        slots: by layer, tensor and GEMM what is known of each scale: `fixed` is what does not
            change, the others are numbers; the newest amax is the last.
    """

    def __init__(self, modules: Iterable[tuple[str, Any]]) -> None:
        self.recipes: list[dict[str, Any]] = []
        self.groups: list[list[int]] = []
        self.slots: Slots = {}
        parts = [part for name, module in modules for part in self._read(name, module)]
        self._copy(parts)

    def _read(self, name: str, module: Any) -> Iterator[tuple[list[Any], Tensor, Tensor]]:
        """Yield for each direction the keys of its slots, their scales and their history."""
        meta = getattr(module, "fp8_meta", None)
        if not isinstance(meta, dict) or meta.get("recipe") is None:
            return
        fixed = {
            "recipe": self._place(self.recipes, describe_recipe(meta["recipe"])),
            "group": self._group(meta.get("fp8_group")),
            "tensor_parallel": self._group(getattr(module, "tp_group", None)),
        }
        for (direction, tensors), found in zip(
            TENSORS.items(), formats_of(meta["recipe"]), strict=True
        ):
            kept = _kept(meta.get(direction))
            if kept is None or len(self.slots) + kept[0].numel() > MOST_SLOTS:
                continue
            keys = []
            for place in range(kept[0].numel()):
                gemm, which = divmod(place, len(tensors))
                key = (name, tensors[which], gemm)
                of_format = {"format": found.name, "largest": found.largest}
                self.slots[key] = {
                    "fixed": {"layer": name, "tensor": tensors[which], "gemm": gemm,
                              **of_format, **fixed}
                }  # fmt: skip
                keys.append(key)
            yield keys, *kept

    def _copy(self, parts: Sequence[tuple[list[Any], Tensor, Tensor]]) -> None:
        """Copy all scales and histories to the host together."""
        if not parts:
            return
        flat = [_flattened(scale, history) for _, scale, history in parts]
        numbers = torch.cat([part.to(flat[0].device) for part in flat]).tolist()
        for keys, _, history in parts:
            count, steps = len(keys), min(KEPT_STEPS, max(0, history.shape[0] - 1))
            block, numbers = numbers[: count * (steps + 3)], numbers[count * (steps + 3) :]
            for place, key in enumerate(keys):
                scale, largest, staged, *amax = block[place::count]
                self.slots[key] |= {
                    "scale": scale, "amax": amax, "largest_amax": largest, "staged": staged
                }  # fmt: skip

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
    earlier = before.slots if before is not None else {}
    return {
        "recipes": after.recipes,
        "groups": after.groups,
        "slots": [_record(slot, earlier.get(key)) for key, slot in after.slots.items()],
    }


def _record(now: dict[str, Any], then: dict[str, Any] | None) -> dict[str, Any]:
    known = then or {"scale": None, "amax": [], "staged": -1.0, "largest_amax": -1.0}
    newest = known["amax"][-1:] or [-1.0]
    return {
        **now["fixed"],
        "scale": repr(now["scale"]),
        "scale_before": None if then is None else repr(known["scale"]),
        "amax": _finite(now["amax"]),
        "amax_before": _finite(newest)[0],
        "staged": _finite([now["staged"]])[0],
        "staged_before": _finite([known["staged"]])[0],
        "largest_amax": _finite([now["largest_amax"]])[0],
        "largest_amax_before": _finite([known["largest_amax"]])[0],
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    """Return magnitudes; None for what is none."""
    return [value if 0 <= value < float("inf") else None for value in values]
