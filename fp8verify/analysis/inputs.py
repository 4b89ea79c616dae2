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
from itertools import permutations, repeat
from math import prod
from statistics import median
from typing import Final, NamedTuple

from fp8verify import thresholds as limits
from fp8verify.analysis import purpose
from fp8verify.analysis.gpus import (
    PEAKS,
    multiplies,
    peak_of,
    reads_fnuz,
    runs_elsewhere,
)
from fp8verify.analysis.kinds import Kind, Kinds
from fp8verify.kernels.operators import (
    UNKNOWN,
    find,
    function_of,
    multiplies_fp8,
    node_of,
)
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import OpContext, Precision, Role, Shape
from fp8verify.trace import Trace

# Words of names that say of unknown kernels what they do, and that it is no product.
_OTHER_WORK: Final = lazy_pattern(
    r"embedding|bucketize|bounds_check|index|scatter|gather|sort|scan|unique|histogram|permut|"
    r"dispatch|combine|all_?(?:to_?all|reduce|gather)|reduce|softmax|norm|rope|rotary|loss|"
    r"entropy|dropout|adam|adagrad|optimi[sz]er|lamb|sgd|pool|interpolat|upsampl|random|curand|"
    r"memset|memcpy|copy|fill|cast|quant|convert|transpose|elementwise|pointwise|cache|"
    r"tensorop|expand|mask|padding|^triton__\d",
    re.IGNORECASE,
)
_PRODUCT: Final = lazy_pattern(
    r"gemm|matmul|linear|(?:^|_|b)mm(?:_|$)|main_kernel|einsum", re.IGNORECASE
)
# Libraries of kernels that anybody writes: their names are no grammar.
_HAND_WRITTEN: Final = ("Triton", "unknown")
_SAYS_LOW: Final = lazy_pattern(
    r"fp8|float[48]|f8|fp4|mx|quant|scaled|e4m3|e5m2", re.IGNORECASE
)
_LISTS: Final = frozenset({"TensorList", "GenericList"})
_HIGH_TYPES: Final = {  # with their bytes
    "BFloat16": 2,
    "Half": 2,
    "float": 4,
}
# Bounds of what is read.
_LARGEST = 1 << 32
_DIMS = 5
_INPUTS = 16
_MAX_NAME = 400


def settle_by_inputs(trace: Trace, kinds: Kinds) -> None:
    """Give kernels the precision that the recorded inputs of their operators decide."""
    _settle_products_of_fp8(kinds)
    casting: set[str] = set()
    for kind in kinds.rows:
        if _casts(kind):
            casting.add(kind.name)
            casting.update(kind.op.around)
    without_fp8 = _functions_without_fp8(trace, casting)
    for number, kind in enumerate(kinds.rows):
        if kind.classification.source == "code":
            continue  # what ran is known
        kinds.rows[number] = _settled(kind, casting, without_fp8)
    _settle_hidden_products(trace, kinds)
    _settle_unsupported_formats(trace, kinds)


def _settle_products_of_fp8(kinds: Kinds) -> None:
    """Find the products of operators that take two matrices in FP8."""
    taking_fp8: dict[OpContext, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds.rows):
        if purpose.takes_fp8(kind.op):
            taking_fp8[kind.op].append(number)
    for op, members in taking_fp8.items():
        if multiplies_fp8(op):
            _settle_longest(kinds, op, members)


def _settled(
    kind: Kind,
    casting: Set[str],
    without_fp8: Set[str],
) -> Kind:
    """Return a kernel with the precision that its operator's inputs leave it.

    Args:
        kind: the kernel.
        casting: the names of kernels that write FP8, and of what launched them.
        without_fp8: functions without FP8 inputs and results.
    """
    if kind.is_gemm and kind.is_low:
        if _is_widening_template(kind):
            return _as_high(kind, "its template widens FP8 before the product")
        why = _why_name_alone(kind, casting)
        if why is not None:
            return kind.changed(
                why,
                precision=Precision.UNKNOWN,
                source="none",
            )
    elif kind.is_undecided and kind.op.name in without_fp8:
        return _as_high(kind, f"{kind.op.name} takes and makes no FP8 tensor")
    return kind


def _is_widening_template(kind: Kind) -> bool:
    """Whether a template of Inductor reads FP8 and multiplies in 16 bits."""
    is_scaled = "scaled" in kind.name or "scaled" in kind.op.name
    return kind.name.startswith("triton_tem_") and not is_scaled


def _settle_longest(
    kinds: Kinds,
    op: OpContext,
    members: Iterable[int],
) -> None:
    """Make the longest kernels of an operator that multiplies FP8 its products, if none is."""
    means: dict[int, float] = {}
    for number in members:
        kind = kinds.rows[number]
        if kind.multiplies and kind.precision is not Precision.UNKNOWN:
            return
        if kind.is_undecided:
            means[number] = kinds.mean_ns(number)
    a, b, *_ = filter(purpose.FP8_TYPE.search, op.types)
    is_grouped = any(len(dims) == 3 for dims in op.dims)
    has_block_scales = "e8m0" in " ".join(op.types)
    longest = max(means.values(), default=0)
    for number, mean in means.items():
        if mean < limits.AS_LONG * longest:
            continue
        kind = kinds.rows[number]
        kinds.rows[number] = kind.changed(
            f"{op.name} takes two FP8 matrices and gives none",
            role=Role.GROUPED_GEMM if is_grouped else Role.GEMM,
            precision=Precision.MXFP8 if has_block_scales else Precision.FP8,
            source="op",
            a=_encoding(a),
            b=_encoding(b),
        )


def _encoding(fp8_type: str) -> str:
    """Return the encoding of a tensor's type in FP8."""
    return "e5m2" if "e5m2" in fp8_type else "e4m3"


class _Tensor(NamedTuple):
    """An input of an operator: its type without the namespace, and its size."""

    type: str
    dims: Shape


def _tensors(op: OpContext) -> list[_Tensor]:
    """Return the inputs of an operator whose size is possible."""
    tensors = []
    recorded = zip(op.types[:_INPUTS], op.dims, strict=False)
    for text, dims in recorded:
        if _is_possible(dims):
            tensors.append(_Tensor(_plain_type(text), dims))
    return tensors


def _is_possible(dims: Shape) -> bool:
    """Whether a tensor can have these sizes."""
    if len(dims) > _DIMS:
        return False
    return all(0 < side < _LARGEST for side in dims)


def _plain_type(text: str) -> str:
    """Return the name of a type, or of an operator, without its namespace."""
    _, _, name = text.rpartition("::")
    return name


def _recorded(
    op: OpContext,
    unknown: Precision = Precision.UNKNOWN,
) -> Precision:
    """Return the 16-bit type of an operator's tensors, `unknown` if there is none."""
    types = set(map(_plain_type, op.types))
    if "BFloat16" in types:
        return Precision.BF16
    if "Half" in types:
        return Precision.FP16
    return unknown


def _casts(kind: Kind) -> bool:
    """Whether a kernel writes FP8, by its name or by the types that its operator recorded."""
    if kind.role in purpose.CONSUMERS:
        return False
    if kind.role is Role.AMAX_REDUCE:
        return True
    if kind.role is Role.CAST_QUANTIZE and kind.is_low:
        return True
    return purpose.takes_fp8(kind.op)


def _functions_without_fp8(trace: Trace, casting: Set[str]) -> set[str]:
    """Return the functions, and their nodes, without FP8 inputs and FP8 results.

    Functions in the table record the inputs of whole layers, not of their GEMMs, and compiled
    code fuses casts into kernels with other names.
    """
    types: dict[str, set[str]] = defaultdict(set)
    for op in trace.ops:
        function = function_of(op.name) or op.name
        types[function].update(op.types)
    found: set[str] = set()
    for name, types_of_inputs in types.items():
        both = {name, f"{name}Backward"}
        plain = set(map(_plain_type, types_of_inputs))
        if _HIGH_TYPES.keys().isdisjoint(plain):
            continue
        may_cast = not casting.isdisjoint(both)
        if not may_cast and not _may_hide_fp8(name, types_of_inputs):
            found |= both
    return found


def _may_hide_fp8(name: str, types: Set[str]) -> bool:
    """Whether the recorded types of a function need not be those of its GEMMs."""
    if find(name) is not UNKNOWN or name.startswith(("aten::", "triton_")):
        return True
    if not _LISTS.isdisjoint(types):
        return True
    return _SAYS_LOW.search(f"{name}{types}") is not None


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
    in_fp8 = 0
    in_16_bits = 0
    for tensor in _tensors(op):
        if len(tensor.dims) < 2:
            continue
        if purpose.FP8_TYPE.search(tensor.type):
            in_fp8 += 1
        elif _HIGH_TYPES.get(tensor.type) == 2:
            in_16_bits += 1
    may_be_widened = in_fp8 == 1 and in_16_bits > 0
    if may_be_widened and casting.isdisjoint((op.name, f"{op.name}Backward")):
        return "one operand is FP8 and nothing casts the other: it may be widened"
    return None


def _as_high(kind: Kind, why: str) -> Kind:
    """Give a kernel the precision of the recorded 16-bit tensors, BF16 if there are none."""
    precision = _recorded(kind.op, Precision.BF16)
    return kind.changed(
        why,
        precision=precision,
        source="op",
        a=None,
        b=None,
    )


def is_unrecognized(kind: Kind) -> bool:
    """Whether a kernel of the model is unrecognized, so it may be a GEMM of any precision.

    An operator explains its kernels if it is in the table, unless it is a whole layer, or ATen's
    (all of ATen's GEMMs are in the table), or if its inputs contain fewer than two matrices.
    """
    if kind.classification.hidden:
        return not kind.is_gemm
    if not kind.is_nameless or purpose.in_optimizer(kind.op):
        return False
    if _is_other_work(kind.name[:_MAX_NAME]):
        return False
    return not _explains(kind.op)


def _is_other_work(name: str) -> bool:
    """Whether a name says what a kernel does, and that it is no product."""
    if _PRODUCT.search(name):
        return False
    return _OTHER_WORK.search(name) is not None


def _explains(op: OpContext) -> bool:
    """Whether an operator shows that its kernels are no products."""
    known = find(op.name)
    if known is not UNKNOWN:
        return known.layer_inputs is None
    if _is_atens(op.name) or _is_other_work(_plain_type(op.name)):
        return True
    if not op.dims or "::" not in op.name:
        return False
    if "" in op.types or not _LISTS.isdisjoint(op.types):
        return False
    matrices = sum(len(dims) >= 2 for dims in op.dims)
    return matrices < 2


def _is_atens(name: str) -> bool:
    """Whether it is ATen's or a node of autograd's own: these have numbers, as `MulBackward0`."""
    if name.startswith("aten::"):
        return True
    return name[-1:].isdigit() and node_of(name) is not None


# ---- formats that the GPU cannot multiply

_OCP: Final = lazy_pattern(r"Float8_e(?:4m3fn|5m2)$")
# Libraries of AMD's that name the encoding that their instructions read.
_OWN_ENCODING: Final = frozenset({"hipBLASLt", "Composable Kernel", "aiter"})


def _settle_unsupported_formats(trace: Trace, kinds: Kinds) -> None:
    """Make the precision unknown of GEMMs in formats that the GPU of a trace cannot multiply."""
    if not trace.gpu:
        return
    for number, kind in enumerate(kinds.rows):
        # What was compiled for this GPU runs on it.
        from_code = kind.classification.source == "code"
        if from_code or not (kind.is_gemm and kind.is_low):
            continue
        why = _why_unsupported(
            kind,
            trace.gpu,
            trace.compute_capability,
        )
        if why is not None:
            kinds.rows[number] = kind.changed(
                why,
                precision=Precision.UNKNOWN,
                upcast_from=kind.precision,
            )


def _why_unsupported(
    kind: Kind,
    gpu: str,
    capability: str | None,
) -> str | None:
    """Say why a GPU cannot have run a GEMM in the format of its name; None if it can."""
    is_ocp = any(map(_OCP.search, kind.op.types))
    own_encoding = kind.classification.library in _OWN_ENCODING
    is_fnuz = reads_fnuz(gpu, capability) and not own_encoding
    supported = multiplies(gpu, capability, kind.precision)
    if supported is False or (is_fnuz and is_ocp):
        return f"{gpu} cannot multiply it, so the operands are converted"
    if runs_elsewhere(kind.name, gpu, capability):
        return f"it was not compiled for {gpu}"
    return None


# ---- possible products, whatever they are called

# A dgrad and a wgrad in one kernel, each as much work as the forward pass.
_GRADIENTS: Final = 2
# Of the listed GPUs: an H100 reads 3.35 TB/s beside 989 TFLOP/s.
_BYTES_PER_FLOP: Final = 3.35 / 989
# Kernels of libraries that are named by what they do; Transformer Engine compiles some at run time.
_PROVED: Final = lazy_pattern(
    r"(?:void )?(?:at::|at_cuda|c10::|cub::|thrust::|transformer_engine::|cudnn|nccl|rccl"
    r"|(?:cast_)?transpose_(?:fusion_kernel_)?optimized)"
    r"|triton_(?:poi|red|per|for|spl|split_scan)_fused_|Mem(?:cpy|set)|_ZN(?:2at|3c10|3cub|18trans)"
)
_OTHER_ROLES: Final = (*purpose.CONSUMERS, Role.CONV, Role.MEMORY)


class _Function(NamedTuple):
    """A function that takes weights: what a kernel of it may have computed.

    Attributes:
        flops: of each product of its inputs.
        precision: that of its inputs.
    """

    flops: list[float]
    precision: Precision

    def has_product(self, mean_ns: float, rate: float) -> bool:
        """Whether a kernel of this duration can have computed one, or both of its gradients."""
        return any(
            _is_at_rate(flops, mean_ns, rate, _GRADIENTS) for flops in self.flops
        )


_NONE: Final = _Function([], Precision.UNKNOWN)


def _settle_hidden_products(trace: Trace, kinds: Kinds) -> None:
    """Make GEMMs of possible products whose precision the inputs show, and doubts of others."""
    hiding = _hiding(trace, kinds)
    if not hiding:
        return
    peak = peak_of(trace.gpu) or PEAKS["H100"]
    rate = peak.bf16 * 1000  # FLOPs a ns
    functions = _taking_weights(kinds, hiding, rate)
    usual = _median_gemm_ns(kinds)
    ran_low = any(kind.is_gemm and kind.is_low for kind in kinds.rows)
    for number, kind in hiding:
        mean = kinds.mean_ns(number)
        by_name = functions.get(kind.name, _NONE)
        function = functions.get(_key(kind.op.name)) or by_name
        if function.has_product(mean, rate):
            kinds.rows[number] = _as_product(kind, function.precision)
            continue
        is_long = mean >= limits.AS_LONG_AS_GEMMS * usual > 0
        may_be_product = is_long and not kind.op.dims
        # Without FP8 there is no ACTIVE that it could make wrong.
        is_harmless = not ran_low and _is_called_other_work(kind)
        if may_be_product and not is_harmless:
            kinds.rows[number] = _as_product(kind, Precision.UNKNOWN)


def _as_product(kind: Kind, precision: Precision) -> Kind:
    """Return a kernel as a GEMM of a precision; where that is unknown it stays unrecognized."""
    is_known = precision is not Precision.UNKNOWN
    return kind.changed(
        "but it ran as long as a product of what its function takes",
        role=Role.GEMM if is_known else Role.OTHER,
        precision=precision,
        source="op" if is_known else "none",
        a=None,
        b=None,
        hidden=True,
    )


def _hiding(trace: Trace, kinds: Kinds) -> list[tuple[int, Kind]]:
    """Return the kinds of the model that may hide a product, with their numbers."""
    closure = purpose.runs_closure(trace.ops)
    hiding = []
    for number, kind in enumerate(kinds.rows):
        if not _may_hide(kind):
            continue
        if closure or not purpose.in_optimizer(kind.op):
            hiding.append((number, kind))
    return hiding


def _is_called_other_work(kind: Kind) -> bool:
    if _is_other_work(kind.name[:_MAX_NAME]):
        return True
    return _is_other_work(_plain_type(kind.op.name))


def _median_gemm_ns(kinds: Kinds) -> float:
    """Return how long a launch of a GEMM usually took, 0 without any."""
    launches: list[float] = []
    for number, kind in enumerate(kinds.rows):
        if kind.multiplies:
            calls, _ = kinds.totals[number]
            launches.extend(repeat(kinds.mean_ns(number), calls))
    return median(launches) if launches else 0.0


def _may_hide(kind: Kind) -> bool:
    """Whether nothing proves that a kernel is something else than a product."""
    op = kind.op
    found = kind.classification
    if not op.name or found.role in _OTHER_ROLES:
        return False
    if found.split_k or found.source == "code":
        return False
    if _PROVED.match(kind.name) or _is_atens(op.name):
        return False
    if op.name.startswith("triton_"):
        return False
    row = find(function_of(op.name) or op.name)
    return row is UNKNOWN or row.layer


def _key(name: str) -> str:
    """Return what a function's operators and its node have in common: lib::my_op, MyOpBackward."""
    own = _plain_type(function_of(name) or name)
    letters = own.replace("_", "").lower()
    return letters.removesuffix("backward")


def _taking_weights(
    kinds: Kinds,
    hiding: Iterable[tuple[int, Kind]],
    rate: float,
) -> dict[str, _Function]:
    """Return the functions whose inputs are a product that a kernel of theirs may have computed."""
    casting: set[str] = set()
    for kind in kinds.rows:
        if kind.role in purpose.QUANTIZING:
            casting.update(map(_key, kind.op.around))
    found: dict[str, _Function] = {}
    for number, kind in hiding:
        op = kind.op
        mean = kinds.mean_ns(number)
        fits = []
        for flops in _products(op):
            if _is_at_rate(flops, mean, rate):
                fits.append(flops)
        moving = _bytes_of(op) / _BYTES_PER_FLOP / rate
        if not fits or mean < limits.LONGER_THAN_MOVING * moving:
            continue
        key = _key(op.name)
        may_be_low = key in casting or _says_low(kind)
        precision = Precision.UNKNOWN if may_be_low else _recorded(op)
        function = _Function(fits, precision)
        found[key] = function
        found[kind.name] = function
    return found


def _says_low(kind: Kind) -> bool:
    """Whether what is known of a kernel and its operator lets it multiply in low precision."""
    op = kind.op
    if find(op.name) is not UNKNOWN:
        return True
    return _SAYS_LOW.search(f"{kind.name}{op.name}{op.types}") is not None


def _bytes_of(op: OpContext) -> int:
    """Return the bytes of an operator's tensors; a byte an element where the type is not known."""
    moved = 0
    for name, dims in _tensors(op):
        moved += _HIGH_TYPES.get(name, 1) * prod(dims)
    return moved


def _is_at_rate(
    flops: float,
    mean_ns: float,
    rate: float,
    most: int = 1,
) -> bool:
    """Whether a kernel of this duration can have computed this, or `most` times as much."""
    peak = rate * mean_ns
    least = limits.LEAST_RATE / most * peak
    return least <= flops <= limits.MOST_RATE * peak


def _products(op: OpContext) -> Iterator[float]:
    """Yield the FLOPs of each product of a weight and an activation among the inputs."""
    matrices = []
    for tensor in _tensors(op):
        if tensor.type in _HIGH_TYPES and len(tensor.dims) >= 2:
            matrices.append(tensor.dims)
    for weight, x in permutations(matrices, 2):
        sides = weight[-2:]
        width = x[-1]
        if len(weight) > 3 or min(sides) < limits.LEAST_SIDE:
            continue
        differ = weight != x or len(matrices) == 2
        if differ and width in sides:
            yield 2.0 * prod(x) * prod(sides) / width
