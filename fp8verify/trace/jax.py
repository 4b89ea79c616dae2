"""Read the Chrome trace of JAX's and XLA's profiler: streams of GPUs, without a category an event.

xprof's trace_viewer (`*.trace.json.gz`, or perfetto_trace.json.gz) has a process for each device,
called "/device:GPU:n", and a thread for each stream of it, called "Stream #n(…)". Its other threads
are sums over operations of XLA. It writes a million events at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct, field

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.kineto.collector import MAX_MICROS
from fp8verify.trace.rows import Row, RowCollector
from fp8verify.trace.source import Glance, Reading, Source, not_a_trace
from fp8verify.trace.tables import Trace

_DEVICE = lazy_pattern(r"/device:GPU:(\d{1,4})\b")
_STREAM = lazy_pattern(r"Stream #(\d{1,9})")
_MAX_BYTES = 1 << 30
# An event is an object with one for its arguments; strings may have a brace, too.
_OBJECTS_OF_EVENT = 8
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


def _events(data: bytes) -> list[_Event]:
    return msgspec.json.decode(data, type=_Document).events


def _events_of_cut(data: bytes) -> list[_Event]:
    """Return the whole events of a document that ends early, none if it is damaged elsewhere.

    An object that ends is an event, or the arguments of one that does not.
    """
    end = len(data)
    for _ in range(_OBJECTS_OF_EVENT):
        end = data.rfind(b"}", 0, end)
        if end < 0:
            break
        whole = data[: end + 1]
        try:
            return _events(whole + b"]}")
        except (ValueError, RecursionError):
            continue
    return []


def _launches(events: Sequence[_Event]) -> Iterator[Row]:
    """Yield the kernels and copies, whose threads are streams of a device."""
    devices: dict[_Id, int] = {}
    streams: dict[tuple[_Id, _Id], int] = {}
    for event in events:
        called = event.args.name
        if event.name == "process_name":
            device_name = _DEVICE.search(called)
            if device_name is not None:
                devices[event.pid] = int(device_name[1])
        elif event.name == "thread_name":
            stream_name = _STREAM.match(called)
            if stream_name is not None:
                streams[event.pid, event.tid] = int(stream_name[1])
    for event in events:
        device = devices.get(event.pid)
        stream = streams.get((event.pid, event.tid))
        if device is None or stream is None:
            continue
        is_timed = 0 <= event.ts <= MAX_MICROS and 0 <= event.dur <= MAX_MICROS
        if event.ph == "X" and is_timed:
            begin = round(1000 * event.ts)
            end = begin + round(1000 * event.dur)
            yield event.name, begin, end, device, stream, None


def read(source: Source, how: Reading) -> Trace:
    """Read the kernels of all GPUs.

    Raises:
        InputError: the bytes are not JSON, or hold no list of events.
    """
    data = source.whole(_MAX_BYTES)
    is_cut = False
    try:
        events = _events(data)
    except (ValueError, RecursionError):
        events = _events_of_cut(data)
        is_cut = True
    if not events:
        raise not_a_trace(source, "JSON")
    trace = Trace(source=source.name)
    rows = RowCollector()
    rows.launches(_launches(events))
    rows.fill(trace, "JAX", layers=how.layers)
    trace.health.events = len(events)
    trace.health.truncated = is_cut or source.damage is not None
    return trace
