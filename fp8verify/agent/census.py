"""List the linear-like modules of the model being trained, and what precision each promises.

For `fp8verify doctor -- COMMAND` the list is made when the first optimizer is built, and the
process ends there, by `os._exit`: an exception would run the script's own `finally`, and one that
saves a checkpoint would overwrite trained weights.

And what the process only keeps in FP8: weights of layers, and states of optimizers. Fine-tuners
keep frozen weights in FP8 and widen them before each product: kohya's sd-scripts
(`library/fp8_optimization_utils.py`) and diffusers (`hooks/layerwise_casting.py`) as plain
parameters; torchao (`Float8Tensor.qdata`, `AffineQuantizedTensor.tensor_impl`), quanto
(`QBytesTensor._data`) and Transformer Engine in tensor classes; others as buffers beside scales.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from . import layers
from .guard import quietly
from .layers import Layer
from .observe import observe
from .precision import HIGH_PRECISION, Promise, promise_of
from .stored import (
    fields,
    header,
    is_a,
    items_of,
    pairs_of,
    parameters_of,
    shape_of,
    stored,
)

FP8_ALIGNMENT = 16  # torch._scaled_mm: both trailing dimensions must be divisible by it
# Transformer Engine's grouped linear has a 2-D weight for each expert: module/grouped_linear.py.
GROUPED_CLASSES = {"GroupedLinear"}


def take_census(optimizers: Iterable[Any]) -> list[dict[str, Any]]:
    """Describe every linear-like module below the roots that own parameters of `optimizers`."""
    trained = layers.trained_layers(optimizers, anew=True)
    return [record for layer in trained for record in _records_of(layer)]


def _records_of(layer: Layer) -> Iterator[dict[str, Any]]:
    module: Any = layer.module
    if not layer.is_linear:
        for name, weight in layers.expert_weights(layer.name, module):
            promise = promise_of(module, weight)
            rows, columns = shape_of(weight)[-2:]
            name = f"{layer.name}.{name}"
            yield _record(name, "experts", module, weight, promise, (rows, columns))
        return
    weight = layers.weight_of(module)
    promise = promise_of(module, weight)
    sides = _features(module, weight)
    kind = "linear"
    if any(cls.__name__ in GROUPED_CLASSES for cls in type(module).__mro__):
        kind = "experts"
    record = _record(layer.name, kind, module, weight, promise, sides)
    record["sizes"] = _sizes_of_two(module)
    if promise is HIGH_PRECISION:
        record["reason"] = _why_left(*sides)
    yield record


def _sizes_of_two(module: Any) -> list[tuple[int, ...]]:
    """Return (outputs, inputs) of each layer of a module that is two: LayerNormMLP."""
    sizes = []
    for name in ("fc1_weight", "fc2_weight"):
        weight = stored(module, name)
        if is_a(weight, Tensor):
            sizes.append(shape_of(weight))
    if all(len(size) == 2 for size in sizes):
        return sizes
    return []


def _features(module: Any, weight: Any) -> tuple[int | None, int | None]:
    """Return how many outputs and inputs a linear module has."""
    rows = stored(module, "out_features")
    columns = stored(module, "in_features")
    if is_a(rows, int) and is_a(columns, int):
        return int(rows), int(columns)
    sizes = () if weight is None else shape_of(weight)
    if len(sizes) != 2 or stored(module, "fc1_weight") is not None:
        return None, None
    if layers.class_name(module) == "Conv1D":
        columns, rows = sizes
    else:
        rows, columns = sizes
    return rows, columns


def _record(
    fqn: str,
    kind: str,
    module: Any,
    weight: Any,
    promise: Promise,
    sides: tuple[Any, Any],
) -> dict[str, Any]:
    name = layers.class_name(module)
    rows, columns = sides
    return {
        "fqn": fqn,
        "class": name,
        "source": _source_of(module, name),
        "kind": kind,
        "in_features": columns,
        "out_features": rows,
        "sizes": [],
        "reason": None,
        "weight_class": layers.tensor_class(weight),
        "training": stored(module, "training") is not False,
        "frozen": weight is None or not header(weight, "requires_grad"),
        **promise._asdict(),
    }


def _source_of(module: Any, name: str) -> str:
    """Return the Python module of a class: FSDP2 makes a subclass of it on the spot."""
    for cls in type(module).__mro__:
        if cls.__name__ == name:
            return str(cls.__module__)
    return str(type(module).__module__)


def _why_left(rows: int | None, columns: int | None) -> str | None:
    for name, size in (("in_features", columns), ("out_features", rows)):
        if size is not None and size % FP8_ALIGNMENT:
            return f"{name} {size} is not divisible by {FP8_ALIGNMENT}"
    return None


# --- what is kept in FP8 ---

DEPTH = 3  # of tensors inside tensors
FP8 = ("float8_e4m3", "float8_e5m2")


class Kept(NamedTuple):
    """The type and the number of FP8 values that a tensor keeps."""

    dtype: str
    elements: int


def stored_in_fp8(optimizers: Iterable[Any]) -> list[dict[str, Any]]:
    """Return a record for each type of weights and of optimizer states that are kept in FP8."""
    kept = []
    for module in layers.known_modules():
        for part in _weights_in_fp8(module):
            kept.append(("weights", part, _multiplies(module)))
    for part in _states_in_fp8(optimizers):
        kept.append(("optimizer", part, True))
    records: dict[tuple[str, str], dict[str, Any]] = {}
    for what, part, counts in kept:
        new = {
            "what": what,
            "dtype": part.dtype,
            "count": 0,
            "elements": 0,
        }
        record = records.setdefault((what, part.dtype), new)
        record["count"] += counts
        record["elements"] += part.elements
    return list(records.values())


def kept_in_fp8(tensor: Any, depth: int = DEPTH) -> Kept | None:
    """Return what a tensor keeps in FP8 itself or in its wrapper; None if it keeps nothing so."""
    tensor = layers.local(tensor)
    if not is_a(tensor, Tensor):
        return None
    dtype = str(header(tensor, "dtype")).removeprefix("torch.")
    if dtype.startswith(FP8):
        return Kept(dtype, prod(shape_of(tensor)))
    if type(tensor) in (Tensor, nn.Parameter) or not depth:
        return None
    of_engine = stored(tensor, "_fp8_dtype")  # transformer_engine/pytorch/tensor: bytes
    if of_engine is not None:
        name = "float8_e5m2" if "E5M2" in str(of_engine) else "float8_e4m3fn"
        return Kept(name, prod(shape_of(tensor)))
    for value in list(fields(tensor).values()):
        part = kept_in_fp8(value, depth - 1)
        if part is not None:
            return part
    return None


def _weights_in_fp8(module: Any) -> Iterator[Kept]:
    """Yield the FP8 matrices of a module that keeps them in no other type."""
    kept = []
    wide = set()
    for matrix in _matrices(module):
        part = kept_in_fp8(matrix)
        if part is not None:
            kept.append(part)
        else:
            wide.add(prod(shape_of(matrix)))
    for part in kept:
        if part.elements not in wide:
            yield part


def _matrices(module: Any) -> list[Any]:
    """Return the matrices that a module itself has, each once."""
    found: dict[int, Any] = {}
    for value in (
        *parameters_of(module).values(),
        *items_of(stored(module, "_buffers")).values(),
        *list(fields(module).values()),
    ):
        if is_a(value, Tensor) and len(shape_of(value)) > 1:
            found[id(value)] = value
    return list(found.values())


def _multiplies(module: Any) -> bool:
    if layers.is_linear_class(module):
        return True
    rows = stored(module, "out_features")
    columns = stored(module, "in_features")
    return is_a(rows, int) and is_a(columns, int)


def _states_in_fp8(optimizers: Iterable[Any]) -> Iterator[Kept]:
    for optimizer in optimizers:
        for _, state in pairs_of(stored(optimizer, "state")):
            for value in items_of(state).values():
                part = kept_in_fp8(value)
                if part is not None:
                    yield part


# --- a dry start ---


def install_dry(out: str) -> None:
    """Wait for the first optimizer of a model; write what there is to `out` and end the process.

    Args:
        out: the folder for one JSON file of each process.
    """
    layers.registrations.begin()
    observe(Optimizer, "__init__", lambda _: _look_and_end(Path(out)))


def _look_and_end(out: Path) -> None:
    try:
        modules = take_census([])
        if not modules:  # an optimizer of nothing, of a metric or of a test tensor
            return
        path = out / f"model-{os.getpid()}.json"
        draft = path.with_name(f"{path.name}.part")
        draft.write_text(json.dumps({"modules": modules}), encoding="utf-8")
        draft.replace(path)
    except Exception:  # the script runs on, and the doctor says that it saw no model
        return
    with quietly(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
