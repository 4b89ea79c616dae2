"""Writes a Kineto trace as a run makes it: operators that nest, their launches, their kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAIN, AUTOGRAD = 100, 200
Event = dict[str, Any]


class Writer:
    """The events of one rank; the clock of the CPU moves on by a µs an event."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.clock = 1000.0
        self.thread = MAIN
        self._gpu_free = 0.0
        self._open: list[int] = []
        self._last_id = 0

    @contextmanager
    def op(self, name: str, *, cat: str = "cpu_op", **args: Any) -> Iterator[None]:
        """Run what is inside within an operator or an annotation."""
        start = self._tick()
        number = self._next()
        thread = self.thread
        if cat == "cpu_op":
            self._open.append(number)
        yield
        if cat == "cpu_op":
            self._open.pop()
        span = {"ts": start, "dur": self._tick() - start}
        known = {"External id": number, **args}
        self._add(cat, name, thread, known, **span)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Run what is inside in the thread of autograd."""
        self.thread = AUTOGRAD
        yield
        self.thread = MAIN

    def kernel(self, name: str, us: float) -> None:
        """Launch a kernel from the operator that runs."""
        self._launch("cudaLaunchKernel", [(name, us)])

    def replay(self, kernels: list[tuple[str, float]]) -> None:
        """Launch a CUDA graph of these kernels."""
        self._launch("cudaGraphLaunch", kernels)

    def _launch(self, call: str, kernels: list[tuple[str, float]]) -> None:
        numbers = {"correlation": self._next()}
        if self._open:
            numbers["External id"] = self._open[-1]
        start = self._tick()
        self._add("cuda_runtime", call, self.thread, dict(numbers), ts=start, dur=1.0)
        self._tick()
        for name, us in kernels:
            begin = max(self._gpu_free, start + 2)
            args = {**numbers, "device": 0, "stream": 7}
            self._add("kernel", name, 7, args, pid=0, ts=begin, dur=us)
            self._gpu_free = begin + us + 1

    def wait(self) -> None:
        """Let the CPU wait for the GPU, as `loss.item()` does."""
        self.clock = max(self.clock, self._gpu_free + 2)

    def _add(
        self, cat: str, name: str, thread: int, args: dict[str, Any], *,
        ts: float, dur: float, pid: int = 1,
    ) -> None:  # fmt: skip
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": thread}
        self.events.append({**event, "ts": ts, "dur": dur, "args": args})

    def _tick(self) -> float:
        self.clock += 1
        return self.clock

    def _next(self) -> int:
        self._last_id += 1
        return self._last_id
