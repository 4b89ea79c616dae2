"""Floating-point operations of a GEMM, from the operand shapes its operator recorded."""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.model import OpContext, Shape


class GemmShape(NamedTuple):
    """A (batched) product of (m, k) by (k, n): `flops` counts a multiply-add as two."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """2·batch·m·n·k."""
        return 2 * self.batch * self.m * self.n * self.k


# Where operands A and B stand among the recorded inputs, and whether B comes as (n, k).
# Evidence: the schemas in aten/src/ATen/native/native_functions.yaml (torch 2.11), FBGEMM's
# f8f8bf16 registrations (B is "(N, K)"), and the captures in traces/.
_OPERANDS: dict[str, tuple[int, int, bool]] = {
    "aten::mm": (0, 1, False),
    "aten::bmm": (0, 1, False),
    "aten::matmul": (0, 1, False),
    "aten::_int_mm": (0, 1, False),
    "aten::_scaled_mm": (0, 1, False),
    "aten::_scaled_mm_v2": (0, 1, False),
    "aten::_grouped_mm": (0, 1, False),
    "aten::_scaled_grouped_mm": (0, 1, False),
    "aten::_scaled_grouped_mm_v2": (0, 1, False),
    "aten::addmm": (1, 2, False),
    "aten::_addmm_activation": (1, 2, False),
    "aten::baddbmm": (1, 2, False),
    "aten::linear": (0, 1, True),
    "torchao::triton_fp8_gemm_1x128_128x128": (0, 1, False),
    "torchao::triton_fp8_gemm_1x128_128x1": (0, 1, False),
    "fbgemm::f8f8bf16": (0, 1, True),
    "fbgemm::f8f8bf16_rowwise": (0, 1, True),
    "fbgemm::f8f8bf16_tensorwise": (0, 1, True),
    "fbgemm::f8f8bf16_blockwise": (0, 1, True),
}
_GROUPED = ("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")


def gemm_shape(op: OpContext | None) -> GemmShape | None:
    """Return the shape of the GEMM that `op` computes, or None where the record does not say.

    Transformer Engine's `_Linear` records (weight, input); its backward only the gradient.
    """
    if op is None:
        return None
    if op.name == "_Linear" and len(op.dims) > 1:
        return _flattened(op.dims[1], op.dims[0], transposed=True)
    if op.name.startswith("triton_tem_"):
        return _template(op.dims)
    place = _OPERANDS.get(op.name)
    if place is None or len(op.dims) <= place[1]:
        return None
    a, b = op.dims[place[0]], op.dims[place[1]]
    if op.name in _GROUPED:
        return _grouped(a, b)
    return _flattened(a, b, transposed=place[2])


def _flattened(a: Shape, b: Shape, *, transposed: bool) -> GemmShape | None:
    """Multiply the last two dimensions; leading ones of A are rows, or a batch where B has it."""
    if len(a) < 2 or len(b) < 2:
        return None
    k, n = (b[-1], b[-2]) if transposed else (b[-2], b[-1])
    if a[-1] != k:
        return None
    rows = _product(a[:-1])
    if len(b) == 2:
        return GemmShape(1, rows, n, k)
    batch = _product(b[:-2])
    return GemmShape(batch, rows // batch, n, k) if batch and rows % batch == 0 else None


def _grouped(a: Shape, b: Shape) -> GemmShape | None:
    """Grouped products: the groups share M, N or K among them, so a 2-D side counts once."""
    if len(a) == 3 and len(b) == 3:
        return _flattened(a, b, transposed=False)
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    return GemmShape(1, a[-2], b[-1], a[-1])


def _template(dims: tuple[Shape, ...]) -> GemmShape | None:
    """Inductor's GEMM templates record A and B first (torch 2.11), B as (k, n)."""
    matrices = [d for d in dims if len(d) == 2 and min(d) > 1]
    if len(matrices) < 2 or dims[:2] != tuple(matrices[:2]):
        return None
    return _flattened(matrices[0], matrices[1], transposed=False)


def _product(dims: Shape) -> int:
    total = 1
    for size in dims:
        total *= size
    return total
