"""Captures that are edited so that the right verdict is certain: rules, applied to real traces.

What an edit says of a GEMM it says twice, in the kernel's name and in the operator's inputs, as a
run that did so would have; edits that leave the two in conflict say so.
"""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from tests.captures import ROOT
from tests.hand_built import BF16, BF16_KERNEL, FP8, FP8_KERNEL

Event = dict[str, Any]
FP8_NAMES = ("nvjet_sm90_qq", "nvjet_sm90_qr")
LAUNCHES = ("cuda_runtime", "cuda_driver")
RECORDED = ("Input type", "Input Dims", "Input Strides", "Concrete Inputs")


class Capture:
    """One rank's trace of `traces/`, with the links that edits need."""

    def __init__(self, name: str) -> None:
        data = gzip.decompress((ROOT / name / "rank0.json.gz").read_bytes())
        self.document: dict[str, Any] = msgspec.json.decode(data)
        self.document.pop("fp8verify", None)
        self._of: dict[tuple[str, ...], list[Event]] = {}
        self._by_id: dict[object, list[Event]] = {}

    @property
    def events(self) -> list[Event]:
        """All events of the trace."""
        return list(self.document["traceEvents"])

    def of(self, *categories: str) -> list[Event]:
        """Return the events of some categories, by their start."""
        if categories not in self._of:
            found = (event for event in self.events if event.get("cat") in categories)
            by_start = sorted(found, key=lambda event: event.get("ts", 0))
            self._of[categories] = by_start
        return self._of[categories]

    def _hold(self, events: list[Event]) -> Capture:
        """Have other events than before."""
        self.document["traceEvents"] = events
        self._of.clear()
        self._by_id.clear()
        return self

    @property
    def low(self) -> list[Event]:
        """The FP8 GEMMs of a capture in FP8."""
        return [
            kernel
            for kernel in self.of("kernel")
            if kernel["name"].startswith(FP8_NAMES)
        ]

    @property
    def gemms(self) -> list[Event]:
        """Its GEMMs, all of which cuBLAS ran."""
        return [
            kernel for kernel in self.of("kernel") if kernel["name"].startswith("nvjet")
        ]

    @property
    def steps(self) -> list[Event]:
        """The ranges of the profiler's steps on the CPU."""
        ranges = self.of("user_annotation")
        return [event for event in ranges if event["name"].startswith("ProfilerStep#")]

    def step_of(self, kernel: Event) -> int:
        """Return the place of the step in which a kernel was launched, -1 for none."""
        launches = {event["args"]["correlation"]: event for event in self.of(*LAUNCHES)}
        start = launches[kernel["args"]["correlation"]]["ts"]
        bounds = ((step["ts"], step["ts"] + step["dur"]) for step in self.steps)
        return next(
            (i for i, (begin, end) in enumerate(bounds) if begin <= start <= end), -1
        )

    def operators(self, kernels: Iterable[Event]) -> list[Event]:
        """Return the operators that launched some kernels."""
        if not self._by_id:
            for op in self.of("cpu_op"):
                number = op["args"].get("External id")
                self._by_id.setdefault(number, []).append(op)
        found: list[Event] = []
        for number in dict.fromkeys(one["args"]["External id"] for one in kernels):
            found += self._by_id.get(number, ())
        return found

    def drop(self, unwanted: Callable[[Event], bool]) -> Capture:
        """Leave events out."""
        return self._hold([event for event in self.events if not unwanted(event)])

    def add(self, events: Iterable[Event]) -> Capture:
        """Put events at the end of the file."""
        return self._hold([*self.events, *copy.deepcopy(list(events))])

    def rename(self, kernels: Iterable[Event], name: str) -> Capture:
        """Call kernels otherwise; their operators stay what they are."""
        for kernel in kernels:
            kernel["name"] = name
        return self

    def launched_by(self, kernels: list[Event], op: str, *types: str) -> Capture:
        """Let another operator have launched some kernels; without types it recorded no inputs."""
        for found in self.operators(kernels):
            found["name"], args = op, found["args"]
            dims = args.get("Input Dims", [])[: len(types)]
            for key in RECORDED:
                args.pop(key, None)
            if types:
                args |= {"Input type": list(types), "Input Dims": dims}
        return self

    def in_bf16(self, kernels: list[Event]) -> Capture:
        """Let GEMMs have run in BF16."""
        return self.launched_by(kernels, "aten::mm", BF16, BF16).rename(
            kernels, BF16_KERNEL
        )

    def in_fp8(self, kernels: list[Event]) -> Capture:
        """Let GEMMs have run in FP8."""
        return self.launched_by(kernels, "aten::_scaled_mm", FP8, FP8).rename(
            kernels, FP8_KERNEL
        )

    def without_shapes(self) -> Capture:
        """Record no operator's inputs."""
        for op in self.of("cpu_op"):
            for key in RECORDED:
                op["args"].pop(key, None)
        self.document.pop("record_shapes", None)
        return self

    def without_operators(self) -> Capture:
        """Record no operators."""
        return self.drop(lambda event: event.get("cat") in ("cpu_op", "fwdbwd"))

    def on(self, gpu: str, major: int, minor: int) -> Capture:
        """Let it have been recorded on another GPU."""
        for device in self.document["deviceProperties"]:
            device |= {"name": gpu, "computeMajor": major, "computeMinor": minor}
        return self

    def as_rank(self, rank: int, world: int) -> Capture:
        """Give it a rank."""
        self.document["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
        }
        return self

    def then(self, other: Capture) -> Capture:
        """Join another recording behind this one, as a merged file holds both."""
        timed = [
            e
            for e in other.events
            if e.get("ph") == "X" and e.get("cat") not in (None, "Trace")
        ]
        end = max((e["ts"] + e["dur"] for e in self.of(*LAUNCHES, "kernel")), default=0)
        shift = end + 1e6 - min(event["ts"] for event in timed)
        for event in timed:
            event["ts"] += shift
            for key in {"External id", "correlation"} & event.get("args", {}).keys():
                event["args"][key] += 10_000_000
        return self.add(timed)

    def write(self, path: Path) -> Path:
        """Write the trace and return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(self.document))
        return path
