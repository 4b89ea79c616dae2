"""Prove the grammars of kernel names: GEMMs of known size and type under Nsight Compute.

usage: python scripts/prove_names.py [--out FOLDER] [--compile]

Starts itself under ncu, multiplies matrices in every format that this GPU and torch have, and
writes FOLDER/proved_kernels.csv: kernel, our label, operations counted by source type, 2·M·N·K.
Needs torch with CUDA, ncu on PATH, the right to read counters, fp8verify (this repository on
PYTHONPATH) and msgspec. FOLDER is $OUT, or the working directory.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SENTINEL = (
    "spin_kernel"  # at::cuda::spin_kernel of torch.cuda._sleep: it parts the products
)
SOURCES = ("fp8", "fp4", "fp4/fp6/fp8", "bf16", "fp16", "tf32", "int8", "fp64", "fp32")
SIZES = ((4096, 1024, 2048), (512, 512, 1024), (8192, 2048, 1024), (64, 4096, 2048))


class Product(NamedTuple):
    """A matrix product: what is multiplied, how large, and the call that does it."""

    name: str
    m: int
    n: int
    k: int
    batch: int
    make: Callable[[], Callable[[], Any]]


def products(with_compile: bool) -> Iterator[Product]:
    """Yield the products in the order in which they run and are read back."""
    import torch

    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    for m, n, k in SIZES:
        for fast in (True, False):
            made = _scaled(m, n, k, e4m3, e4m3, bf16, fast=fast)
            yield Product(f"scaled_mm tensorwise e4m3 fast={fast}", m, n, k, 1, made)
        yield Product(
            "scaled_mm e4m3 x e5m2", m, n, k, 1, _scaled(m, n, k, e4m3, e5m2, bf16)
        )
        yield Product("scaled_mm rowwise", m, n, k, 1, _rowwise(m, n, k))
        yield Product("mm bf16", m, n, k, 1, _plain(m, n, k, bf16))
    m, n, k = SIZES[0]
    yield Product(
        "scaled_mm e5m2 x e4m3", m, n, k, 1, _scaled(m, n, k, e5m2, e4m3, bf16)
    )
    yield Product("scaled_mm fp16 out", m, n, k, 1, _scaled(m, n, k, e4m3, e4m3, fp16))
    yield Product("scaled_mm fp32 out", m, n, k, 1, _scaled(m, n, k, e4m3, e4m3, fp32))
    yield Product("scaled_mm 1x128 x 128x128", m, n, k, 1, _blockwise(m, n, k, 128))
    yield Product("scaled_mm 1x128 x 1x128", m, n, k, 1, _blockwise(m, n, k, 1))
    yield Product("scaled_mm mxfp8", m, n, k, 1, _mxfp8(m, n, k))
    for size in SIZES[:2]:
        yield Product("mm fp16", *size, 1, _plain(*size, fp16))
        yield Product("mm tf32", *size, 1, _plain(*size, fp32, tf32=True))
        yield Product("mm fp32", *size, 1, _plain(*size, fp32))
        yield Product("int_mm", *size, 1, _int8(*size))
    yield Product("mm fp64", *SIZES[1], 1, _plain(*SIZES[1], torch.float64))
    yield Product("bmm bf16", 512, 512, 1024, 8, _batched(512, 512, 1024, 8))
    yield Product(
        "grouped_mm bf16", 1024, 1024, 1024, 1, _grouped(1024, 1024, 1024, fp8=False)
    )
    yield Product(
        "scaled_grouped_mm fp8",
        1024,
        1024,
        1024,
        1,
        _grouped(1024, 1024, 1024, fp8=True),
    )
    for kind in ("fp8", "bf16", "fp16"):
        yield Product(
            f"triton {kind}", 1024, 1024, 1024, 1, _triton(1024, 1024, 1024, kind)
        )
    if with_compile:
        yield Product(
            "compiled mm bf16", 1024, 1024, 1024, 1, _compiled(1024, 1024, 1024)
        )


def _random(*size: int, dtype: Any = None) -> Any:
    import torch

    made = torch.randn(*size, device="cuda") / 8
    return made if dtype is None else made.to(dtype)


def _scaled(
    m: int, n: int, k: int, a: Any, b: Any, out: Any, *, fast: bool = True
) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        one = torch.ones((), device="cuda")
        left, right = _random(m, k, dtype=a), _random(n, k, dtype=b).t()
        return lambda: torch._scaled_mm(
            left, right, scale_a=one, scale_b=one, out_dtype=out, use_fast_accum=fast
        )

    return make


def _rowwise(m: int, n: int, k: int) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        e4m3 = torch.float8_e4m3fn
        left, right = _random(m, k, dtype=e4m3), _random(n, k, dtype=e4m3).t()
        rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
        return lambda: torch._scaled_mm(
            left, right, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )  # fmt: skip

    return make


def _blockwise(m: int, n: int, k: int, side: int) -> Callable[[], Callable[[], Any]]:
    """Scale A by 1 x 128 and B by `side` x 128, the scales of 1 x 128 outer-dimension-major."""

    def make() -> Callable[[], Any]:
        import torch

        e4m3 = torch.float8_e4m3fn
        left, right = _random(m, k, dtype=e4m3), _random(n, k, dtype=e4m3).t()
        rows = torch.ones(k // 128, m, device="cuda").t()
        if side == 1:
            columns = torch.ones(k // 128, n, device="cuda")
        else:
            columns = torch.ones(n // 128, k // 128, device="cuda").t()
        return lambda: torch._scaled_mm(
            left, right, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16
        )

    return make


def _mxfp8(m: int, n: int, k: int) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        e4m3 = torch.float8_e4m3fn
        left, right = _random(m, k, dtype=e4m3), _random(n, k, dtype=e4m3).t()
        scales = [
            torch.full((rows * k // 32,), 127, dtype=torch.uint8, device="cuda").view(
                torch.float8_e8m0fnu
            )
            for rows in (m, n)
        ]
        return lambda: torch._scaled_mm(
            left, right, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16
        )

    return make


def _plain(
    m: int, n: int, k: int, dtype: Any, *, tf32: bool = False
) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        left, right = _random(m, k, dtype=dtype), _random(k, n, dtype=dtype)

        def multiply() -> Any:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            return left @ right

        return multiply

    return make


def _int8(m: int, n: int, k: int) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        left = torch.randint(-8, 8, (m, k), dtype=torch.int8, device="cuda")
        right = torch.randint(-8, 8, (n, k), dtype=torch.int8, device="cuda").t()
        return lambda: torch._int_mm(left, right)

    return make


def _batched(m: int, n: int, k: int, batch: int) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        left = _random(batch, m, k, dtype=torch.bfloat16)
        right = _random(batch, k, n, dtype=torch.bfloat16)
        return lambda: torch.bmm(left, right)

    return make


def _grouped(m: int, n: int, k: int, *, fp8: bool) -> Callable[[], Callable[[], Any]]:
    """Multiply four groups of m / 4 rows, so all of them together are m by k by n."""

    def make() -> Callable[[], Any]:
        import torch

        dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
        ends = torch.arange(1, 5, device="cuda", dtype=torch.int32) * (m // 4)
        left, right = (
            _random(m, k, dtype=dtype),
            _random(4, n, k, dtype=dtype).transpose(-2, -1),
        )
        if not fp8:
            return lambda: torch._grouped_mm(
                left, right, offs=ends, out_dtype=torch.bfloat16
            )
        rows, columns = torch.ones(m, device="cuda"), torch.ones(4, n, device="cuda")
        return lambda: torch._scaled_grouped_mm(
            left,
            right,
            rows,
            columns,
            offs=ends,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return make


def _triton(m: int, n: int, k: int, kind: str) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        import scripts.prove_names_triton as kernels

        dtypes = {
            "fp8": torch.float8_e4m3fn,
            "bf16": torch.bfloat16,
            "fp16": torch.float16,
        }
        left = _random(m, k, dtype=dtypes[kind])
        right = _random(n, k, dtype=dtypes[kind]).t()
        out = torch.empty(m, n, device="cuda", dtype=torch.float32)
        return lambda: kernels.launch(kind, left, right, out)

    return make


def _compiled(m: int, n: int, k: int) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        import torch

        options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
        multiply = torch.compile(torch.mm, options=options)
        left = _random(m, k, dtype=torch.bfloat16)
        right = _random(k, n, dtype=torch.bfloat16)
        return lambda: multiply(left, right)

    return make


def child(names: Path, with_compile: bool) -> None:
    """Run each product once inside the profiled range, after one that is not measured."""
    import torch

    with names.open("w", encoding="utf-8") as done:
        for product in products(with_compile):
            try:
                multiply = product.make()
                multiply()
                torch.cuda.synchronize()
            except Exception as problem:
                print(
                    f"left out: {product.name}: {str(problem).splitlines()[0]}",
                    file=sys.stderr,
                )
                continue
            torch.cuda.profiler.start()
            torch.cuda._sleep(1000)
            multiply()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
            done.write(
                f"{product.name}\t{product.m}\t{product.n}\t{product.k}\t{product.batch}\n"
            )
            done.flush()


def measure(folder: Path, with_compile: bool) -> tuple[list[Any], Any]:
    """Run the child under ncu; return its launches and the GPU."""
    from fp8verify.prove import ncu

    gpu = ncu.find_gpu()
    log = folder / "ncu.log.csv"
    line = [
        gpu.ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
        "--metrics", ",".join(f"{name}.sum" for name in gpu.metrics), "--replay-mode", "kernel",
        "--clock-control", "none", "--target-processes", "application-only",
        "--profile-from-start", "off",
        sys.executable, str(Path(__file__).resolve()), "--child", str(folder / "products.tsv"),
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    }
    code = subprocess.run(  # noqa: S603  our own script
        line + ["--compile"] * with_compile, check=False, env=environment
    ).returncode
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    launches = ncu.read_launches(lines, gpu.metrics)
    if not launches:
        print(f"ncu ended with {code} and measured nothing:", *lines[-10:], sep="\n")
        raise SystemExit(3)
    return launches, gpu


def write(folder: Path, launches: list[Any], gpu: Any) -> int:
    """Write the table of kernels; return how many labels the counters contradict."""
    from fp8verify.prove import judge

    done = [
        line.split("\t") for line in (folder / "products.tsv").read_text().splitlines()
    ]
    at, wrong, seen = -1, 0, set()
    columns = [
        "kernel",
        "role",
        "precision",
        "workload",
        "m",
        "n",
        "k",
        "flops",
        *SOURCES,
    ]
    columns += ["agreement", "gpu", "evidence"]
    version = importlib.metadata.version("torch")
    with (folder / "proved_kernels.csv").open(
        "w", newline="", encoding="utf-8"
    ) as stream:
        table = csv.DictWriter(stream, columns, lineterminator="\n")
        table.writeheader()
        for launch in launches:
            if SENTINEL in launch.kernel:
                at += 1
                continue
            name, m, n, k, batch = done[at]
            flops = 2 * int(m) * int(n) * int(k) * int(batch)
            operations = launch.operations
            proof = judge(launch.kernel, operations, flops)
            if proof is None or (launch.kernel, m, n, k) in seen:
                continue  # a cast, a reduction or a set-up kernel beside the product
            seen.add((launch.kernel, m, n, k))
            wrong += proof.agreement in ("differs", "missed")
            table.writerow({
                "kernel": launch.kernel, "role": proof.role, "precision": proof.precision,
                "workload": name, "m": m, "n": n, "k": k, "flops": flops, **operations,
                "agreement": proof.agreement, "gpu": gpu.name,
                "evidence": f"ncu, torch {version}",
            })  # fmt: skip
            shown = ", ".join(
                f"{key} {value:,}" for key, value in operations.items() if value
            )
            print(
                f"{proof.agreement:11s} {proof.precision:8s} {name:36s} {launch.kernel[:70]}"
            )
            print(f"            2MNK {flops:,}; counted {shown or 'nothing'}")
    print(f"{len(seen)} kernels, {wrong} contradicted by the counters")
    return wrong


def main() -> int:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument(
        "--compile", action="store_true", help="add a product of TorchInductor's"
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        try:
            child(arguments.child, arguments.compile)
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    folder = arguments.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return 1 if write(folder, *measure(folder, arguments.compile)) else 0


if __name__ == "__main__":
    sys.exit(main())
