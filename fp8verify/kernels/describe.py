"""Element types and precision classes, and a `KernelName` built from what a grammar found."""

from __future__ import annotations

from typing import Final, NamedTuple

from fp8verify.kernels.words import word_rows
from fp8verify.terms import Hint, KernelName, Precision, Role, Scaling


def _elements(text: str) -> dict[str, str]:
    """Return the element of each spelling in a table."""
    return {name: element for element, names in word_rows(str, text) for name in names}


# C++ type names: CUDA headers (cuda_fp8.h, cuda_fp4.h, cuda_bf16.h), HIP (hip_fp8.h), CUTLASS
# numeric_types.h, c10/util, Composable Kernel's data_type.hpp, Transformer Engine (ROCm).
CPP: Final = _elements(
    """
    e4m3: float_e4m3_t __nv_fp8_e4m3 __nv_fp8x2_e4m3 __nv_fp8x4_e4m3 Float8_e4m3fn Float8_e4m3fnuz
        te_hip_fp8_e4m3 hip_f8_e4m3 __hip_fp8_e4m3 __hip_fp8_e4m3_fnuz f8_t f8_fnuz_t f8_ocp_t
        fp8_t fp8_e4m3
    e5m2: float_e5m2_t __nv_fp8_e5m2 __nv_fp8x2_e5m2 __nv_fp8x4_e5m2 Float8_e5m2 Float8_e5m2fnuz
        te_hip_fp8_e5m2 __hip_fp8_e5m2 __hip_fp8_e5m2_fnuz bf8_t bf8_fnuz_t bf8_ocp_t fp8_e5m2
    fp8: __nv_fp8_interpretation_t type_erased_dynamic_float8_t
    e2m1: float_e2m1_t float_e2m1_unpacksmem_t __nv_fp4_e2m1 __nv_fp4x2_e2m1 Float4_e2m1fn_x2
        f4_t f4x2_pk_t
    fp4: type_erased_dynamic_float4_t
    e3m2: float_e3m2_t
    e2m3: float_e2m3_t
    fp6: type_erased_dynamic_float6_t
    bf16: bfloat16_t __nv_bfloat16 nv_bfloat16 BFloat16 hip_bfloat16 __hip_bfloat16 __bf16 bhalf_t
    fp16: half_t __half half Half _Float16
    tf32: tfloat32_t
    fp32: float
    fp64: double
    int8: int8_t
    int4: integer_subbyte int4b_t uint4b_t
    int32: int
    """
) | {"signed char": "int8"}

FP8_ELEMENTS: Final = frozenset({"e4m3", "e5m2"})

# Short spellings inside procedural names: cuBLASLt and CUTLASS `e4m3`, `s8`; xmma `i8`;
# trtllm-gen `Bfloat16` (lower-cased before the look-up).
SHORT: Final = _elements(
    """
    e4m3: e4m3
    e5m2: e5m2
    fp8: f8 fp8
    e2m1: e2m1
    fp4: f4 fp4
    e3m2: e3m2
    e2m3: e2m3
    fp6: f6
    bf16: bf16 bfloat16
    fp16: f16 fp16 half
    tf32: tf32
    fp32: f32 fp32
    fp64: f64
    int8: s8 i8 int8
    uint8: u8
    int4: s4 i4 u4 int4
    int32: s32 i32 int32
    """
)

# Letters of BLAS, of complex numbers too (gc and gz: by three multiplications), and NVIDIA's i.
BLAS: Final = {
    "h": "fp16", "s": "fp32", "c": "fp32", "gc": "fp32", "d": "fp64", "z": "fp64", "gz": "fp64",
    "i": "int8",
}  # fmt: skip

# The block scale formats; a scale format never makes an operand FP8 (UE4M3 scales NVFP4).
SCALES: Final = _elements("ue8m0: float_ue8m0_t ue8m0 ue4m3: float_ue4m3_t ue4m3")

_CLASSES: Final[dict[str, Precision]] = {
    **{precision.value: precision for precision in Precision},
    **dict.fromkeys(FP8_ELEMENTS, Precision.FP8),
    **dict.fromkeys(("e3m2", "e2m3", "fp6"), Precision.MXFP6),
    "e2m1": Precision.FP4,
    "uint8": Precision.INT8,
    "16bit": Precision.BF16,  # or FP16: an instruction that leaves the type to a descriptor
}
# The classes that a hardware block scale makes of an element class.
_SCALED: Final[dict[tuple[Precision, str | None], Precision]] = {
    (Precision.FP8, "ue8m0"): Precision.MXFP8,
    (Precision.FP4, "ue8m0"): Precision.MXFP4,
    (Precision.FP4, "ue4m3"): Precision.NVFP4,
}


def element_class(element: str | None) -> Precision:
    """Return the precision class of one element type, UNKNOWN if there is none."""
    return _CLASSES.get(element or "", Precision.UNKNOWN)


class Operands(NamedTuple):
    """The element types of A, B and D, and the hardware block scale of A and B.

    A scale "ue8m0" makes FP8 and FP4 the MX formats (OCP Microscaling Formats v1.0), "ue4m3" makes
    FP4 NVFP4.
    """

    a: str | None = None
    b: str | None = None
    out: str | None = None
    scale: str | None = None

    def __str__(self) -> str:
        """Say the types: "A e4m3 × B e5m2 -> bf16"."""  # noqa: RUF002
        arrow = f" -> {self.out}" if self.out else ""
        return f"A {self.a or '?'} × B {self.b or '?'}{arrow}"  # noqa: RUF001

    @property
    def precision(self) -> Precision:
        """The class in which A times B is multiplied.

        Operands of two classes (W4A8, weight-only) are UNKNOWN: such a kernel converts one operand
        first, and its name does not say into what. MXFP8 times MXFP4 is multiplied as it is, and
        counts as MXFP4.
        """
        a = element_class(self.a)
        b = element_class(self.b)
        if self.scale == "ue8m0" and {a, b} == {Precision.FP8, Precision.FP4}:
            return Precision.MXFP4
        if a is b:
            return _SCALED.get((a, self.scale), a)
        return Precision.UNKNOWN

    @property
    def scaling(self) -> Scaling | None:
        """What the hardware block scale means for operands of A's type."""
        if self.scale == "ue4m3":
            return Scaling.NVFP4
        if self.scale == "ue8m0" and element_class(self.a) is not Precision.MXFP6:
            if self.a in ("e2m1", "fp4"):
                return Scaling.MXFP4
            return Scaling.MXFP8
        return None


def both(
    element: str | None, out: str | None = None, scale: str | None = None
) -> Operands:
    """Return the operands of a product whose A and B have one type."""
    return Operands(element, element, out, scale)


def gemm(
    library: str,
    evidence: str,
    types: Operands,
    *,
    role: Role = Role.GEMM,
    scaling: Scaling | None = None,
    precision: Precision | None = None,
    fast_accum: bool | None = None,
    hint: Hint | None = None,
) -> KernelName:
    """Describe a matrix multiplication (or `role`) whose name gives the types of its operands."""
    precision = precision or types.precision
    reason = f"{evidence}: {types}"
    if precision is Precision.UNKNOWN:
        reason += "; the name does not give the precision of the multiplication"
    return KernelName(
        role=role,
        precision=precision,
        library=library,
        reason=reason,
        a=types.a,
        b=types.b,
        out=types.out,
        scaling=scaling or types.scaling,
        fast_accum=fast_accum,
        hint=hint,
    )


def other(
    library: str,
    role: Role,
    reason: str,
    *,
    element: str | None = None,
    precision: Precision = Precision.UNKNOWN,
    hint: Hint | None = None,
) -> KernelName:
    """Describe a kernel that is not a GEMM of known types; `element` is the type that it writes."""
    return KernelName(
        role=role,
        precision=precision,
        library=library,
        reason=reason,
        out=element,
        hint=hint,
    )
