"""Kernels that may be GEMMs whatever they are called, by what their function took and how long.

A helper's word in a name (swiglu, permute, norm) proves nothing: a fused kernel may multiply beside
what it is called after. Kernels of functions that nobody else knows may be GEMMs if

- the function takes a weight, and the kernel ran several times longer than its tensors take to
  move, at a rate that a product of the tensors can have;
- or they are of the backward node of such a function, or called as its kernels;
- or they are of a node that computes one gradient of a layer by a GEMM, and ran as the other;
- or no shapes are recorded, and each ran far longer than any GEMM and is not called a helper.

What the recorded tensors are is what was multiplied, unless they may have been cast inside. Where
that is not known, the kernel counts as unrecognized.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from math import prod
from typing import Final, NamedTuple

from msgspec.structs import replace

from fp8verify.analysis.gpus import PEAKS, peak_of
from fp8verify.analysis.kinds import Kind, Kinds, gemm_shape
from fp8verify.analysis.purpose import in_optimizer, runs_closure
from fp8verify.analysis.reclassify import OTHER_WORK
from fp8verify.kernels.operators import UNKNOWN, find, function_of, node_of
from fp8verify.terms import OpContext, Precision, Role
from fp8verify.trace import Trace

# Shares of the BF16 peak between which a product runs; the least is that of a poor kernel.
_LEAST, _MOST = 0.05, 1.1
# A dgrad and a wgrad in one kernel, each as much work as the forward pass.
_GRADIENTS: Final = 2
# Of the listed GPUs: an H100 reads 3.35 TB/s beside 989 TFLOP/s.
_BYTES_PER_FLOP: Final = 3.35 / 989
_LONGER: Final = 4  # than its tensors take to be read
_LONGER_THAN_GEMMS: Final = 2
# The sides of a weight; rotations' tables, routers and LoRA's halves are smaller.
_LEAST_SIDE: Final = 512
_LARGEST, _DIMS, _INPUTS = 1 << 32, 5, 16
_SIZES: Final = {"BFloat16": 2, "Half": 2, "float": 4}
# Kernels of libraries that are named by what they do, and those of casts, which cast inside.
_PROVED: Final = re.compile(
    r"(?:void )?(?:at::|at_cuda|c10::|cub::|thrust::|transformer_engine::|cudnn|nccl|rccl)"
    r"|triton_(?:poi|red|per|for|spl|split_scan)_fused_|Mem(?:cpy|set)|_ZN(?:2at|3c10|3cub|18trans)"
)
_SAYS_LOW: Final = re.compile(r"fp8|float8|f8|fp4|mx|quant|scaled|e4m3|e5m2", re.IGNORECASE)
_LAYER: Final = re.compile(r"mlp|ffn|proj|expert|moe|fc\d|linear|dense", re.IGNORECASE)
_OTHER_ROLES: Final = frozenset(
    {Role.ATTENTION, Role.CONV, Role.COMMUNICATION, Role.MEMORY, Role.GEMM, Role.GROUPED_GEMM}
)


class _Function(NamedTuple):
    """A function of which a kernel may be a product: its FLOPs, and the precision of its inputs."""

    flops: tuple[float, ...]
    precision: Precision = Precision.UNKNOWN


def settle_hidden_products(trace: Trace, kinds: Kinds) -> None:
    """Make GEMMs of possible products whose precision the inputs show, and doubts of others."""
    closure = runs_closure(trace.ops)
    numbers = [
        number
        for number, kind in enumerate(kinds.kinds)
        if _may_hide(kind) and (closure or not in_optimizer(kind.op))
    ]
    if not numbers:
        return
    means = _mean_ns(trace, kinds)
    rate = (peak_of(trace.gpu) or PEAKS["H100"]).bf16 * 1000  # FLOPs a ns
    casting = {key for kind in kinds.kinds if _casts(kind) for key in map(_key, kind.around)}
    functions = _taking_weights(kinds, numbers, means, rate, casting)
    lacking = _lacking_gradients(kinds)
    longest = max((means[n] for n, kind in enumerate(kinds.kinds) if _is_gemm(kind)), default=0.0)
    for number in numbers:
        kind = kinds.kinds[number]
        precision = _precision_of(kind, means[number], rate, functions, lacking)
        if precision is None and _is_longest(kind, means[number], longest):
            precision = Precision.UNKNOWN
        if precision is not None:
            kinds.kinds[number] = _as_product(kind, precision)


def _may_hide(kind: Kind) -> bool:
    """Whether nothing proves that a kernel is something else than a product."""
    op, found = kind.op, kind.classification
    if op is None or found.role in _OTHER_ROLES or found.split_k:
        return False
    is_atens = op.name.startswith(("aten::", "triton_")) or _is_atens_node(op.name)
    return not is_atens and find(op.name) is UNKNOWN and not _PROVED.match(kind.name)


def _is_atens_node(name: str) -> bool:
    """Whether it is a node of autograd's own, which are numbered, as `MulBackward0`."""
    return name[-1:].isdigit() and node_of(name) is not None


def _mean_ns(trace: Trace, kinds: Kinds) -> dict[int, float]:
    times: Counter[int] = Counter()
    for number, time_ns in zip(kinds.numbers, trace.kernels.duration_ns, strict=True):
        times[number] += time_ns
    calls = Counter(kinds.numbers)
    return {number: times[number] / calls[number] for number in range(len(kinds.kinds))}


def _is_gemm(kind: Kind) -> bool:
    return kind.classification.role.is_gemm and kind.multiplies


def _casts(kind: Kind) -> bool:
    return kind.classification.role in (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)


def _key(name: str) -> str:
    """Return what a function's operators and its node have in common: lib::my_op, MyOpBackward."""
    own = (function_of(name) or name).rpartition("::")[2]
    return own.replace("_", "").lower().removesuffix("backward")


def _taking_weights(
    kinds: Kinds,
    numbers: Iterable[int],
    means: Mapping[int, float],
    rate: float,
    casting: set[str],
) -> dict[str, _Function]:
    """Return the functions whose inputs are a product that a kernel of theirs may have computed."""
    found: dict[str, _Function] = {}
    for number in numbers:
        op, mean = kinds.kinds[number].op, means[number]
        if op is None:
            continue
        moved = _LONGER * _bytes(op) / _BYTES_PER_FLOP / rate
        if _casts(kinds.kinds[number]) or mean < moved:
            continue
        fits = tuple(n for n in _products(op) if _is_at_rate(n, mean, rate))
        if fits:
            low = _SAYS_LOW.search(kinds.kinds[number].name + op.name) or _key(op.name) in casting
            precision = Precision.UNKNOWN if low else _recorded(op)
            found[_key(op.name)] = found[kinds.kinds[number].name] = _Function(fits, precision)
    return found


def _precision_of(
    kind: Kind,
    mean: float,
    rate: float,
    functions: Mapping[str, _Function],
    lacking: Mapping[str, set[float]],
) -> Precision | None:
    """Return the precision of a possible product, None if a kernel is none."""
    if kind.op is None:
        return None
    key = _key(kind.op.name)
    function = functions.get(key) or functions.get(kind.name)
    if function is not None:
        if any(_is_at_rate(n, mean, rate, _GRADIENTS) for n in function.flops):
            return function.precision
    elif any(_is_at_rate(n, mean, rate) for n in lacking.get(key, ())):
        return Precision.UNKNOWN
    return None


def _is_at_rate(flops: float, mean_ns: float, rate: float, most: int = 1) -> bool:
    return flops <= _MOST * rate * mean_ns and _LEAST * rate * mean_ns <= most * flops


def _products(op: OpContext) -> Iterator[float]:
    """Yield the FLOPs of each product of a weight and an activation among the inputs."""
    shapes = [
        dims
        for dims, text in zip(op.dims[:_INPUTS], op.types, strict=False)
        if text.rpartition("::")[2] in _SIZES and 2 <= len(dims) <= _DIMS
    ]
    matrices = [dims for dims in shapes if all(0 < side < _LARGEST for side in dims)]
    for weight, x in permutations(matrices, 2):
        is_weight = len(weight) in (2, 3) and min(weight[-2:]) >= _LEAST_SIDE
        if is_weight and x[-1] in weight[-2:] and (weight != x or len(matrices) == 2):
            yield 2.0 * prod(x) * prod(weight[-2:]) / x[-1]


def _bytes(op: OpContext) -> int:
    pairs = zip(op.dims[:_INPUTS], op.types, strict=False)
    return sum(
        _SIZES.get(text.rpartition("::")[2], 1) * prod(dims)
        for dims, text in pairs
        if len(dims) <= _DIMS and all(0 < side < _LARGEST for side in dims)
    )


def _recorded(op: OpContext) -> Precision:
    """Return the 16-bit type of an operator's matrices, UNKNOWN if FP8 is among its inputs."""
    types = {text.rpartition("::")[2] for text in op.types}
    if any("Float8" in text or "Float4" in text for text in types):
        return Precision.UNKNOWN
    if "BFloat16" in types:
        return Precision.BF16
    return Precision.FP16 if "Half" in types else Precision.UNKNOWN


def _lacking_gradients(kinds: Kinds) -> dict[str, set[float]]:
    """Return the FLOPs of the gradients of nodes whose other gradient no GEMM of theirs is.

    dgrad and wgrad of a layer have the same three sizes, and contract over different ones.
    """
    contracted: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    flops: dict[tuple[str, tuple[int, ...]], float] = {}
    for kind in filter(_is_gemm, kinds.kinds):
        shape = gemm_shape(kind.op)
        if kind.op is None or shape is None:
            continue
        for name in kind.op.around:
            function = function_of(name)
            if function is not None and not _is_atens_node(name) and find(function) is UNKNOWN:
                sizes = _key(name), tuple(sorted(shape[1:]))
                contracted[sizes].add(shape.k)
                flops[sizes] = float(shape.flops)
    found: dict[str, set[float]] = defaultdict(set)
    for place, sides in contracted.items():
        if len(sides) == 1 and len(set(place[1])) > 1:
            found[place[0]].add(flops[place])
    return found


def _is_longest(kind: Kind, mean: float, longest: float) -> bool:
    """Whether a kernel without recorded shapes ran far longer than any GEMM."""
    if kind.op is None or kind.op.dims:
        return False
    words = f"{kind.name[:400]} {kind.op.name}"
    if OTHER_WORK.search(words) and not _LAYER.search(words):
        return False  # a helper's word counts for a helper where nothing else is known
    return mean >= _LONGER_THAN_GEMMS * longest > 0


def _as_product(kind: Kind, precision: Precision) -> Kind:
    """Return a GEMM of a precision, or of an unknown one a kernel that nothing recognizes."""
    found = kind.classification
    known = precision is not Precision.UNKNOWN
    why = f"{found.reason}; but it ran as long as a product of what its function takes"
    changed = replace(
        found,
        role=Role.GEMM if known else Role.OTHER,
        precision=precision,
        source="op" if known else "none",
        reason=why,
        a=None,
        b=None,
        hidden=True,
    )
    return kind._replace(classification=changed)
