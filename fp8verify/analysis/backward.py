"""Which kernels show by themselves that a backward pass ran."""

from __future__ import annotations

import re

from fp8verify.analysis.gemms import Kind
from fp8verify.text import lazy_pattern

# flash_bwd_dq_dk_dv_loop_kernel, layer_norm_grad_input_kernel, cunn_SoftMaxBackward, and what
# Inductor names after its operators: triton_per_fused_native_layer_norm_backward_3.
_BACKWARD_NAME = lazy_pattern(
    r".*(?:backward|(?<![a-z])bwd(?![a-z])|(?<![a-z])[dw]?grad(?:ient)?s?(?![a-z])|GradInput)",
    re.IGNORECASE | re.DOTALL,
)
_MAX_NAME = 400


def has_gradient(kind: Kind) -> bool:
    """Whether a GEMM multiplies gradients: only they are E5M2."""
    return "e5m2" in (kind.classification.a, kind.classification.b)


def is_of_backward(kind: Kind) -> bool:
    """Whether the name or the operands of a kernel show that it is of a backward pass."""
    return has_gradient(kind) or _BACKWARD_NAME.match(kind.name[:_MAX_NAME]) is not None
