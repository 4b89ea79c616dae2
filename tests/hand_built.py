"""Small Kineto traces, built event by event, and what else a capture holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from fp8verify import Policy, inspect
from fp8verify.model.verdict import Finding
from fp8verify.report.results import Report
from fp8verify.trace import Trace, read_trace

# What torchtitan logs of torchao.
CLAIM = "Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=False\n"

FP8, BF16, FP32 = "c10::Float8_e4m3fn", "c10::BFloat16", "float"
E5M2 = "c10::Float8_e5m2"
FP8_KERNEL = "nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT"
FP8_GRADIENT_KERNEL = "nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT"
BF16_KERNEL = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
BF16_WGRAD_KERNEL = BF16_KERNEL.replace("_TNT", "_NTT")
FP32_KERNEL = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_execute_kernel__5x_cublas"
LEGS = ("fprop", "dgrad", "wgrad")
WINDOW = {"first": 1, "last": 1, "state": "complete", "trace": "rank0.json"}
T = TypeVar("T")


class TraceBuilder:
    """Collects launches: each is a CPU operator, its launch and its kernel, 100 µs apart."""

    def __init__(
        self, folder: Path | None = None, *, gpu: str = "NVIDIA H200",
        capability: tuple[int, int] = (9, 0), rank: int | None = None, world: int = 1,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {"schemaVersion": 1, "record_shapes": 1}
        self.head["deviceProperties"] = [
            {
                "id": 0,
                "name": gpu,
                "computeMajor": capability[0],
                "computeMinor": capability[1],
            }
        ]
        if rank is not None:
            self.head["distributedInfo"] = {
                "backend": "nccl",
                "rank": rank,
                "world_size": world,
            }
        self._clock = 1000.0
        self._id = 0
        self._sequence = 0
        self._steps: list[tuple[int, float]] = []

    def step(self, number: int) -> TraceBuilder:
        """Begin a profiler step; it ends where the next begins, or the trace does."""
        self._steps.append((number, self._clock - 50))
        return self

    def launch(
        self,
        kernel: str,
        op: str | None = "aten::mm",
        *,
        types: tuple[str, ...] = (),
        dims: tuple[tuple[int, ...], ...] = (),
        us: float = 10.0,
        parents: tuple[str, ...] = (),
        backward: bool = False,
        layer: str | None = None,
        sequence: int | None = None,
        **args: Any,
    ) -> TraceBuilder:
        """Add a kernel of `us` µs launched by `op` inside `parents`, innermost first.

        `layer` annotates the operator as `run --layers` does; `sequence` is the number of the
        autograd node that it makes, or runs in.
        """
        start, thread = self._clock, 2 if backward else 1
        numbers = {} if sequence is None else {"Sequence number": sequence}
        numbers |= {"Fwd thread id": 1} if numbers and backward else {}
        if layer is not None:
            self._cpu("user_annotation", f"fp8verify:{layer}", start + 10, 65, thread)
        around = [
            *parents,
            *(["autograd::engine::evaluate_function: X"] if backward else []),
        ]
        for depth, name in enumerate(reversed(around)):
            of_node = {"External id": self._next(), **(numbers if backward else {})}
            self._cpu("cpu_op", name, start + depth, 90 - 2 * depth, thread, **of_node)
        ids = {"External id": self._next()}
        if op is not None:
            found: dict[str, Any] = {**ids, **({} if backward else numbers)}
            if types:
                found |= {
                    "Input type": list(types),
                    "Input Dims": [list(d) for d in dims],
                }
            self._cpu("cpu_op", op, start + 20, 50, thread, **found)
        ids["correlation"] = ids["External id"]
        self._cpu("cuda_driver", "cuLaunchKernelEx", start + 30, 5, thread, **ids)
        event = {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7}
        place = {
            "ts": start + 40,
            "dur": us,
            "args": {**ids, "device": 0, "stream": 7, **args},
        }
        self.events.append({**event, **place})
        self._clock += 100
        return self

    def gemm(
        self,
        leg: str,
        m: int,
        n: int,
        k: int,
        *,
        fp8: bool,
        us: float = 10.0,
        **where: Any,
    ) -> TraceBuilder:
        """Add a GEMM of a linear layer of m tokens, k inputs and n outputs."""
        dims, layout = {
            "fprop": (((m, k), (k, n)), "TNT"),
            "dgrad": (((m, n), (n, k)), "NNT"),
            "wgrad": (((n, m), (m, k)), "NTT"),
        }[leg]
        kernel, op, types = BF16_KERNEL.replace("TNT", layout), "aten::mm", (BF16, BF16)
        node = {} if leg == "fprop" else {"parents": ("MmBackward0",), "backward": True}
        if fp8:
            kernel, types = (
                (FP8_GRADIENT_KERNEL, (E5M2, FP8)) if node else (FP8_KERNEL, (FP8, FP8))
            )
            op = "aten::_scaled_mm"
        return self.launch(kernel, op, types=types, dims=dims, us=us, **node | where)

    def linear(
        self,
        m: int,
        n: int,
        k: int,
        *,
        fp8: bool,
        us: float = 10.0,
        layer: str | None = None,
    ) -> TraceBuilder:
        """Add the three GEMMs of a linear layer."""
        self._sequence += 1
        number = None if layer is None else self._sequence
        self.gemm("fprop", m, n, k, fp8=fp8, us=us, sequence=number, layer=layer)
        for leg in ("dgrad", "wgrad"):
            self.gemm(leg, m, n, k, fp8=fp8, us=us, sequence=number)
        return self

    def document(self) -> dict[str, Any]:
        """Return the trace as the document that Kineto would write."""
        ends = [*(start for _, start in self._steps[1:]), self._clock][
            : len(self._steps)
        ]
        for (number, start), end in zip(self._steps, ends, strict=True):
            self._cpu(
                "user_annotation", f"ProfilerStep#{number}", start, end - start - 1, 1
            )
        self._steps = []
        gpu = [e for e in self.events if e["cat"] == "kernel"]
        cpu = [e for e in self.events if e["cat"] != "kernel"]
        end = {
            "name": "Record Window End",
            "ph": "i",
            "s": "g",
            "pid": "",
            "tid": "",
            "ts": 1e6,
        }
        return {
            **self.head,
            "traceEvents": [*cpu, *gpu, end],
            "traceName": "trace.json",
        }

    def write(self, path: Path) -> Path:
        """Write the trace and return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document()))
        return path

    def read(self) -> Trace:
        """Read the trace."""
        return read_trace(self.write(present(self.folder) / "trace.json"))

    def report(self, *, log: str = "", **policy: Any) -> Report:
        """Inspect the trace, with a log unless that is empty."""
        folder = present(self.folder)
        trace, text = self.write(folder / "trace.json"), folder / "train.log"
        text.write_text(log)
        return inspect(trace, log=text if log else None, policy=Policy(**policy))

    def capture(self, *modules: dict[str, Any], log: str = "", **more: Any) -> Report:
        """Inspect a capture: the trace, a module list, a log, and what else the agent recorded."""
        folder = present(self.folder)
        self.write(folder / "rank0.json")
        write_meta(folder, *modules, **more)
        (folder / "log.txt").write_text(log)
        return inspect(folder)

    def _cpu(
        self, cat: str, name: str, ts: float, dur: float, tid: int, **args: Any
    ) -> None:
        event = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": ts,
            "dur": dur,
        }
        self.events.append({**event, "args": args})

    def _next(self) -> int:
        self._id += 1
        return self._id


def module(
    fqn: str, outputs: int, inputs: int, state: str = "fp8", **more: Any
) -> dict[str, Any]:
    """Return a linear layer as the agent lists it."""
    sizes = {"out_features": outputs, "in_features": inputs}
    return {
        "fqn": fqn,
        "class": "Linear",
        "kind": "linear",
        "state": state,
        **sizes,
        **more,
    }


def write_meta(
    folder: Path, *modules: dict[str, Any], rank: int = 0, **more: Any
) -> None:
    """Write what the agent recorded beside the trace of a rank."""
    meta = {
        "schema": 1,
        "rank": rank,
        "steps_seen": 3,
        "window": [WINDOW],
        "modules": modules,
    }
    (folder / f"rank{rank}.meta.json").write_text(json.dumps({**meta, **more}))


def codes(report: Report) -> set[str]:
    """Return the codes of a report's findings."""
    return {finding.code for finding in report.findings}


def found(report: Report, code: str) -> list[Finding]:
    """Return the findings of a code."""
    return [finding for finding in report.findings if finding.code == code]


def present(value: T | None) -> T:
    """Return a value that must be there."""
    assert value is not None
    return value
