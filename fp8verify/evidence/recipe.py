"""The scaling recipe that the FP8 GEMMs of a run show."""

from __future__ import annotations

from fp8verify.kernels import Classification
from fp8verify.model import OpContext, Precision, Scaling

# Input places of (scale_a, scale_b): native_functions.yaml, torch 2.11.
_SCALE_PLACES = {"aten::_scaled_mm": (2, 3)}


def scaling_of(classification: Classification, op: OpContext | None) -> Scaling | None:
    """Return how the operands were scaled: by the shapes of their scales, else by the name.

    A scale of one element is tensorwise; (M, 1) with (1, N) is rowwise. The shapes go first
    because cuBLAS names tensorwise and rowwise kernels alike but for `_ovscale` (13.1).
    """
    if not classification.precision.is_fp8 and classification.precision is not Precision.FP4:
        return None
    if classification.scaling not in (None, Scaling.TENSORWISE, Scaling.ROWWISE):
        return classification.scaling
    places = _SCALE_PLACES.get(op.name) if op is not None else None
    if op is None or places is None or len(op.dims) <= places[1]:
        return classification.scaling
    sizes = [_elements(op.dims[place]) for place in places]
    if sizes == [1, 1]:
        return Scaling.TENSORWISE
    rows, columns = op.dims[0][0], op.dims[1][-1]
    return Scaling.ROWWISE if sizes == [rows, columns] else classification.scaling


def _elements(dims: tuple[int, ...]) -> int:
    total = 1
    for size in dims:
        total *= size
    return total
