"""Numbers that a run keeps from step to step: gradient norms and scales.

transformer_engine/pytorch/quantization.py (`DelayedScalingRecipeState`; `TENSORS` is the order of
`FP8FwdTensorIdx` and `FP8BwdTensorIdx`): under delayed scaling `fp8_meta` has a state for each
direction with `scale` (n) and `amax_history` (steps, n), whose row 0 is the one that the next step
fills. Other recipes keep no scale.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from ..guard import is_the_scripts
from ..layers import local
from ..precision import formats_of, recipe_class
from ..stored import has_values, header, is_a, items_of, stored, trained_by

TENSORS = {
    "scaling_fwd": ("input", "weight", "output"),
    "scaling_bwd": ("grad_output", "grad_input"),
}
KEPT_STEPS = 32
MOST_SLOTS = 1 << 14


def gradient_norm(optimizers: Iterable[Any]) -> dict[str, Any] | None:
    """Return the L2 norm of this rank's gradients; None if the gradients are gone.

    Waits for the GPU. It is the norm after clipping, because the optimizer has stepped. `sharded`
    is whether other ranks have parts of these gradients; a measured step fills in `clip_ratio`.
    """
    by_kind: defaultdict[Any, list[Any]] = defaultdict(list)
    sharded = False
    for parameter in trained_by(optimizers).values():
        gradient = header(parameter, "grad")
        part = local(gradient)
        if (
            not has_values(part)
            or part.layout != torch.strided
            or part.device.type == "meta"
        ):
            continue
        sharded = sharded or part is not gradient
        part = part.detach()
        real = torch.view_as_real(part) if part.is_complex() else part
        by_kind[part.device, part.dtype].append(real)
    if not by_kind:
        return None
    # In float64: squares may leave the range of float32, and the norm of FP16 gradients FP16.
    every = [
        torch._foreach_norm(parts, 2, dtype=torch.float64) for parts in by_kind.values()
    ]
    norms = [float(torch.linalg.vector_norm(torch.stack(norms))) for norms in every]
    total = math.hypot(*norms) if all(map(math.isfinite, norms)) else None
    return {
        "norm": total,
        "finite": total is not None,
        "sharded": sharded,
        "clip_ratio": None,
    }


# Of each thread that updates one: no other thread may read it.
_scalers: defaultdict[int, weakref.WeakValueDictionary[int, Any]] = defaultdict(
    weakref.WeakValueDictionary
)


def remember(scaler: Any) -> None:
    """Remember a GradScaler that this thread updates.

    A search among all objects would stop the script for half a second.
    """
    _scalers[threading.get_ident()][id(scaler)] = scaler


def _loss_scales() -> list[float | None]:
    """Return the scales of the GradScalers in use, None if not finite; waits for the GPU."""
    known = list(_scalers[threading.get_ident()].values())
    kept = [stored(scaler, "_scale") for scaler in known]
    scales = [float(scale) for scale in kept if has_values(scale)]
    return [scale if math.isfinite(scale) else None for scale in scales]


class KeptScales:
    """All scales at one moment: of Transformer Engine's modules, and of losses.

    Attributes:
        loss_scales: those of GradScalers.
        recipes: the recipes in use.
        groups: the ranks of process groups in use.
        slots: one record per layer, tensor and GEMM; the newest amax is the last.
    """

    def __init__(self, modules: Iterable[tuple[str, Any]]) -> None:
        self.loss_scales = _loss_scales()
        self.recipes: list[dict[str, Any]] = []
        self.groups: list[list[int]] = []
        self.slots: dict[tuple[str, str, int], dict[str, Any]] = {}
        for name, module in modules:
            self._read(name, module)

    def _read(self, name: str, module: Any) -> None:
        meta = items_of(stored(module, "fp8_meta"))
        if meta.get("recipe") is None:
            return
        shared = {
            "layer": name,
            "recipe": _place(self.recipes, describe_recipe(meta["recipe"])),
            "group": self._group(meta.get("fp8_group")),
            "tensor_parallel": self._group(stored(module, "tp_group")),
        }
        formats = formats_of(meta["recipe"])
        for (direction, tensors), form in zip(TENSORS.items(), formats, strict=True):
            state = meta.get(direction)
            scale = stored(state, "scale")
            history = stored(state, "amax_history")
            if not _fit(scale, history) or len(self.slots) + len(scale) > MOST_SLOTS:
                continue
            staged = history.detach()[0]
            recorded = history.detach()[1:]
            largest = recorded.amax(dim=0) if len(recorded) else torch.zeros_like(scale)
            rows = torch.stack(
                [scale.detach(), largest, staged, *recorded[-KEPT_STEPS:]]
            )
            for index, (now, most, next_amax, *amax) in enumerate(
                rows.t().float().tolist()
            ):
                gemm, which = divmod(index, len(tensors))
                self.slots[name, tensors[which], gemm] = {
                    **shared, "tensor": tensors[which], "gemm": gemm,
                    "format": form.name, "largest": form.largest,
                    "scale": now, "amax": amax, "largest_amax": most, "staged": next_amax,
                }  # fmt: skip

    def _group(self, group: Any) -> int:
        try:
            if group is None or not torch.distributed.is_initialized():
                return -1
            return _place(self.groups, torch.distributed.get_process_group_ranks(group))
        except Exception as error:  # not a group, or not this process's
            if is_the_scripts(error):
                raise
            return -1


def _place(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


def _fit(scale: Any, history: Any) -> bool:
    if not (has_values(scale) and has_values(history)):
        return False
    both = scale.dim() == 1 and history.dim() == 2
    return bool(both and len(scale) and history.shape[1] == len(scale))


def describe_recipe(recipe: Any) -> dict[str, Any]:
    """Return what a recipe is configured to do."""
    forward, backward = formats_of(recipe)
    algorithm = stored(recipe, "amax_compute_algo")
    names = {
        "margin": "margin",
        "interval": "interval",
        "history_length": "amax_history_len",
    }
    values = {name: stored(recipe, attribute) for name, attribute in names.items()}
    return {
        "name": recipe_class(recipe),
        "forward": forward.name,
        "backward": backward.name,
        "algorithm": algorithm if is_a(algorithm, str) else None,
        "reduces_amax": stored(recipe, "reduce_amax") is True,
        **{n: int(v) if type(v) in (int, float) else None for n, v in values.items()},
    }


def scale_records(before: KeptScales, after: KeptScales) -> dict[str, Any]:
    """Return the records of the scales at the end of a window with those at its beginning."""
    records = []
    for key, now in after.slots.items():
        then = before.slots.get(key, {})
        record = {**now, "amax": [_magnitude(value) for value in now["amax"]]}
        record["amax_before"] = _magnitude(next(iter(then.get("amax", ())[-1:]), None))
        for name in ("staged", "largest_amax"):
            record[name] = _magnitude(now[name])
            record[f"{name}_before"] = _magnitude(then.get(name))
        record["scale"] = repr(now["scale"])
        record["scale_before"] = repr(then["scale"]) if then else None
        records.append(record)
    shared = {"recipes": after.recipes, "groups": after.groups}
    return {**shared, "slots": records, "loss_scales": after.loss_scales}


def _magnitude(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < math.inf else None
