"""Copy the bytes of a trace, adding text to its GEMM kernels and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fp8verify.annotate.labels import Label, Labels
from fp8verify.report.model import Precision
from fp8verify.trace.formats import BLOCK_SIZE
from fp8verify.trace.kineto.buffer import Buffer
from fp8verify.trace.kineto.document import Document
from fp8verify.trace.kineto.event_list import BOUNDARY
from fp8verify.trace.kineto.events import KERNEL
from fp8verify.trace.kineto.metadata import Metadata
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.source import ByteStream, open_stream

CATEGORY = "fp8verify"
_KERNEL = re.compile(rb'"cat"\s*:\s*"kernel"')
_ARGS = re.compile(rb'"args"\s*:\s*\{(?P<empty>\s*\})?')
_TAIL = 1 << 16
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# Colour names that chrome://tracing knows (catapult, color_scheme.html). Perfetto ignores them by
# design (google/perfetto#624) and colours by name instead: the precision track is for it.
_COLOURS = {
    Precision.FP8: "good",
    Precision.MXFP8: "good",
    Precision.NVFP4: "rail_response",
    Precision.MXFP4: "rail_response",
    Precision.FP4: "rail_response",
    Precision.INT8: "rail_response",
    Precision.UNKNOWN: "grey",
}
_OTHER_COLOUR = "bad"
# Streams have small numbers; their precision tracks stand beside them under these.
_TRACK = 10_000_000

_scan = json.JSONDecoder(strict=False, parse_float=str, parse_int=str).raw_decode
_encoder = msgspec.json.Encoder()


def events_offset(path: Path) -> int:
    """Return how many bytes of the unpacked trace come before its first event.

    Raises:
        InputError: the file cannot be read.
    """
    with reading(path), open_binary(path) as file:
        counted = _Counted(open_stream(file, path.name))
        buffer = Buffer(counted, path.name)
        Document(buffer, None, Metadata()).read()
        return counted.size - (len(buffer.data) - buffer.pos)


class _Counted:
    """The pieces of a stream, counted as they are taken."""

    def __init__(self, stream: ByteStream) -> None:
        self.size = 0
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self.size += len(piece)
            yield piece


class Rewriter:
    """One copy of a trace; `counts` are the GEMM kernels labelled so far by precision."""

    def __init__(self, labels: Labels, write: Callable[[bytes | bytearray], object]) -> None:
        self.counts: Counter[str] = Counter()
        self._labels, self._write = labels, write
        self._tracks: set[tuple[str, str]] = set()
        self._points: set[int] = set()

    def run(self, stream: ByteStream, name: str, offset: int) -> None:
        """Copy a stream whose events begin after `offset` bytes."""
        buffer = Buffer(stream, name)
        self._skip(buffer, offset)
        while True:
            buffer.fill(BLOCK_SIZE)
            end = len(buffer.data) if buffer.ended else self._last_boundary(buffer)
            if end > buffer.pos:
                self._copy(buffer.data, buffer.pos, end)
                buffer.pos = end
            elif not buffer.grow():
                break
        self._write(buffer.data[buffer.pos :])

    def _skip(self, buffer: Buffer, size: int) -> None:
        """Copy the metadata before the events."""
        while size > 0:
            buffer.fill(min(size, BLOCK_SIZE))
            part = buffer.data[buffer.pos : buffer.pos + size]
            if not part:
                return
            self._write(part)
            buffer.pos += len(part)
            size -= len(part)

    @staticmethod
    def _last_boundary(buffer: Buffer) -> int:
        """Return where the last event of the window begins, `pos` if it holds no other."""
        data = buffer.data
        for start in (max(buffer.pos, len(data) - _TAIL), buffer.pos):
            end = buffer.pos
            for match in BOUNDARY.finditer(data, start):
                end = match.end()
            if end > buffer.pos:
                return end
        return buffer.pos

    def _copy(self, data: bytearray, start: int, end: int) -> None:
        """Copy whole events; most blocks hold no kernel and go as they are."""
        if not _KERNEL.search(data, start, end):
            self._write(data[start:end])
            return
        for match in BOUNDARY.finditer(data, start, end):
            self._write(self._event(bytes(data[start : match.end()])))
            start = match.end()
        self._write(self._event(bytes(data[start:end])))

    def _event(self, text: bytes) -> bytes:
        """Return an event, and what follows it up to the next, with its label if it is a GEMM."""
        if not _KERNEL.search(text):
            return text
        event = _parse(text)
        known = None if event is None else self._labels.take(event.name, event.duration_ns)
        if event is None or known is None or known.label is None:
            return text
        self.counts[known.label.precision.value] += 1
        added = [*self._track(event, known.label), *self._point(event, known.start_ns)]
        more = b"".join(b",\n  " + _encoder.encode(one) for one in added)
        return _labelled(text[: event.end], known.label) + more + text[event.end :]

    def _track(self, event: _Kernel, label: Label) -> Iterator[dict[str, Any]]:
        """Yield a slice on the stream's precision track, and first the name of the track."""
        if not event.tid.isdecimal():
            return
        place = {"cat": CATEGORY, "pid": event.process, "tid": _TRACK + int(event.tid)}
        times = {"ts": msgspec.Raw(event.ts), "dur": msgspec.Raw(event.dur)}
        if (event.pid, event.tid) not in self._tracks:
            self._tracks.add((event.pid, event.tid))
            title = {"name": f"stream {event.tid}: GEMM precision"}
            yield {"ph": "M", **place, "name": "thread_name", "ts": times["ts"], "args": title}
        name = f"{label.precision.value} {label.leg.value}"
        yield {"ph": "X", **place, "name": name, **times}

    def _point(self, event: _Kernel, start_ns: int) -> Iterator[dict[str, Any]]:
        """Yield the counter's next point, where one begins."""
        share = self._labels.share
        bucket = share.bucket(start_ns)
        if bucket in self._points:
            return
        self._points.add(bucket)
        yield {
            "ph": "C",
            "cat": CATEGORY,
            "pid": event.process,
            "name": "FP8 share of GEMM time (%)",
            "ts": msgspec.Raw(format(Decimal(share.begin_ns(bucket)).scaleb(-3), "f")),
            "args": {"FP8": share.percent(bucket)},
        }


class _Kernel(NamedTuple):
    """What is needed of a kernel's event, numbers as their text; `end` is the event's length."""

    name: str
    ts: str
    dur: str
    pid: str
    tid: str
    end: int

    @property
    def duration_ns(self) -> int:
        return round(1000 * float(self.dur))

    @property
    def process(self) -> int | str:
        return int(self.pid) if self.pid.isdecimal() else self.pid


def _parse(text: bytes) -> _Kernel | None:
    """Read the event at the start of `text`; None if it is damaged, or no whole kernel."""
    try:
        event, end = _scan(text.decode("latin-1"))  # one character a byte: positions agree
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("cat") != KERNEL or event.get("ph") != "X":
        return None
    texts = [event.get(key) for key in ("name", "ts", "dur", "pid", "tid")]
    name, ts, dur, pid, tid = (text if isinstance(text, str) else "" for text in texts)
    if not (_NUMBER.fullmatch(ts) and _NUMBER.fullmatch(dur)):
        return None
    name = name.encode("latin-1").decode("utf-8", "replace")
    return _Kernel(name, ts, dur, pid, tid, end)


def _labelled(event: bytes, label: Label) -> bytes:
    """Add the colour and the label to an event, before and inside its `args`."""
    colour = _COLOURS.get(label.precision, _OTHER_COLOUR)
    what = {CATEGORY: {"precision": label.precision.value, "leg": label.leg.value}}
    inner = _encoder.encode(what)[1:-1]
    match = _ARGS.search(event)
    head = b'"cname": "%s", ' % colour.encode()
    if match is None:
        return event[:-1] + b", " + head + b'"args": {' + inner + b"}}"
    start, end = match.start(), match.end()
    if match["empty"]:
        return event[:start] + head + b'"args": {' + inner + b"}" + event[end:]
    return event[:start] + head + event[start:end] + inner + b", " + event[end:]
