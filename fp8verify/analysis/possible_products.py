"""Kernels of functions in high precision that may be GEMMs of layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod

from fp8verify.analysis.gemms import KindTotal, Survey
from fp8verify.analysis.gpus import PEAKS, peak_of
from fp8verify.analysis.reclassify import may_multiply
from fp8verify.terms import OpContext

# Slower kernels than this are no GEMMs of layers.
_LEAST_OF_PEAK = 0.05
# A layer has its inputs and weight among the first tensors, and no side this long.
_INPUTS, _DIMS, _LARGEST = 16, 8, 1 << 32


def possible_products(survey: Survey, gpu: str | None) -> list[KindTotal]:
    """Return kernels of functions in high precision that took as long as a product of their inputs.

    Such a function may be a layer of the script's own. Its backward node records no weight: all
    kernels of the node count, and those of the same name in other functions.

    Args:
        survey: the kernels of a rank.
        gpu: name of the GPU, None if not known.
    """
    peak = (peak_of(gpu) or PEAKS["H100"]).bf16 * 1e12
    found, names = [total for total in survey.others if may_multiply(total.kind)], set()
    for total in found:
        op = total.kind.op
        if op is not None and total.time_ns:
            per_second = 1e9 * total.calls / total.time_ns
            if any(_LEAST_OF_PEAK * peak <= n * per_second <= peak for n in _layer_flops(op)):
                names |= {op.name, f"{op.name}Backward", total.kind.name}
    return [
        total
        for total in found
        if total.kind.op is not None and not names.isdisjoint((total.kind.op.name, total.kind.name))
    ]


def _layer_flops(op: OpContext) -> Iterator[float]:
    """Yield the FLOPs of each product that inputs, as activation and weight, may make."""
    # A trace may hold any number of inputs, of any size.
    shapes = [dims for dims in op.dims[:_INPUTS] if 2 <= len(dims) <= _DIMS]
    matrices = [dims for dims in shapes if all(0 < side < _LARGEST for side in dims)]
    for weight, x in permutations(matrices, 2):
        if len(weight) == 2 and x[-1] in weight:
            yield 2.0 * prod(x) * prod(weight) / x[-1]
