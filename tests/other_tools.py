"""Kineto traces written anew as other profilers would have recorded the same run."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests.nvidia_spelling import as_nvidia

SECRET = "hf_THIS_TOKEN_IS_NOWHERE"
PID = 4711
PROCESS = 1 << 48 | PID << 24


@dataclass
class Recording:
    """What a profiler sees of a process, times in whole nanoseconds.

    `kernels` are name, start, end, device, stream and correlation id, `calls` correlation id,
    start, end and thread, `ranges` text, start, end and thread, `copies` kind, start, end, bytes.
    """

    kernels: list[tuple[str, int, int, int, int, int | None]] = field(
        default_factory=list
    )
    calls: list[tuple[int, int, int, int]] = field(default_factory=list)
    ranges: list[tuple[str, int, int, int]] = field(default_factory=list)
    copies: list[tuple[str, int, int, int]] = field(default_factory=list)
    gpu: str | None = None
    capability: tuple[int, int] = (9, 0)


def record(trace: Path, *, ranges: bool = True) -> Recording:
    """Return what is in a Kineto trace, with NVTX texts as torch's `emit_nvtx` writes them."""
    raw = trace.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = json.loads(text, parse_float=Decimal)  # doubles lose nanoseconds
    found, numbers = Recording(), count(1)
    threads = defaultdict[tuple[Any, Any], int](
        partial(next, count(PROCESS + 1))
    )  # Nsight's ids
    if properties := document.get("deviceProperties"):
        found.gpu = properties[0]["name"]
        found.capability = (
            properties[0]["computeMajor"],
            properties[0]["computeMinor"],
        )
    for event in document["traceEvents"]:
        args, category = event.get("args", {}), event.get("cat")
        if category in (
            "kernel",
            "cuda_runtime",
            "cuda_driver",
            "cpu_op",
            "user_annotation",
        ):
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            thread = threads[event["pid"], event["tid"]]
        if category == "kernel":
            place = (args.get("device", 0), args.get("stream", 0))
            found.kernels.append(
                (event["name"], start, end, *place, args.get("correlation"))
            )
        elif category in ("cuda_runtime", "cuda_driver") and "correlation" in args:
            found.calls.append((args["correlation"], start, end, thread))
        elif category in ("cpu_op", "user_annotation") and ranges:
            found.ranges.append((nvtx_text(event, next(numbers)), start, end, thread))
        elif category in ("gpu_memcpy", "gpu_memset"):
            length = round(event["dur"] * 1000)
            found.copies.append(
                (category.removeprefix("gpu_"), 0, length, args.get("bytes", 0))
            )
    return found


def nvtx_text(event: dict[str, Any], number: int) -> str:
    """Write a range as `torch::profiler::impl::getNvtxStr` does."""
    args = event.get("args", {})
    text = str(event["name"])
    if "Sequence number" in args:
        text += f", seq = {args['Sequence number']}"
    text += f", op_id = {number}"
    if args.get("Input Dims"):
        text += (
            f", sizes = {json.dumps(args['Input Dims'])}, input_op_ids = [({number},0)]"
        )
    return text


# -- Nsight Systems -----------------------------------------------------------------------------


class Export:
    """An Nsight Systems export as `nsys export --type sqlite` of 2026.2 writes it."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        run = self._database.execute
        run("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        run("CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)")
        run("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.25.0')")
        for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"):
            run(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            run(
                f"INSERT INTO {table} VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)",
                (SECRET,),
            )

    def add(self, recorded: Recording, process: int = PROCESS) -> Export:
        """Add what was recorded of a process."""
        move = process - PROCESS
        self._fill(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "demangledName, start, end, deviceId, streamId, correlationId, globalPid, shortName",
            (
                (self._id(as_nvidia(k[0])), *k[1:], process, self._id("short"))
                for k in recorded.kernels
            ),
        )
        self._fill(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "correlationId, start, end, globalTid",
            ((*call[:3], call[3] + move) for call in recorded.calls),
        )
        self._fill(
            "NVTX_EVENTS",
            "text, textId, start, end, globalTid, eventType, domainId",
            (
                (None, self._id(t), s, e, thread + move, 59, 0)
                for t, s, e, thread in recorded.ranges
            ),
        )
        for kind in ("memcpy", "memset"):
            rows = [
                (s, e, size, process) for k, s, e, size in recorded.copies if k == kind
            ]
            table = f"CUPTI_ACTIVITY_KIND_{kind.upper()}"
            self._fill(table, "start, end, bytes, globalPid", rows)
        if recorded.gpu:
            columns = "id, name, computeMajor, computeMinor"
            self._fill(
                "TARGET_INFO_GPU", columns, [(0, recorded.gpu, *recorded.capability)]
            )
        return self

    def run(self, statement: str, *parameters: object) -> Export:
        """Run any statement on the export."""
        self._database.execute(statement, parameters)
        return self

    def close(self) -> None:
        """Write everything."""
        self._database.commit()
        self._database.close()

    def _fill(
        self, table: str, columns: str, rows: Iterable[tuple[object, ...]]
    ) -> None:
        rows = list(rows)
        if not rows:  # tables without rows are not made
            return
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        marks = ", ".join("?" * len(rows[0]))
        self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _id(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            row = (self._strings[text], text)
            self._database.execute("INSERT INTO StringIds VALUES (?, ?)", row)
        return self._strings[text]


def write_nsys(recorded: Recording, folder: Path) -> Path:
    """Write an export of Nsight Systems."""
    path = folder / "run.sqlite"
    Export(path).add(recorded).close()
    return path


# -- rocprofv3 ----------------------------------------------------------------------------------


def write_rocprof_csv(recorded: Recording, folder: Path) -> Path:
    """Write a kernel trace, with calls and markers beside it if there are ranges."""
    path = folder / "77_kernel_trace.csv"
    header = (
        "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,"
        "Correlation_Id,Start_Timestamp,End_Timestamp"
    )
    _write_csv(
        path,
        header,
        (
            ("KERNEL_DISPATCH", f"Agent {d}", 1, s, 1, n, 1, name, c or 0, start, end)
            for n, (name, start, end, d, s, c) in enumerate(recorded.kernels)
        ),
    )
    agents = [("GPU", 0, recorded.gpu or "", "gfx942")]
    _write_csv(
        folder / "77_agent_info.csv",
        "Agent_Type,Logical_Node_Id,Product_Name,Name",
        agents,
    )
    if recorded.ranges:
        header = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
        _write_csv(
            folder / "77_hip_api_trace.csv",
            header,
            (
                ("HIP_RUNTIME_API", "hipLaunch", 77, t, c, s, e)
                for c, s, e, t in recorded.calls
            ),
        )
        _write_csv(
            folder / "77_marker_api_trace.csv",
            header,
            (
                ("MARKER_CORE_API", text, 77, t, 0, s, e)
                for text, s, e, t in recorded.ranges
            ),
        )
    return path


def _write_csv(path: Path, header: str, rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as file:
        file.write(",".join(f'"{name}"' for name in header.split(",")) + "\n")
        csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(
            rows
        )


WRITERS: dict[str, Callable[[Recording, Path], Path]] = {
    "nsys": write_nsys,
    "rocprof csv": write_rocprof_csv,
}
