"""What a kernel is for: the model, an optimizer or FP8 itself, and which part of a run.

torch.optim.Optimizer names a range "Optimizer.step#Muon.step" around every step; a script's own
ranges prove nothing. A closure passed to it, as by Lightning, runs the model's forward pass inside
that range; its backward pass runs on a thread of its own or under autograd's nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from fp8verify.analysis.kinds import Kind, is_of_graph
from fp8verify.kernels.operators import (
    OPERATORS,
    Counts,
    Part,
    find,
    function_of,
    node_of,
)
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import OpContext, Role

_RANGE: Final = lazy_pattern(r"Optimizer\.(?:step|zero_grad)#")
_COMPILED: Final = lazy_pattern(r"## Call CompiledFxGraph|Torch-Compiled Region")
# What Inductor calls the fused loops over tensor lists of which compiled optimizers are made.
_FOREACH: Final = "triton_for_fused_"
# What only a forward pass runs; found inside a range, the optimizer was given a closure.
_FORWARD: Final = lazy_pattern(
    r"aten::(?:linear|embedding|dropout|(?:\w*layer|rms|batch|group)_norm|\w*cross_entropy_loss|"
    r"nll_loss\w*|_?log_softmax|_?softmax|\w*scaled_dot_product\w*|conv\dd)|.*Function"
)

QUANTIZING: Final = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)
# Of kernels that read what casts wrote, and whose own types are no cast's.
CONSUMERS: Final = (
    Role.GEMM,
    Role.GROUPED_GEMM,
    Role.ATTENTION,
    Role.COMMUNICATION,
)
FP8_TYPE: Final = lazy_pattern(r"Float8_e(?:4m3|5m2)")


def takes_fp8(op: OpContext) -> bool:
    """Whether a tensor in FP8 is among the recorded inputs of an operator."""
    return any(map(FP8_TYPE.search, op.types))


def _inside_range(op: OpContext) -> tuple[str, ...] | None:
    """Return an operator and its parents inside the optimizer's range, None outside of any."""
    for index, name in enumerate(op.around):
        if _RANGE.match(name):
            return op.around[:index]
    return None


def in_optimizer(op: OpContext) -> bool:
    """Whether an optimizer launched a kernel, and not the model inside its closure."""
    between = _inside_range(op)
    if between is None:
        return False
    if op.backward and any(map(node_of, between)):
        return False  # a node is the backward pass of a closure
    return not any(map(is_of_layers, between))


def is_of_layers(name: str) -> bool:
    """Whether an operator or a function is of layers, which no optimizer calls."""
    row = find(name)
    if row.layer or row.linear:
        return True
    return row.encloses is not None or row.part is Part.LAYER


def optimizer_products(
    ops: Iterable[OpContext],
    kinds: Iterable[Kind],
    gemms: Mapping[int, Kind],
) -> set[int]:
    """Return the numbers of kinds of GEMM that an optimizer launched.

    Args:
        ops: every operator that launched a kernel.
        kinds: all kinds of kernel.
        gemms: those of GEMMs, by their numbers.
    """
    closure = runs_closure(ops)
    compiled: set[tuple[str, ...]] = set()
    for kind in kinds:
        graph = _graph(kind.op)
        if graph and kind.name.startswith(_FOREACH):
            compiled.add(graph)
    products = set()
    for number, kind in gemms.items():
        if _inside_range(kind.op) is not None:
            is_own = _is_optimizers(kind, closure=closure)
        else:
            is_own = not kind.op.backward and _graph(kind.op) in compiled
        if is_own:
            products.add(number)
    return products


def _is_optimizers(kind: Kind, *, closure: bool) -> bool:
    """Whether a GEMM inside the optimizer's range is its own, and not of the model in a closure."""
    if not in_optimizer(kind.op) or has_gradient(kind):
        return False
    is_like_the_models = kind.is_low or not multiplies_square(kind.op)
    return not (closure and is_like_the_models)


def runs_closure(ops: Iterable[OpContext]) -> bool:
    """Whether an optimizer ran the model's forward pass, given it as a closure."""
    for op in ops:
        if op.backward:
            continue
        for name in _inside_range(op) or ():
            if is_of_layers(name) or _FORWARD.fullmatch(name):
                return True
    return False


def _graph(op: OpContext) -> tuple[str, ...]:
    """Return the compiled code outside autograd that ran it, such as a compiled optimizer."""
    if is_of_graph(op):
        return ()
    return tuple(filter(_COMPILED.match, op.around))


def multiplies_square(op: OpContext) -> bool:
    """Whether a product has the shape of X·Xᵀ, or of a square matrix with another."""
    matrices = []
    for dims in op.dims:
        if len(dims) < 2:
            continue
        rows, columns = dims[-2:]
        if rows == columns:
            return True
        matrices.append((rows, columns))
    if len(matrices) < 2:
        return False
    rows, columns = matrices[-1]
    return matrices[-2] == (columns, rows)


def _names(part: Part) -> frozenset[str]:
    return frozenset(name for name, row in OPERATORS.items() if row.part is part)


LAYER_FUNCTIONS = _names(Part.LAYER)
# Functions that are all about FP8, and the nodes of their backward passes.
FP8_FUNCTIONS = frozenset(
    name + suffix
    for name in LAYER_FUNCTIONS | _names(Part.CAST)
    for suffix in ("", "Backward")
)
_AMAX_OPS = _names(Part.AMAX)
_SCALE_OPS = _names(Part.SCALE)
# Roles of kernels inside FP8's functions that do not serve it.
_ASIDE = (
    Role.COMMUNICATION,
    Role.ATTENTION,
    Role.MEMORY,
)
# Casts, and what a compiler makes of them.
_CASTING = frozenset(
    {
        Role.ELEMENTWISE,
        Role.REDUCTION,
        Role.OTHER,
    }
)
# Values, not the scales of blocks: torch.float8_e8m0fnu.
_LOW_TYPE = lazy_pattern(r"Float8_e[45]m|Float4_e2m1")
_ROLES = {
    Role.CAST_QUANTIZE: "cast",
    Role.AMAX_REDUCE: "amax",
    Role.TRANSPOSE: "transpose",
}


def of_the_model(op: OpContext) -> bool:
    """Whether neither the optimizer nor a codec of collectives launched a kernel.

    A profiler that an optimizer's hook steps begins the next step inside the optimizer's range; the
    trace engine cuts that where the step is annotated, and it need not be.
    """
    if find(op.name).part is Part.CODEC:
        return False
    return not in_optimizer(op)


def gathers(op: OpContext) -> bool:
    """Whether parameters are cast before they are gathered."""
    return any(find(name).part is Part.GATHER for name in op.parents)


def is_node_of_gemms(name: str) -> bool:
    """Whether a name is that of an autograd node that launches a GEMM or more: MmBackward0."""
    if name.startswith("autograd::"):
        return False
    function = function_of(name)
    if function is None:
        return False
    if is_of_layers(function):
        return True
    product = find(f"aten::{function.lower()}").product
    return product is not None and product.counts is Counts.PLAIN


def purpose_of(kind: Kind) -> str | None:
    """Return the purpose of a kernel other than a GEMM in FP8, as `TaxRow.purpose`, or None."""
    op = kind.op
    around = set(op.around)
    if not FP8_FUNCTIONS.isdisjoint(around):
        return _inside_fp8(kind, around)
    if not of_the_model(op):
        return None
    if gathers(op):
        if around & _AMAX_OPS:
            return "amax"
        if around & _SCALE_OPS:
            return "scale"
    return _ROLES.get(kind.role) or _by_types(kind)


def _inside_fp8(kind: Kind, around: set[str]) -> str | None:
    """Return the purpose of a kernel that a function of FP8 launched."""
    role = kind.role
    if role in _ASIDE:
        return None
    if around & _AMAX_OPS or role is Role.AMAX_REDUCE:
        return "amax"
    if around & _SCALE_OPS or "double" in kind.op.types:
        return "scale"
    if role is Role.TRANSPOSE:
        return "transpose"
    if role is Role.CAST_QUANTIZE:
        return "cast"
    fp8_tensors = sum("Float8" in name for name in kind.op.types)
    return "transpose" if fp8_tensors > 1 else "cast"


def _by_types(kind: Kind) -> str | None:
    """Judge a kernel other than a GEMM by its operator's recorded types: FP8 data or not.

    Other kernels that a GEMM's own operator launches set it up.
    """
    op = kind.op
    low = sum(_LOW_TYPE.search(name) is not None for name in op.types)
    if not low or kind.role not in _CASTING:
        return None
    if find(op.name).product is not None:
        return None
    # Tensors of numbers, not of scales or scalars.
    typed = zip(op.types, op.dims, strict=False)
    matrices = sum(len(dims) > 1 and name != "" for name, dims in typed)
    only_low = low == matrices
    return "transpose" if only_low and matrices > 1 else "cast"


# What only an optimizer's step runs, by its operator or its kernel: torch's fused and foreach
# loops, and those of Apex, DeepSpeed and Transformer Engine. Of the foreach loops (addcmul,
# addcdiv, lerp), the kernels' names say only the functor (ATen/native/cuda/ForeachPointwiseOp.cu).
_UPDATES = (
    r"aten::_fused_(?:adamw?|sgd|adagrad)_|aten::_foreach_(?:addcdiv|addcmul|lerp)|"
    r"aten::addc(?:div|mul)_|triton_for_fused_|"
    r".*multi_tensor_apply_kernel<.*(?:PointwiseOpScalar|LerpFunctor)|"
    r".*(?<![a-z])(?:fused)?(?:adam[wx]?(?:functor|math)?|adagrad|adafactor|muon|lamb|lion|sgd|optimi[sz]er)"
    r"(?![a-z])"
)

# flash_bwd_dq_dk_dv_loop_kernel, layer_norm_grad_input_kernel, cunn_SoftMaxBackward, and what
# Inductor names after its operators: triton_per_fused_native_layer_norm_backward_3.
_BACKWARD_NAME = r".*(?:backward|(?<![a-z])bwd(?![a-z])|(?<![a-z])[dw]?grad(?:ient)?s?(?![a-z])|GradInput)"
_MAX_NAME = 400


def is_update(kind: Kind) -> bool:
    """Whether a kernel is of an optimizer's step."""
    names = (kind.name, *kind.op.around)
    if any("zero_grad" in name for name in names):
        return False
    return any(map(is_of_optimizer, names))


@lru_cache(1 << 12)  # kinds of kernels have the names of ranges and operators in common
def is_of_optimizer(name: str) -> bool:
    """Whether an operator, a kernel or a range by its name is of an optimizer's step."""
    if _RANGE.match(name) and "zero_grad" not in name:
        return True
    return re.match(_UPDATES, name[:_MAX_NAME], re.IGNORECASE) is not None


def has_gradient(kind: Kind) -> bool:
    """Whether a GEMM multiplies gradients: only they are E5M2."""
    found = kind.classification
    return "e5m2" in (found.a, found.b)


def is_of_backward(kind: Kind) -> bool:
    """Whether the name or the operands of a kernel show that it is of a backward pass."""
    if has_gradient(kind):
        return True
    flags = re.IGNORECASE | re.DOTALL
    return re.match(_BACKWARD_NAME, kind.name[:_MAX_NAME], flags) is not None
