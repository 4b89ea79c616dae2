"""What shows a training in a trace: kernels of a backward pass and of an optimizer's step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fp8verify.analysis.kinds import GemmLabel, Kind
from fp8verify.analysis.optimizers import range_of
from fp8verify.report.model import VAGUE_LEGS, Leg
from fp8verify.text import lazy_pattern

# What only an optimizer's step runs, by its operator or its kernel: torch's fused and foreach
# loops, and those of Apex, DeepSpeed and Transformer Engine. Of the foreach loops (addcmul,
# addcdiv, lerp), the kernels' names say only the functor (ATen/native/cuda/ForeachPointwiseOp.cu).
_UPDATES = lazy_pattern(
    r"aten::_fused_(?:adamw?|sgd|adagrad)_|aten::_foreach_(?:addcdiv|addcmul|lerp)|"
    r"aten::addc(?:div|mul)_|triton_for_fused_|"
    r".*multi_tensor_apply_kernel<.*(?:PointwiseOpScalar|LerpFunctor)|"
    r".*(?<![a-z])(?:fused)?(?:adam[wx]?|adagrad|adafactor|muon|lamb|lion|sgd|optimi[sz]er)"
    r"(?![a-z])",
    re.IGNORECASE,
)

# flash_bwd_dq_dk_dv_loop_kernel, layer_norm_grad_input_kernel, cunn_SoftMaxBackward, and what
# Inductor names after its operators: triton_per_fused_native_layer_norm_backward_3.
_BACKWARD_NAME = lazy_pattern(
    r".*(?:backward|(?<![a-z])bwd(?![a-z])|(?<![a-z])[dw]?grad(?:ient)?s?(?![a-z])|GradInput)",
    re.IGNORECASE | re.DOTALL,
)
_MAX_NAME = 400


def runs_backward(kinds: Sequence[Kind], labels: Iterable[GemmLabel]) -> bool:
    """Whether a kernel ran in a backward pass, or a GEMM of which that is not known."""
    if any(kind.op is not None and kind.op.backward for kind in kinds):
        return True
    vague = (*VAGUE_LEGS, Leg.DGRAD, Leg.WGRAD, Leg.RECOMPUTE)
    return any(label.leg in vague for label in labels)


def is_update(kind: Kind) -> bool:
    """Whether a kernel is of an optimizer's step."""
    around = () if kind.op is None else (kind.op.name, *kind.op.parents)
    if any("zero_grad" in name for name in around):
        return False
    if kind.op is not None and range_of(kind.op) is not None:
        return True
    return any(map(_UPDATES.match, (kind.name[:400], *around)))


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
