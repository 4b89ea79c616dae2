"""Read the Chrome trace of JAX's and XLA's profiler: streams of GPUs, without a category an event.

xprof's trace_viewer (`*.trace.json.gz`, or perfetto_trace.json.gz) has a process for each device,
called "/device:GPU:n", and a thread for each stream of it, called "Stream #n(…)". Its other threads
are sums over operations of XLA. It writes a million events at most.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct, field

from fp8verify.trace.kineto.collector import MAX_MICROS
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import Glance, Reading, Source, not_a_trace
from fp8verify.trace.tables import Trace

_DEVICE = re.compile(r"/device:GPU:(\d{1,4})\b")
_STREAM = re.compile(r"Stream #(\d{1,9})")
_MAX_BYTES = 1 << 30
_Id = int | str


class _Args(Struct, gc=False):
    name: str = ""


class _Event(Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: _Id = 0
    tid: _Id = 0
    ts: float = -1.0
    dur: float = -1.0
    args: _Args = field(default_factory=_Args)


class _Document(Struct, gc=False):
    events: list[_Event] = field(name="traceEvents")


def glance(source: Source) -> Glance:
    """Take the file for a trace: its first events name a GPU."""
    del source
    return Glance(is_trace=True)


def read(source: Source, how: Reading) -> Trace:
    """Read the kernels of all GPUs.

    Raises:
        InputError: the bytes are not JSON, or hold no list of events.
    """
    try:
        events = msgspec.json.decode(source.whole(_MAX_BYTES), type=_Document).events
    except (ValueError, RecursionError):
        raise not_a_trace(source, "JSON") from None
    devices: dict[_Id, int] = {}
    streams: dict[tuple[_Id, _Id], int] = {}
    for event in events:
        if event.name == "process_name" and (found := _DEVICE.search(event.args.name)):
            devices[event.pid] = int(found[1])
        elif event.name == "thread_name" and (found := _STREAM.match(event.args.name)):
            streams[event.pid, event.tid] = int(found[1])
    launches = []
    for event in events:
        device = devices.get(event.pid)
        stream = streams.get((event.pid, event.tid))
        is_timed = 0 <= event.ts <= MAX_MICROS and 0 <= event.dur <= MAX_MICROS
        if event.ph == "X" and is_timed and device is not None and stream is not None:
            begin = round(1000 * event.ts)
            length = round(1000 * event.dur)
            launches.append((event.name, begin, begin + length, device, stream, None))
    trace = Trace(source=source.name)
    rows = RowCollector()
    rows.launches(launches)
    rows.fill(trace, "JAX", layers=how.layers)
    trace.health.events = len(events)
    return trace
