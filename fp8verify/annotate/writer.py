"""Write a trace anew, with text added to its GEMM kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from fp8verify.report.model import Precision
from fp8verify.text import clean

if TYPE_CHECKING:
    from fp8verify.annotate.labels import Label, Labels
    from fp8verify.trace import Trace

CATEGORY = "fp8verify"
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
# Streams have small numbers; these are the numbers of their precision tracks.
_TRACK = 10_000_000
# Devices of a process, so that the numbers of several processes differ.
_DEVICES = 100

_encode = msgspec.json.encode
_events = msgspec.json.Decoder(list[Raw])
_fields = msgspec.json.Decoder(dict[str, Raw])

Fields = dict[str, Any]


class Writer:
    """One copy of a trace: the sink of its document's events and metadata.

    Events that hold no kernel are copied; a kernel's fields are decoded one level deep, so that
    their values stay as they were. Damaged events are left out.

    Attributes:
        counts: the GEMM kernels labelled so far by precision.

    Args:
        write: takes the next bytes of the file.
        is_list: whether the trace is a list of events, without metadata.
    """

    def __init__(self, write: Callable[[bytes], object], *, is_list: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self._labels: Labels | None = None
        self._write, self._is_list = write, is_list
        self._in_events, self._ahead = is_list, b"[\n" if is_list else b"{\n"
        self._tracks: set[tuple[bytes, bytes]] = set()
        self._points: set[int] = set()

    def label_by(self, labels: Labels) -> Writer:
        """Have the kernels that follow labelled; those of another process have other labels."""
        self._labels, self._points = labels, set()
        return self

    def finish(self) -> None:
        """End the list of events, and the document."""
        if self._ahead == b"{\n":
            self._write(b'{\n"traceEvents": []')
        self._end_events()
        self._write(b"\n" if self._is_list else b"\n}\n")

    # -- of a document --------------------------------------------------------------------------

    def take(self, key: str, _: Any, raw: bytes) -> None:
        """Write a metadata entry."""
        self._end_events()
        self._write(b'%s"%s": %s' % (self._ahead, key.encode("latin-1"), raw))
        self._ahead = b",\n"

    def block(self, data: bytes | memoryview) -> bool:
        """Write a JSON list of whole events; False if it does not decode as such."""
        try:
            events = _events.decode(data)
        except (ValueError, RecursionError):
            return False
        copied = bytes(data)
        if b'"kernel"' not in copied:
            self._events([copied.strip()[1:-1].strip()] if events else ())
        else:
            for event in events:
                self._events(self._labelled(bytes(event)))
        return True

    def event(self, data: bytes, _: Any) -> None:
        """Write one event."""
        self._events(self._labelled(data))

    def skip(self) -> None:
        """Leave out something that is not an event."""

    # -- events ---------------------------------------------------------------------------------

    def _end_events(self) -> None:
        if self._in_events:
            self._write(b"\n]" if self._ahead == b",\n" else b"[]")
            self._in_events, self._ahead = False, b",\n"

    def _events(self, events: Iterable[bytes]) -> None:
        if not self._in_events:
            self._write(self._ahead + b'"traceEvents": ')
            self._in_events, self._ahead = True, b"[\n"
        for event in events:
            self._write(self._ahead + event)
            self._ahead = b",\n"

    def add(self, event: Fields) -> None:
        """Write an event that is not in a document."""
        self._events(self._labelled(_encode(event)))

    def _labelled(self, data: bytes) -> list[bytes]:
        """Return an event with its label if it is a GEMM, and what is drawn for it."""
        if b'"kernel"' in data:
            with suppress(ValueError, RecursionError, KeyError):
                fields = _fields.decode(data)
                return list(map(_encode, self._with_label(fields))) or [data]
        return [data]

    def _with_label(self, event: Fields) -> list[Fields]:
        """Return the events to write for a kernel; none if it is to be copied.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has another type.
        """
        kind = (msgspec.json.decode(event["cat"]), msgspec.json.decode(event["ph"]))
        if kind != ("kernel", "X") or self._labels is None:
            return []
        name = clean(msgspec.json.decode(event["name"], type=str))
        duration_ns = round(1000 * float(bytes(event["dur"]).strip(b'"')))
        known = self._labels.take(name, duration_ns)
        if known is None or known.label is None:
            return []
        label = known.label
        self.counts[label.precision.value] += 1
        args: Fields = dict(_fields.decode(event.get("args", b"{}")))
        args[CATEGORY] = {"precision": label.precision.value, "leg": label.leg.value}
        colour = _COLOURS.get(label.precision, _OTHER_COLOUR)
        whole = {**event, "cname": colour, "args": args}
        return [whole, *self._track(event, label), *self._point(event, known.start_ns)]

    def _track(self, event: Fields, label: Label) -> Iterable[Fields]:
        """Yield a slice on the stream's precision track, and first the name of the track."""
        process, stream = bytes(event["pid"]), bytes(event["tid"])
        if not stream.isdigit():
            return
        place = {"cat": CATEGORY, "pid": event["pid"], "tid": _TRACK + int(stream)}
        if (process, stream) not in self._tracks:
            self._tracks.add((process, stream))
            title = {"name": f"stream {stream.decode()}: GEMM precision"}
            yield {"ph": "M", **place, "name": "thread_name", "ts": event["ts"], "args": title}
        name = f"{label.precision.value} {label.leg.value}"
        yield {"ph": "X", **place, "name": name, "ts": event["ts"], "dur": event["dur"]}

    def _point(self, event: Fields, start_ns: int) -> Iterable[Fields]:
        """Yield the counter's next point, where one begins."""
        share = self._labels.share if self._labels else None
        if share is None or (bucket := share.bucket(start_ns)) in self._points:
            return
        self._points.add(bucket)
        begin = format(Decimal(share.begin_ns(bucket)).scaleb(-3), "f")
        yield {
            "ph": "C",
            "cat": CATEGORY,
            "pid": event["pid"],
            "name": "FP8 share of GEMM time (%)",
            "ts": Raw(begin.encode()),
            "args": {"FP8": share.percent(bucket)},
        }


def write_trace(writer: Writer, trace: Trace, process: int) -> None:
    """Write kernels and steps of another tool's trace as the events of a process."""
    columns, first = trace.kernels, process * _DEVICES
    for device in sorted(set(columns.device)):
        title = {"name": f"{trace.source}: GPU {device}"}
        pid = first + max(device, 0) % _DEVICES
        writer.add({"ph": "M", "name": "process_name", "pid": pid, "args": title})
    for step in trace.steps:
        times = {"ts": _micros(step.start_ns), "dur": _micros(step.end_ns - step.start_ns)}
        head = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step.number}"}
        writer.add({**head, "pid": first, "tid": -1, **times})
    for row in range(len(columns)):
        device, stream, op = columns.device[row], columns.stream[row], columns.op[row]
        args: Fields = {"device": device, "stream": stream}
        if op >= 0:
            args["operator"] = trace.ops[op].name
        writer.add(
            {
                "ph": "X",
                "cat": "kernel",
                "name": trace.names[columns.name[row]],
                "pid": first + max(device, 0) % _DEVICES,
                "tid": stream,
                "ts": _micros(columns.start_ns[row]),
                "dur": _micros(columns.duration_ns[row]),
                "args": args,
            }
        )


def _micros(nanoseconds: int) -> Raw:
    return Raw(format(Decimal(nanoseconds).scaleb(-3), "f").encode())
