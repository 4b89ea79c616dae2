"""Time matrix products by size, in BF16 and in FP8; run by its path, in the run's Python.

Reads one JSON object from standard input: {"sides": [128, …]}, and writes one a line:
{"gpu", "torch", "cuda"} first, then for each pair of sides m <= n, {"m", "n", "rows": [[k, BF16,
tensorwise, rowwise], …]} in TFLOP/s, null where the product does not run. The rates are those of
the kernels alone, as a profiler shows them, on operands that come from memory and not from the
cache. Standard library and torch only.
"""

from __future__ import annotations

import json
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

REPEATS = 7
WARM_UP = 1
# Operands of successive products lie so far apart that none is still in the L2 cache.
_APART = 128 << 20
_MARK = "fp8verify-rate"
Product = Callable[[], object]


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    if not torch.cuda.is_available():
        say({"error": "torch sees no GPU"})
        return
    name = torch.cuda.get_device_name()
    say(
        {
            "gpu": name,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }
    )
    sides = sorted(request["sides"])
    pool = Pool(max(sides))
    for m in sides:
        wider = [n for n in sides if n >= m]
        for n, rows in zip(wider, rates(pool, m, wider, sides), strict=True):
            say(
                {
                    "m": m,
                    "n": n,
                    "rows": rows,
                }
            )


def say(answer: dict[str, Any]) -> None:
    """Write one line; torch may print to standard output too."""
    print(f"fp8verify: {json.dumps(answer)}", flush=True)


class Pool:
    """Random operands of every size, in BF16 and FP8, as views of one block of memory each."""

    def __init__(self, largest: int) -> None:
        count = largest * largest + 2 * _APART
        self.wide = torch.empty(count, device="cuda", dtype=torch.bfloat16).normal_()
        self.low = self.wide.to(torch.float8_e4m3fn)
        self.one = torch.ones((), device="cuda")
        self.ones = torch.ones(largest, device="cuda")
        self.offset = 0

    def view(
        self,
        of: Tensor,
        rows: int,
        columns: int,
    ) -> Tensor:
        """Return a matrix (rows, columns) of values that were not read lately."""
        size = rows * columns
        if self.offset + size > len(of):
            self.offset = 0
        begin = self.offset
        self.offset += max(size, 1 << 20)
        return of[begin : begin + size].view(rows, columns)

    def bf16(
        self,
        m: int,
        n: int,
        k: int,
    ) -> Product:
        """Return a product of (m, k) and (k, n) in BF16."""
        a = self.view(self.wide, m, k)
        b = self.view(self.wide, n, k)
        return lambda: torch.mm(a, b.t())

    def tensorwise(
        self,
        m: int,
        n: int,
        k: int,
    ) -> Product:
        """Return the product in FP8, one scale an operand."""
        return self._scaled(m, n, k, self.one, self.one)

    def rowwise(
        self,
        m: int,
        n: int,
        k: int,
    ) -> Product:
        """Return the product in FP8, a scale for each row of A and each column of B."""
        return self._scaled(m, n, k, self.ones[:m, None], self.ones[None, :n])

    def _scaled(
        self,
        m: int,
        n: int,
        k: int,
        of_a: Tensor,
        of_b: Tensor,
    ) -> Product:
        a = self.view(self.low, m, k)
        b = self.view(self.low, n, k)

        def product() -> object:
            return torch._scaled_mm(
                a,
                b.t(),
                of_a,
                of_b,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )

        return product


Rate = float | None


def rates(
    pool: Pool,
    m: int,
    wider: Sequence[int],
    sides: Sequence[int],
) -> Iterator[list[list[Rate]]]:
    """Yield the rates of products (m, k) x (k, n) for each n: a row for every k."""
    kinds = (pool.bf16, pool.tensorwise, pool.rowwise)
    sizes = [(n, k) for n in wider for k in sides]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for n, k in sizes:
            for kind in kinds:
                run(kind, m, n, k)
        torch.cuda.synchronize()
    times = times_us(trace, len(sizes) * len(kinds))
    for n in wider:
        rows = []
        for k in sides:
            row: list[Rate] = [k]
            for _ in kinds:
                row.append(_tflops(m, n, k, next(times)))
            rows.append(row)
        yield rows


def _tflops(
    m: int,
    n: int,
    k: int,
    time_us: float | None,
) -> Rate:
    if not time_us:
        return None
    return round(2.0 * m * n * k / time_us / 1e6, 1)


def run(
    kind: Callable[[int, int, int], Product],
    m: int,
    n: int,
    k: int,
) -> None:
    """Multiply often, under one mark; what does not run leaves its mark empty."""
    with record_function(_MARK):
        try:
            for _ in range(WARM_UP + REPEATS):
                kind(m, n, k)()
        except RuntimeError:
            return


def times_us(trace: Any, count: int) -> Iterator[float | None]:
    """Yield the usual µs of the kernels of a product for each mark; None without kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    for durations in _kernels_of_marks(events, count):
        products = WARM_UP + REPEATS
        each = len(durations) // products
        if not each or len(durations) % products:
            yield None
            continue
        sums = []
        for first in range(each * WARM_UP, len(durations), each):
            sums.append(sum(durations[first : first + each]))
        yield median(sums)


def _kernels_of_marks(
    events: Sequence[Any],
    count: int,
) -> list[list[float]]:
    """Return for each of `count` marks the µs of the kernels launched under it, in order."""
    marks = []
    launched = {}
    kernels = []
    for event in events:
        category = event.get("cat")
        if category == "user_annotation" and event.get("name") == _MARK:
            marks.append(event["ts"])
        elif category in ("cuda_runtime", "cuda_driver"):
            correlation = event.get("args", {}).get("correlation")
            launched[correlation] = event["ts"]
        elif category == "kernel":
            kernels.append(event)
    marks.sort()
    kernels.sort(key=lambda event: float(event["ts"]))
    of_marks: list[list[float]] = [[] for _ in range(count)]
    for kernel in kernels:
        launched_at = launched.get(kernel["args"].get("correlation"))
        if launched_at is not None:
            mark = bisect_right(marks, launched_at) - 1
            of_marks[mark].append(float(kernel["dur"]))
    return of_marks


if __name__ == "__main__":
    main()
