"""List the linear-like modules of the model being trained, and what precision each promises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from .layers import Layer, class_name, expert_weights, told_apart, trained_layers
from .precision import promise_of, tensor_class
from .promise import HIGH, HIGH_PRECISION, Promise

FP8_ALIGNMENT = 16  # torch._scaled_mm: both trailing dimensions must be divisible by it
# Transformer Engine's grouped linear has a 2-D weight for each expert: module/grouped_linear.py.
GROUPED_CLASSES = {"GroupedLinear"}


def take_census(optimizers: Iterable[Any]) -> list[dict[str, Any]]:
    """Describe every linear-like module below the roots that own parameters of `optimizers`."""
    layers = trained_layers(optimizers, anew=True)
    found = [(layer.root, record) for layer in layers for record in _records_of(layer)]
    names = told_apart([(root, record["fqn"]) for root, record in found])
    return [{**record, "fqn": name} for name, (_, record) in zip(names, found, strict=True)]


def _records_of(layer: Layer) -> Iterator[dict[str, Any]]:
    if layer.is_linear:
        yield _linear_record(layer.name, layer.module)
    else:
        yield from _expert_records(layer.name, layer.module)


def _source(module: nn.Module) -> str:
    """Return the Python module of the class, of FSDP2's that of the class it is made from."""
    name = class_name(module)
    made = (cls for cls in type(module).__mro__ if cls.__name__ == name)
    return next(made, type(module)).__module__


def _linear_record(fqn: str, module: Any) -> dict[str, Any]:
    weight = getattr(module, "weight", None)
    if weight is None:
        weight = next(module.parameters(), None)
    promise = promise_of(module, weight)
    rows, columns = _features(module, weight)
    grouped = any(cls.__name__ in GROUPED_CLASSES for cls in type(module).__mro__)
    return {
        **_record(fqn, "experts" if grouped else "linear", module, weight, promise),
        "in_features": columns,
        "out_features": rows,
        "sizes": _sizes(module),
        "reason": _why_left(promise, rows, columns),
    }


def _sizes(module: Any) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of each layer of a module that is two: LayerNormMLP."""
    weights = [getattr(module, name, None) for name in ("fc1_weight", "fc2_weight")]
    sizes = [tuple(weight.shape) for weight in weights if weight is not None]
    return sizes if all(len(size) == 2 for size in sizes) else []


def _features(module: Any, weight: Any) -> tuple[int | None, int | None]:
    rows, columns = getattr(module, "out_features", None), getattr(module, "in_features", None)
    if isinstance(rows, int) and isinstance(columns, int):
        return rows, columns
    if weight is None or weight.dim() != 2 or hasattr(module, "fc1_weight"):
        return None, None
    columns, rows = weight.shape if class_name(module) == "Conv1D" else reversed(weight.shape)
    return int(rows), int(columns)


def _expert_records(fqn: str, module: nn.Module) -> Iterator[dict[str, Any]]:
    for name, weight in expert_weights(fqn, module):
        yield {
            **_record(f"{fqn}.{name}", "experts", module, weight, promise_of(module, weight)),
            "in_features": int(weight.shape[-1]),
            "out_features": int(weight.shape[-2]),
            "sizes": [],
            "reason": None,
        }


def _record(fqn: str, kind: str, module: Any, weight: Any, promise: Promise) -> dict[str, Any]:
    return {
        "fqn": fqn,
        "class": class_name(module),
        "source": _source(module),
        "kind": kind,
        "weight_class": tensor_class(weight),
        "training": module.training,
        "frozen": weight is None or not weight.requires_grad,
        "state": promise.state,
        "recipe": promise.recipe,
        "formats": promise.formats,
        "scaling": promise.scaling,
        "gradients": promise.gradients,
        "fp8_legs": [leg for leg, name in promise.formats.items() if name != HIGH]
        if promise.state.startswith("fp8")
        else [],
    }


def _why_left(promise: Promise, rows: int | None, columns: int | None) -> str | None:
    if promise is not HIGH_PRECISION:
        return None
    for name, size in (("in_features", columns), ("out_features", rows)):
        if size is not None and size % FP8_ALIGNMENT:
            return f"{name} {size} is not divisible by {FP8_ALIGNMENT}"
    return None
