"""Read the Chrome trace of JAX's and XLA's profiler: streams of GPUs, without a category an event.

xprof's trace_viewer (`*.trace.json.gz`, or perfetto_trace.json.gz) has a process for each device,
called "/device:GPU:n", and a thread for each stream of it, called "Stream #n(…)". Its other threads
are sums over operations of XLA.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct, field

from fp8verify.trace.kineto.document import Buffer, Document
from fp8verify.trace.kineto.events import MAX_MICROS
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import Glance, Reading, Source, not_a_trace
from fp8verify.trace.tables import Trace

_DEVICE = re.compile(r"/device:GPU:(\d{1,4})\b")
_STREAM = re.compile(r"Stream #(\d{1,9})")
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


class _Sink:
    """Takes events: the names of processes and threads, and what ran on them."""

    def __init__(self) -> None:
        self.events = self.skipped = 0
        self.devices: dict[_Id, int] = {}
        self.streams: dict[tuple[_Id, _Id], int] = {}
        self.ran: list[tuple[_Id, _Id, str, int, int]] = []
        self._block = msgspec.json.Decoder(list[_Event])

    def block(self, data: bytes) -> bool:
        try:
            events = self._block.decode(data)
        except (ValueError, RecursionError):
            return False
        for event in events:
            self._add(event)
        return True

    def event(self, data: bytes, scanned: Any) -> None:
        del scanned
        if data.strip(b" {}\r\n\t") and not self.block(b"[%b]" % data):
            self.skip()

    def skip(self) -> None:
        self.skipped += 1

    def _add(self, event: _Event) -> None:
        self.events += 1
        if event.ph == "M" and event.name == "process_name":
            if found := _DEVICE.search(event.args.name):
                self.devices[event.pid] = int(found[1])
        elif event.ph == "M" and event.name == "thread_name":
            if found := _STREAM.match(event.args.name):
                self.streams[event.pid, event.tid] = int(found[1])
        elif event.ph == "X" and 0 <= event.ts <= MAX_MICROS and 0 <= event.dur <= MAX_MICROS:
            begin = round(1000 * event.ts)
            row = (event.pid, event.tid, event.name, begin, begin + round(1000 * event.dur))
            self.ran += [row] if not self.devices or event.pid in self.devices else []


def glance(source: Source) -> Glance:
    """Take the file for a trace: its first events name a GPU."""
    del source
    return Glance(is_trace=True)


def read(source: Source, how: Reading) -> Trace:
    """Read the kernels of all GPUs.

    Raises:
        InputError: the bytes are not JSON, or hold no list of events.
    """
    trace, sink, rows = Trace(source=source.name), _Sink(), RowCollector()
    document = Document(Buffer(source, source.name), lambda *_: None, sink, how.block_size)
    document.read()
    if not document.is_trace:
        raise not_a_trace(source, "a trace: no list of events in it")
    rows.launches(
        (name, begin, end, sink.devices[pid], sink.streams[pid, tid], -1)
        for pid, tid, name, begin, end in sink.ran
        if pid in sink.devices and (pid, tid) in sink.streams
    )
    rows.fill(trace, "JAX", layers=how.layers)
    trace.health.events, trace.health.skipped_events = sink.events, sink.skipped
    trace.health.truncated = not document.closed or source.damage is not None
    return trace
