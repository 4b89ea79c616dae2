"""Events as Kineto records them, and the layouts in which traces are written."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

from fp8verify.terms import Collective, OpContext
from fp8verify.trace import Trace, kineto
from fp8verify.trace.source import Reading, Source

Event = dict[str, Any]


class KernelRow(NamedTuple):
    name: str
    start_ns: int
    duration_ns: int
    device: int
    stream: int
    op: OpContext | None
    step: int | None
    launch: int
    collective: Collective | None


class View(NamedTuple):
    kernels: list[KernelRow]
    steps: list[tuple[int, int, int]]
    copies: dict[str, tuple[int, int, int]]
    events: int
    bad_durations: int


def view(trace: Trace) -> View:
    """Spread the columns of a trace out, to compare."""
    k = trace.kernels
    rows = [
        KernelRow(
            name=trace.names[k.name[i]],
            start_ns=k.start_ns[i],
            duration_ns=k.duration_ns[i],
            device=k.device[i],
            stream=k.stream[i],
            op=trace.ops[k.op[i]] if k.op[i] >= 0 else None,
            step=trace.steps[k.step[i]].number if k.step[i] >= 0 else None,
            launch=k.launch[i],
            collective=trace.collectives[k.collective[i]]
            if k.collective[i] >= 0
            else None,
        )
        for i in range(len(k))
    ]
    steps = [(s.number, s.start_ns, s.end_ns) for s in trace.steps]
    return View(
        rows, steps, trace.copies, trace.health.events, trace.health.bad_durations
    )


def op(
    name: str, ts: float, dur: float, external_id: int, *, tid: int = 1, **args: Any
) -> Event:
    return _complete(
        "cpu_op", name, ts, dur, 7, tid, {"External id": external_id, **args}
    )


def annotation(
    name: str, ts: float, dur: float, *, tid: int = 1, external_id: int = 0
) -> Event:
    return _complete(
        "user_annotation", name, ts, dur, 7, tid, {"External id": external_id}
    )


def launch(correlation: int, ts: float, dur: float = 2, *, tid: int = 1) -> Event:
    return _complete(
        "cuda_runtime",
        "cudaLaunchKernel",
        ts,
        dur,
        7,
        tid,
        {"correlation": correlation},
    )


def kernel(name: str, ts: float, dur: float, correlation: int, **args: Any) -> Event:
    fields = {"device": 0, "stream": 7, "correlation": correlation, **args}
    return _complete("kernel", name, ts, dur, 0, 7, fields)


def _complete(
    cat: str, name: str, ts: float, dur: float, pid: int, tid: int, args: dict[str, Any]
) -> Event:
    head = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    return {**head, "ts": ts, "dur": dur, "args": args}


def sample() -> list[Event]:
    """Two steps, three kernels: a GEMM of the first step, one of each leg in the second."""
    return [
        annotation("ProfilerStep#3", 1000, 100),
        op("aten::linear", 1010, 50, 1),
        op(
            "aten::mm",
            1020,
            30,
            2,
            **{"Input type": ["c10::BFloat16"], "Input Dims": [[8, 16]]},
        ),
        annotation("ProfilerStep#4", 1100, 100),
        op("aten::mm", 1110, 20, 3),
        op("autograd::engine::evaluate_function: MmBackward0", 1140, 40, 4, tid=2),
        op("aten::mm", 1150, 20, 5, tid=2),
        kernel("gemm_a", 1060.125, 10.5, 11, **{"External id": 2}),
        {
            "ph": "f",
            "id": 11,
            "pid": 0,
            "tid": 7,
            "ts": 1060.125,
            "cat": "ac2g",
            "name": "ac2g",
        },
        launch(11, 1025),
        launch(12, 1115),
        kernel("gemm_b", 1130, 10, 12, **{"External id": 3}),
        launch(13, 1155, tid=2),
        kernel("gemm_c", 1210, 10, 13, **{"External id": 5}),
        {
            "name": "process_name",
            "ph": "M",
            "ts": 1000,
            "pid": 7,
            "tid": 0,
            "args": {"name": "py"},
        },
        {
            "name": "Record Window End",
            "ph": "i",
            "s": "g",
            "pid": "",
            "tid": "",
            "ts": 1300,
        },
    ]


HEAD = {
    "schemaVersion": 1,
    "deviceProperties": [
        {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
    ],
    "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},
    "record_shapes": 1,
}


def as_document(events: list[Event], **head: Any) -> bytes:
    """Write the usual layout, one key a line."""
    return json.dumps({**HEAD, **head, "traceEvents": events}, indent=2).encode()


def read_bytes(data: bytes, **how: Any) -> Trace:
    return kineto.read(Source(io.BytesIO(data), "trace.json"), Reading(**how))


def kernel_names(trace: Trace) -> list[str]:
    return [trace.names[index] for index in trace.kernels.name]
