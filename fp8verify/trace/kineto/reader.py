"""Read one Kineto Chrome trace (JSON) into a `Trace`.

Of the metadata a few entries are kept; everything else may be a secret and is dropped.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.build import fill, main_device
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.document import Buffer, Document
from fp8verify.trace.source import Glance, Reading, Source
from fp8verify.trace.tables import Trace

_MAX_NOTES = 20


_LEVELS = frozenset({"INFO", "WARNING", "ERROR"})


class Metadata(Struct):
    """What the top level of the document says apart from its events."""

    rank: int | None = None
    world_size: int | None = None
    base_ns: int = 0
    record_shapes: bool = False
    devices: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    records_lost: bool = False

    def take(self, key: str, value: Any, _: bytes) -> None:
        """Keep what matters of one top-level entry; values of an unexpected type are ignored."""
        if key == "distributedInfo" and isinstance(value, dict):
            self.rank = _count(value.get("rank"))
            self.world_size = _count(value.get("world_size"))
        elif key == "deviceProperties" and isinstance(value, list):
            self.devices = dict(filter(None, map(_device, value)))
        elif key == "baseTimeNanoseconds":
            self.base_ns = _count(value, 1 << 62) or 0
        elif key == "record_shapes":
            self.record_shapes = bool(value)
        elif key in _LEVELS:
            remarks = _remarks(value)
            self.records_lost |= any(remarks.values())
            self.notes = [*self.notes, *remarks][:_MAX_NOTES]

    def device(self, number: int) -> tuple[str | None, str | None]:
        """Name and compute capability of a device, of the first one if `number` is unknown."""
        if not self.devices:
            return None, None
        return self.devices.get(number, next(iter(self.devices.values())))


def _device(value: Any) -> tuple[int, tuple[str, str | None]] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    major, minor = _count(value.get("computeMajor")), _count(value.get("computeMinor"))
    capability = None if major is None or minor is None else f"{major}.{minor}"
    return _count(value.get("id")) or 0, (clean(value["name"][:200]), capability)


def _count(value: Any, limit: int = 1 << 31) -> int | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    return value if ok else None


# Lines that Kineto logs (CuptiActivityApi.cpp, CuptiActivityProfiler.cpp), what they mean,
# and whether kernels that ran may be missing from the trace.
_REMARKS = (
    (r"Dropped (\d{1,18}) activity records", "CUPTI dropped {} activity records", True),
    (
        r"Exceeded max GPU buffer count \((\d{1,18}) >= \d+\)",
        "the profiler's GPU buffers ({}) were full and tracing ended early",
        True,
    ),
    (r"(?:CUPTI|GPU) stopped early\? = (1)", "the profiler stopped recording the GPU early", True),
    # Records of the warm-up are out of range too, so that a count alone is not a loss
    # (pytorch/pytorch#192021 is about the cases in which it is one).
    (
        r"Record counts: Out-of-range = ([1-9]\d{0,17})",
        "the profiler left out {} records as outside of its window",
        False,
    ),
    (r"(CUPTI_ERROR_[A-Z_]{1,60})", "the profiler met {}", False),  # pytorch/pytorch#99615
)


def _remarks(lines: Any) -> dict[str, bool]:
    """Return what the known lines among those of one level mean, and whether each is a loss."""
    texts = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
    return {
        text.format(match[1]): is_loss
        for line in texts
        for pattern, text, is_loss in _REMARKS
        if (match := re.search(pattern, line))
    }


_HINT = "Give a trace that torch.profiler exported (export_chrome_trace), or a folder of them."
_CUT = "The file is cut or corrupt: copy or export it again (`gzip -t` or `zstd -t` tests one)."


def glance(source: Source) -> Glance:
    """Read the metadata before the events, the rank among them."""
    metadata = Metadata()
    document = Document(Buffer(source, source.name), None, metadata)
    is_json = document.read()
    return Glance(
        is_trace=document.is_trace,
        is_damaged=not document.is_trace and not (is_json and document.closed),
        rank=metadata.rank,
    )


def read(source: Source, how: Reading) -> Trace:
    """Read the whole document as a stream.

    Raises:
        InputError: the bytes are not JSON, or hold no list of events.
    """
    collector, metadata = Collector(sequences=how.layers), Metadata()
    document = Document(Buffer(source, source.name), collector, metadata, how.block_size)
    is_json = document.read()
    more = is_json and document.closed and document.more()
    if not is_json:
        raise not_json(source)
    if not document.is_trace:
        raise _no_events(source)
    trace = Trace(source=source.name, rank=metadata.rank, world_size=metadata.world_size)
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


def _no_events(source: Source) -> InputError:
    """Say why a JSON document holds no list of events: it is cut off, or is something else."""
    if source.damage is not None:
        return InputError(
            f"{source.name} is cut off before its first event: {source.damage}.", _CUT
        )
    return InputError(f"{source.name} is not a trace: no list of events in it.", _HINT)


def not_json(source: Source) -> InputError:
    """Say why no JSON begins: data that cannot be unpacked, or a file that is something else."""
    if source.damage is not None:
        return InputError(f"{source.name} cannot be unpacked: {source.damage}.", _CUT)
    if source.name.endswith((".gz", ".zst")):
        return InputError(
            f"{source.name} is not compressed as its name says, and is not JSON.",
            "The file is something else, or was damaged on the way: copy or export it again.",
        )
    return InputError(f"{source.name} is not JSON.", _HINT)
