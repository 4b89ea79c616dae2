"""Classify kernels by what their operators took, if their names do not show the precision.

A GEMM's kernel name need not show that it is one: tilelang's `main_kernel`, CuTe DSL's,
hand-written ones. The recorded inputs of the operator decide:

- two FP8 matrices and nothing else: its longest kernels are FP8 GEMMs;
- no FP8 tensor, and no cast to FP8 inside: none of its kernels multiplies FP8;
- a template of Inductor that does not fuse `_scaled_mm` widens FP8 in its prologue;
- a hand-written kernel with FP8 in its name multiplies FP8 only if both matrices are FP8 or cast.

A helper's word in a name (swiglu, norm, quant) proves nothing either: a fused kernel may multiply
beside what it is called after. Kernels of functions that nobody else knows may be GEMMs if

- the function takes a weight, and the kernel ran several times longer than its tensors take to
  move, at a rate that a product of the tensors can have;
- or they are of the backward node of such a function, or called as its kernels;
- or no shapes are recorded, and each ran about as long as half of the GEMMs.

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
from collections.abc import Iterable, Iterator, Set
from itertools import chain, permutations, repeat
from math import prod
from statistics import median
from typing import Final, TypeAlias

from fp8verify import thresholds as limits
from fp8verify.analysis import purpose
from fp8verify.analysis.gpus import (
    PEAKS,
    multiplies,
    peak_of,
    reads_fnuz,
    runs_elsewhere,
)
from fp8verify.analysis.kinds import Kind, Kinds, grouped
from fp8verify.kernels.operators import (
    UNKNOWN,
    find,
    function_of,
    multiplies_fp8,
    node_of,
)
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
_SAYS_LOW: Final = re.compile(
    r"fp8|float[48]|f8|fp4|mx|quant|scaled|e4m3|e5m2", re.IGNORECASE
)
_LISTS: Final = frozenset({"TensorList", "GenericList"})
_HIGH_TYPES: Final = {"BFloat16": 2, "Half": 2, "float": 4}  # with their bytes
_LARGEST = 1 << 32
_DIMS = 5
_INPUTS = 16


def settle_by_inputs(trace: Trace, kinds: Kinds) -> None:
    """Give kernels the precision that the recorded inputs of their operators decide."""
    taking = (
        number for number, kind in enumerate(kinds.rows) if purpose.takes_fp8(kind.op)
    )
    for op, members in grouped(taking, lambda number: kinds.rows[number].op).items():
        if multiplies_fp8(op):
            _settle_longest(kinds, op, members)
    casting = {
        name
        for kind in kinds.rows
        if _casts(kind)
        for name in (kind.name, *kind.op.around)
    }
    without_fp8 = _functions_without_fp8(trace, casting)
    for number, kind in enumerate(kinds.rows):
        if kind.classification.source == "code":
            continue  # what ran is known
        if kind.is_gemm and kind.classification.precision.is_low:
            if (
                kind.name.startswith("triton_tem_")
                and "scaled" not in kind.name + kind.op.name
            ):
                kinds.rows[number] = _as_high(
                    kind, "its template widens FP8 before the product"
                )
            elif why := _why_name_alone(kind, casting):
                kinds.rows[number] = kind.changed(
                    why, precision=Precision.UNKNOWN, source="none"
                )
        elif kind.is_undecided and kind.op.name in without_fp8:
            kinds.rows[number] = _as_high(
                kind, f"{kind.op.name} takes and makes no FP8 tensor"
            )
    _settle_hidden_products(trace, kinds)
    _settle_unsupported_formats(trace, kinds)


def _settle_longest(kinds: Kinds, op: OpContext, members: Iterable[int]) -> None:
    """Make the longest kernels of an operator that multiplies FP8 its products, if none is."""
    means = {n: kinds.mean_ns(n) for n in members if kinds.rows[n].is_undecided}
    products = (
        kinds.rows[n].classification for n in members if kinds.rows[n].multiplies
    )
    if any(found.precision is not Precision.UNKNOWN for found in products):
        return
    types = filter(purpose.FP8_TYPE.search, op.types)
    a, b, *_ = ("e5m2" if "e5m2" in text else "e4m3" for text in types)
    for number, mean in means.items():
        if mean >= limits.AS_LONG * max(means.values()):
            kinds.rows[number] = kinds.rows[number].changed(
                f"{op.name} takes two FP8 matrices and gives none",
                role=Role.GROUPED_GEMM
                if any(len(dims) == 3 for dims in op.dims)
                else Role.GEMM,
                precision=Precision.MXFP8
                if "e8m0" in " ".join(op.types)
                else Precision.FP8,
                source="op",
                a=a,
                b=b,
            )


def _tensors(op: OpContext) -> list[tuple[str, Shape]]:
    """Return the type and the size of each input whose size can be believed."""
    return [
        (text.rpartition("::")[2], dims)
        for text, dims in zip(op.types[:_INPUTS], op.dims, strict=False)
        if len(dims) <= _DIMS and all(0 < side < _LARGEST for side in dims)
    ]


def _recorded(op: OpContext, unknown: Precision = Precision.UNKNOWN) -> Precision:
    """Return the 16-bit type of an operator's tensors, `unknown` if there is none."""
    types = {text.rpartition("::")[2] for text in op.types}
    half = Precision.FP16 if "Half" in types else unknown
    return Precision.BF16 if "BFloat16" in types else half


def _casts(kind: Kind) -> bool:
    """Whether a kernel writes FP8, by its name or by the types that its operator recorded."""
    role = kind.classification.role
    low = kind.classification.precision.is_low
    by_name = role is Role.AMAX_REDUCE or (role is Role.CAST_QUANTIZE and low)
    return role not in purpose.CONSUMERS and (by_name or purpose.takes_fp8(kind.op))


def _functions_without_fp8(trace: Trace, casting: Set[str]) -> set[str]:
    """Return the functions, and their nodes, without FP8 inputs and FP8 results.

    Functions in the table record the inputs of whole layers, not of their GEMMs, and compiled
    code fuses casts into kernels with other names.
    """
    types: dict[str, set[str]] = defaultdict(set)
    for op in trace.ops:
        types[function_of(op.name) or op.name].update(op.types)
    found: set[str] = set()
    for name, seen in types.items():
        both = {name, f"{name}Backward"}
        has_floats = any(text.rpartition("::")[2] in _HIGH_TYPES for text in seen)
        known = find(name) is not UNKNOWN or name.startswith(("aten::", "triton_"))
        hidden = known or _LISTS & seen or _SAYS_LOW.search(f"{name}{seen}")
        if has_floats and not hidden and casting.isdisjoint(both):
            found |= both
    return found


def _why_name_alone(kind: Kind, casting: Set[str]) -> str | None:
    """Say why a hand-written kernel's name alone does not prove that it multiplies FP8."""
    found = kind.classification
    op = kind.op
    if found.source != "name" or found.library not in _HAND_WRITTEN:
        return None
    if not any(op.types):
        if casting:
            return None
        return "only the name says so, and nothing is cast to FP8"
    types = [name for name, dims in _tensors(op) if len(dims) >= 2]
    in_fp8 = sum(purpose.FP8_TYPE.search(name) is not None for name in types)
    widened = in_fp8 == 1 and any(_HIGH_TYPES.get(name) == 2 for name in types)
    if widened and casting.isdisjoint((op.name, f"{op.name}Backward")):
        return "one operand is FP8 and nothing casts the other: it may be widened"
    return None


def _as_high(kind: Kind, why: str) -> Kind:
    """Give a kernel the precision of the recorded 16-bit tensors, BF16 if there are none."""
    precision = _recorded(kind.op, Precision.BF16)
    return kind.changed(why, precision=precision, source="op", a=None, b=None)


def is_unrecognized(kind: Kind) -> bool:
    """Whether a kernel of the model is unrecognized, so it may be a GEMM of any precision.

    An operator explains its kernels if it is in the table, unless it is a whole layer, or ATen's
    (all of ATen's GEMMs are in the table), or if its inputs contain fewer than two matrices.
    """
    if kind.classification.hidden:
        return not kind.is_gemm
    of_model = kind.is_nameless and not purpose.in_optimizer(kind.op)
    return of_model and not (_is_other_work(kind.name[:400]) or _explains(kind.op))


def _is_other_work(name: str) -> bool:
    return _OTHER_WORK.search(name) is not None and not _PRODUCT.search(name)


def _explains(op: OpContext) -> bool:
    known = find(op.name)
    if known is not UNKNOWN:
        return known.layer_inputs is None
    if _is_atens(op.name) or _is_other_work(op.name.rpartition("::")[2]):
        return True
    if not op.dims or "::" not in op.name or not _LISTS.isdisjoint(op.types):
        return False
    return "" not in op.types and sum(len(dims) >= 2 for dims in op.dims) < 2


def _is_atens(name: str) -> bool:
    """Whether it is ATen's or a node of autograd's own: these have numbers, as `MulBackward0`."""
    return name.startswith("aten::") or (
        name[-1:].isdigit() and node_of(name) is not None
    )


# ---- formats that the GPU cannot multiply

_OCP: Final = re.compile(r"Float8_e(?:4m3fn|5m2)$")
# Libraries of AMD's that name the encoding that their instructions read.
_OWN_ENCODING: Final = frozenset({"hipBLASLt", "Composable Kernel", "aiter"})


def _settle_unsupported_formats(trace: Trace, kinds: Kinds) -> None:
    """Make the precision unknown of GEMMs in formats that the GPU of a trace cannot multiply."""
    gpu = trace.gpu, trace.compute_capability
    fnuz = reads_fnuz(*gpu)
    for number, kind in enumerate(kinds.rows):
        found = kind.classification
        if not (trace.gpu and kind.is_gemm and found.precision.is_low):
            continue
        if found.source == "code":
            continue  # compiled for this GPU
        ocp = (
            any(map(_OCP.search, kind.op.types)) and found.library not in _OWN_ENCODING
        )
        if multiplies(*gpu, found.precision) is False or (fnuz and ocp):
            why = f"{trace.gpu} cannot multiply it, so the operands are converted"
        elif runs_elsewhere(kind.name, *gpu):
            why = f"it was not compiled for {trace.gpu}"
        else:
            continue
        unknown = kind.changed(
            why, precision=Precision.UNKNOWN, upcast_from=found.precision
        )
        kinds.rows[number] = unknown


# ---- possible products, whatever they are called

# A dgrad and a wgrad in one kernel, each as much work as the forward pass.
_GRADIENTS: Final = 2
# Of the listed GPUs: an H100 reads 3.35 TB/s beside 989 TFLOP/s.
_BYTES_PER_FLOP: Final = 3.35 / 989
# Kernels of libraries that are named by what they do; Transformer Engine compiles some at run time.
_PROVED: Final = re.compile(
    r"(?:void )?(?:at::|at_cuda|c10::|cub::|thrust::|transformer_engine::|cudnn|nccl|rccl"
    r"|(?:cast_)?transpose_(?:fusion_kernel_)?optimized)"
    r"|triton_(?:poi|red|per|for|spl|split_scan)_fused_|Mem(?:cpy|set)|_ZN(?:2at|3c10|3cub|18trans)"
)
_OTHER_ROLES: Final = (*purpose.CONSUMERS, Role.CONV, Role.MEMORY)
# The FLOPs that a kernel of a function may have computed, and the precision of its inputs.
_Function: TypeAlias = "tuple[list[float], Precision]"
_NONE: Final[_Function] = [], Precision.UNKNOWN


def _settle_hidden_products(trace: Trace, kinds: Kinds) -> None:
    """Make GEMMs of possible products whose precision the inputs show, and doubts of others."""
    closure = purpose.runs_closure(trace.ops)
    hiding = [
        (number, kind)
        for number, kind in enumerate(kinds.rows)
        if _may_hide(kind) and (closure or not purpose.in_optimizer(kind.op))
    ]
    if not hiding:
        return
    rate = (peak_of(trace.gpu) or PEAKS["H100"]).bf16 * 1000  # FLOPs a ns
    functions = _taking_weights(kinds, hiding, rate)
    usual = _median_gemm_ns(kinds)
    ran_low = any(
        kind.is_gemm and kind.classification.precision.is_low for kind in kinds.rows
    )
    for number, kind in hiding:
        mean = kinds.mean_ns(number)
        flops, precision = functions.get(_key(kind.op.name)) or functions.get(
            kind.name, _NONE
        )
        if not any(_is_at_rate(n, mean, rate, _GRADIENTS) for n in flops):
            if kind.op.dims or not mean >= limits.AS_LONG_AS_GEMMS * usual > 0:
                continue
            words = kind.name[:400], kind.op.name.rpartition("::")[2]
            if not ran_low and any(map(_is_other_work, words)):
                continue  # without FP8 there is no ACTIVE that it could make wrong
            precision = Precision.UNKNOWN
        known = precision is not Precision.UNKNOWN
        kinds.rows[number] = kind.changed(
            "but it ran as long as a product of what its function takes",
            role=Role.GEMM if known else Role.OTHER,
            precision=precision,
            source="op" if known else "none",
            a=None,
            b=None,
            hidden=True,
        )


def _median_gemm_ns(kinds: Kinds) -> float:
    """Return how long a launch of a GEMM usually took, 0 without any."""
    products = [number for number, kind in enumerate(kinds.rows) if kind.multiplies]
    launches = (
        repeat(kinds.mean_ns(number), kinds.totals[number][0]) for number in products
    )
    return median(chain.from_iterable(launches)) if products else 0.0


def _may_hide(kind: Kind) -> bool:
    """Whether nothing proves that a kernel is something else than a product."""
    op = kind.op
    found = kind.classification
    if (
        not op.name
        or found.role in _OTHER_ROLES
        or found.split_k
        or found.source == "code"
        or _PROVED.match(kind.name)
    ):
        return False
    row = find(function_of(op.name) or op.name)
    is_known = row is not UNKNOWN and not row.layer
    return not (is_known or _is_atens(op.name) or op.name.startswith("triton_"))


def _key(name: str) -> str:
    """Return what a function's operators and its node have in common: lib::my_op, MyOpBackward."""
    own = (function_of(name) or name).rpartition("::")[2]
    return own.replace("_", "").lower().removesuffix("backward")


def _taking_weights(
    kinds: Kinds, hiding: Iterable[tuple[int, Kind]], rate: float
) -> dict[str, _Function]:
    """Return the functions whose inputs are a product that a kernel of theirs may have computed."""
    quantizing = [
        kind for kind in kinds.rows if kind.classification.role in purpose.QUANTIZING
    ]
    casting = {_key(name) for kind in quantizing for name in kind.op.around}
    found: dict[str, _Function] = {}
    for number, kind in hiding:
        op = kind.op
        mean = kinds.mean_ns(number)
        fits = [n for n in _products(op) if _is_at_rate(n, mean, rate)]
        moved = sum(
            _HIGH_TYPES.get(name, 1) * prod(dims) for name, dims in _tensors(op)
        )
        is_long = mean >= limits.LONGER_THAN_MOVING * moved / _BYTES_PER_FLOP / rate
        if fits and is_long:
            casts = _key(op.name) in casting or find(op.name) is not UNKNOWN
            low = casts or _SAYS_LOW.search(f"{kind.name}{op.name}{op.types}")
            precision = Precision.UNKNOWN if low else _recorded(op)
            found[_key(op.name)] = found[kind.name] = fits, precision
    return found


def _is_at_rate(flops: float, mean_ns: float, rate: float, most: int = 1) -> bool:
    peak = rate * mean_ns
    return limits.LEAST_RATE / most * peak <= flops <= limits.MOST_RATE * peak


def _products(op: OpContext) -> Iterator[float]:
    """Yield the FLOPs of each product of a weight and an activation among the inputs."""
    matrices = [
        dims for name, dims in _tensors(op) if name in _HIGH_TYPES and len(dims) >= 2
    ]
    for weight, x in permutations(matrices, 2):
        is_weight = len(weight) in (2, 3) and min(weight[-2:]) >= limits.LEAST_SIDE
        if is_weight and x[-1] in weight[-2:] and (weight != x or len(matrices) == 2):
            yield 2.0 * prod(x) * prod(weight[-2:]) / x[-1]
