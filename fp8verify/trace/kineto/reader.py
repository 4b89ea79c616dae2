"""Read one Kineto Chrome trace (JSON) into a `Trace`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.errors import InputError
from fp8verify.trace.build import fill, main_device
from fp8verify.trace.formats import Glance, Reading
from fp8verify.trace.kineto.buffer import Buffer
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.document import Document
from fp8verify.trace.kineto.metadata import Metadata
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.formats import Source
    from fp8verify.trace.source import ByteStream

# What may come before the document: a byte order mark, space, padding.
_BLANK = b"\xef\xbb\xbf \t\r\n\0,"
_HINT = "Give a trace that torch.profiler exported (export_chrome_trace), or a folder of them."
_CUT = "The file is cut or corrupt: copy or export it again (`gzip -t` or `zstd -t` tests one)."


class KinetoFormat:
    """The JSON that torch.profiler exports."""

    name = "Kineto"
    suffixes = (".json", ".json.gz", ".json.zst")

    def probe(self, head: bytes, name: str) -> bool:  # noqa: ARG002
        """Whether a JSON object or list begins."""
        return head.lstrip(_BLANK)[:1] in (b"{", b"[", b"")

    def glance(self, source: Source) -> Glance:
        """Read the metadata before the events, the rank among them."""
        metadata = Metadata()
        document = Document(Buffer(source, source.name), None, metadata)
        is_json = document.read()
        return Glance(
            is_trace=document.is_trace,
            is_damaged=not document.is_trace and not (is_json and document.closed),
            rank=metadata.rank,
        )

    def read(self, source: Source, how: Reading) -> Trace:
        """Read the whole document as a stream."""
        return read_stream(source, source.name, how)


def read_stream(source: ByteStream, name: str, how: Reading) -> Trace:
    """Read a trace from its unpacked bytes.

    Raises:
        InputError: the bytes are not JSON, or hold no list of events.
    """
    collector, metadata = Collector(sequences=how.layers), Metadata()
    buffer = Buffer(source, name)
    document = Document(buffer, collector, metadata, how.block_size)
    is_json = document.read()
    more = is_json and document.closed and document.more()
    if not is_json:
        raise not_json(source, name)
    if not document.is_trace:
        raise _no_events(source, name)
    trace = Trace(source=name, rank=metadata.rank, world_size=metadata.world_size)
    trace.base_ns, trace.record_shapes = metadata.base_ns, metadata.record_shapes
    health = trace.health
    health.truncated = not document.closed or source.damage is not None
    health.records_lost, health.notes = metadata.records_lost, list(metadata.notes)
    health.extra_documents = int(more)
    if source.damage:
        health.notes.append(source.damage)
    if document.closed and not collector.events and not collector.skipped:
        health.notes.append("its list of events is empty")
    if document.resynced:
        health.notes.append("the metadata is damaged; the events after it were found")
    fill(trace, collector.finish(), layers=how.layers)
    health.events, health.skipped_events = collector.events, collector.skipped
    trace.gpu, trace.compute_capability = metadata.device(main_device(trace.kernels))
    return trace


def _no_events(stream: ByteStream, name: str) -> InputError:
    """Say why a JSON document holds no list of events: it is cut off, or is something else."""
    if stream.damage is not None:
        return InputError(f"{name} is cut off before its first event: {stream.damage}.", _CUT)
    return InputError(f"{name} is not a trace: no list of events in it.", _HINT)


def not_json(stream: ByteStream, name: str) -> InputError:
    """Say why no JSON begins: data that cannot be unpacked, or a file that is something else."""
    if stream.damage is not None:
        return InputError(f"{name} cannot be unpacked: {stream.damage}.", _CUT)
    if name.endswith((".gz", ".zst")):
        return InputError(
            f"{name} is not compressed as its name says, and is not JSON.",
            "The file is something else, or was damaged on the way: copy or export it again.",
        )
    return InputError(f"{name} is not JSON.", _HINT)
