"""What a kernel is for: the model, an optimizer or FP8 itself, and which part of a run.

torch.optim.Optimizer names a range "Optimizer.step#Muon.step" around every step; a script's own
ranges prove nothing. A closure passed to it, as by Lightning, runs the model's forward pass inside
that range; its backward pass runs on a thread of its own or under autograd's nodes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final, NamedTuple

from fp8verify.analysis.kinds import Gemm, Kind, Kinds, gemm_shape
from fp8verify.kernels.operators import OPERATORS, Counts, Part, find, function_of, node_of
from fp8verify.terms import VAGUE_LEGS, Leg, OpContext, Role
from fp8verify.trace import Trace

_RANGE: Final = re.compile(r"Optimizer\.(?:step|zero_grad)#")
_COMPILED: Final = re.compile(r"## Call CompiledFxGraph|Torch-Compiled Region")
# What Inductor calls the fused loops over tensor lists of which compiled optimizers are made.
_FOREACH: Final = "triton_for_fused_"
# What only a forward pass runs; found inside a range, the optimizer was given a closure.
_FORWARD: Final = re.compile(
    r"aten::(?:linear|embedding|dropout|(?:\w*layer|rms|batch|group)_norm|\w*cross_entropy_loss|"
    r"nll_loss\w*|_?log_softmax|_?softmax|\w*scaled_dot_product\w*|conv\dd)|.*Function"
)

QUANTIZING: Final = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)


def range_of(op: OpContext) -> int | None:
    """Return the place among an operator and its parents of the optimizer's range, if any."""
    return next((i for i, name in enumerate(op.around) if _RANGE.match(name)), None)


def in_optimizer(op: OpContext | None) -> bool:
    """Whether an optimizer launched a kernel, and not the model inside its closure."""
    inside = None if op is None else range_of(op)
    if op is None or inside is None:
        return False
    between = op.around[:inside]
    if op.backward and any(node_of(name) for name in between):
        return False  # the backward pass of a closure
    return not any(map(_is_of_layers, between))


def _is_of_layers(name: str) -> bool:
    row = find(name)
    return row.layer or row.linear or row.encloses is not None or row.part is Part.LAYER


def optimizer_products(ops: Iterable[OpContext], kinds: Sequence[Kind]) -> set[int]:
    """Return the places of GEMM kinds that an optimizer launched.

    Args:
        ops: every operator that launched a kernel.
        kinds: all kinds of kernel.
    """
    closure = runs_closure(ops)
    loops = [kind.op for kind in kinds if kind.op and kind.name.startswith(_FOREACH)]
    compiled = {_graph(op) for op in loops if _is_compiled(op)}
    found = set()
    for number, kind in enumerate(kinds):
        op = kind.op
        if op is None or not kind.classification.role.is_gemm:
            continue
        if range_of(op) is not None:
            low = kind.classification.precision.is_low
            is_own = in_optimizer(op) and (not closure or (multiplies_square(op) and not low))
            is_own = is_own and not has_gradient(kind)
        else:
            is_own = not op.backward and _is_compiled(op) and _graph(op) in compiled
        if is_own:
            found.add(number)
    return found


def runs_closure(ops: Iterable[OpContext]) -> bool:
    """Whether an optimizer ran the model's forward pass, given it as a closure."""
    return any(map(_is_forward_inside, ops))


def _is_forward_inside(op: OpContext) -> bool:
    inside = range_of(op)
    if inside is None or op.backward:
        return False
    return any(_is_of_layers(name) or _FORWARD.fullmatch(name) for name in op.around[:inside])


def _is_compiled(op: OpContext) -> bool:
    """Whether compiled code outside autograd ran it, such as a compiled optimizer."""
    compiled = any(_COMPILED.match(name) for name in op.around)
    return compiled and not any(name.startswith("CompiledFunction") for name in op.around)


def _graph(op: OpContext) -> tuple[str, ...]:
    return tuple(name for name in op.parents if _COMPILED.match(name))


def multiplies_square(op: OpContext) -> bool:
    """Whether a product has the shape of X·Xᵀ, or of a square matrix with another."""
    matrices = [dims[-2:] for dims in op.dims if len(dims) >= 2]
    return any(rows == columns for rows, columns in matrices) or (
        len(matrices) >= 2 and matrices[-2] == matrices[-1][::-1]
    )


def _names(part: Part) -> frozenset[str]:
    return frozenset(name for name, row in OPERATORS.items() if row.part is part)


LAYER_FUNCTIONS = _names(Part.LAYER)
# Functions that are all about FP8, and the nodes of their backward passes.
FP8_FUNCTIONS = frozenset(
    name + suffix for name in LAYER_FUNCTIONS | _names(Part.CAST) for suffix in ("", "Backward")
)
_AMAX_OPS, _SCALE_OPS = _names(Part.AMAX), _names(Part.SCALE)
_GATHER_OPS = _AMAX_OPS | _SCALE_OPS
# Casts, and what a compiler makes of them.
_CASTING = frozenset({Role.ELEMENTWISE, Role.REDUCTION, Role.OTHER})
# Values, not the scales of blocks: torch.float8_e8m0fnu.
_LOW_TYPE = re.compile(r"Float8_e[45]m|Float4_e2m1")
_ROLES = {Role.CAST_QUANTIZE: "cast", Role.AMAX_REDUCE: "amax", Role.TRANSPOSE: "transpose"}


def of_the_model(op: OpContext | None) -> bool:
    """Whether neither the optimizer nor a codec of collectives launched a kernel."""
    if op is None:
        return True
    if find(op.name).part is Part.CODEC:
        return False
    # A profiler that an optimizer's hook steps begins the next step inside the optimizer's range;
    # the trace engine cuts that where the step is annotated, and it need not be.
    return not in_optimizer(op)


def is_node_of_gemms(name: str) -> bool:
    """Whether a name is that of an autograd node that launches a GEMM or more: MmBackward0."""
    function = None if name.startswith("autograd::") else function_of(name)
    if function is None:
        return False
    product = find(f"aten::{function.lower()}").product
    return _is_of_layers(function) or (product is not None and product.counts is Counts.PLAIN)


def purpose_of(kind: Kind) -> str | None:
    """Return the purpose of a kernel other than a GEMM in FP8, as `TaxRow.purpose`, or None."""
    op, role = kind.op, kind.classification.role
    if op is not None and FP8_FUNCTIONS.intersection(op.around):
        aside = role in (Role.COMMUNICATION, Role.ATTENTION, Role.MEMORY)
        return None if aside else _purpose_inside(op, role)
    if not of_the_model(op):
        return None
    if op is not None and any(find(name).part is Part.GATHER for name in op.parents):
        around = _GATHER_OPS.intersection(op.around)
        if around:
            return "amax" if around & _AMAX_OPS else "scale"
    return _ROLES.get(role) or _by_types(kind)


def _by_types(kind: Kind) -> str | None:
    """Judge a kernel other than a GEMM by its operator's recorded types: FP8 data or not.

    Other kernels that a GEMM's own operator launches set it up.
    """
    op, role = kind.op, kind.classification.role
    if op is None or role not in _CASTING or find(op.name).product is not None:
        return None
    low = [name for name in op.types if _LOW_TYPE.search(name)]
    if not low:
        return None
    # Tensors of numbers, not of scales or scalars.
    matrices = [n for n, dims in zip(op.types, op.dims, strict=False) if len(dims) > 1 and n]
    return "transpose" if len(low) == len(matrices) > 1 else "cast"


def _purpose_inside(op: OpContext, role: Role) -> str:
    """Return which part of torchao's casts an eager operator is: amax, scale, cast, or layout."""
    around = set(op.around)
    if role is Role.AMAX_REDUCE or around & _AMAX_OPS:
        return "amax"
    if around & _SCALE_OPS or "double" in op.types:
        return "scale"
    moves = [name for name in op.types if "Float8" in name]
    if role is Role.TRANSPOSE or (len(moves) > 1 and role is not Role.CAST_QUANTIZE):
        return "transpose"
    return "cast"


# What only an optimizer's step runs, by its operator or its kernel: torch's fused and foreach
# loops, and those of Apex, DeepSpeed and Transformer Engine. Of the foreach loops (addcmul,
# addcdiv, lerp), the kernels' names say only the functor (ATen/native/cuda/ForeachPointwiseOp.cu).
_UPDATES = re.compile(
    r"aten::_fused_(?:adamw?|sgd|adagrad)_|aten::_foreach_(?:addcdiv|addcmul|lerp)|"
    r"aten::addc(?:div|mul)_|triton_for_fused_|"
    r".*multi_tensor_apply_kernel<.*(?:PointwiseOpScalar|LerpFunctor)|"
    r".*(?<![a-z])(?:fused)?(?:adam[wx]?|adagrad|adafactor|muon|lamb|lion|sgd|optimi[sz]er)"
    r"(?![a-z])",
    re.IGNORECASE,
)

# flash_bwd_dq_dk_dv_loop_kernel, layer_norm_grad_input_kernel, cunn_SoftMaxBackward, and what
# Inductor names after its operators: triton_per_fused_native_layer_norm_backward_3.
_BACKWARD_NAME = re.compile(
    r".*(?:backward|(?<![a-z])bwd(?![a-z])|(?<![a-z])[dw]?grad(?:ient)?s?(?![a-z])|GradInput)",
    re.IGNORECASE | re.DOTALL,
)
_MAX_NAME = 400


def runs_backward(kinds: Sequence[Kind], gemms: Iterable[Gemm]) -> bool:
    """Whether a kernel ran in a backward pass, or is a GEMM for which this is not known."""
    if any(kind.op is not None and kind.op.backward for kind in kinds):
        return True
    vague = (*VAGUE_LEGS, Leg.DGRAD, Leg.WGRAD, Leg.RECOMPUTE)
    return any(gemm.leg in vague for gemm in gemms)


def is_update(kind: Kind) -> bool:
    """Whether a kernel is of an optimizer's step."""
    if any("zero_grad" in name for name in kind.around):
        return False
    if kind.op is not None and range_of(kind.op) is not None:
        return True
    return any(map(_UPDATES.match, (kind.name[:_MAX_NAME], *kind.around)))


def is_of_optimizer(name: str) -> bool:
    """Whether an operator or a range by its name is an optimizer's step."""
    is_range = _RANGE.match(name) and "zero_grad" not in name
    return bool(is_range or _UPDATES.match(name[:_MAX_NAME]))


def proves_training(kind: Kind) -> bool:
    """Whether a kernel is of a backward pass, or of the optimizer's step that follows one."""
    ran_backward = kind.op is not None and kind.op.backward
    return ran_backward or is_of_backward(kind) or is_update(kind)


def has_gradient(kind: Kind) -> bool:
    """Whether a GEMM multiplies gradients: only they are E5M2."""
    return "e5m2" in (kind.classification.a, kind.classification.b)


def is_of_backward(kind: Kind) -> bool:
    """Whether the name or the operands of a kernel show that it is of a backward pass."""
    return has_gradient(kind) or _BACKWARD_NAME.match(kind.name[:_MAX_NAME]) is not None


# ---- casts that feed GEMMs in high precision: FP8 that is only emulated
#
# FP8 has other uses: KV caches, all-to-all of tokens, attention, optimizer states. Emulated FP8
# casts the operands of a layer right before its GEMM, on the same stream.

_FP8_TYPE: Final = re.compile(r"Float8_e\dm\d")
_READS: Final = re.compile(r"dequant|upcast", re.IGNORECASE)


class _Cast(NamedTuple):
    """Elements of the FP8 tensors of a cast; None if it may feed any following GEMM."""

    written: frozenset[int] | None
    read: frozenset[int] = frozenset()


def fed_gemms(trace: Trace, kinds: Kinds, gemms: list[Gemm]) -> int:
    """Count the launches of layers' GEMMs in high precision whose activations casts to FP8 round.

    Casts for attention, collectives or FP8 GEMMs do not count, nor do weights that are only stored
    or rounded in FP8.
    """
    casts = {n: cast for n, kind in enumerate(kinds.rows) if (cast := _cast(kind)) is not None}
    if not casts:
        return 0
    of_layers = {g.place: g for g in gemms if g.leg not in (Leg.ATTENTION, Leg.OPTIMIZER)}
    columns, fed = trace.kernels, 0
    waiting: dict[int, list[_Cast]] = defaultdict(list)
    for place in sorted(range(len(columns)), key=columns.start_ns.__getitem__):
        number, stream = kinds.ids[place], columns.stream[place]
        kind, cast = kinds.rows[number], casts.get(number)
        role = kind.classification.role
        if cast is not None:
            parents = () if kind.op is None else kind.op.parents
            gathers = any(find(name).part is Part.GATHER for name in parents)
            waiting[stream].append(cast._replace(written=frozenset()) if gathers else cast)
        elif role.is_gemm or role in (Role.ATTENTION, Role.COMMUNICATION):
            gemm = of_layers.get(place)
            fed += gemm is not None and _feed(waiting[stream], gemm)
            waiting[stream] = []
    return fed


def _cast(kind: Kind) -> _Cast | None:
    """Return what a kernel of the model casts to FP8, None for any other kernel."""
    found, op = kind.classification, kind.op
    if found.role.is_gemm or found.role in (Role.ATTENTION, Role.COMMUNICATION):
        return None
    if not of_the_model(op):
        return None
    typed = op is not None and any(_FP8_TYPE.search(name) for name in op.types)
    if not typed and not _casts_by_name(kind):
        return None
    if op is not None and FP8_FUNCTIONS.intersection(op.around):
        return _Cast(None)
    if op is not None and typed and any(op.dims):
        return _typed(op)
    return _Cast(None) if _casts_by_name(kind) else None


def _casts_by_name(kind: Kind) -> bool:
    found = kind.classification
    casts = found.role in QUANTIZING and found.precision.is_low
    return casts and not _READS.search(kind.name[:400])


def _typed(op: OpContext) -> _Cast:
    """Whether a cast reads or writes FP8: `copy_` records its output first, others their inputs."""
    typed = list(zip(op.types, op.dims, strict=False))
    sizes = frozenset(prod(dims) for name, dims in typed if _FP8_TYPE.search(name) and dims)
    tensors = [name for name, dims in typed if dims]
    first_is_fp8 = bool(tensors) and _FP8_TYPE.search(tensors[0]) is not None
    writes = first_is_fp8 if op.name == "aten::copy_" else not first_is_fp8
    return _Cast(sizes) if writes else _Cast(frozenset(), sizes)


def _feed(casts: list[_Cast], gemm: Gemm) -> bool:
    """Whether casts since the GEMM before rounded an activation of this one, and read it back."""
    if any(cast.written is None for cast in casts):
        return True
    shape = gemm_shape(gemm.kind.op)
    if shape is None:
        return any(cast.written for cast in casts)
    a, b = shape.batch * shape.m * shape.k, shape.batch * shape.k * shape.n
    written = Counter(size for cast in casts for size in cast.written or ())
    read = {size for cast in casts for size in cast.read}
    if gemm.leg is Leg.WGRAD:  # of two activations
        return any(written[size] and size in read for size in (a, b))
    # The weight has the size b: of two operands of one size both must have been rounded.
    return written[a] > (a == b) and a in read
