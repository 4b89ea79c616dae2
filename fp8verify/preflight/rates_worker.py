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
    say({"gpu": name, "torch": torch.__version__, "cuda": torch.version.cuda})
    sides = sorted(request["sides"])
    pool = Pool(max(sides))
    for m in sides:
        wider = [n for n in sides if n >= m]
        for n, rows in zip(wider, rates(pool, m, wider, sides), strict=True):
            say({"m": m, "n": n, "rows": rows})


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
        self.place = 0

    def view(self, of: Tensor, rows: int, columns: int) -> Tensor:
        """Return a matrix (rows, columns) of values that were not read lately."""
        size = rows * columns
        if self.place + size > len(of):
            self.place = 0
        begin = self.place
        self.place += max(size, 1 << 20)
        return of[begin : begin + size].view(rows, columns)

    def bf16(self, m: int, n: int, k: int) -> Product:
        """Return a product of (m, k) and (k, n) in BF16."""
        a = self.view(self.wide, m, k)
        b = self.view(self.wide, n, k)
        return lambda: torch.mm(a, b.t())

    def tensorwise(self, m: int, n: int, k: int) -> Product:
        """Return the product in FP8, one scale an operand."""
        return self._scaled(m, n, k, self.one, self.one)

    def rowwise(self, m: int, n: int, k: int) -> Product:
        """Return the product in FP8, a scale for each row of A and each column of B."""
        return self._scaled(m, n, k, self.ones[:m, None], self.ones[None, :n])

    def _scaled(self, m: int, n: int, k: int, of_a: Tensor, of_b: Tensor) -> Product:
        a = self.view(self.low, m, k)
        b = self.view(self.low, n, k)
        wide = torch.bfloat16
        return lambda: torch._scaled_mm(
            a, b.t(), of_a, of_b, out_dtype=wide, use_fast_accum=True
        )


Rate = float | None


def rates(
    pool: Pool, m: int, wider: Sequence[int], sides: Sequence[int]
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
                us = next(times)
                row.append(round(2.0 * m * n * k / us / 1e6, 1) if us else None)
            rows.append(row)
        yield rows


def run(kind: Callable[[int, int, int], Product], m: int, n: int, k: int) -> None:
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
    marks = sorted(
        event["ts"]
        for event in events
        if event.get("cat") == "user_annotation" and event.get("name") == _MARK
    )
    launched = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            correlation = event.get("args", {}).get("correlation")
            launched[correlation] = event["ts"]
    of_marks: list[list[float]] = [[] for _ in range(count)]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    for kernel in sorted(kernels, key=lambda event: float(event["ts"])):
        when = launched.get(kernel["args"].get("correlation"))
        if when is not None:
            of_marks[bisect_right(marks, when) - 1].append(float(kernel["dur"]))
    for durations in of_marks:
        products = WARM_UP + REPEATS
        each = len(durations) // products
        if not each or len(durations) % products:
            yield None
            continue
        sums = [
            sum(durations[first : first + each])
            for first in range(each * WARM_UP, len(durations), each)
        ]
        yield median(sums)


if __name__ == "__main__":
    main()
