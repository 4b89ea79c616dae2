"""Which operators an optimizer launched, and not the model.

torch.optim.Optimizer names a range "Optimizer.step#Muon.step" around every step. A closure passed
to it, as Lightning does, runs the model's forward pass inside that range; its backward pass runs on
a thread of its own or under autograd's nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fp8verify.kernels.operators import Part, find, node_of
from fp8verify.report.model import OpContext
from fp8verify.text import lazy_pattern

_RANGE: Final = lazy_pattern(r"Optimizer\.|.*\boptimi[sz]er(?:[\W_]*step)?\b", re.IGNORECASE)
_COMPILED: Final = lazy_pattern(r"## Call CompiledFxGraph|Torch-Compiled Region")
# What Inductor calls the fused loops over tensor lists of which compiled optimizers are made.
_FOREACH: Final = "triton_for_fused_"
# What only a forward pass runs; found inside a range, the optimizer was given a closure.
_FORWARD: Final = lazy_pattern(
    r"aten::(?:linear|embedding|dropout|(?:\w*layer|rms|batch|group)_norm|\w*cross_entropy_loss|"
    r"nll_loss\w*|_?log_softmax|_?softmax|\w*scaled_dot_product\w*|conv\dd)|.*Function"
)


def range_of(op: OpContext) -> int | None:
    """Return the place among an operator and its parents of the optimizer's range, if any."""
    around = (op.name, *op.parents)
    return next((i for i, name in enumerate(around) if _RANGE.match(name)), None)


def in_optimizer(op: OpContext | None) -> bool:
    """Whether an optimizer launched a kernel, and not the model whose step its closure runs."""
    inside = None if op is None else range_of(op)
    if op is None or inside is None:
        return False
    between = (op.name, *op.parents)[:inside]
    if op.backward and any(node_of(name) for name in between):
        return False  # the backward pass of a closure
    return not any(map(_is_of_layers, between))


def _is_of_layers(name: str) -> bool:
    row = find(name)
    return row.layer or row.linear or row.encloses is not None or row.part is Part.LAYER


class Optimizers:
    """Tells the products of optimizers in one trace."""

    def __init__(self, ops: Iterable[OpContext], kernels: Iterable[tuple[str, OpContext]]) -> None:
        """Look for closures and for compiled steps.

        Args:
            ops: every operator that launched a kernel.
            kernels: names of kernels with the operators that launched them.
        """
        self._closure = any(map(_is_forward_inside, ops))
        self._compiled = {
            _graph(op) for name, op in kernels if name.startswith(_FOREACH) and _is_compiled(op)
        }

    def multiply(self, op: OpContext | None) -> bool:
        """Whether the product that an operator computes is the optimizer's."""
        if op is None:
            return False
        if op.backward and range_of(op) is None:
            return False
        if _is_compiled(op) and range_of(op) is None:
            return _graph(op) in self._compiled
        return in_optimizer(op) and (not self._closure or multiplies_square(op))


def _is_forward_inside(op: OpContext) -> bool:
    inside = None if op.backward else range_of(op)
    if inside is None:
        return False
    around = (op.name, *op.parents)[:inside]
    return any(_is_of_layers(name) or _FORWARD.fullmatch(name) for name in around)


def _is_compiled(op: OpContext) -> bool:
    """Whether compiled code that autograd knows nothing of ran it, as compiled optimizers are."""
    around = (op.name, *op.parents)
    compiled = any(_COMPILED.match(name) for name in around)
    return compiled and not any(name.startswith("CompiledFunction") for name in around)


def _graph(op: OpContext) -> tuple[str, ...]:
    return tuple(name for name in op.parents if _COMPILED.match(name))


def multiplies_square(op: OpContext) -> bool:
    """Whether a product has the shape of X·Xᵀ, or of a square matrix with another."""
    matrices = [dims[-2:] for dims in op.dims if len(dims) >= 2]
    return any(rows == columns for rows, columns in matrices) or (
        len(matrices) >= 2 and matrices[-2] == matrices[-1][::-1]
    )
