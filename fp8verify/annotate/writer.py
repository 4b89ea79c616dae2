"""Write a trace anew, with text added to its GEMM kernels."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from fp8verify.analysis.gemms import classify_kernels, label_gemms
from fp8verify.terms import Leg, Precision
from fp8verify.text import clean
from fp8verify.trace import Trace
from fp8verify.trace.columns import Interner

CATEGORY = "fp8verify"
# Streams have small numbers; these are the numbers of their precision tracks.
_TRACK = 10_000_000
# Devices of a process, so that the numbers of several processes differ.
_DEVICES = 100
# Points of the counter track.
_BUCKETS = 500
# Kernels that the reader left out are fewer than this in a row.
_LOOK_AHEAD = 64

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_events = msgspec.json.Decoder(list[Raw])
_fields = msgspec.json.Decoder(dict[str, Raw])

Fields = dict[str, Any]


class Label(NamedTuple):
    """The precision and the leg of a GEMM."""

    precision: Precision
    leg: Leg

    @property
    def colour(self) -> str:
        """The name of a colour that chrome://tracing knows (catapult, color_scheme.html).

        Perfetto ignores colours by design (google/perfetto#624) and colours by name instead: the
        precision track is for it.
        """
        if self.precision.is_fp8:
            return "good"
        if self.precision.is_low or self.precision is Precision.INT8:
            return "rail_response"
        return "grey" if self.precision is Precision.UNKNOWN else "bad"


class Labels:
    """Labels of kernels, taken in the order of the file."""

    def __init__(self, trace: Trace) -> None:
        self._names, self._kernels = trace.names, trace.kernels
        self._of_kernel = array("h", [-1]) * len(trace.kernels)
        self._place = 0
        kinds, numbers = classify_kernels(trace), Interner()
        for place, kind, leg, *_ in label_gemms(trace, kinds):
            label = Label(kinds.kinds[kind].classification.precision, leg)
            self._of_kernel[place] = numbers[label]
        self._labels: list[Label] = list(numbers)
        self._shares = self._measured()

    def _measured(self) -> dict[int, float]:
        """Return the FP8 share of GEMM time in percent, in buckets of equal length."""
        starts, durations = self._kernels.start_ns, self._kernels.duration_ns
        gemms = [place for place, number in enumerate(self._of_kernel) if number >= 0]
        self._begin = min((starts[place] for place in gemms), default=0)
        last = max((starts[place] for place in gemms), default=0)
        self._width = (last - self._begin) // _BUCKETS + 1
        low, total = Counter[int](), Counter[int]()
        for place in gemms:
            bucket = (starts[place] - self._begin) // self._width
            total[bucket] += durations[place]
            if self._labels[self._of_kernel[place]].precision.is_low:
                low[bucket] += durations[place]
        return {one: round(100 * low[one] / all_ns, 1) if all_ns else 0.0
                for one, all_ns in total.items()}  # fmt: skip

    def take(self, name: str, duration_ns: int) -> tuple[Label, int] | None:
        """Return label and start of the next kernel of the file.

        None if it is not a GEMM, or was not read.
        """
        kernels = self._kernels
        for place in range(self._place, min(self._place + _LOOK_AHEAD, len(kernels))):
            known = kernels.duration_ns[place]  # 0 where the file's could not be
            if known in (0, duration_ns) and self._names[kernels.name[place]] == name:
                self._place = place + 1
                number = self._of_kernel[place]
                return (self._labels[number], kernels.start_ns[place]) if number >= 0 else None
        return None

    def point(self, start_ns: int) -> tuple[int, float] | None:
        """Return begin and FP8 share of the bucket of a GEMM, of each bucket once."""
        bucket = (start_ns - self._begin) // self._width
        share = self._shares.pop(bucket, None)
        return None if share is None else (self._begin + bucket * self._width, share)


class Writer:
    """One copy of a trace: the sink of its document's events and metadata.

    Events that hold no kernel are copied; a kernel's fields are decoded one level deep, so that
    their values stay as they were. Damaged events are left out.

    Attributes:
        counts: the GEMM kernels labelled so far by precision.
        labels: of the kernels that follow.

    Args:
        write: takes the next bytes of the file.
        labels: of the kernels.
        is_list: whether the trace is a list of events, without metadata.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        labels: Labels | None = None,
        *,
        is_list: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.labels = labels
        self._write, self._is_list = write, is_list
        self._in_events, self._ahead = is_list, b"[\n" if is_list else b"{\n"
        self._tracks: set[tuple[bytes, bytes]] = set()

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
        if b'"kernel"' in copied:
            for event in events:
                self.event(bytes(event), None)
        elif events:
            self._append(copied.strip()[1:-1].strip())
        return True

    def event(self, data: bytes, _: Any) -> None:
        """Write one event, with its label if it is a GEMM, and what is drawn for it."""
        added: list[Fields] = []
        if b'"kernel"' in data:
            with suppress(ValueError, RecursionError, KeyError):
                added = self._labelled(_fields.decode(data))
        for text in map(_encode, added) if added else (data,):
            self._append(text)

    def skip(self) -> None:
        """Leave out something that is not an event."""

    # -- events ---------------------------------------------------------------------------------

    def _end_events(self) -> None:
        if self._in_events:
            self._write(b"\n]" if self._ahead == b",\n" else b"[]")
            self._in_events, self._ahead = False, b",\n"

    def _append(self, event: bytes) -> None:
        if not self._in_events:
            self._write(self._ahead + b'"traceEvents": ')
            self._in_events, self._ahead = True, b"[\n"
        self._write(self._ahead + event)
        self._ahead = b",\n"

    def add(self, event: Fields) -> None:
        """Write an event that is not in a document."""
        self.event(_encode(event), None)

    def _labelled(self, event: Fields) -> list[Fields]:
        """Return the events to write for a kernel; none if it is to be copied.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has another type.
        """
        if (_decode(event["cat"]), _decode(event["ph"])) != ("kernel", "X") or not self.labels:
            return []
        duration_ns = round(1000 * float(bytes(event["dur"]).strip(b'"')))
        known = self.labels.take(clean(_decode(event["name"], type=str)), duration_ns)
        if known is None:
            return []
        label, start_ns = known
        self.counts[label.precision.value] += 1
        args: Fields = dict(_fields.decode(event.get("args", b"{}")))
        args[CATEGORY] = {"precision": label.precision.value, "leg": label.leg.value}
        found = [{**event, "cname": label.colour, "args": args}, *self._track(event, label)]
        if point := self.labels.point(start_ns):
            name, share = "FP8 share of GEMM time (%)", {"FP8": point[1]}
            place = {"ph": "C", "cat": CATEGORY, "pid": event["pid"], "name": name}
            found.append({**place, "ts": _micros(point[0]), "args": share})
        return found

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


def write_trace(writer: Writer, trace: Trace, process: int) -> None:
    """Write kernels and steps of another tool's trace as the events of a process."""
    columns, first = trace.kernels, process * _DEVICES
    for device in sorted(set(columns.device)):
        title = {"name": f"{trace.source}: GPU {device}"}
        pid = first + max(device, 0) % _DEVICES
        writer.add({"ph": "M", "name": "process_name", "pid": pid, "args": title})
    for step in trace.steps:
        times = {"ts": _micros(step.start_ns), "dur": _micros(step.end_ns - step.start_ns)}
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step.number}"}
        writer.add({**mark, "pid": first, "tid": -1, **times})
    for row in range(len(columns)):
        device, stream, op = columns.device[row], columns.stream[row], columns.op[row]
        args: Fields = {"device": device, "stream": stream}
        if op >= 0:
            args["operator"] = trace.ops[op].name
        name = trace.names[columns.name[row]]
        head: Fields = {"ph": "X", "cat": "kernel", "name": name, "args": args}
        place = {"pid": first + max(device, 0) % _DEVICES, "tid": stream}
        start, duration = columns.start_ns[row], columns.duration_ns[row]
        writer.add({**head, **place, "ts": _micros(start), "dur": _micros(duration)})


def _micros(nanoseconds: int) -> Raw:
    return Raw(format(Decimal(nanoseconds).scaleb(-3), "f").encode())
