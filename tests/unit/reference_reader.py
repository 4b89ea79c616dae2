"""The trace reader once more, slow and plain: the whole document, one dict an event.

It states the semantics that the streaming reader must have, sharing none of its code.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple

from fp8verify.terms import Collective, OpContext
from fp8verify.text import clean
from fp8verify.trace import Trace

OPS = {"cpu_op"}
RANGES = OPS | {"user_annotation"}
CALLS = {"cuda_runtime", "cuda_driver"}
KERNELS = {"kernel"}
COPIES = {"gpu_memcpy": "memcpy", "gpu_memset": "memset"}


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


class Reading(NamedTuple):
    kernels: list[KernelRow]
    steps: list[tuple[int, int, int]]
    copies: dict[str, tuple[int, int, int]]
    events: int
    bad_durations: int


def view(trace: Trace) -> Reading:
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
            collective=trace.collectives[k.collective[i]] if k.collective[i] >= 0 else None,
        )
        for i in range(len(k))
    ]
    steps = [(s.number, s.start_ns, s.end_ns) for s in trace.steps]
    return Reading(rows, steps, trace.copies, trace.health.events, trace.health.bad_durations)


def reference_read(raw: bytes) -> Reading:
    """Read a sound trace from its bytes."""
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = json.loads(text, parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    return _Reference(events).reading()


def _ns(micros: Any) -> int:
    return int((Decimal(micros) * 1000).to_integral_value(ROUND_HALF_EVEN))


def _arg(event: dict[str, Any], name: str, default: Any = -1) -> Any:
    return event.get("args", {}).get(name, default)


class _Range:
    def __init__(self, event: dict[str, Any]) -> None:
        self.event = event
        self.name = clean(event["name"])
        self.start = _ns(event["ts"])
        self.end = self.start + _ns(event.get("dur", 0))
        self.is_step = self.name.startswith("ProfilerStep#")
        self.is_op = event["cat"] in OPS and not self.is_step
        self.thread = (event.get("pid", 0), event.get("tid", 0))
        self.external_id = _arg(event, "External id")


class _Reference:
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.parents: dict[_Range, _Range | None] = {}
        self.ranges = [_Range(e) for e in events if e.get("cat") in RANGES]
        self.threads: dict[Any, list[_Range]] = defaultdict(list)
        for item in sorted(self.ranges, key=lambda r: (r.start, -r.end, r.event["cat"] in OPS)):
            item.position = len(self.threads[item.thread])  # type: ignore[attr-defined]
            self.threads[item.thread].append(item)
        self.by_external_id = {r.external_id: r for r in self.ranges if r.is_op}
        self.calls: dict[int, dict[str, Any]] = {}
        for event in events:
            if event.get("cat") in CALLS:
                self.calls.setdefault(_arg(event, "correlation"), event)

    def reading(self) -> Reading:
        steps = self.steps()
        limit = self.span()
        kernels = self.kernels()
        bad = [e for e in kernels if not 0 <= _ns(e["dur"]) <= limit]
        rows = [self.row(e, 0 if e in bad else _ns(e["dur"]), steps) for e in kernels]
        return Reading(rows, steps, self.copies(), len(self.events), len(bad))

    def kernels(self) -> list[dict[str, Any]]:
        """The kernels; of records of one launch that are all the same, the first."""
        found: dict[Any, dict[str, Any]] = {}
        for place, event in enumerate(e for e in self.events if e.get("cat") in KERNELS):
            found.setdefault(_record(event) if _arg(event, "correlation") >= 0 else place, event)
        return list(found.values())

    def steps(self) -> list[tuple[int, int, int]]:
        """The longest of the ranges of a number that overlap; those apart if not empty."""
        ranges: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for r in sorted(self.ranges, key=lambda r: r.start):
            if re.fullmatch(r"ProfilerStep#[0-9]{1,17}", r.name):
                number = int(r.name.partition("#")[2])
                ranges[number].append((number, r.start, r.end))
        found = [step for same in ranges.values() for step in self.apart(same)]
        found.sort(key=lambda s: (s[1], s[0]))
        if len(found) > 1 and self.is_empty(found[-1]):
            found.pop()
        return found

    def apart(self, ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        groups: list[list[tuple[int, int, int]]] = []
        for step in ranges:
            if groups and step[1] <= max(known[2] for known in groups[-1]):
                groups[-1].append(step)
            else:
                groups.append([step])
        longest = [max(group, key=_length) for group in groups]
        always = max(longest, key=_length)
        return [step for step in longest if step == always or not self.is_empty(step)]

    def is_empty(self, step: tuple[int, int, int]) -> bool:
        calls = [_ns(e["ts"]) for e in self.events if e.get("cat") in CALLS]
        starts = [r.start for r in self.ranges if not r.is_step] + calls
        return not any(step[1] <= start <= step[2] for start in starts)

    def span(self) -> float:
        """The longest that a kernel can have run: from the first event to the CPU's last."""
        kernels = [_ns(e["ts"]) for e in self.events if e.get("cat") in KERNELS]
        calls = [e for e in self.events if e.get("cat") in CALLS]
        starts = [r.start for r in self.ranges] + [_ns(e["ts"]) for e in calls]
        if not starts:
            return 3.6e12
        ends = [r.end for r in self.ranges] + [_ns(e["ts"]) + _ns(e.get("dur", 0)) for e in calls]
        return max(ends + kernels) - min(starts + kernels)

    def copies(self) -> dict[str, tuple[int, int, int]]:
        found: dict[str, tuple[int, int, int]] = {}
        for event in self.events:
            if kind := COPIES.get(event.get("cat", "")):
                count, time, size = found.get(kind, (0, 0, 0))
                found[kind] = (
                    count + 1,
                    time + _ns(event.get("dur", 0)),
                    size + _arg(event, "bytes", default=0),
                )
        return found

    def row(self, event: dict[str, Any], duration: int, steps: list[Any]) -> KernelRow:
        correlation = _arg(event, "correlation")
        external_id = _arg(event, "External id")
        call = self.calls.get(correlation) if correlation != -1 else None
        op = None
        if external_id not in (-1, correlation):
            op = self.by_external_id.get(external_id)
        if op is None and call is not None:
            op = self.innermost_op(call)
        time = _ns(call["ts"]) if call else op.start if op else None
        return KernelRow(
            name=clean(event["name"]),
            start_ns=_ns(event["ts"]),
            duration_ns=duration,
            device=_arg(event, "device"),
            stream=_arg(event, "stream"),
            op=self.context(op) if op else None,
            step=_step_at(steps, time),
            launch=2 if op else 1 if call else 0,
            collective=_collective(event),
        )

    def innermost_op(self, call: dict[str, Any]) -> _Range | None:
        thread = self.threads[(call.get("pid", 0), call.get("tid", 0))]
        time = _ns(call["ts"])
        around = [r for r in thread if r.start <= time <= r.end]
        found = around[-1] if around else None
        while found and not found.is_op:
            found = self.parent(found)
        return found

    def parent(self, item: _Range) -> _Range | None:
        if item not in self.parents:
            self.parents[item] = self.find_parent(item)
        return self.parents[item]

    def find_parent(self, item: _Range) -> _Range | None:
        thread = self.threads[item.thread]
        for position in range(item.position - 1, -1, -1):  # type: ignore[attr-defined]
            other = thread[position]
            inside = other.end > item.start
            if inside or (other.end == item.start == item.end):
                return other
        return None

    def context(self, op: _Range) -> OpContext:
        chain = [op]
        while (outer := self.parent(chain[-1])) and not outer.is_step:
            chain.append(outer)
        args = op.event.get("args", {})
        return OpContext(
            name=_stable(op.name),
            types=tuple(args.get("Input type", ())),
            dims=tuple(
                tuple(shape) if all(isinstance(n, int) for n in shape) else ()
                for shape in args.get("Input Dims", ())
            ),
            parents=tuple(_stable(r.name) for r in chain[1:17]),
            backward=any(map(_is_backward, chain)),
        )


def _stable(name: str) -> str:
    name = re.sub(r"^## Call (\w+) \w+ ##$", r"## Call \1 ##", name)
    return "Torch-Compiled Region" if name.startswith("Torch-Compiled Region: ") else name


def _is_backward(item: _Range) -> bool:
    return bool(
        (item.is_op and _arg(item.event, "Fwd thread id", default=0))
        or item.name.startswith("autograd::engine::evaluate_function:")
        or re.search(r"Backward[0-9]*$", item.name)
    )


def _collective(event: dict[str, Any]) -> Collective | None:
    if not _arg(event, "Collective name", default=""):
        return None
    return Collective(
        name=_arg(event, "Collective name"),
        dtype=_arg(event, "dtype", default=""),
        in_elements=_arg(event, "In msg nelems", default=0),
        out_elements=_arg(event, "Out msg nelems", default=0),
        group_size=_arg(event, "Group size", default=0),
    )


def _record(event: dict[str, Any]) -> tuple[Any, ...]:
    args = ("correlation", "device", "stream", "External id")
    return (event["name"], _ns(event["ts"]), _ns(event["dur"]), *(_arg(event, a) for a in args))


def _length(step: tuple[int, int, int]) -> tuple[int, int]:
    return step[2] - step[1], -step[1]


def _step_at(steps: list[Any], time: int | None) -> int | None:
    begun = [s for s in steps if time is not None and s[1] <= time]
    return begun[-1][0] if begun and time <= begun[-1][2] else None  # type: ignore[operator]
