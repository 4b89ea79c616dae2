"""Recorded captures, and edits of them that no verdict may depend on."""

from __future__ import annotations

import gzip
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

Event = dict[str, Any]
Document = dict[str, Any]
Edit = Callable[[list[Document], random.Random], None]
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
SOURCES = ("shapes", "types", "numbers", "log", "module list", "later steps")
HIDDEN = {
    "shapes": ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"),
    "types": ("Input type",),
    "numbers": ("Sequence number", "Fwd thread id"),
}
COPIES = 10_000_000  # what is added to the numbers of events that are copied


def trace_files(folder: Path) -> list[Path]:
    """Return the traces of a capture, by rank."""
    return sorted([*folder.glob("rank*.json.gz"), *folder.glob("rank*[0-9].json")])


def read(folder: Path) -> list[Document]:
    """Return the documents of a capture's traces."""
    return [_parse(file) for file in trace_files(folder)]


def _parse(file: Path) -> Document:
    data = file.read_bytes()
    if file.suffix == ".gz":
        data = gzip.decompress(data)
    document = msgspec.json.decode(data)
    return document if isinstance(document, dict) else {"traceEvents": document}


def write(
    folder: Path, documents: list[Document], to: Path, *, without: Iterable[str] = ()
) -> Path:
    """Write a capture with other traces, without those of its files that end in `without`."""
    to.mkdir(parents=True)
    left_out = tuple(without)
    traces = trace_files(folder)
    for file in folder.iterdir():
        if file in traces or file.name.endswith(left_out):
            continue
        if file.is_dir():
            shutil.copytree(file, to / file.name)
        else:
            shutil.copy(file, to)
    for file, document in zip(traces, documents, strict=True):
        data = msgspec.json.encode(document)
        if file.suffix == ".gz":
            data = gzip.compress(data, compresslevel=0)  # a file for one reading
        (to / file.name).write_bytes(data)
    return to


# ---- edits


def other_times(documents: list[Document], rng: random.Random) -> None:
    """Let each kernel take 20 to 100 % of its time."""
    for event in _events(documents):
        if event.get("cat") == "kernel" and "dur" in event:
            event["dur"] = round(event["dur"] * rng.uniform(0.2, 1), 3)


def other_order(documents: list[Document], rng: random.Random) -> None:
    """Shuffle the file; number processes, threads and streams in another way."""
    for document in documents:
        events = document["traceEvents"]
        rng.shuffle(events)
        for event in events:
            _renumber(event)


def _renumber(event: Event) -> None:
    args = event.get("args")
    if event.get("cat") in ON_GPU and isinstance(args, dict) and "stream" in args:
        args["stream"] += 20
        event["tid"] = args["stream"]
    elif event.get("cat") in (
        "cpu_op",
        "user_annotation",
        "cuda_runtime",
        "cuda_driver",
    ):
        for key, offset in (("pid", 70_000), ("tid", 90_000)):
            if isinstance(event.get(key), int):
                event[key] += offset


def other_ranks(documents: list[Document], rng: random.Random) -> None:
    """Let the ranks have recorded each other's traces."""
    del rng
    known = [document.get("distributedInfo") for document in documents]
    documents.reverse()
    for document, ranks in zip(documents, known, strict=True):
        if ranks is not None:
            document["distributedInfo"] = ranks


def without_source(source: str) -> Edit:
    """Return an edit that hides what the operators' arguments say."""

    def edit(documents: list[Document], rng: random.Random) -> None:
        del rng
        for event in _events(documents):
            args = event.get("args")
            for key in HIDDEN[source] if isinstance(args, dict) else ():
                args.pop(key, None)

    return edit


def without_later_steps(documents: list[Document], rng: random.Random) -> None:
    """Cut the recording behind its first step."""
    del rng
    for document in documents:
        document.pop("fp8verify", None)
        steps = sorted(_steps(document), key=lambda event: event["ts"])
        if len(steps) < 2:
            continue
        end = steps[1]["ts"] - 0.001
        kept = {
            event["args"]["correlation"]
            for event in document["traceEvents"]
            if event.get("cat") in ("cuda_runtime", "cuda_driver")
            and event["ts"] < end
            and "correlation" in event.get("args", {})
        }
        document["traceEvents"] = [
            event for event in document["traceEvents"] if _is_before(event, end, kept)
        ]


def _is_before(event: Event, end: float, kept: set[int]) -> bool:
    if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        return event.get("args", {}).get("correlation") in kept
    return event.get("ph") != "X" or event["ts"] < end


def twice(documents: list[Document], rng: random.Random) -> None:
    """Record the window again behind itself, with steps that are numbered on."""
    del rng
    for document in documents:
        document.pop("fp8verify", None)
        _record_again(document)


def _record_again(document: Document) -> None:
    timed = [
        event
        for event in document["traceEvents"]
        if event.get("ph") == "X" and isinstance(event.get("ts"), (int, float))
        and event.get("cat") not in (None, "Trace")
    ]  # fmt: skip
    if not timed:
        return
    steps = {event["name"] for event in _steps(document)}
    begin = min(event["ts"] for event in timed)
    length = max(event["ts"] + event.get("dur", 0) for event in timed) - begin + 100
    for event in timed:
        copy = {
            **event,
            "ts": event["ts"] + length,
            "args": dict(event.get("args", {})),
        }
        for key in ("External id", "correlation", "Sequence number"):
            if isinstance(copy["args"].get(key), int):
                copy["args"][key] += COPIES
        name, _, number = event["name"].partition("#")
        if name == "ProfilerStep":
            copy["name"] = f"{name}#{int(number) + len(steps)}"
        document["traceEvents"].append(copy)
    for event in document["traceEvents"]:
        if event.get("name") == "Record Window End":
            event["ts"] += length


def optimizer_products(documents: list[Document], rng: random.Random) -> None:
    """Let the optimizer of each step multiply in BF16, as Muon does, at its end.

    Of ranks that only generate beside others that train, an optimizer would be news.
    """
    del rng
    for document in [*filter(_runs_backward, documents)] or documents:
        for number, step in enumerate(_steps(document)):
            events = _muon(document, step, COPIES + 1000 * number)
            document["traceEvents"].extend(events)


def _runs_backward(document: Document) -> bool:
    return any("Backward" in event.get("name", "") for event in document["traceEvents"])


def _muon(document: Document, step: Event, first: int) -> list[Event]:
    """Return five products in the last tenth of a µs of a step."""
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
    place = {"pid": step["pid"], "tid": step["tid"], "ph": "X"}
    end = step["ts"] + step["dur"]
    gpu = max(
        (
            e["ts"] + e["dur"]
            for e in document["traceEvents"]
            if e.get("cat") == "kernel"
        ),
        default=end,
    )
    note = {"cat": "user_annotation", "name": "Optimizer.step#Muon.step", **place}
    events = [{**note, "ts": end - 0.1, "dur": 0.09, "args": {"External id": first}}]
    for number in range(1, 6):
        ids = {"External id": first + 2 * number}
        begin = end - 0.1 + 0.01 * number
        op = {"cat": "cpu_op", "name": "aten::mm", **place, "ts": begin, "dur": 0.008}
        dims = {"Input Dims": [[640, 2560], [2560, 640]]}
        types = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", **place}
        launch = {**ids, "correlation": first + 2 * number + 1}
        kernel = {"cat": "kernel", "name": name, "ph": "X", "pid": 0, "tid": 7}
        on = {**launch, "device": 0, "stream": 7}
        events += [
            {**op, "args": {**ids, **dims, **types}},
            {**call, "ts": begin + 0.002, "dur": 0.002, "args": launch},
            {
                **kernel,
                "ts": gpu + 10 * number + first % COPIES,
                "dur": 1.0,
                "args": on,
            },
        ]
    return events


def _steps(document: Document) -> list[Event]:
    return [
        event
        for event in document["traceEvents"]
        if event.get("cat") == "user_annotation"
        and event.get("name", "").startswith("ProfilerStep#")
    ]


def _events(documents: list[Document]) -> Iterable[Event]:
    for document in documents:
        yield from document["traceEvents"]
