"""PyTorch's own CUDA and HIP kernels, `at::native::...`: elementwise, reductions, copies.

Source: aten/src/ATen/native/cuda in PyTorch 1.8 to 2.11; roles checked on the traces of eager
training steps.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.cxx import ANONYMOUS
from fp8verify.kernels.describe import CPP, element_class
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.terms import KernelName, Precision, Role

_LIBRARY: Final = "PyTorch"
_NAMESPACES: Final = frozenset({"at", "c10", "torch"})
_ROLES: Final[tuple[tuple[Role, frozenset[str]], ...]] = (
    (Role.OTHER, frozenset({"sort", "pool", "spin", "moments", "prepare", "gamma", "fused",
                            "internal", "dense"})),
    (Role.REDUCTION, frozenset({"reduce", "softmax", "soft", "norm", "layer", "batch", "scan",
                                "cumsum"})),
    (Role.ELEMENTWISE, frozenset({"elementwise", "cat", "copy", "fill", "index", "gather",
                                  "scatter", "topk", "dropout", "apply", "arange", "triu",
                                  "tril", "roll", "flip", "embedding", "distribution", "split",
                                  "chunk", "loss", "masked", "multi"})),
    (Role.TRANSPOSE, frozenset({"transpose"})),
)  # fmt: skip
_NAME: Final = r"(?:c10::)?(BFloat16|Half|Float8_\w+|float|double)"
_TEMPLATE: Final = re.compile(rf"\b{_NAME}\b")
_LAMBDA: Final = re.compile(rf"lambda\({_NAME}\b")
# PyTorch's and FBGEMM's casts, as functors of an elementwise kernel.
_FP8_COPY: Final = re.compile(r"\bfloat8_copy_kernel_cuda\b")
_FP8_SOURCE: Final = re.compile(r"lambda\(c10::(Float8_\w+)\)")
_FBGEMM_CAST: Final = re.compile(r"\bfbgemm_gpu::_\w*(?:to_h?fp8|h?fp8\w*_to)_\w+")


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a kernel of PyTorch itself."""
    if not symbol.path or symbol.path[0] not in _NAMESPACES or len(symbol.path) < 2:
        return None
    if _FP8_COPY.search(symbol.spelling) or _FBGEMM_CAST.search(symbol.spelling):
        return _fp8_copy(symbol)
    words = frozenset(split(symbol.base))
    role = next((role for role, row in _ROLES if words & row), Role.OTHER)
    element = _element(symbol.spelling, role) if role is not Role.OTHER else None
    reason = f"PyTorch {symbol.base}"
    return describe.other(_LIBRARY, role, reason, element=element, precision=element_class(element))


def _fp8_copy(symbol: Symbol) -> KernelName:
    """Describe a cast to or from FP8, or a copy of FP8 data to another layout."""
    copies = _FP8_SOURCE.search(symbol.spelling)
    role = Role.ELEMENTWISE if copies else Role.CAST_QUANTIZE
    reason = "copies FP8 data" if copies else "casts to or from FP8 in eager mode"
    element = CPP.get(copies[1]) if copies else None
    return describe.other(_LIBRARY, role, reason, element=element, precision=Precision.FP8)


def _element(text: str, role: Role) -> str | None:
    """Return the one floating element type of the functor; another FP32 is its arithmetic.

    An elementwise lambda takes elements, a reduction's takes partial sums.
    """
    found = set(_LAMBDA.findall(text)) if role is Role.ELEMENTWISE else set()
    if not found:
        found = set(_TEMPLATE.findall(text.replace(ANONYMOUS, "").partition("(")[0]))
    if len(found) > 1:
        found.discard("float")
    return CPP.get(found.pop()) if len(found) == 1 else None
