"""Hold the grammar of kernel names against cuBLASLt's own log, on the GPU at hand.

    python scripts/prove_types.py > names.md

Multiplies matrices of each type that the GPU has, in several sizes, and compares the operand types
that `fp8verify.kernels.decode` reads in each kernel's name with those that the library logged for
the same call. Prints a Markdown table; exits with 1 if a name and the library disagree.
`prove_names.py` counts operations by the hardware; this covers types that have no counter.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fp8verify.agent.instruments import OFF, TRACE, loaded, open_loaded
from fp8verify.kernels import decode
from fp8verify.terms import KernelName, Precision
from fp8verify.trace.readers import read_products

SIZES = ((4096, 2048, 1024), (256, 512, 4096), (8192, 8192, 2048))
E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
PAIRS = ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))
Call = Callable[[], Any]


def calls() -> Iterator[Call]:
    """Yield products; some GPUs refuse some of them."""
    for m, n, k in SIZES:
        a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        for kind in (BF16, torch.float16, torch.float32, torch.float64):
            x, y = a.to(kind), b.to(kind)
            yield lambda x=x, y=y: x @ y.t()
            yield lambda x=x, y=y: x @ y.t().contiguous()
            yield lambda x=x: x.t() @ x
        yield lambda a=a, b=b: in_tf32(a, b)
        ints = a.to(torch.int8), b.to(torch.int8)
        yield lambda i=ints: torch._int_mm(i[0], i[1].t())
        for left, right in PAIRS:
            x, y = a.to(left), b.to(right)
            one = torch.ones((), device="cuda")
            rows = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
            for out in (BF16, torch.float16, torch.float32, E4M3):
                for fast in (True, False):
                    yield scaled(x, y, one, one, out, fast=fast)
            yield scaled(x, y, *rows, BF16, fast=True)
            blocks = k // 32
            mx = [
                torch.ones(side * blocks, device="cuda").to(torch.float8_e8m0fnu)
                for side in (m, n)
            ]
            yield scaled(x, y, mx[0], mx[1], BF16, fast=False)


def scaled(x: Any, y: Any, left: Any, right: Any, out: Any, *, fast: bool) -> Call:
    """Return a call of torch._scaled_mm."""
    return lambda: torch._scaled_mm(
        x, y.t(), scale_a=left, scale_b=right, out_dtype=out, use_fast_accum=fast
    )


def in_tf32(a: Any, b: Any) -> Any:
    """Multiply FP32 in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return a @ b.t()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def kernels_of(call: Call) -> list[str]:
    """Return the GEMM kernels that a call launches."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as session:
        call()
        torch.cuda.synchronize()
    kernels = [
        e for e in session.events() if e.device_type == torch.autograd.DeviceType.CUDA
    ]
    names = [e.name for e in sorted(kernels, key=lambda event: event.time_range.start)]
    return [
        name for name in names if decode(name).role.is_gemm or name.startswith("nvjet")
    ]


def main() -> int:
    """Print the table."""
    torch.backends.cuda.matmul.allow_tf32 = False
    (
        torch.ones(16, 16, device="cuda", dtype=BF16)
        @ torch.ones(16, 16, device="cuda", dtype=BF16)
    )
    library, path = open_loaded(loaded()[0]), Path(tempfile.mkstemp()[1])
    rows: dict[tuple[str, str], tuple[KernelName, KernelName]] = {}
    alone: dict[str, int] = {}
    for call in calls():
        try:
            call()
        except (RuntimeError, NotImplementedError, ValueError):
            continue
        torch.cuda.synchronize()
        path.write_bytes(b"")
        if library.cublasLtLoggerOpenFile(
            os.fsencode(path)
        ) or library.cublasLtLoggerSetMask(TRACE):
            print("cuBLASLt refuses to log", file=sys.stderr)
            return 2
        names = kernels_of(call)
        library.cublasLtLoggerSetMask(OFF)
        products = read_products(path) if path.stat().st_size else []
        logged = [decode(product.name) for _, product in products]
        if len(names) != len(logged):
            for name in names:
                alone[name] = alone.get(name, 0) + 1
            continue
        for name, said in zip(names, logged, strict=True):
            rows[re.sub(r"\d+x\d+.*", "…", name), said.name] = decode(name), said
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| kernel | its name says | the library logged | |\n|---|---|---|---|")
    wrong = 0
    for (name, _), (found, said) in sorted(rows.items(), key=lambda row: row[0]):
        unknown = Precision.UNKNOWN in (found.precision, said.precision)
        agrees = (found.a, found.b) == (said.a, said.b) or unknown
        wrong += not agrees
        mark = "unknown" if unknown else "agrees" if agrees else "**disagrees**"
        print(f"| `{name}` | {words(found)} | {words(said)} | {mark} |")
    print(
        f"\nnot in the log: {', '.join(f'`{name[:80]}`' for name in sorted(alone)) or 'none'}"
    )
    return int(wrong > 0)


def words(found: KernelName) -> str:
    """Write operands, output and class."""
    return f"{found.a} x {found.b} -> {found.out}, {found.precision.value}"


if __name__ == "__main__":
    sys.exit(main())
