"""What the process only keeps in FP8: weights of layers, and states of optimizers.

Fine-tuners keep frozen weights in FP8 and widen them before each product: kohya's sd-scripts
(`library/fp8_optimization_utils.py`) and diffusers (`hooks/layerwise_casting.py`) as plain
parameters; torchao (`Float8Tensor.qdata`, `AffineQuantizedTensor.tensor_impl`), quanto
(`QBytesTensor._data`) and Transformer Engine in tensor classes; others as buffers beside scales.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from torch import Tensor, nn

from .layers import is_linear_class, known_modules, local
from .stored import fields, header, is_a, items_of, pairs_of, parameters_of, shape_of, stored

DEPTH = 3  # of tensors inside tensors
FP8 = ("float8_e4m3", "float8_e5m2")


class Kept(NamedTuple):
    """The type and the number of FP8 values that a tensor keeps."""

    dtype: str
    elements: int


def stored_in_fp8(optimizers: Iterable[Any]) -> list[dict[str, Any]]:
    """Return a record for each type of weights and of optimizer states that are kept in FP8."""
    found: Counter[tuple[str, str]] = Counter()
    elements: Counter[tuple[str, str]] = Counter()
    for module in known_modules():
        for kept in _weights_in_fp8(module):
            key = ("weights", kept.dtype)
            found[key] += _multiplies(module)
            elements[key] += kept.elements
    for kept in _states_in_fp8(optimizers):
        key = ("optimizer", kept.dtype)
        found[key] += 1
        elements[key] += kept.elements
    return [
        {"what": what, "dtype": dtype, "count": found[what, dtype], "elements": total}
        for (what, dtype), total in elements.items()
    ]


def kept_in_fp8(tensor: Any, depth: int = DEPTH) -> Kept | None:
    """Return what a tensor keeps in FP8 itself or in its wrapper; None if it keeps nothing so."""
    tensor = local(tensor)
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
    inner = (kept_in_fp8(value, depth - 1) for value in list(fields(tensor).values()))
    return next((kept for kept in inner if kept is not None), None)


def _weights_in_fp8(module: Any) -> Iterator[Kept]:
    """Yield the FP8 matrices of a module that keeps them in no other type."""
    buffers = items_of(stored(module, "_buffers")).values()
    own = [*parameters_of(module).values(), *buffers, *list(fields(module).values())]
    matrices = {id(one): one for one in own if is_a(one, Tensor) and len(shape_of(one)) > 1}
    found = {key: kept_in_fp8(one) for key, one in matrices.items()}
    wide = {prod(shape_of(one)) for key, one in matrices.items() if found[key] is None}
    yield from (kept for kept in found.values() if kept is not None and kept.elements not in wide)


def _multiplies(module: Any) -> bool:
    sides = (stored(module, name) for name in ("in_features", "out_features"))
    return is_linear_class(module) or all(is_a(side, int) for side in sides)


def _states_in_fp8(optimizers: Iterable[Any]) -> Iterator[Kept]:
    for optimizer in optimizers:
        for _, state in pairs_of(stored(optimizer, "state")):
            for value in items_of(state).values():
                kept = kept_in_fp8(value)
                if kept is not None:
                    yield kept
