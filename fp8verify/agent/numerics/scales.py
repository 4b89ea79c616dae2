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
from collections.abc import Iterable, Iterator
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
        if not has_values(part):
            continue
        if part.layout != torch.strided or part.device.type == "meta":
            continue
        sharded = sharded or part is not gradient
        part = part.detach()
        key = (part.device, part.dtype)
        if part.is_complex():
            part = torch.view_as_real(part)
        by_kind[key].append(part)
    if not by_kind:
        return None
    # All are begun before the first is waited for.
    begun = [_norm_of(parts) for parts in by_kind.values()]
    norms = [float(norm) for norm in begun]
    total = None
    if all(map(math.isfinite, norms)):
        total = math.hypot(*norms)
    return {
        "norm": total,
        "finite": total is not None,
        "sharded": sharded,
        "clip_ratio": None,
    }


def _norm_of(parts: list[Any]) -> Any:
    # In float64: squares may leave the range of float32, and the norm of FP16 gradients FP16.
    norms = torch._foreach_norm(parts, 2, dtype=torch.float64)
    return torch.linalg.vector_norm(torch.stack(norms))


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
    scales: list[float | None] = []
    for scaler in known:
        kept = stored(scaler, "_scale")
        if not has_values(kept):
            continue
        scale = float(kept)
        if math.isfinite(scale):
            scales.append(scale)
        else:
            scales.append(None)
    return scales


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
        for direction, form in zip(TENSORS, formats, strict=True):
            of_direction = {
                **shared,
                "format": form.name,
                "largest": form.largest,
            }
            self._read_direction(name, direction, meta.get(direction), of_direction)

    def _read_direction(
        self,
        name: str,
        direction: str,
        state: Any,
        shared: dict[str, Any],
    ) -> None:
        scale = stored(state, "scale")
        history = stored(state, "amax_history")
        if not _fit(scale, history) or len(self.slots) + len(scale) > MOST_SLOTS:
            return
        tensors = TENSORS[direction]
        for index, slot in enumerate(_slots(scale.detach(), history.detach())):
            gemm, which = divmod(index, len(tensors))
            tensor = tensors[which]
            self.slots[name, tensor, gemm] = {
                **shared,
                "tensor": tensor,
                "gemm": gemm,
                **slot,
            }

    def _group(self, group: Any) -> int:
        try:
            if group is None or not torch.distributed.is_initialized():
                return -1
            return _place(self.groups, torch.distributed.get_process_group_ranks(group))
        except Exception as error:  # not a group, or not this process's
            if is_the_scripts(error):
                raise
            return -1


def _slots(scale: Any, history: Any) -> Iterator[dict[str, Any]]:
    """Yield what a state has of each tensor, copied to the host at once."""
    staged = history[0]
    recorded = history[1:]
    if len(recorded):
        largest = recorded.amax(dim=0)
    else:
        largest = torch.zeros_like(scale)
    rows = torch.stack([scale, largest, staged, *recorded[-KEPT_STEPS:]])
    for now, most, next_amax, *amax in rows.t().float().tolist():
        yield {
            "scale": now,
            "amax": amax,
            "largest_amax": most,
            "staged": next_amax,
        }


def _place(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


def _fit(scale: Any, history: Any) -> bool:
    if not (has_values(scale) and has_values(history)):
        return False
    if scale.dim() != 1 or history.dim() != 2:
        return False
    return len(scale) > 0 and bool(history.shape[1] == len(scale))


def describe_recipe(recipe: Any) -> dict[str, Any]:
    """Return what a recipe is configured to do."""
    forward, backward = formats_of(recipe)
    algorithm = stored(recipe, "amax_compute_algo")
    return {
        "name": recipe_class(recipe),
        "forward": forward.name,
        "backward": backward.name,
        "algorithm": algorithm if is_a(algorithm, str) else None,
        "reduces_amax": stored(recipe, "reduce_amax") is True,
        "margin": _number(recipe, "margin"),
        "interval": _number(recipe, "interval"),
        "history_length": _number(recipe, "amax_history_len"),
    }


def _number(recipe: Any, name: str) -> int | None:
    value = stored(recipe, name)
    if type(value) in (int, float):
        return int(value)
    return None


def scale_records(before: KeptScales, after: KeptScales) -> dict[str, Any]:
    """Return the records of the scales at the end of a window with those at its beginning."""
    records = []
    for key, now in after.slots.items():
        then = before.slots.get(key, {})
        amax_then = then.get("amax")
        record = dict(now)
        record["amax"] = [_magnitude(value) for value in now["amax"]]
        record["amax_before"] = None
        if amax_then:
            record["amax_before"] = _magnitude(amax_then[-1])
        for name in ("staged", "largest_amax"):
            record[name] = _magnitude(now[name])
            record[f"{name}_before"] = _magnitude(then.get(name))
        record["scale"] = repr(now["scale"])
        record["scale_before"] = repr(then["scale"]) if then else None
        records.append(record)
    return {
        "recipes": after.recipes,
        "groups": after.groups,
        "slots": records,
        "loss_scales": after.loss_scales,
    }


def _magnitude(value: float | None) -> float | None:
    """Return a value that a magnitude can have, else None."""
    if value is None or not 0 <= value < math.inf:
        return None
    return value
