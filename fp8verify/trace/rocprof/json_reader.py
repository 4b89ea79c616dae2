"""rocprofv3's results as JSON: kernels, calls and roctx ranges of every process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from fp8verify.errors import InputError
from fp8verify.trace.build import main_device
from fp8verify.trace.formats import Glance, Part
from fp8verify.trace.rocprof.file_formats import NAME
from fp8verify.trace.rocprof.gpu import gpu_name
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.formats import Reading, Source

_MAX_SIZE = 4 << 30


class _Handle(Struct):
    handle: int = -1


class _Correlation(Struct):
    internal: int = -1


class _Dispatch(Struct):
    kernel_id: int | str = -1
    agent_id: _Handle = field(default_factory=_Handle)
    queue_id: _Handle = field(default_factory=_Handle)


class _Record(Struct, gc=False):
    """A kernel, a call, a marker or a copy: those parts that are read."""

    start_timestamp: int
    end_timestamp: int
    correlation_id: _Correlation = field(default_factory=_Correlation)
    thread_id: int = -1
    dispatch_info: _Dispatch = field(default_factory=_Dispatch)
    stream_id: _Handle = field(default_factory=_Handle)
    bytes: int = 0


class _Symbol(Struct):
    kernel_id: int | None = None
    formatted_kernel_name: str | None = None
    demangled_kernel_name: str | None = None
    kernel_name: str | None = None

    @property
    def name(self) -> str | None:
        return self.formatted_kernel_name or self.demangled_kernel_name or self.kernel_name


class _Agent(Struct):
    id: _Handle = field(default_factory=_Handle)
    product_name: str | None = None
    name: str | None = None


class _Message(Struct):
    key: int
    value: str


class _Strings(Struct):
    marker_api: list[_Message] = field(default_factory=list)


class _Records(Struct):
    kernel_dispatch: list[_Record] = field(default_factory=list)
    hip_api: list[_Record] = field(default_factory=list)
    marker_api: list[_Record] = field(default_factory=list)
    memory_copy: list[_Record] = field(default_factory=list)


class _Process(Struct):
    """One process; its metadata hold the command and the environment, and are not decoded."""

    agents: list[_Agent] = field(default_factory=list)
    kernel_symbols: list[_Symbol] | dict[str, _Symbol] = field(default_factory=list)
    strings: _Strings = field(default_factory=_Strings)
    buffer_records: _Records = field(default_factory=_Records)
    callback_records: _Records = field(default_factory=_Records)

    def records(self, kind: str) -> list[_Record]:
        """Return records from where this release of rocprofv3 puts them."""
        found: list[_Record] = getattr(self.buffer_records, kind)
        return found or list(getattr(self.callback_records, kind))

    def names(self) -> dict[int | str, str | None]:
        """Return the names of kernels by their ids."""
        symbols = self.kernel_symbols
        if isinstance(symbols, dict):
            return {_number(key): symbol.name for key, symbol in symbols.items()}
        return {
            place if symbol.kernel_id is None else symbol.kernel_id: symbol.name
            for place, symbol in enumerate(symbols)
        }


class _Document(Struct):
    processes: list[_Process] = field(name="rocprofiler-sdk-tool")


_decoder = msgspec.json.Decoder(_Document)


def glance(source: Source) -> Glance:
    """Look for the key; the processes are only known once everything is read."""
    count = len(_decode(source).processes)
    labels = tuple(Part(place, f"process {place + 1}") for place in range(count))
    return Glance(is_trace=True, parts=labels if count > 1 else ())


def read(source: Source, how: Reading) -> Trace:
    """Read one process."""
    processes = _decode(source).processes
    if len(processes) != 1 and how.part is None:
        raise InputError(
            f"{source.name} holds the traces of {len(processes)} processes.",
            "Give it as a file." if processes else "Record the run again.",
        )
    process = processes[how.part or 0]
    trace, rows = Trace(source=source.name), RowCollector()
    rows.kernels(_kernels(process))
    rows.calls(
        (r.correlation_id.internal, r.start_timestamp, r.end_timestamp, r.thread_id)
        for r in process.records("hip_api")
    )
    rows.ranges(_markers(process))
    copies = process.records("memory_copy")
    time_ns = sum(max(0, r.end_timestamp - r.start_timestamp) for r in copies)
    rows.copies("memcpy", len(copies), time_ns, sum(r.bytes for r in copies))
    rows.fill(trace, NAME, layers=how.layers)
    trace.gpu = _gpu(process, main_device(trace.kernels))
    return trace


def _decode(source: Source) -> _Document:
    data = bytearray()
    for piece in source:
        data += piece
        if len(data) > _MAX_SIZE:
            raise InputError(
                f"{source.name} has more than {_MAX_SIZE >> 30} GB of JSON.",
                "Export it as rocpd instead: rocprofv3 --output-format rocpd.",
            )
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError):
        reason = source.damage or "cut off, or in a layout that is not known"
        raise InputError(
            f"{source.name} cannot be read as rocprofv3's JSON: {reason}.",
            "Record it again, or export CSV: rocprofv3 --output-format csv.",
        ) from None


def _kernels(process: _Process) -> Iterator[Sequence[Any]]:
    """Yield name, start, end, device, stream and correlation id of kernels."""
    names = process.names()
    for record in process.records("kernel_dispatch"):
        dispatch = record.dispatch_info
        stream = record.stream_id if record.stream_id.handle >= 0 else dispatch.queue_id
        yield (
            names.get(_number(dispatch.kernel_id)),
            record.start_timestamp,
            record.end_timestamp,
            dispatch.agent_id.handle,
            stream.handle,
            record.correlation_id.internal,
        )


def _markers(process: _Process) -> Iterator[Sequence[Any]]:
    """Yield text, start, end and thread of roctx ranges; the texts lie apart."""
    texts = {message.key: message.value for message in process.strings.marker_api}
    for record in process.records("marker_api"):
        text = texts.get(record.correlation_id.internal)
        if text is not None:
            yield text, record.start_timestamp, record.end_timestamp, record.thread_id


def _number(key: int | str) -> int | str:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _gpu(process: _Process, agent: int) -> str | None:
    chosen = [one for one in process.agents if one.id.handle == agent]
    return gpu_name(chosen[0].product_name, chosen[0].name) if chosen else None
