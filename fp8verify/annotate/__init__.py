"""Write a user's own trace anew with every GEMM labeled by precision and leg."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec
from msgspec import Raw

from fp8verify.analysis import placing
from fp8verify.analysis.gemms import classify_kernels
from fp8verify.errors import InputError, UsageError, requires
from fp8verify.files import replacing, writing
from fp8verify.terms import Leg, Precision
from fp8verify.text import clean
from fp8verify.trace import Trace, read_trace
from fp8verify.trace.kineto.document import Buffer, Document
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.readers import KINETO, glance_at
from fp8verify.trace.source import Source
from fp8verify.trace.tables import COPY_KEY, Missing, missing_of

__all__ = ["annotate"]

_LEVEL = 2
_packer: Any = gzip
with suppress(ImportError):  # isal has no wheel for some processors
    from isal import igzip

    _packer = igzip


def annotate(path: Path, out: Path) -> Annotated:
    """Copy a trace, adding to each GEMM kernel its precision and leg.

    All events and metadata are kept, except damaged events; added events have the category
    `fp8verify`. What had to be left out is in an entry of the copy's metadata, which `inspect`
    counts as damage of the copy. A first pass finds the labels, with as much memory as `inspect`; a
    second pass writes the copy in blocks. `out` is written under another name and renamed
    at the end; its suffix (.gz, .zst) selects the compression.

    Returns:
        How many GEMM kernels of each precision were labeled, and what is missing in the copy.

    Raises:
        InputError: the trace cannot be read, or is not torch.profiler's.
        UsageError: `out` is the trace itself, or cannot be written.
    """
    with suppress(OSError):  # there is no such file yet, or none that may be looked at
        if out.samefile(path):
            raise UsageError(f"{out} is the trace itself.", "Pass -o another file.")
    if glance_at(path)[0] is not KINETO:
        raise InputError(
            f"{path.name} is not a trace of torch.profiler.",
            "Annotate a Kineto trace; Nsight Systems and rocprofv3 have viewers of their own.",
        )
    trace = read_trace(path)
    draft = replacing(out, f"{out.name}.part")
    with (
        writing("the trace", out),
        draft as unfinished,
        _open(unfinished, out.suffix) as sink,
    ):

        def write(data: bytes) -> None:
            with writing("the trace", out):  # and not an error of reading
                sink.write(data)

        with reading(path), open_binary(path) as file:
            source = Source(file, path.name, path)
            starts_list = source.head.lstrip(b"\xef\xbb\xbf \t\r\n\0,").startswith(b"[")
            # A list has no metadata, which say what is missing.
            is_list = starts_list and trace.health.complete
            writer = Writer(write, trace, is_list=is_list)
            buffer = Buffer(source, path.name)
            document = Document(buffer, writer.take, writer)
            document.read()
            writer.finish()
    return Annotated(writer.counts, writer.missing)


class Annotated(NamedTuple):
    """What a copy holds: labeled GEMM kernels by precision, and what it lacks of the original."""

    counts: Counter[str]
    missing: Missing


def _open(path: Path, suffix: str) -> IO[bytes]:
    if suffix == ".zst":
        with requires("zstandard", path.stem):
            import zstandard
        packed = zstandard.open(path, "wb")
        return cast("IO[bytes]", packed)
    if suffix == ".gz":
        packed = _packer.open(path, "wb", compresslevel=_LEVEL)
        return cast("IO[bytes]", packed)
    return path.open("wb")


CATEGORY = "fp8verify"
# Streams have small numbers; these are the numbers of their precision tracks.
_TRACK = 10_000_000
# Kernels that the reader left out are fewer than this in a row.
_LOOK_AHEAD = 64

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_events = msgspec.json.Decoder(list[Raw])
_fields = msgspec.json.Decoder(dict[str, Raw])

Fields = dict[str, Any]
Label = tuple[Precision, Leg]


class Writer:
    """One copy of a trace: the sink of its document's events and metadata.

    Events other than kernels are copied. A kernel's fields are decoded one level deep, so
    their values do not change. Damaged events are left out.

    Attributes:
        counts: the GEMM kernels labeled so far by precision.

    Args:
        write: takes the next bytes of the file.
        trace: what was read of it before.
        is_list: whether the trace is a list of events, without metadata.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        trace: Trace,
        *,
        is_list: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._names = trace.names
        self._kernels = trace.kernels
        self._place = 0
        self._gemms: dict[int, Label] = {}
        for placed in placing.place(trace, classify_kernels(trace)):
            gemm = placed.gemm
            self._gemms[gemm.index] = (gemm.kind.precision, placed.leg)
        self._write = write
        self._is_list = is_list
        self._in_events = is_list
        self._ahead = b"[\n" if is_list else b"{\n"
        self._tracks: set[tuple[bytes, bytes]] = set()
        self._health = trace.health
        self._left_out = 0
        self._copied_missing = 0

    @property
    def missing(self) -> Missing:
        """What the copy lacks, which includes what the original lacked as a copy."""
        return Missing(
            events=self._left_out + self._copied_missing,
            cut=self._health.truncated,
            documents=self._health.extra_documents,
        )

    def finish(self) -> None:
        """End the list of events, and the document."""
        if self._ahead == b"{\n":
            self._write(b'{\n"traceEvents": []')
            self._ahead = b",\n"
        self._end_events()
        missing = self.missing
        if missing != Missing() and not self._is_list:
            key = COPY_KEY.encode()
            value = _encode(missing)
            self._write(b',\n"%s": %s' % (key, value))
        self._write(b"\n" if self._is_list else b"\n}\n")

    # -- of a document --------------------------------------------------------------------------

    def take(
        self,
        key: str,
        value: Any,
        raw: bytes,
    ) -> None:
        """Write a metadata entry; what a copy lacks is written at the end."""
        self._end_events()
        if key == COPY_KEY:
            self._copied_missing = missing_of(value).events
            return
        name = key.encode("latin-1")
        self._write(b'%s"%s": %s' % (self._ahead, name, raw))
        self._ahead = b",\n"

    def block(self, data: bytes) -> bool:
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
            inside = copied.strip()[1:-1]
            self._append(inside.strip())
        return True

    def event(self, data: bytes, _: Any) -> None:
        """Write one event, with its label if it is a GEMM, and what is drawn for it."""
        added: list[Fields] = []
        if b'"kernel"' in data:
            with suppress(ValueError, RecursionError, KeyError):
                added = self._labeled(_fields.decode(data))
        if not added:
            self._append(data)
        for fields in added:
            self._append(_encode(fields))

    def skip(self) -> None:
        """Leave out something that is not an event."""
        self._left_out += 1

    # -- events ---------------------------------------------------------------------------------

    def _end_events(self) -> None:
        if self._in_events:
            self._write(b"\n]" if self._ahead == b",\n" else b"[]")
            self._in_events = False
            self._ahead = b",\n"

    def _append(self, event: bytes) -> None:
        if not self._in_events:
            self._write(self._ahead + b'"traceEvents": ')
            self._in_events = True
            self._ahead = b"[\n"
        self._write(self._ahead + event)
        self._ahead = b",\n"

    def _labeled(self, event: Fields) -> list[Fields]:
        """Return the events to write for a kernel; none if it is to be copied.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has another type.
        """
        category = _decode(event["cat"])
        phase = _decode(event["ph"])
        if (category, phase) != ("kernel", "X"):
            return []
        duration = bytes(event["dur"])
        duration_us = float(duration.strip(b'"'))
        name = _decode(event["name"], type=str)
        label = self._label(clean(name), round(1000 * duration_us))
        if label is None:
            return []
        precision, leg = label
        self.counts[precision.value] += 1
        given = event.get("args", b"{}")
        args: Fields = dict(_fields.decode(given))
        args[CATEGORY] = {
            "precision": precision.value,
            "leg": leg.value,
        }
        labeled = {**event, "args": args}
        title = f"{precision.value} {leg.value}"
        return [labeled, *self._track(event, title)]

    def _label(self, name: str, duration_ns: int) -> Label | None:
        """Return the label of the file's next kernel, None if it is not a GEMM or was not read."""
        kernels = self._kernels
        end = min(self._place + _LOOK_AHEAD, len(kernels))
        for place in range(self._place, end):
            known_ns = kernels.duration_ns[place]  # 0 if the file's could not be
            if known_ns not in (0, duration_ns):
                continue
            if self._names[kernels.name[place]] == name:
                self._place = place + 1
                return self._gemms.get(place)
        return None

    def _track(self, event: Fields, name: str) -> Iterable[Fields]:
        """Yield a slice on the stream's precision track, and first the name of the track.

        Perfetto colors slices by name, and by nothing else by design (google/perfetto#624).
        """
        process = bytes(event["pid"])
        stream = bytes(event["tid"])
        if not stream.isdigit():
            return
        place = {
            "cat": CATEGORY,
            "pid": event["pid"],
            "tid": _TRACK + int(stream),
        }
        if (process, stream) not in self._tracks:
            self._tracks.add((process, stream))
            title = {"name": f"stream {stream.decode()}: GEMM precision"}
            yield {
                "ph": "M",
                **place,
                "name": "thread_name",
                "ts": event["ts"],
                "args": title,
            }
        yield {
            "ph": "X",
            **place,
            "name": name,
            "ts": event["ts"],
            "dur": event["dur"],
        }
