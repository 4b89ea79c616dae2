"""Error rates of the verdict: sow faults into sound captures, inspect them, count what is missed.

    python benchmarks/truth.py [--cmd "fp8verify"] [-o benchmarks/results/truth.md]

Each fault is an edit of a real capture whose truth is certain: GEMMs that ran in FP8 get the name,
the operator and the time that BF16 would have given them. Which classes the evidence can decide is
fixed in CLASSES, before anything is run. Nothing of fp8verify is imported: the command is run as a
user would run it.

- false accept: the verdict is ACTIVE, or the named finding is missing, and the fault is there;
- false reject: a sound capture is not ACTIVE, or fails;
- no answer: INCONCLUSIVE.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]
# Sound runs in FP8: every converted layer ran fprop, dgrad and wgrad in FP8 where its recipe
# says so.
SOUND = (
    "fp8_accelerate", "fp8_blockwise_cublas", "fp8_blockwise_triton", "fp8_compiled",
    "fp8_cudagraphs", "fp8_experts", "fp8_layers_compiled", "fp8_muon", "fp8_own_class",
    "fp8_rowwise_gw_hp", "fp8_te_delayed", "fp8_te_modules_block", "fp8_te_modules_current",
    "fp8_te_modules_delayed", "fp8_triton_template", "fp8_unfused_attention", "fp8_width4096",
    "fsdp_fp8_all_gather",
)  # fmt: skip
# Two micro-batches a step; less than half of its GEMM time is in FP8 by design, so a fault is
# found where one of these findings is.
ACCUMULATING = "fp8_megatron_first_last"
FELL_SHORT = "pass-without-fp8 step-without-fp8"
RECOMPUTED = "a recomputed forward pass in FP8"
# Which classes the evidence in a capture can decide, why not the others, and captures of runs
# that really had this fault.
CLASSES = {
    "correct": (True, "", "the captures themselves"),
    "one rank in BF16": (True, "", "ddp_one_rank_bf16"),
    "one step in BF16": (True, "", "fp8_one_step_bf16"),
    "one micro-batch of two in BF16": (True, "", "fp8_one_micro_batch_bf16"),
    "one pass in BF16": (True, "", "fp8_te_backward_bf16 (two passes)"),
    "one layer in BF16": (
        False,
        "without a module list, or of a class of one's own, a filter may have left it out",
        "fp8_layers_compiled (with layer names)",
    ),
    # Of captures with a module list.
    "half of the layers in BF16": (True, "", "fp8_megatron_first_last"),
    "one leg of the layers of a size in BF16": (True, "", "-"),
    "the layers of a size in BF16 on one rank": (True, "", "-"),
    "the layers of a size in BF16 in one micro-batch": (True, "", "-"),
    "one micro-batch in BF16, in a pipeline's order": (True, "", "-"),
    "a pipeline's order of a correct run": (True, "", "-"),
    "the recomputed forward pass in BF16": (
        True,
        "",
        "benchmarks/gpu/faults.py recompute",
    ),
    RECOMPUTED: (True, "", "-"),
    "parts below 1 % that add up": (True, "", "-"),
    "ranks of two runs": (True, "", "-"),
    "empty filter, FP8 claimed": (
        True,
        "",
        "bf16_filter_rejects_all, bf16_torchtitan_auto_filter",
    ),
    "pinned layer in FP8": (True, "", "fp8_pinned_layer"),
    "NVFP4 promised, FP8 ran": (True, "", "fp8_instead_of_nvfp4"),
    "names shuffled": (True, "", "-"),
    "a part in BF16 under unknown names": (
        True,
        "",
        "benchmarks/gpu/faults.py own-kernel-compiled",
    ),
    "BF16 under unknown names": (
        True,
        "",
        "benchmarks/gpu/faults.py own-kernel, own-op",
    ),
    "cut trace of a correct run": (True, "", "-"),
    "stale weights": (
        False,
        "a trace holds no values",
        "-",
    ),
}
SOUND_CLASSES = (
    *("correct", "cut trace of a correct run", "a pipeline's order of a correct run"),
    RECOMPUTED,
)
_LOW = re.compile(r"nvjet_sm90_q|fp8_gemm|scaled_mm|e4m3|F8", re.IGNORECASE)
_NO_GEMM = re.compile(
    r"triton_(?:poi|red|per)_|.*prepare_grouped|void transformer_engine::"
    r"|\w{0,30}(?:quant|cast_|amax)",
    re.IGNORECASE,
)
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_BF16 = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_{}"
_SLOWER = 1.9  # than FP8, of a GEMM in BF16


class Gemm(NamedTuple):
    """An FP8 GEMM of a capture: its kernel and operator, its step, whether it runs backward."""

    kernel: Event
    op: Event | None
    step: int
    backward: bool
    pass_number: int


class Capture:
    """A folder of traces, which is edited and written to another place."""

    def __init__(self, folder: Path, *, ranks: int = 1) -> None:
        """Read a folder; one of a single rank may stand for so many equal ranks."""
        self.folder = folder
        files = sorted(folder.glob("rank*.json.gz"))
        self.ranks = ranks if len(files) == 1 else 1
        self.documents = {
            file.name.replace("0", f"{rank}", 1) if rank else file.name: json.loads(
                gzip.decompress(file.read_bytes())
            )
            for file in files
            for rank in range(self.ranks)
        }
        if self.ranks > 1:
            for rank, document in enumerate(self.documents.values()):
                document["distributedInfo"] = {"rank": rank, "world_size": ranks}

    def gemms(self, rank: int = 0) -> list[Gemm]:
        """Return the FP8 GEMMs of a rank in the order of their launches."""
        events = [
            e for e in list(self.documents.values())[rank]["traceEvents"] if "ts" in e
        ]
        launches = _launches(events)
        ops = {
            e["args"].get("External id"): e for e in events if e.get("cat") == "cpu_op"
        }
        steps = sorted(
            (e["ts"], e["ts"] + e["dur"]) for e in events
            if e.get("name", "").startswith("ProfilerStep#") and e.get("cat") == "user_annotation"
        )  # fmt: skip
        nodes: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "cpu_op" and "Backward" in event.get("name", ""):
                nodes[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        found = []
        for kernel in events:
            if kernel.get("cat") != "kernel" or not _is_gemm(kernel["name"]):
                continue
            launch = launches.get(kernel["args"].get("correlation"))
            if launch is not None:
                backward = _covers(nodes[launch["tid"]], launch["ts"])
                op = ops.get(kernel["args"].get("External id"))
                step = next(
                    (i for i, (a, b) in enumerate(steps) if a <= launch["ts"] <= b), -1
                )
                found.append((launch["ts"], Gemm(kernel, op, step, backward, 0)))
        found.sort(key=lambda one: one[0])
        return list(_numbered(gemm for _, gemm in found))

    def write(
        self, folder: Path, log: str | None = None, *, alone: bool = False
    ) -> Path:
        """Write the capture with its module list and its log; `log` adds lines, or stands alone."""
        folder.mkdir(parents=True)
        for name, document in self.documents.items():
            data = json.dumps(document).encode()
            (folder / name).write_bytes(gzip.compress(data, compresslevel=1))
        for file in self.folder.iterdir():
            if not alone and file.name.endswith(("log.txt", ".meta.json")):
                shutil.copy(file, folder)
        meta = folder / "rank0.meta.json"
        for rank in range(self.ranks) if self.ranks > 1 and meta.exists() else ():
            known = json.loads(meta.read_text()) | {
                "rank": rank,
                "world_size": self.ranks,
            }
            (folder / f"rank{rank}.meta.json").write_text(json.dumps(known))
        if log is not None:
            with (folder / "log.txt").open("a") as stream:
                stream.write(f"\n{log}\n")
        return folder


def _is_gemm(name: str) -> bool:
    return _LOW.search(name) is not None and _NO_GEMM.match(name) is None


def _covers(intervals: list[tuple[float, float]], time: float) -> bool:
    intervals.sort()
    place = bisect_right(intervals, (time, float("inf")))
    return any(
        begin <= time <= end for begin, end in intervals[max(0, place - 40) : place]
    )


def _numbered(gemms: Iterable[Gemm]) -> Iterator[Gemm]:
    """Number the forward and backward passes within each step."""
    number, step, turned = 0, -2, False
    for gemm in gemms:
        if gemm.step != step:
            number, step, turned = 0, gemm.step, False
        elif turned and not gemm.backward:
            number, turned = number + 1, False
        turned = turned or gemm.backward
        yield gemm._replace(pass_number=number)


def in_bf16(
    gemms: Iterable[Gemm], name: str | None = None, *, inputs: bool = True
) -> None:
    """Let GEMMs have run in BF16; with a name, in a kernel that says nothing."""
    for place, gemm in enumerate(gemms):
        layout = ("NNT", "NTT")[place % 2] if gemm.backward else "TNT"
        gemm.kernel["name"] = name or _BF16.format(layout)
        gemm.kernel["dur"] *= _SLOWER
        op = gemm.op
        if op is None or op["name"].startswith("_") or "Input type" not in op["args"]:
            continue  # functions of Transformer Engine record the module's inputs
        if "::" in op["name"] or op["name"].startswith("triton_tem_"):
            op["name"] = "aten::_grouped_mm" if "grouped" in op["name"] else "aten::mm"
            if name is not None:
                op["name"] = "acme::run"
            types, dims = op["args"]["Input type"], op["args"].get("Input Dims", [])
            keep = [i for i, text in enumerate(types) if "Float8" in text][:2]
            op["args"]["Input type"] = ["c10::BFloat16"] * len(keep)
            op["args"]["Input Dims"] = [dims[i] for i in keep if i < len(dims)]
            if not inputs:
                op["args"].pop("Input type"), op["args"].pop("Input Dims")


class Case(NamedTuple):
    """One capture to inspect: its class, and of which findings one is wanted, if any is."""

    kind: str
    capture: str
    make: Callable[[Path], Path]
    wanted: str | None = None


def cases(root: Path, rng: random.Random) -> Iterator[Case]:
    """Yield all cases; each is built where and when it is inspected."""
    for name in SOUND:
        folder = root / name
        first = Capture(folder)
        gemms = first.gemms()
        yield Case("correct", name, lambda to, folder=folder: Capture(folder).write(to))
        for kind, label, chosen in _choices(gemms, census=bool(_converted(folder))):
            yield Case(kind, f"{name}: {label}", _edit(folder, chosen))
            if kind != "one layer in BF16":
                hidden = _edit(folder, chosen, unknown=True)
                yield Case(
                    "a part in BF16 under unknown names", f"{name}: {label}", hidden
                )
        yield Case("one rank in BF16", name, _edit(folder, lambda _: True, 1, ranks=2))
        yield from _of_sizes(folder, gemms)
        if len(first.documents) == 1:
            yield from _of_one_rank(folder)
        yield Case(
            "empty filter, FP8 claimed", name,
            _edit(folder, lambda _: True, log="Applied Float8 training: recipe=TENSORWISE"),
        )  # fmt: skip
        yield Case(
            "NVFP4 promised, FP8 ran", name,
            _edit(folder, lambda _: False, log=NVFP4, alone=True),
        )  # fmt: skip
        for inputs in (True, False):
            label = f"{name}: {'with' if inputs else 'without'} inputs"
            hidden = _edit(folder, lambda _: True, unknown=True, inputs=inputs)
            yield Case("BF16 under unknown names", label, hidden)
        for seed in range(3):
            number = rng.randrange(1 << 30)
            yield Case("names shuffled", f"{name}: {seed}", _shuffled(folder, number))
        for share in (0.5, 0.75, 0.95):
            yield Case(
                "cut trace of a correct run", f"{name}: {share}", _cut(folder, share)
            )
        for pin in _converted(folder)[:2]:
            line = f"[Override] mxfp8_linear: {pin} MXFP8Linear.Config -> Linear.Config"
            make = _edit(folder, lambda _: False, log=line)
            yield Case(
                "pinned layer in FP8", f"{name}: {pin}", make, "pinned-layer-low"
            )

    yield from _micro_batches(root / ACCUMULATING)


def _of_one_rank(folder: Path) -> Iterator[Case]:
    """Yield what is made of a capture that has one rank."""
    yield Case(
        "correct",
        f"{folder.name}, as two ranks",
        _edit(folder, lambda _: False, ranks=2),
    )
    yield Case(
        "ranks of two runs", folder.name, _two_runs(folder), "rank-of-another-run"
    )
    for kind, low in (
        (RECOMPUTED, True),
        ("the recomputed forward pass in BF16", False),
    ):
        yield Case(kind, folder.name, _recomputed(folder, low=low))


def _of_sizes(folder: Path, gemms: list[Gemm]) -> Iterator[Case]:
    """Yield faults in the layers of one size, as far as their GEMMs record it."""
    # Without its module list nothing says that a recipe keeps a leg in BF16.
    all_legs = sum(gemm.backward for gemm in gemms) == 2 * sum(
        not gemm.backward for gemm in gemms
    )
    if _sizes(gemms) and all_legs:
        label = f"{folder.name}, many steps"
        yield Case("correct", label, _long_run(folder, every=0))
        yield Case("parts below 1 % that add up", label, _long_run(folder, every=4))
    for size in _sizes(gemms):
        label = f"{folder.name}: {' x '.join(map(str, size))}"
        of_size = _of_size(gemms, size)
        leg = _edit(folder, lambda gemm, of=of_size: of(gemm) and not gemm.backward)
        yield Case("one leg of the layers of a size in BF16", label, leg)
        if len(Capture(folder).documents) == 1:
            on_rank = _edit(folder, of_size, 1, ranks=2)
            yield Case("the layers of a size in BF16 on one rank", label, on_rank)


def _micro_batches(folder: Path) -> Iterator[Case]:
    """Yield faults in micro-batches, and other orders of these."""
    parts = sorted({(gemm.step, gemm.pass_number) for gemm in Capture(folder).gemms()})
    for part in [*parts, *sorted({number for _, number in parts})]:
        wrong = _edit(folder, lambda gemm, part=part: part in (
            (gemm.step, gemm.pass_number), gemm.pass_number))  # fmt: skip
        label = f"{ACCUMULATING}: {part}"
        yield Case("one micro-batch of two in BF16", label, wrong, FELL_SHORT)
    gemms = Capture(folder).gemms()
    for size in _sizes(gemms):
        chosen = _of_size(gemms, size)
        wrong = _edit(
            folder, lambda gemm, of=chosen: of(gemm) and gemm.pass_number == 1
        )
        label = f"{ACCUMULATING}: {' x '.join(map(str, size))}"
        kind = "the layers of a size in BF16 in one micro-batch"
        yield Case(kind, label, wrong, f"{FELL_SHORT} leg-not-fp8")
    for order in ("FFBB", "FFbb"):
        sound = _in_order(folder, order, lambda _: False)
        yield Case("a pipeline's order of a correct run", order, sound)
    for number in (0, 1):
        wrong = _in_order(folder, "FFBB", lambda gemm, n=number: gemm.pass_number == n)
        yield Case(
            "one micro-batch in BF16, in a pipeline's order",
            str(number),
            wrong,
            FELL_SHORT,
        )


NVFP4 = "NVFP4 training enabled with recipe nvfp4"
Chosen = Callable[[Gemm], bool]


def _choices(gemms: list[Gemm], *, census: bool) -> Iterator[tuple[str, str, Chosen]]:
    """Yield the classes of faults that are a choice of GEMMs of the first rank."""
    steps = sorted({gemm.step for gemm in gemms if gemm.step >= 0})
    for step in steps if len(steps) > 1 else ():
        yield "one step in BF16", str(step), lambda gemm, step=step: gemm.step == step
    if {gemm.backward for gemm in gemms} == {False, True}:
        yield "one pass in BF16", "fprop", lambda gemm: not gemm.backward
        yield "one pass in BF16", "dgrad and wgrad", lambda gemm: gemm.backward
    forward = defaultdict(list)
    for gemm in gemms:
        if not gemm.backward:
            forward[gemm.step, gemm.pass_number].append(id(gemm.kernel))
    count = min(map(len, forward.values()), default=0)
    for place in range(0, count, max(1, count // 3)):
        chosen = _layers(gemms, {place})
        yield "one layer in BF16", str(place), chosen
    if count > 3 and census:
        half = set(range(count // 2))
        yield "half of the layers in BF16", "the first", _layers(gemms, half)


def _sizes(gemms: list[Gemm]) -> list[tuple[int, ...]]:
    """Return the sizes of layers whose GEMMs record them, if they have several."""
    found = {_size(gemm) for gemm in gemms if not gemm.backward} - {()}
    return sorted(found)[:3] if len(found) > 1 else []


def _size(gemm: Gemm) -> tuple[int, ...]:
    """Return the inputs and outputs of the layer of a forward GEMM, smallest first."""
    dims = gemm.op["args"].get("Input Dims", []) if gemm.op is not None else []
    if gemm.op is None or not gemm.op["name"].startswith("aten::") or len(dims) < 2:
        return ()
    return tuple(sorted(dims[1])) if len(dims[1]) == 2 else ()


def _of_size(gemms: list[Gemm], size: tuple[int, ...]) -> Chosen:
    """Choose all GEMMs of layers of a size, forward and backward."""
    forward: dict[tuple[int, int], list[Gemm]] = defaultdict(list)
    for gemm in gemms:
        if not gemm.backward:
            forward[gemm.step, gemm.pass_number].append(gemm)
    first = next(iter(forward.values()))
    places = {place for place, gemm in enumerate(first) if _size(gemm) == size}
    return _layers(gemms, places)


def _two_runs(folder: Path) -> Callable[[Path], Path]:
    """Let the second of two ranks be of a run in BF16 two hours before."""

    def make(to: Path) -> Path:
        capture = Capture(folder, ranks=2)
        in_bf16(capture.gemms(1))
        document = list(capture.documents.values())[1]
        base = document.get("baseTimeNanoseconds", 0)
        document["baseTimeNanoseconds"] = base - 7200 * 10**9
        return capture.write(to)

    return make


def _in_order(folder: Path, order: str, chosen: Chosen) -> Callable[[Path], Path]:
    """Let both forward passes of a step run before both backward passes.

    FFBB runs the backward pass of the first micro-batch first, FFbb that of the last.
    """

    def make(to: Path) -> Path:
        capture = Capture(folder)
        gemms = capture.gemms()
        in_bf16(gemm for gemm in gemms if chosen(gemm))
        (document,) = capture.documents.values()
        _reorder(document["traceEvents"], order)
        return capture.write(to)

    return make


def _reorder(events: list[Event], order: str) -> None:
    """Move both backward passes of each step behind both forward passes."""
    timed = [e for e in events if "ts" in e and e.get("cat") != "user_annotation"]
    annotations = (e for e in events if e.get("cat") == "user_annotation")
    steps = [e for e in annotations if e["name"].startswith("ProfilerStep#")]
    nodes = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in timed
        if e.get("cat") == "cpu_op" and e["name"].startswith("autograd::engine::evaluate_function")
    )  # fmt: skip
    for step in steps:
        inside = [n for n in nodes if step["ts"] <= n[0] <= step["ts"] + step["dur"]]
        # The forward pass of the second micro-batch runs in the longest pause.
        pause = max(
            range(1, len(inside)),
            key=lambda n: inside[n][0] - inside[n - 1][1],
            default=0,
        )
        if not pause:
            continue
        first, between = inside[0][0], max(end for _, end in inside[:pause])
        second, end = inside[pause][0], max(end for _, end in inside)
        last = end - second if order == "FFbb" else 0.0
        for event in timed:
            if first <= event["ts"] < between:
                event["_shift"] = second - between + last
            elif between <= event["ts"] < end:
                back = event["ts"] < second or order == "FFbb"
                event["_shift"] = first - between if back else 0.0
    for event in timed:
        event["ts"] += event.pop("_shift", 0.0)
    _replay(
        [event for event in timed if event.get("cat") == "kernel"], _launches(timed)
    )


def _replay(kernels: list[Event], launches: dict[Any, Event]) -> None:
    """Let the kernels of each stream run in the order of their launches."""
    free: dict[Any, float] = defaultdict(float)
    ready = [(launches.get(k["args"].get("correlation"), k)["ts"], k) for k in kernels]
    for launch, kernel in sorted(ready, key=lambda pair: pair[0]):
        stream = kernel["args"].get("stream")
        kernel["ts"] = max(launch + 5, free[stream])
        free[stream] = kernel["ts"] + kernel["dur"]


def _recomputed(folder: Path, *, low: bool) -> Callable[[Path], Path]:
    """Run the forward pass of each step again where the backward pass begins.

    That is what `checkpoint(model, x, use_reentrant=False)` does: the first node that needs a saved
    tensor runs all of it again, in the thread of autograd.
    """

    def make(to: Path) -> Path:
        capture = Capture(folder)
        (document,) = capture.documents.values()
        gemms = capture.gemms()
        for step in sorted(
            {gemm.step for gemm in gemms if gemm.step >= 0}, reverse=True
        ):
            _run_again(
                document["traceEvents"], [gemm for gemm in gemms if gemm.step == step]
            )
        again = (
            one
            for one in capture.gemms()
            if one.kernel["args"]["correlation"] >= _COPIES
        )
        in_bf16(() if low else (gemm._replace(backward=False) for gemm in again))
        return capture.write(to)

    return make


_COPIES = 10_000_000  # the first correlation of copies of launches


def _run_again(events: list[Event], gemms: list[Gemm]) -> None:
    """Put a copy of a step's forward pass into the first node of its backward pass."""
    launches = _launches(events)
    ops = [event for event in events if event.get("cat") == "cpu_op"]

    def around(gemm: Gemm) -> list[Event]:
        launch = launches[gemm.kernel["args"]["correlation"]]
        found = (
            op for op in ops if op["tid"] == launch["tid"] and _spans(op, launch["ts"])
        )
        return sorted(found, key=lambda op: op["ts"])

    forward = [gemm for gemm in gemms if not gemm.backward]
    outer = around(forward[0])[0]
    begin, last = outer["ts"], around(forward[-1])[0]
    length = last["ts"] + last["dur"] - begin + 1
    first = next(gemm for gemm in gemms if gemm.backward)
    node = [op for op in around(first) if re.fullmatch(r"\w*Backward\d*", op["name"])][
        -1
    ]
    on_cpu = [
        event for event in events
        if event.get("cat") in ("cpu_op", *_LAUNCHES) and event["tid"] == outer["tid"]
        and begin <= event["ts"] < begin + length
    ]  # fmt: skip
    numbers = {event["args"].get("correlation", -1) for event in on_cpu} - {-1}
    on_gpu = [e for e in events if e.get("cat") in _ON_GPU and _number(e) in numbers]
    copies = copy.deepcopy([*on_cpu, *on_gpu])
    at = node["ts"] + 0.1
    for event in (e for e in events if "ts" in e):
        if event["ts"] > at:
            event["ts"] += length
        elif event.get("cat") not in _ON_GPU and _spans(event, at):
            event["dur"] += length
    for event in copies:
        event["ts"] += at + 0.5 - begin
        if event["cat"] not in _ON_GPU:
            event["tid"] = node["tid"]
        for key in _NUMBERS & event["args"].keys():
            event["args"][key] += _COPIES
    events += copies
    _replay(
        [event for event in events if event.get("cat") == "kernel"], _launches(events)
    )


_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_NUMBERS = {"External id", "correlation", "Sequence number"}


def _number(event: Event) -> Any:
    return event["args"].get("correlation")


def _launches(events: Iterable[Event]) -> dict[Any, Event]:
    """Return the launches by their correlation."""
    return {
        e["args"]["correlation"]: e for e in events
        if e.get("cat") in _LAUNCHES and "correlation" in e.get("args", {})
    }  # fmt: skip


def _spans(event: Event, time: float) -> bool:
    return "dur" in event and event["ts"] <= time <= event["ts"] + event["dur"]


def _long_run(folder: Path, *, every: int) -> Callable[[Path], Path]:
    """Repeat the steps up to 12 or more; run one size of layers forward in BF16 in some of them.

    It is the size with the least time, below 1 % of all in a step. The module list says how many
    steps there were, so that it stays behind.
    """

    def make(to: Path) -> Path:
        capture = Capture(folder)
        for document in capture.documents.values():
            document.pop("fp8verify", None)
            _repeat(document["traceEvents"])
        gemms = capture.gemms()
        time_of: dict[tuple[int, ...], float] = defaultdict(float)
        for gemm in gemms:
            if not gemm.backward and _size(gemm):
                time_of[_size(gemm)] += gemm.kernel["dur"]
        least = min(time_of, key=lambda size: time_of[size])
        in_bf16(
            gemm for gemm in gemms
            if every and gemm.step % every == 1 and not gemm.backward and _size(gemm) == least
        )  # fmt: skip
        return capture.write(to, alone=True)

    return make


def _repeat(events: list[Event]) -> None:
    """Add the whole recording again behind itself, with steps that are numbered on."""
    timed = [event for event in events if event.get("ph") == "X" and "ts" in event]
    timed = [
        event
        for event in timed
        if event.get("cat") in ("user_annotation", "cpu_op", *_LAUNCHES, *_ON_GPU)
    ]
    steps = len({e["name"] for e in timed if e["name"].startswith("ProfilerStep#")})
    begin = min(event["ts"] for event in timed)
    length = max(event["ts"] + event["dur"] for event in timed) - begin + 100
    for turn in range(1, -(-12 // max(steps, 1))):
        for event in copy.deepcopy(timed):
            event["ts"] += turn * length
            for key in _NUMBERS & event.get("args", {}).keys():
                event["args"][key] += turn * _COPIES
            name, _, number = event["name"].partition("#")
            if name == "ProfilerStep":
                event["name"] = f"{name}#{int(number) + turn * steps}"
            events.append(event)


def _layers(gemms: list[Gemm], places: set[int]) -> Chosen:
    """Choose layers by their places in a pass; the gradients come in the opposite order."""
    wanted: set[Any] = set()
    groups: dict[tuple[int, int, bool], list[Gemm]] = defaultdict(list)
    for gemm in gemms:
        groups[gemm.step, gemm.pass_number, gemm.backward].append(gemm)
    for (step, number, backward), found in groups.items():
        if backward:
            count = len(groups[step, number, False])
            each = len(found) / count if count else 1
            places_back = {
                int((count - 1 - p) * each + i)
                for p in places
                for i in range(round(each))
            }
            wanted |= {_key(found[p]) for p in places_back if p < len(found)}
        else:
            wanted |= {_key(found[p]) for p in places if p < len(found)}
    return lambda gemm: _key(gemm) in wanted


def _key(gemm: Gemm) -> Any:
    return gemm.kernel["ts"], gemm.kernel["args"].get("correlation")


def _edit(
    folder: Path,
    chosen: Chosen,
    rank: int = 0,
    *,
    ranks: int = 1,
    log: str | None = None,
    unknown: bool = False,
    inputs: bool = True,
    alone: bool = False,
) -> Callable[[Path], Path]:
    def make(to: Path) -> Path:
        capture = Capture(folder, ranks=ranks)
        edited = range(len(capture.documents)) if log and rank == 0 else (rank,)
        for number in edited:
            found = [gemm for gemm in capture.gemms(number) if chosen(gemm)]
            in_bf16(found, "acme_kernel_v3" if unknown else None, inputs=inputs)
        return capture.write(to, log, alone=alone)

    return make


def _shuffled(folder: Path, seed: int) -> Callable[[Path], Path]:
    """Give all kernels of the first rank each other's names."""

    def make(to: Path) -> Path:
        capture = Capture(folder)
        for document in capture.documents.values():
            kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
            names = [kernel["name"] for kernel in kernels]
            random.Random(seed).shuffle(names)
            for kernel, name in zip(kernels, names, strict=True):
                kernel["name"] = name
        return capture.write(to)

    return make


def _cut(folder: Path, share: float) -> Callable[[Path], Path]:
    def make(to: Path) -> Path:
        Capture(folder).write(to)
        for file in to.glob("rank*.json.gz"):
            data = gzip.decompress(file.read_bytes())
            file.write_bytes(
                gzip.compress(data[: int(len(data) * share)], compresslevel=1)
            )
        return to

    return make


def _converted(folder: Path) -> list[str]:
    meta = folder / "rank0.meta.json"
    modules = json.loads(meta.read_text()).get("modules", []) if meta.exists() else []
    found = [m["fqn"] for m in modules if m["state"] == "fp8" and m["kind"] == "linear"]
    return found[:1] + found[-1:]


class Outcome(NamedTuple):
    """What the command said of a case."""

    case: Case
    verdict: str
    exit_code: int
    codes: frozenset[str]

    @property
    def answer(self) -> str:
        """Return right, false accept, false reject or no answer."""
        if self.case.wanted is not None:
            return (
                "right"
                if self.codes & set(self.case.wanted.split())
                else "false accept"
            )
        if self.verdict == "INCONCLUSIVE":
            return "no answer"
        if self.case.kind.startswith("a pipeline"):
            return "false reject" if self.codes & set(FELL_SHORT.split()) else "right"
        if self.case.kind in ("correct", RECOMPUTED):
            return (
                "right"
                if self.verdict == "ACTIVE" and self.exit_code == 0
                else "false reject"
            )
        if self.case.kind.startswith("cut"):
            return "right" if self.verdict in ("ACTIVE", "PARTIAL") else "false reject"
        return (
            "false accept"
            if self.verdict == "ACTIVE" and not self.exit_code
            else "right"
        )


def inspect(case: Case, command: list[str], place: Path) -> Outcome:
    """Build a case, and ask the command."""
    folder = case.make(place)
    done = subprocess.run(
        [*command, "inspect", str(folder), "--format", "json"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    shutil.rmtree(folder)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return Outcome(
            case, f"no report: {done.stderr[-200:]}", done.returncode, frozenset()
        )
    codes = frozenset(finding["code"] for finding in report["findings"])
    return Outcome(case, report["verdict"], done.returncode, codes)


def upper(errors: int, n: int) -> float:
    """Return the upper end of the 95% interval of an error rate (Clopper and Pearson)."""
    low, high = errors / n if n else 0.0, 1.0
    for _ in range(40):
        rate = (low + high) / 2
        at_most = sum(
            comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(errors + 1)
        )
        low, high = (rate, high) if at_most > 0.025 else (low, rate)
    return high


def table(outcomes: list[Outcome]) -> str:
    """Return the table by class, and what all faults of the decidable classes come to."""
    wrong = [
        o
        for o in outcomes
        if o.case.kind not in SOUND_CLASSES and CLASSES[o.case.kind][0]
    ]
    accepted = sum(o.answer == "false accept" for o in wrong)
    rows = [
        "# Error rates of the verdict",
        "",
        (
            f"`benchmarks/truth.py`, {time.strftime('%Y-%m-%d')}: of {len(wrong)} faults that the "
            f"evidence can decide {accepted} were accepted as correct "
            f"(95% bound: {upper(accepted, len(wrong)):.1%})."
        ),
        "",
        (
            "| class | decidable | n | false accepts | false rejects | no answer | 95% bound | "
            "recorded as it ran |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, (decidable, why, recorded) in CLASSES.items():
        found = [outcome.answer for outcome in outcomes if outcome.case.kind == kind]
        said = "yes" if decidable else f"no: {why}"
        if not found:
            rows.append(f"| {kind} | {said} | 0 | - | - | - | - | {recorded} |")
            continue
        accepts, rejects = found.count("false accept"), found.count("false reject")
        bound = f"{upper(accepts + rejects, len(found)):.1%}"
        rows.append(
            f"| {kind} | {said} | {len(found)} | {accepts} | {rejects} | "
            f"{found.count('no answer')} | {bound} | {recorded} |"
        )
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run all cases and write the table; 1 where a decidable class has a false accept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cmd", default="fp8verify")
    parser.add_argument("--captures", type=Path, default=Path("traces"))
    parser.add_argument("--only", default="", help="classes with this in their name")
    parser.add_argument(
        "--every", type=int, default=1, help="of N cases take the first"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    rng = random.Random(26)
    wanted = [case for case in cases(given.captures, rng) if given.only in case.kind]
    wanted = wanted[:: given.every]
    with (
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        places = (
            Path(scratch) / str(number) / "capture" for number in range(len(wanted))
        )
        command = shlex.split(given.cmd)
        outcomes = list(pool.map(lambda pair: inspect(pair[0], command, pair[1]),
                                 zip(wanted, places, strict=True)))  # fmt: skip
    text = table(outcomes)
    sys.stdout.write(text)
    wrong = [one for one in outcomes if one.answer.startswith("false")]
    for one in wrong:
        sys.stdout.write(
            f"{one.answer}: {one.case.kind}, {one.case.capture}: {one.verdict}\n"
        )
    if given.output is not None:
        given.output.write_text(text)
    decided = [one for one in wrong if CLASSES[one.case.kind][0]]
    return int(any(one.answer == "false accept" for one in decided))


if __name__ == "__main__":
    sys.exit(main())
