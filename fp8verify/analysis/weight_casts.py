"""How often the weights of FP8 layers are cast in a step, and what that costs.

A cast is known to be a weight's by the recorded sizes of its operator. Transformer Engine's casts
of an input and a weight run under one function, whose weight comes first: of its casts one a GEMM
is the input's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from fp8verify.analysis.purpose import purpose_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.terms import Leg, OpContext, Role

# transformer_engine/pytorch/module/linear.py: `_Linear.apply(weight, inp, …)`.
_WEIGHT_AND_INPUT = "_Linear"
Size = tuple[int, ...]


class WeightCasts(NamedTuple):
    """The casts of weights of one rank.

    Attributes:
        passes: forward and backward passes of a step: its micro-batches.
        casts: of one weight in a step, of the size that is cast most often.
        size: that size, (outputs, inputs).
        time_ns: of all casts of weights, with the kernels that compute their scales.
    """

    passes: int
    casts: float
    size: Size
    time_ns: int


def weight_casts(rank: RankEvidence) -> WeightCasts | None:
    """Count the casts of weights; None where a step is one pass, or sizes are not recorded."""
    passes, steps = _passes(rank), len(rank.steps)
    layers = _layers_by_size(rank)
    if passes < 2 or not steps or not layers:
        return None
    calls, times = _casts(rank, layers)
    if not calls:
        return None
    often = {size: count / (steps * layers[size]) for size, count in calls.items()}
    most = max(often, key=often.__getitem__)
    return WeightCasts(passes, often[most], most, round(sum(times.values())))


def _passes(rank: RankEvidence) -> int:
    """Return the least number of passes that a step has."""
    last: dict[int, int] = defaultdict(int)
    for row in rank.survey.linear:
        last[row.step] = max(last[row.step], row.number + 1)
    return min(last.values(), default=0)


def _layers_by_size(rank: RankEvidence) -> Counter[Size]:
    """Count the FP8 layers of each size that no input of a GEMM has."""
    modules = [m for m in rank.modules if m.state.startswith("fp8") and m.kind == "linear"]
    found = Counter(
        (module.out_features, module.in_features)
        for module in modules
        if module.out_features and module.in_features
    )
    shapes = [row.shape for row in rank.survey.linear if row.shape and row.leg is Leg.FPROP]
    inputs = {(shape.m, shape.k) for shape in shapes}
    return Counter({size: n for size, n in found.items() if size not in inputs})


def _casts(
    rank: RankEvidence, layers: Counter[Size]
) -> tuple[dict[Size, float], dict[Size, float]]:
    """Return calls and time by size of weight."""
    calls: dict[Size, float] = defaultdict(float)
    times: dict[Size, float] = defaultdict(float)
    both: dict[tuple[Size, int], tuple[int, int]] = {}
    for total in rank.survey.others:
        size, op = _size(total.kind.op, layers), total.kind.op
        if size is None or op is None or purpose_of(total.kind) is None:
            continue
        is_cast = total.kind.classification.role is Role.CAST_QUANTIZE
        if op.name == _WEIGHT_AND_INPUT:
            key = (size, _elements(op.dims[1]) if len(op.dims) > 1 else 0)
            old = both.get(key, (0, 0))
            both[key] = (old[0] + total.calls * is_cast, old[1] + total.time_ns)
            continue
        calls[size] += total.calls * is_cast
        times[size] += total.time_ns
    for (size, elements), (count, time_ns) in both.items():
        own = max(0, count - _products(rank, size, elements))
        weights, inputs = own * _elements(size), (count - own) * elements
        calls[size] += own
        times[size] += time_ns * weights / ((weights + inputs) or 1)
    return {size: count for size, count in calls.items() if count}, times


def _products(rank: RankEvidence, size: Size, elements: int) -> int:
    """Count the GEMMs of a weight of this size with an input of so many elements."""
    return sum(
        row.calls
        for row in rank.survey.linear
        if (op := row.kind.op) is not None
        and (op.name, op.dims[:1]) == (_WEIGHT_AND_INPUT, (size,))
        and len(op.dims) > 1
        and _elements(op.dims[1]) == elements
    )


def _size(op: OpContext | None, layers: Counter[Size]) -> Size | None:
    """Return the size of the weight that an operator reads, None if it reads none."""
    first = tuple(op.dims[0]) if op is not None and op.dims else ()
    turned = first[::-1]
    return first if first in layers else turned if len(turned) == 2 and turned in layers else None


def _elements(size: tuple[int, ...]) -> int:
    total = 1
    for one in size:
        total *= one
    return total
