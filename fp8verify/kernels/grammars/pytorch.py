"""PyTorch's own kernels (`at::native::...`), TorchInductor's, and the GEMMs of Triton libraries.

Roles of its own kernels: aten/src/ATen/native/cuda in PyTorch 1.8 to 2.11, checked on the traces of
eager training steps.

Inductor: `triton_<kind>_fused_<aten ops>_<n>`; `tem` is a template (GEMM, convolution or flex
attention), `poi` pointwise, `red` and `per` reductions. The ops are those that were fused: a
pointwise kernel called `..._scaled_mm_..._clamp_...` casts the inputs of a scaled_mm, and
multiplies nothing. No operand type is in these names. Source: torch/_inductor/codegen/triton.py.
"""

from __future__ import annotations

from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.demangle import ANONYMOUS
from fp8verify.kernels.describe import CPP, SHORT, Operands, both, element_class
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.kernels.words import first_of, word_rows, word_set
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Hint, KernelName, Precision, Role, Scaling

_LIBRARY: Final = "PyTorch"
_NAMESPACES: Final = word_set("at c10 torch")
_ROLES: Final = word_rows(
    Role,
    """
    other: sort pool spin moments prepare gamma fused internal dense
    reduction: reduce softmax soft norm layer batch scan cumsum
    elementwise: elementwise cat copy fill index gather scatter topk dropout apply arange triu tril
        roll flip embedding distribution split chunk loss masked multi
    transpose: transpose
    """,
)
_NAME: Final = r"(?:c10::)?(BFloat16|Half|Float8_\w+|float|double)"
_TEMPLATE: Final = lazy_pattern(rf"\b{_NAME}\b")
_LAMBDA: Final = lazy_pattern(rf"lambda\({_NAME}\b")
# PyTorch's and FBGEMM's casts, as functors of an elementwise kernel.
_FP8_COPY: Final = lazy_pattern(r"\bfloat8_copy_kernel_cuda\b")
_FP8_SOURCE: Final = lazy_pattern(r"lambda\(c10::(Float8_\w+)\)")
_FBGEMM_CAST: Final = lazy_pattern(r"\bfbgemm_gpu::_\w*(?:to_h?fp8|h?fp8\w*_to)_\w+")


def native(symbol: Symbol) -> KernelName | None:
    """Decode a kernel of PyTorch itself."""
    if not symbol.path or symbol.path[0] not in _NAMESPACES or len(symbol.path) < 2:
        return None
    if _FP8_COPY.search(symbol.text) or _FBGEMM_CAST.search(symbol.text):
        return _fp8_copy(symbol)
    words = frozenset(split(symbol.base))
    role = first_of(_ROLES, words) or Role.OTHER
    element = None
    if role is not Role.OTHER:
        element = _element(symbol.text, role)
    reason = f"PyTorch {symbol.base}"
    return describe.other(
        _LIBRARY, role, reason, element=element, precision=element_class(element)
    )


def _fp8_copy(symbol: Symbol) -> KernelName:
    """Describe a cast to or from FP8, or a copy of FP8 data to another layout."""
    copies = _FP8_SOURCE.search(symbol.text)
    role = Role.ELEMENTWISE if copies else Role.CAST_QUANTIZE
    reason = "casts to or from FP8 in eager mode"
    if copies:
        reason = "copies FP8 data"
    element = CPP.get(copies[1]) if copies else None
    return describe.other(
        _LIBRARY, role, reason, element=element, precision=Precision.FP8
    )


def _element(text: str, role: Role) -> str | None:
    """Return the one floating element type of the functor; another FP32 is its arithmetic.

    An elementwise lambda takes elements, a reduction's takes partial sums.
    """
    if role is Role.ELEMENTWISE:
        names = set(_LAMBDA.findall(text))
    else:
        names = set()
    if not names:
        names = set(_TEMPLATE.findall(text.replace(ANONYMOUS, "").partition("(")[0]))
    if len(names) > 1:
        names.discard("float")
    if len(names) == 1:
        return CPP.get(names.pop())
    return None


_INDUCTOR: Final = lazy_pattern(
    r"triton_(?P<kind>tem|poi|red|per|for|spl|split_scan|unk|mm|bmm|user)_fused(?P<ops>_\w*)?"
)
_KINDS: Final = {
    "tem": "a template: GEMM, convolution or attention",
    "poi": "pointwise",
    "red": "a reduction",
    "per": "a reduction that fits one block",
    "for": "a foreach kernel",
}
_AMAX: Final = word_set("amax max")
_CASTS: Final = word_set("reciprocal scaled_mm round float8")
_SCALED_MM: Final = "__scaled_mm_"
_OTHER_PRODUCTS: Final = word_set("convolution attention flex grouped int v2")
_MATMULS: Final = word_set("mm bmm addmm baddbmm linear matmul")

# Primus-Turbo primus_turbo/triton/gemm/gemm_fp8_kernel.py: every layout of a blockwise GEMM
_BLOCKWISE: Final = "_blockwise_fp8_unified_kernel"
_MATMUL_OGS: Final = lazy_pattern(
    r"_(?:p_)?matmul_ogs_[NTV]+_(?P<out>\w+?)x(?P<a>\w+?)x(?P<b>[a-z]+\d\w*?)_\d+x\w+"
)
_OGS_TYPES: Final = {
    **SHORT,
    **dict.fromkeys(("fp8e4nv", "fp8e4m3"), "e4m3"),
    **dict.fromkeys(("fp8e5", "fp8e5m2"), "e5m2"),
}


def triton(symbol: Symbol) -> KernelName | None:
    """Decode an Inductor kernel or one of a Triton GEMM library."""
    if not symbol.is_identifier:
        return None
    inductor = _INDUCTOR.fullmatch(symbol.text)
    if inductor:
        return _inductor(inductor["kind"], inductor["ops"] or "")
    ogs = _MATMUL_OGS.fullmatch(symbol.text)
    if ogs:
        a, b, out = (
            _OGS_TYPES.get(ogs[name].removeprefix("mx")) for name in ("a", "b", "out")
        )
        # FP8 activations are multiplied with MXFP4 weights as they are (tl.dot_scaled).
        low = element_class(a).is_low and ogs["b"].startswith("mx")
        types = Operands(a, b, out, "ue8m0" if low else None)
        widened = a == "bf16" and element_class(b).is_low
        return describe.gemm(
            "Triton",
            f"matmul_ogs types {ogs['out']}x{ogs['a']}x{ogs['b']}",
            types,
            role=Role.GROUPED_GEMM,
            hint=Hint.WIDENED if widened else None,
        )
    if symbol.text == _BLOCKWISE:
        evidence = f"library function {_BLOCKWISE}"
        return describe.gemm("Triton", evidence, both("fp8"), scaling=Scaling.BLOCKWISE)
    return None


def _inductor(kind: str, ops: str) -> KernelName:
    words = frozenset(ops.split("_"))
    if (
        "_scaled_mm_" in f"{ops}_"
    ):  # unlike _scaled_dot_product_..., whose words it shares
        words |= {"scaled_mm"}
    if kind in ("tem", "mm", "bmm"):
        role = _template(words)
    else:
        role = _fused(kind, words)
    reason = f"TorchInductor kernel, {_KINDS.get(kind, kind)}"
    if role.is_gemm:
        reason += "; its operand types are not in its name"
    # Inductor has a template of torch._scaled_mm for FP8 alone, FP4 goes to cuBLAS
    # (torch/_inductor/kernel/mm.py, `tuned_scaled_mm`, torch 2.11).
    hint = None
    if kind == "tem" and _only_scaled_mm(ops):
        hint = Hint.SCALED_MM
    return describe.other("Inductor", role, reason, hint=hint)


def _only_scaled_mm(ops: str) -> bool:
    """Whether the GEMM can only be `torch._scaled_mm`'s, not another that feeds one."""
    rest = f"{ops}_".replace(_SCALED_MM, "_")
    return rest != f"{ops}_" and not set(rest.split("_")) & (_MATMULS | _OTHER_PRODUCTS)


def _template(words: frozenset[str]) -> Role:
    if words & {"attention", "flex"}:
        return Role.ATTENTION
    if "convolution" in words:
        return Role.CONV
    if "grouped" in words:
        return Role.GROUPED_GEMM
    if words & _MATMULS:
        return Role.GEMM
    return Role.OTHER


def _fused(kind: str, words: frozenset[str]) -> Role:
    # A reduction with reciprocal only computes the scale; with scaled or round it also casts.
    casts = _CASTS if kind == "poi" else _CASTS - {"reciprocal"}
    if "clamp" in words and words & casts:
        return Role.CAST_QUANTIZE
    # What is fused with a scaled_mm, which no compiler writes itself, makes its inputs.
    if {"scaled_mm", "to", "copy"} <= words:
        return Role.CAST_QUANTIZE
    if kind in ("red", "per", "split_scan"):
        if "abs" in words and words & _AMAX:
            return Role.AMAX_REDUCE
        return Role.REDUCTION
    if kind in ("poi", "for"):
        return Role.ELEMENTWISE
    return Role.OTHER
