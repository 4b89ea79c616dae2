"""The calls of a recorded run that ran in FP8, and how to let one have run in BF16."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.laws.captures import Document, Event

LOW = re.compile(r"nvjet_sm\d+_q|fp8_gemm|scaled_mm|e4m3|F8", re.IGNORECASE)
NO_GEMM = re.compile(
    r"triton_(?:poi|red|per)_|.*prepare_grouped|void transformer_engine::"
    r"|\w{0,30}(?:quant|cast_|amax)",
    re.IGNORECASE,
)
BF16 = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_{}"
PIN = "-> Linear.Config"  # of a layer that torchtitan leaves out
SLOWER = 1.9  # than FP8, of a GEMM in BF16


@dataclass(frozen=True)
class Gemm:
    """A GEMM in FP8: its kernel and operator, and when it was launched."""

    kernel: Event
    op: Event | None
    step: int
    backward: bool
    batch: int = 0


@dataclass(frozen=True)
class RecordedFlip:
    """A call in BF16: its place in the forward pass, its legs, and in how much of the run."""

    place: int
    legs: str
    where: str
    shown_by: str


def calls(document: Document) -> dict[tuple[int, int], list[dict[str, Gemm]]]:
    """Return the calls of each (step, micro-batch): the GEMMs of each by leg.

    Gradients are paired with their call by the opposite order. Only passes whose gradients come
    two to a forward GEMM (or one, where a recipe keeps one in BF16) are returned.
    """
    passes: dict[tuple[int, int], tuple[list[Gemm], list[Gemm]]] = {}
    for gemm in _numbered(_gemms(document)):
        found = passes.setdefault((gemm.step, gemm.batch), ([], []))
        found[gemm.backward].append(gemm)
    result = {}
    for key, (forward, backward) in passes.items():
        each, rest = divmod(len(backward), max(len(forward), 1))
        if rest or each not in (1, 2):
            continue
        names = ("first gradient", "second gradient")[:each]
        result[key] = []
        for place, gemm in enumerate(forward):
            first = (len(forward) - 1 - place) * each
            legs = dict(zip(names, backward[first : first + each], strict=True))
            result[key].append({"fprop": gemm, **legs})
    lengths = Counter(map(len, result.values()))
    usual = lengths.most_common(1)[0][0] if lengths else 0
    return {key: found for key, found in result.items() if len(found) == usual}


def possible_flips(folder: Path, document: Document) -> list[RecordedFlip]:
    """Return all flips of a capture of one rank."""
    found = calls(document)
    if not found:
        return []
    some = next(iter(found.values()))
    listed = _converted(folder) == len(some)
    flips = []
    for place in range(len(some)):
        for legs in ("all", *some[place]):
            for where in (
                "everywhere",
                *(("one execution",) if len(found) > 1 else ()),
            ):
                shown = _shown_by(listed, legs, where, place, len(some))
                flips.append(RecordedFlip(place, legs, where, shown))
    return flips


def _shown_by(listed: bool, legs: str, where: str, place: int, count: int) -> str:
    if listed:
        return "module list"
    if legs != "all":
        return "legs of the call"
    if where != "everywhere":
        return "other executions"
    return "other blocks" if count // 4 <= place < count - count // 4 else "nothing"


def flip(document: Document, wanted: RecordedFlip) -> None:
    """Let the call have run in BF16, in its kernel's name and time and its operator."""
    found = calls(document)
    keys = sorted(found)
    if wanted.where != "everywhere":
        keys = keys[len(keys) // 2 :][:1]
    for key in keys:
        for leg, gemm in found[key][wanted.place].items():
            if wanted.legs in ("all", leg):
                _in_bf16(gemm, leg)


def _in_bf16(gemm: Gemm, leg: str) -> None:
    layout = {"fprop": "TNT", "first gradient": "NNT"}.get(leg, "NTT")
    gemm.kernel["name"] = BF16.format(layout)
    gemm.kernel["dur"] *= SLOWER
    op = gemm.op
    if op is None or op["name"].startswith("_") or "Input type" not in op["args"]:
        return  # functions of Transformer Engine record the module's inputs
    if "::" not in op["name"] and not op["name"].startswith("triton_tem_"):
        return  # the region of a graph's replay
    op["name"] = "aten::_grouped_mm" if "grouped" in op["name"] else "aten::mm"
    types = op["args"]["Input type"]
    keep = [place for place, text in enumerate(types) if "Float8" in text][:2]
    for key in ("Input Dims", "Input Strides"):
        values = op["args"].get(key, [])
        op["args"][key] = [values[place] for place in keep if place < len(values)]
    op["args"]["Input type"] = ["c10::BFloat16"] * len(keep)
    op["args"].pop("Concrete Inputs", None)


def _gemms(document: Document) -> list[Gemm]:
    """Return the GEMMs in FP8 in the order of their launches."""
    events = [event for event in document["traceEvents"] if "ts" in event]
    launches: dict[Any, Event] = {}
    ops: dict[Any, Event] = {}
    nodes: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    steps = []
    for event in events:
        cat, args = event.get("cat"), event.get("args", {})
        if cat in ("cuda_runtime", "cuda_driver") and "correlation" in args:
            launches[args["correlation"]] = event
        elif cat == "cpu_op":
            ops[args.get("External id")] = event
            if "Backward" in event["name"]:
                span = event["ts"], event["ts"] + event["dur"]
                nodes[event["tid"]].append(span)
        elif cat == "user_annotation" and event["name"].startswith("ProfilerStep#"):
            steps.append((event["ts"], event["ts"] + event["dur"]))
    steps.sort()
    for spans in nodes.values():
        spans.sort()
    found = []
    for kernel in events:
        if kernel.get("cat") != "kernel" or not _is_low(kernel["name"]):
            continue
        launch = launches.get(kernel["args"].get("correlation"))
        if launch is None:
            continue
        at = launch["ts"]
        step = next((i for i, (a, b) in enumerate(steps) if a <= at <= b), -1)
        backward = _covers(nodes[launch["tid"]], at)
        op = ops.get(kernel["args"].get("External id"))
        found.append(((at, kernel["ts"]), Gemm(kernel, op, step, backward)))
    found.sort(key=lambda one: one[0])
    return [gemm for _, gemm in found]


def _is_low(name: str) -> bool:
    return LOW.search(name) is not None and NO_GEMM.match(name) is None


def _covers(spans: list[tuple[float, float]], time: float) -> bool:
    place = bisect_right(spans, (time, float("inf")))
    near = spans[max(0, place - 40) : place]
    return any(begin <= time <= end for begin, end in near)


def _numbered(gemms: Iterable[Gemm]) -> Iterable[Gemm]:
    """Number the forward and backward passes within each step."""
    batch, step, turned = 0, None, False
    for gemm in gemms:
        if gemm.step != step:
            batch, step, turned = 0, gemm.step, False
        elif turned and not gemm.backward:
            batch, turned = batch + 1, False
        turned = turned or gemm.backward
        yield Gemm(gemm.kernel, gemm.op, gemm.step, gemm.backward, batch)


def _converted(folder: Path) -> int:
    """Return how many linear layers surely are converted, by the module list."""
    log = folder / "log.txt"
    if log.exists() and PIN in log.read_text(encoding="utf-8"):
        return 0  # one of several layers alike may be the one that the log leaves out
    meta = folder / "rank0.meta.json"
    modules = json.loads(meta.read_text()).get("modules", []) if meta.exists() else []
    return sum(one["state"] == "fp8" and one["kind"] == "linear" for one in modules)
