"""Names for the products that cuBLASLt and hipBLASLt log: `cublasLtMatmul_e4m3_e5m2_bf16`.

A, B and D are in BLAS' own order, as in the names of its kernels. In the log, types are called as
in library_types.h ("R_8F_E4M3"), hipblasltDatatype_to_string, or hipblaslt-bench ("f8_r").
"""

from __future__ import annotations

from typing import Final

from fp8verify.text import lazy_pattern

_ELEMENTS: Final = {
    "8f_e4m3": "e4m3",
    "8f_e5m2": "e5m2",
    "f8": "e4m3",
    "bf8": "e5m2",
    "4f_e2m1": "e2m1",
    "f4": "e2m1",
    "6f_e2m3": "e2m3",
    "6f_e3m2": "e3m2",
    "f6": "e2m3",
    "bf6": "e3m2",
    "16bf": "bf16",
    "bf16": "bf16",
    "16f": "fp16",
    "f16": "fp16",
    "32f": "fp32",
    "f32": "fp32",
    "64f": "fp64",
    "f64": "fp64",
    "8i": "int8",
    "i8": "int8",
    "32i": "int32",
    "i32": "int32",
}
# What FP32 operands are rounded to first: COMPUTE_32F_FAST_TF32, xf32_r, f32_bf16_r.
_ROUNDED: Final = (
    (lazy_pattern(r"FAST_TF32|xf32", 2), "tf32"),
    (lazy_pattern(r"FAST_16BF|f32_bf16", 2), "bf16"),
    (lazy_pattern(r"FAST_16F|f32_f16", 2), "fp16"),
)
# cublasLtMatmulMatrixScale_t, hipblasLtMatmulMatrixScale_t.
_SCALES: Final = (
    (lazy_pattern(r"VEC\d+_UE8M0"), "ue8m0"),
    (lazy_pattern(r"VEC\d+_UE4M3"), "ue4m3"),
    (lazy_pattern(r"OUTER_VEC"), "rowwise"),
    (lazy_pattern(r"VEC128|BLK\d+"), "blockwise"),
    (lazy_pattern(r"SCALAR"), "tensorwise"),
)
_UNKNOWN: Final = "other"


def element_of(text: str) -> str | None:
    """Return the element type that the library calls so; None if it is not known."""
    plain = text.lower().removesuffix("_r").removeprefix("r_").removeprefix("hip_r_")
    for suffix in ("_fnuz", "_ocp", "_ext"):
        plain = plain.removesuffix(suffix)
    return _ELEMENTS.get(plain)


def lt_name(
    library: str, a: str | None, b: str | None, d: str | None, compute: str, scale: str
) -> str:
    """Return the name of a product of A and B, both as the library reads them."""
    if a == b == "fp32":
        a = b = next((into for pattern, into in _ROUNDED if pattern.search(compute)), a)
    kind = next((kind for pattern, kind in _SCALES if pattern.search(scale)), "")
    prefix = "hipblas" if library == "hipBLASLt" else "cublas"
    types = "_".join(element or _UNKNOWN for element in (a, b, d))
    return f"{prefix}LtMatmul_{types}" + (f"_{kind}" if kind else "")
