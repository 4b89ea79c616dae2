"""A trace of another tool as the JSON that Chrome and Perfetto show: its kernels and its steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from fp8verify.trace import Trace

# Devices of a process, so that the numbers of several processes differ.
_DEVICES = 100
_BATCH = 1000
_encode = msgspec.json.encode

HEAD = b'{"schemaVersion": 1, "traceEvents": [\n'
TAIL = b"\n]}\n"


class ChromeEvents:
    """The events of one process, as bytes: whole, in the order of the kernels."""

    damage: str | None = None
    descriptor: int | None = None

    def __init__(self, trace: Trace, place: int) -> None:
        self._trace, self._first = trace, place * _DEVICES

    def __iter__(self) -> Iterator[bytes]:
        events = self._events()
        separator = b""
        while batch := list(islice(events, _BATCH)):
            yield separator + b",\n".join(batch)
            separator = b",\n"

    def _events(self) -> Iterator[bytes]:
        for device in sorted(set(self._trace.kernels.device)):
            title = {"name": f"{self._trace.source}: GPU {device}"}
            yield _encode(
                {"ph": "M", "name": "process_name", "pid": self._pid(device), "args": title}
            )
        for step in self._trace.steps:
            times = _times(step.start_ns, step.end_ns - step.start_ns)
            place = {"pid": self._first, "tid": -1}
            name = f"ProfilerStep#{step.number}"
            yield _encode({"ph": "X", "cat": "user_annotation", "name": name, **place, **times})
        yield from self._kernels()

    def _kernels(self) -> Iterator[bytes]:
        trace, columns = self._trace, self._trace.kernels
        names = [_encode(name) for name in trace.names]
        rows = zip(
            columns.name,
            columns.start_ns,
            columns.duration_ns,
            columns.device,
            columns.stream,
            columns.op,
            strict=True,
        )
        for name, start, duration, device, stream, op in rows:
            place = {"pid": self._pid(device), "tid": stream}
            args = {"device": device, "stream": stream}
            said = args if op < 0 else {**args, "operator": trace.ops[op].name}
            rest = _encode({**place, **_times(start, duration), "args": said})
            yield b'{"ph": "X", "cat": "kernel", "name": %s, %s' % (names[name], rest[1:])

    def _pid(self, device: int) -> int:
        return self._first + max(device, 0) % _DEVICES


def _times(start_ns: int, duration_ns: int) -> dict[str, msgspec.Raw]:
    return {"ts": _micros(start_ns), "dur": _micros(duration_ns)}


def _micros(nanoseconds: int) -> msgspec.Raw:
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 1000)
    return msgspec.Raw(f"{sign}{whole}.{rest:03}".encode())
