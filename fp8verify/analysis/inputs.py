"""Classify kernels by what their operators took, if their names do not show the precision.

A GEMM's kernel name need not show that it is one: tilelang's `main_kernel`, CuTe DSL's,
hand-written ones. The recorded inputs of the operator decide:

- two FP8 matrices and nothing else: its longest kernels are FP8 GEMMs;
- no FP8 tensor, and no cast to FP8 inside: none of its kernels multiplies FP8;
- a template of Inductor that does not fuse `_scaled_mm` widens FP8 in its prologue;
- a hand-written kernel with FP8 in its name multiplies FP8 only if both matrices are FP8 or cast.

A helper's word in a name (swiglu, permute, norm) proves nothing either: a fused kernel may multiply
beside what it is called after. Kernels of functions that nobody else knows may be GEMMs if

- the function takes a weight, and the kernel ran several times longer than its tensors take to
  move, at a rate that a product of the tensors can have;
- or they are of the backward node of such a function, or called as its kernels;
- or no shapes are recorded, and each ran far longer than any GEMM and is not called a helper.

What the recorded tensors are is what was multiplied, unless they may have been cast inside. Kernels
that neither name nor operator explains stay unrecognized: GEMMs of any precision.

Low-precision GEMMs that the trace's GPU cannot have run are unknown too: formats that it cannot
multiply are converted before the GEMM, and kernels that were compiled for other GPUs do not run on
it. Triton and hand-written kernels load FP8 on any GPU. An A100 multiplies the operands in FP16 or
BF16; an MI300 multiplies only the FNUZ encodings of FP8, and Triton converts the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import permutations
from math import prod
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from fp8verify import thresholds as limits
from fp8verify.analysis.gpus import PEAKS, fp8_encoding, multiplies, peak_of, runs_elsewhere
from fp8verify.analysis.kinds import Kind, Kinds
from fp8verify.analysis.purpose import QUANTIZING, in_optimizer, runs_closure
from fp8verify.kernels import Classification
from fp8verify.kernels.operators import UNKNOWN, find, function_of, multiplies_fp8, node_of
from fp8verify.terms import OpContext, Precision, Role, Shape
from fp8verify.trace import Trace

# Words of names that say of unknown kernels what they do, and that it is no product.
_OTHER_WORK: Final = re.compile(
    r"embedding|bucketize|bounds_check|index|scatter|gather|sort|scan|unique|histogram|permut|"
    r"dispatch|combine|all_?(?:to_?all|reduce|gather)|reduce|softmax|norm|rope|rotary|loss|"
    r"entropy|dropout|adam|adagrad|optimi[sz]er|lamb|sgd|pool|interpolat|upsampl|random|curand|"
    r"memset|memcpy|copy|fill|cast|quant|convert|transpose|elementwise|pointwise|cache|"
    r"tensorop|expand|mask|padding|^triton__\d",
    re.IGNORECASE,
)
_PRODUCT: Final = re.compile(
    r"gemm|matmul|linear|(?:^|_|b)mm(?:_|$)|main_kernel|einsum", re.IGNORECASE
)
# Libraries of kernels that anybody writes: their names are no grammar.
_HAND_WRITTEN: Final = ("Triton", "unknown")
_SAYS_LOW: Final = re.compile(r"fp8|float8|f8|fp4|mx|quant|scaled|e4m3|e5m2", re.IGNORECASE)
_FP8_TYPE: Final = re.compile(r"Float8_e(?:4m3|5m2)")
_HIGH_TYPES: Final = {"BFloat16": 2, "Half": 2, "float": 4}  # with their bytes


def settle_by_inputs(trace: Trace, kinds: Kinds) -> None:
    """Give kernels the precision that the recorded inputs of their operators decide."""
    for members in _by_fp8_operator(kinds):
        found = [kinds.rows[n].classification for n in members]
        products = [one for one in found if one.role.is_gemm and not one.split_k]
        unknown = [n for n in members if _is_undecided(kinds.rows[n].classification)]
        if unknown and all(one.precision is Precision.UNKNOWN for one in products):
            longest = max(kinds.mean_ns[n] for n in unknown)
            for number in unknown:
                if kinds.mean_ns[number] >= limits.AS_LONG * longest:
                    kinds.rows[number] = _as_fp8(kinds.rows[number])
    casts = [kind for kind in kinds.rows if _casts(kind)]
    casting = frozenset(name for kind in casts for name in kind.around)
    without_fp8 = _functions_without_fp8(trace, casting)
    for number, kind in enumerate(kinds.rows):
        if kind.classification.role.is_gemm and kind.classification.precision.is_low:
            named = kind.name + (kind.op.name if kind.op else "")
            if kind.name.startswith("triton_tem_") and "scaled" not in named:
                kinds.rows[number] = _as_high(kind, "its template widens FP8 before the product")
            elif why := _why_name_alone(kind, casting, any_cast=bool(casts)):
                kinds.rows[number] = _changed(kind, why, precision=Precision.UNKNOWN, source="none")
        elif _is_undecided(kind.classification) and kind.op and kind.op.name in without_fp8:
            kinds.rows[number] = _as_high(kind, f"{kind.op.name} takes and makes no FP8 tensor")


def _changed(kind: Kind, why: str, **changes: Any) -> Kind:
    """Return a kind with another classification, and why."""
    found = kind.classification
    return kind._replace(classification=replace(found, reason=f"{found.reason}; {why}", **changes))


def _tensors(op: OpContext) -> list[tuple[str, Shape]]:
    """Return the type and the size of each input of an operator."""
    types = (text.rpartition("::")[2] for text in op.types)
    return list(zip(types, op.dims, strict=False))


def _recorded(op: OpContext | None) -> Precision:
    """Return the 16-bit type of an operator's tensors, UNKNOWN if there is none."""
    types = {text.rpartition("::")[2] for text in (op.types if op else ())}
    if "BFloat16" in types:
        return Precision.BF16
    return Precision.FP16 if "Half" in types else Precision.UNKNOWN


def _casts(kind: Kind) -> bool:
    """Whether a kernel writes FP8, by its name or by the types that its operator recorded."""
    found = kind.classification
    if found.role.is_gemm or found.role in (Role.ATTENTION, Role.COMMUNICATION):
        return False
    casts_low = found.role is Role.CAST_QUANTIZE and found.precision.is_low
    return (
        casts_low
        or found.role is Role.AMAX_REDUCE
        or (kind.op is not None and bool(_FP8_TYPE.search(str(kind.op.types))))
    )


def _functions_without_fp8(trace: Trace, casting: frozenset[str]) -> frozenset[str]:
    """Return the functions, and their nodes, without FP8 inputs and FP8 results.

    Functions in the table record the inputs of whole layers, not of their GEMMs, and compiled
    code fuses casts into kernels with other names.
    """
    types: dict[str, set[str]] = defaultdict(set)
    for op in trace.ops:
        types[function_of(op.name) or op.name].update(op.types)
    found = set()
    for name, seen in types.items():
        node = f"{name}Backward"
        floats = {text.rpartition("::")[2] for text in seen} & set(_HIGH_TYPES)
        hidden = {"TensorList", "GenericList"} & seen or _FP8_TYPE.search(str(seen))
        known = find(name) is not UNKNOWN or name.startswith(("aten::", "triton_"))
        if floats and not hidden and not known and not _SAYS_LOW.search(name):
            found |= {name, node} if casting.isdisjoint((name, node)) else set()
    return frozenset(found)


def _why_name_alone(kind: Kind, casting: frozenset[str], *, any_cast: bool) -> str | None:
    """Say why a hand-written kernel's name alone does not prove that it multiplies FP8."""
    found, op = kind.classification, kind.op
    if found.source != "name" or found.library not in _HAND_WRITTEN:
        return None
    if op is None or not any(op.types):
        return None if any_cast else "only the name says so, and nothing is cast to FP8"
    matrices = [
        bool(_FP8_TYPE.search(name))
        for name, dims in _tensors(op)
        if len(dims) >= 2 and (_FP8_TYPE.search(name) or _HIGH_TYPES.get(name) == 2)
    ]
    cast_inside = not casting.isdisjoint((op.name, f"{op.name}Backward"))
    if cast_inside or sum(matrices) != 1 or len(matrices) < 2:
        return None
    return "one operand is FP8 and nothing casts the other: it may be widened"


def _as_high(kind: Kind, why: str) -> Kind:
    """Give a kernel the precision of the recorded 16-bit tensors, BF16 if there are none."""
    half = _recorded(kind.op) is Precision.FP16
    precision = Precision.FP16 if half else Precision.BF16
    return _changed(kind, why, precision=precision, source="op", a=None, b=None)


def _by_fp8_operator(kinds: Kinds) -> Iterator[list[int]]:
    """Yield the kinds of each operator that multiplies FP8 matrices."""
    groups: dict[OpContext, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds.rows):
        if kind.op is not None and kind.op.types:
            groups[kind.op].append(number)
    for op, members in groups.items():
        if _FP8_TYPE.search(str(op.types)) and multiplies_fp8(op):
            yield members


def _is_undecided(found: Classification) -> bool:
    """Whether a kernel may be the product: a GEMM of unknown precision, or unrecognized."""
    if found.role.is_gemm:
        unknown = found.precision is Precision.UNKNOWN and not found.split_k
        return unknown and found.conflict is None
    return _is_nameless(found)


def _is_nameless(found: Classification) -> bool:
    return found.role is Role.OTHER and found.source == "none"


def _as_fp8(kind: Kind) -> Kind:
    op = kind.op or OpContext(name="")
    elements = ["e5m2" if "e5m2" in text else "e4m3" for text in op.types if _FP8_TYPE.search(text)]
    return _changed(
        kind,
        f"{op.name} takes two FP8 matrices and gives none",
        role=Role.GROUPED_GEMM if any(len(dims) == 3 for dims in op.dims) else Role.GEMM,
        precision=Precision.MXFP8 if "e8m0" in " ".join(op.types) else Precision.FP8,
        source="op",
        a=elements[0],
        b=elements[1],
    )


def is_unrecognized(kind: Kind) -> bool:
    """Whether a kernel of the model is unrecognized, so it may be a GEMM of any precision.

    An operator explains its kernels if it is in the table, unless it is a whole layer, or ATen's
    (all of ATen's GEMMs are in the table), or if its inputs contain fewer than two matrices.
    """
    if kind.classification.hidden:
        return not kind.classification.role.is_gemm
    if not _is_nameless(kind.classification) or in_optimizer(kind.op):
        return False
    if _is_other_work(kind.name[:400]):
        return False
    return kind.op is None or not _explains(kind.op)


def _is_other_work(name: str) -> bool:
    return _OTHER_WORK.search(name) is not None and not _PRODUCT.search(name)


def _explains(op: OpContext) -> bool:
    known = find(op.name)
    if known is not UNKNOWN:
        return known.layer_inputs is None
    is_atens = op.name.startswith("aten::") or _is_atens_node(op.name)
    if is_atens or _is_other_work(op.name.rpartition("::")[2]):
        return True
    if not op.dims or "::" not in op.name:
        return False
    lists = any(text in ("", "TensorList", "GenericList") for text in op.types)
    return not lists and sum(len(dims) >= 2 for dims in op.dims) < 2


def _is_atens_node(name: str) -> bool:
    """Whether it is a node of autograd's own, which are numbered, as `MulBackward0`."""
    return name[-1:].isdigit() and node_of(name) is not None


# ---- formats that the GPU cannot multiply

_OCP: Final = re.compile(r"Float8_e(?:4m3fn|5m2)$")
# Libraries of AMD's that name the encoding that their instructions read.
_OWN_ENCODING: Final = frozenset({"hipBLASLt", "Composable Kernel", "aiter"})


def settle_unsupported_formats(trace: Trace, kinds: Kinds) -> None:
    """Make the precision unknown of GEMMs in formats that the GPU of a trace cannot multiply."""
    if trace.gpu is None:
        return
    gpu = trace.gpu, trace.compute_capability
    for number, kind in enumerate(kinds.rows):
        found = kind.classification
        if not (found.role.is_gemm and found.precision.is_low):
            continue
        if multiplies(*gpu, found.precision) is False or _is_other_encoding(trace, kind):
            why = f"{trace.gpu} cannot multiply it, so the operands are converted"
        elif runs_elsewhere(kind.name, *gpu):
            why = f"it was not compiled for {trace.gpu}"
        else:
            continue
        kinds.rows[number] = _changed(
            kind, why, precision=Precision.UNKNOWN, upcast_from=found.precision
        )


def _is_other_encoding(trace: Trace, kind: Kind) -> bool:
    if kind.op is None or kind.classification.library in _OWN_ENCODING:
        return False
    is_fnuz = fp8_encoding(trace.gpu, trace.compute_capability) == "fnuz"
    return is_fnuz and any(_OCP.search(text) for text in kind.op.types)


# ---- possible products, whatever they are called

# A dgrad and a wgrad in one kernel, each as much work as the forward pass.
_GRADIENTS: Final = 2
# Of the listed GPUs: an H100 reads 3.35 TB/s beside 989 TFLOP/s.
_BYTES_PER_FLOP: Final = 3.35 / 989
_LARGEST, _DIMS, _INPUTS = 1 << 32, 5, 16
# Kernels of libraries that are named by what they do, and those of casts, which cast inside.
_PROVED: Final = re.compile(
    r"(?:void )?(?:at::|at_cuda|c10::|cub::|thrust::|transformer_engine::|cudnn|nccl|rccl)"
    r"|triton_(?:poi|red|per|for|spl|split_scan)_fused_|Mem(?:cpy|set)|_ZN(?:2at|3c10|3cub|18trans)"
)
_FP8_INPUT: Final = re.compile(r"Float8|Float4")
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
        for number, kind in enumerate(kinds.rows)
        if _may_hide(kind) and (closure or not in_optimizer(kind.op))
    ]
    if not numbers:
        return
    means = kinds.mean_ns
    rate = (peak_of(trace.gpu) or PEAKS["H100"]).bf16 * 1000  # FLOPs a ns
    functions = _taking_weights(kinds, numbers, rate)
    products = (n for n, k in enumerate(kinds.rows) if k.classification.role.is_gemm)
    longest = max((means[n] for n in products if kinds.rows[n].multiplies), default=0.0)
    for number in numbers:
        kind, mean, precision = kinds.rows[number], means[number], None
        function = functions.get(_key(kind.op.name if kind.op else "")) or functions.get(kind.name)
        if function and any(_is_at_rate(n, mean, rate, _GRADIENTS) for n in function.flops):
            precision = function.precision
        elif _is_longest(kind, mean, longest):
            precision = Precision.UNKNOWN
        if precision is not None:
            known = precision is not Precision.UNKNOWN
            kinds.rows[number] = _changed(
                kind,
                "but it ran as long as a product of what its function takes",
                role=Role.GEMM if known else Role.OTHER,
                precision=precision,
                source="op" if known else "none",
                a=None,
                b=None,
                hidden=True,
            )


def _may_hide(kind: Kind) -> bool:
    """Whether nothing proves that a kernel is something else than a product."""
    op, found = kind.op, kind.classification
    if op is None or found.role in _OTHER_ROLES or found.split_k:
        return False
    is_atens = op.name.startswith(("aten::", "triton_")) or _is_atens_node(op.name)
    return not is_atens and find(op.name) is UNKNOWN and not _PROVED.match(kind.name)


def _key(name: str) -> str:
    """Return what a function's operators and its node have in common: lib::my_op, MyOpBackward."""
    own = (function_of(name) or name).rpartition("::")[2]
    return own.replace("_", "").lower().removesuffix("backward")


def _taking_weights(kinds: Kinds, numbers: Iterable[int], rate: float) -> dict[str, _Function]:
    """Return the functions whose inputs are a product that a kernel of theirs may have computed."""
    quantizing = [kind for kind in kinds.rows if kind.classification.role in QUANTIZING]
    casting = {_key(name) for kind in quantizing for name in kind.around}
    found: dict[str, _Function] = {}
    for number in numbers:
        kind, mean = kinds.rows[number], kinds.mean_ns[number]
        op = kind.op
        if op is None or kind.classification.role in QUANTIZING:
            continue
        fits = tuple(n for n in _products(op) if _is_at_rate(n, mean, rate))
        if fits and mean >= limits.LONGER_THAN_MOVING * _bytes(op) / _BYTES_PER_FLOP / rate:
            key, low = _key(op.name), _SAYS_LOW.search(kind.name + op.name)
            casts = low or key in casting or _FP8_INPUT.search(str(op.types))
            precision = Precision.UNKNOWN if casts else _recorded(op)
            found[key] = found[kind.name] = _Function(fits, precision)
    return found


def _is_at_rate(flops: float, mean_ns: float, rate: float, most: int = 1) -> bool:
    peak = rate * mean_ns
    return limits.LEAST_RATE / most * peak <= flops <= limits.MOST_RATE * peak


def _sound(op: OpContext) -> Iterator[tuple[str, Shape]]:
    """Yield the inputs whose sizes can be believed."""
    for name, dims in _tensors(op)[:_INPUTS]:
        if len(dims) <= _DIMS and all(0 < side < _LARGEST for side in dims):
            yield name, dims


def _products(op: OpContext) -> Iterator[float]:
    """Yield the FLOPs of each product of a weight and an activation among the inputs."""
    matrices = [dims for name, dims in _sound(op) if name in _HIGH_TYPES and len(dims) >= 2]
    for weight, x in permutations(matrices, 2):
        is_weight = len(weight) in (2, 3) and min(weight[-2:]) >= limits.LEAST_SIDE
        if is_weight and x[-1] in weight[-2:] and (weight != x or len(matrices) == 2):
            yield 2.0 * prod(x) * prod(weight[-2:]) / x[-1]


def _bytes(op: OpContext) -> int:
    return sum(_HIGH_TYPES.get(name, 1) * prod(dims) for name, dims in _sound(op))


def _is_longest(kind: Kind, mean: float, longest: float) -> bool:
    """Whether a kernel without recorded shapes ran far longer than any GEMM."""
    if kind.op is None or kind.op.dims:
        return False
    words = f"{kind.name[:400]} {kind.op.name}"
    if _OTHER_WORK.search(words) and not _LAYER.search(words):
        return False  # a helper's word counts for a helper where nothing else is known
    return mean >= limits.LONGER_THAN_GEMMS * longest > 0
