"""Plain Triton GEMMs for prove_names.py: one function a format, so its name says the type."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fp8verify.kernels import alike
from fp8verify.kernels.machine_code import instructions_of, machine_code
from fp8verify.terms import Precision


@triton.jit
def _tile(a, b, c, n, k, side: tl.constexpr, depth: tl.constexpr):
    """Multiply A (row-major) by B (column-major, k deep) into one square tile of FP32 C."""
    rows = tl.program_id(0) * side + tl.arange(0, side)
    columns = tl.program_id(1) * side + tl.arange(0, side)
    inner = tl.arange(0, depth)
    total = tl.zeros((side, side), dtype=tl.float32)
    for start in range(0, k, depth):
        left = tl.load(a + rows[:, None] * k + start + inner[None, :])
        right = tl.load(b + columns[None, :] * k + start + inner[:, None])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def proof_fp8_matmul_kernel(a, b, c, n, k, side: tl.constexpr, depth: tl.constexpr):
    """Multiply FP8 matrices."""
    _tile(a, b, c, n, k, side, depth)


@triton.jit
def proof_bf16_matmul_kernel(a, b, c, n, k, side: tl.constexpr, depth: tl.constexpr):
    """Multiply BF16 matrices."""
    _tile(a, b, c, n, k, side, depth)


@triton.jit
def proof_fp16_matmul_kernel(a, b, c, n, k, side: tl.constexpr, depth: tl.constexpr):
    """Multiply FP16 matrices."""
    _tile(a, b, c, n, k, side, depth)


_KERNELS = {
    "fp8": proof_fp8_matmul_kernel,
    "bf16": proof_bf16_matmul_kernel,
    "fp16": proof_fp16_matmul_kernel,
}


def launch(kind: str, a: Any, b: Any, out: Any) -> None:
    """Launch the kernel of a format on tensors whose sides are multiples of 128.

    Raises:
        RuntimeError: its machine code multiplies in another format than its name says.
    """
    m, k = a.shape
    n = b.shape[1]
    side, depth = 128, 128 if kind == "fp8" else 64
    grid = (m // side, n // side)
    kernel = _KERNELS[kind][grid](a, b, out, n, k, side=side, depth=depth)
    code = machine_code(instructions_of(kernel.asm["ptx"]))
    if not alike(code.precision, Precision(kind)):
        raise RuntimeError(f"the kernel of {kind} has {code}")
