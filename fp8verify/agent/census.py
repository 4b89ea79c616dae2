"""List the linear-like modules of the model being trained, and what precision each promises.

For `fp8verify doctor -- COMMAND` the list is made when the first optimizer is built, and the
process ends there, by `os._exit`: an exception would run the script's own `finally`, and one that
saves a checkpoint would overwrite trained weights.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from .layers import (
    Layer,
    class_name,
    distinct_names,
    expert_weights,
    registrations,
    tensor_class,
    trained_layers,
    weight_of,
)
from .observe import observe
from .precision import HIGH_PRECISION, Promise, promise_of
from .stored import MISSING, header, is_a, shape_of, stored

FP8_ALIGNMENT = 16  # torch._scaled_mm: both trailing dimensions must be divisible by it
# Transformer Engine's grouped linear has a 2-D weight for each expert: module/grouped_linear.py.
GROUPED_CLASSES = {"GroupedLinear"}
LIBRARIES = ("torchao", "transformer_engine", "accelerate", "torchtitan", "kempnerforge")


def take_census(optimizers: Iterable[Any]) -> list[dict[str, Any]]:
    """Describe every linear-like module below the roots that own parameters of `optimizers`."""
    layers = trained_layers(optimizers, anew=True)
    found = [(layer.root, record) for layer in layers for record in _records_of(layer)]
    names = distinct_names([(root, record["fqn"]) for root, record in found])
    return [{**record, "fqn": name} for name, (_, record) in zip(names, found, strict=True)]


def _records_of(layer: Layer) -> Iterator[dict[str, Any]]:
    module: Any = layer.module
    if not layer.is_linear:
        for name, weight in expert_weights(layer.name, module):
            promise = promise_of(module, weight)
            rows, columns = shape_of(weight)[-2:]
            name = f"{layer.name}.{name}"
            yield _record(name, "experts", module, weight, promise, (rows, columns))
        return
    weight = weight_of(module)
    promise = promise_of(module, weight)
    sides = _features(module, weight)
    both = [stored(module, name) for name in ("fc1_weight", "fc2_weight")]
    sizes = [shape_of(weight) for weight in both if is_a(weight, Tensor)]
    grouped = any(cls.__name__ in GROUPED_CLASSES for cls in type(module).__mro__)
    yield {
        **_record(layer.name, "experts" if grouped else "linear", module, weight, promise, sides),
        # (outputs, inputs) of each layer of a module that is two: LayerNormMLP.
        "sizes": sizes if all(len(size) == 2 for size in sizes) else [],
        "reason": _why_left(*sides) if promise is HIGH_PRECISION else None,
    }


def _features(module: Any, weight: Any) -> tuple[int | None, int | None]:
    """Return how many outputs and inputs a linear module has."""
    rows, columns = stored(module, "out_features"), stored(module, "in_features")
    if is_a(rows, int) and is_a(columns, int):
        return int(rows), int(columns)
    sizes = () if weight is None else shape_of(weight)
    if len(sizes) != 2 or stored(module, "fc1_weight", MISSING) is not MISSING:
        return None, None
    columns, rows = sizes if class_name(module) == "Conv1D" else reversed(sizes)
    return rows, columns


def _record(
    fqn: str, kind: str, module: Any, weight: Any, promise: Promise, sides: tuple[Any, Any]
) -> dict[str, Any]:
    name = class_name(module)
    # FSDP2 makes a subclass on the spot: the Python module is that of the class below it.
    source = next((cls for cls in type(module).__mro__ if cls.__name__ == name), type(module))
    return {
        "fqn": fqn,
        "class": name,
        "source": source.__module__,
        "kind": kind,
        "in_features": sides[1],
        "out_features": sides[0],
        "sizes": [],
        "reason": None,
        "weight_class": tensor_class(weight),
        "training": stored(module, "training") is not False,
        "frozen": weight is None or not header(weight, "requires_grad"),
        **promise._asdict(),
    }


def _why_left(rows: int | None, columns: int | None) -> str | None:
    for name, size in (("in_features", columns), ("out_features", rows)):
        if size is not None and size % FP8_ALIGNMENT:
            return f"{name} {size} is not divisible by {FP8_ALIGNMENT}"
    return None


def install_dry(out: str) -> None:
    """Wait for the first optimizer of a model; write what there is to `out` and end the process.

    Args:
        out: the folder for one JSON file of each process.
    """
    registrations.begin()
    observe(Optimizer, "__init__", lambda _: _look_and_end(Path(out)))


def _look_and_end(out: Path) -> None:
    try:
        modules = take_census([])
        if not modules:  # an optimizer of nothing, of a metric or of a test tensor
            return
        known = [name for name in LIBRARIES if name in sys.modules]
        record = {"modules": modules, "libraries": known}
        path = out / f"model-{os.getpid()}.json"
        draft = path.with_name(f"{path.name}.part")
        draft.write_text(json.dumps(record), encoding="utf-8")
        draft.replace(path)
    except Exception:  # the script runs on, and the doctor says that it saw no model
        return
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
