"""Read one Kineto Chrome trace (JSON) into a `Trace`.

Of the metadata a few entries are kept; everything else may be a secret and is dropped. A file may
hold several ranks: traces that were joined for a viewer, each process with its own GPU. Numbers of
operators and of launches may be those of several at once, so columns are taken apart before
anything is joined by them.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from itertools import compress
from typing import Any, NamedTuple

from msgspec.structs import replace

from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean
from fp8verify.trace.build import fill, main_device, process_of
from fp8verify.trace.columns import CallColumns, Columns, OpColumns
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.document import Buffer, Document
from fp8verify.trace.source import Glance, Reading, Source, not_a_trace
from fp8verify.trace.steps import mark_profiler_steps
from fp8verify.trace.tables import COPY_KEY, Kernels, Missing, Trace, missing_of

_MAX_NOTES = 20


_LEVELS = frozenset({"INFO", "WARNING", "ERROR"})


class Metadata:
    """Takes what the top level of the document says apart from its events.

    Attributes:
        devices: name and compute capability by number.
        missing: what the trace lacks of the one that it is a copy of.
    """

    def __init__(self, trace: Trace) -> None:
        self.devices: dict[int, tuple[str, str | None]] = {}
        self.missing = Missing()
        self._trace = trace

    def take(self, key: str, value: Any, _: bytes) -> None:
        """Keep what matters of one top-level entry; values of an unexpected type are ignored."""
        trace = self._trace
        health = self._trace.health
        if key == "distributedInfo" and isinstance(value, dict):
            trace.rank = _count(value.get("rank"))
            trace.world_size = _count(value.get("world_size"))
        elif key == "deviceProperties" and isinstance(value, list):
            devices = map(_device, value)
            self.devices = dict(filter(None, devices))
        elif key == "baseTimeNanoseconds":
            trace.base_ns = _count(value, 1 << 62) or 0
        elif key == "record_shapes":
            trace.record_shapes = bool(value)
        elif key == COPY_KEY:
            self.missing = missing_of(value)
        elif key in _LEVELS:
            remarks = _remarks(value)
            health.records_lost |= any(remarks.values())
            notes = [*health.notes, *remarks]
            health.notes = notes[:_MAX_NOTES]


def _device(value: Any) -> tuple[int, tuple[str, str | None]] | None:
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    if not isinstance(name, str):
        return None
    major = _count(value.get("computeMajor"))
    minor = _count(value.get("computeMinor"))
    capability = None
    if major is not None and minor is not None:
        capability = f"{major}.{minor}"
    number = _count(value.get("id")) or 0
    return number, (clean(name[:200]), capability)


class _Remark(NamedTuple):
    """A line that Kineto logs (CuptiActivityApi.cpp, CuptiActivityProfiler.cpp).

    Attributes:
        line: how it is known.
        text: what it means.
        is_loss: whether kernels that ran may be missing from the trace.
    """

    line: re.Pattern[str]
    text: str
    is_loss: bool


def _count(value: Any, limit: int = 1 << 31) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if not 0 <= value < limit:
        return None
    return value


_REMARKS = (
    _Remark(
        lazy_pattern(r"Dropped (\d{1,18}) activity records"),
        "CUPTI dropped {} activity records",
        is_loss=True,
    ),
    _Remark(
        lazy_pattern(r"Exceeded max GPU buffer count \((\d{1,18}) >= \d+\)"),
        "the profiler's GPU buffers ({}) were full and tracing ended early",
        is_loss=True,
    ),
    _Remark(
        lazy_pattern(r"(?:CUPTI|GPU) stopped early\? = (1)"),
        "the profiler stopped recording the GPU early",
        is_loss=True,
    ),
    # Records of the warm-up are out of range too, so a count alone is not a loss
    # (pytorch/pytorch#192021 is about the cases in which it is one).
    _Remark(
        lazy_pattern(r"Record counts: Out-of-range = ([1-9]\d{0,17})"),
        "the profiler left out {} records as outside of its window",
        is_loss=False,
    ),
    # pytorch/pytorch#99615
    _Remark(
        lazy_pattern(r"(CUPTI_ERROR_[A-Z_]{1,60})"),
        "the profiler met {}",
        is_loss=False,
    ),
)


def _remarks(lines: Any) -> dict[str, bool]:
    """Return what the known lines among those of one level mean, and whether each is a loss."""
    found: dict[str, bool] = {}
    if not isinstance(lines, list):
        return found
    for line in lines:
        if not isinstance(line, str):
            continue
        for remark in _REMARKS:
            match = remark.line.search(line)
            if match is not None:
                text = remark.text.format(match[1])
                found[text] = remark.is_loss
    return found


def glance(source: Source) -> Glance:
    """Read the metadata before the events, the rank among them."""
    trace = Trace(source=source.name)
    buffer = Buffer(source, source.name)
    document = Document(buffer, Metadata(trace).take)
    is_json = document.read()
    is_whole = is_json and document.closed
    return Glance(
        is_trace=document.is_trace,
        is_damaged=not document.is_trace and not is_whole,
        rank=trace.rank,
    )


def read(source: Source, how: Reading) -> Trace:
    """Read the whole document as a stream.

    Raises:
        InputError: the bytes are not JSON, or hold no list of events.
    """
    trace = Trace(source=source.name)
    collector = Collector(configs=how.configs)
    metadata = Metadata(trace)
    buffer = Buffer(source, source.name)
    document = Document(buffer, metadata.take, collector, how.block_size)
    is_json = document.read()
    more = document.closed and document.more()
    if not document.is_trace:
        wanted = "a trace: no list of events in it" if is_json else "JSON"
        raise not_a_trace(source, wanted)
    health = trace.health
    missing = metadata.missing
    is_damaged = source.damage is not None
    health.truncated = not document.closed or is_damaged or missing.cut
    health.extra_documents = int(more) + missing.documents
    if source.damage:
        health.notes.append(source.damage)
    has_events = bool(collector.events or collector.skipped)
    health.no_events = document.closed and not has_events
    if health.no_events:
        health.notes.append("its list of events is empty")
    if document.resynced:
        health.notes.append("the metadata is damaged; the events after it were found")
    health.events = collector.events
    health.skipped_events = collector.skipped + missing.events
    columns = collector.finish()
    processes = processes_of(columns) if how.split else {}
    if len(processes) < 2:
        _complete(trace, columns, metadata, how)
        return trace
    traces = []
    for process, devices in processes.items():
        part = part_of(columns, process, devices)
        mark_profiler_steps(part)
        label = f"{source.name} (process {clean(str(process))})"
        # The rank of the metadata is that of one of them.
        health_of_rank = replace(health, notes=[*health.notes])
        trace_of_rank = replace(
            trace,
            source=label,
            rank=None,
            health=health_of_rank,
        )
        _complete(trace_of_rank, part, metadata, how)
        traces.append(trace_of_rank)
    traces[0].others = traces[1:]
    return traces[0]


def _complete(
    trace: Trace,
    columns: Columns,
    metadata: Metadata,
    how: Reading,
) -> None:
    fill(trace, columns, layers=how.layers, launches=how.launches)
    if metadata.devices:
        first = next(iter(metadata.devices.values()))
        number = main_device(trace.kernels)
        device = metadata.devices.get(number, first)
        trace.gpu, trace.compute_capability = device


def processes_of(columns: Columns) -> dict[Hashable, set[int]]:
    """Return the devices of each process that launched kernels on devices of its own, in order.

    Where all ids of a device's launches are those of several processes, devices belong to the
    processes in order.
    """
    owners = list(map(process_of, columns.threads))
    if len(set(owners)) < 2:
        return {}  # most traces: their ids need not be held
    callers: dict[int, set[Hashable]] = defaultdict(set)
    calls = columns.calls
    for correlation, thread in zip(calls.correlation, calls.thread, strict=True):
        callers[correlation].add(owners[thread])
    votes: dict[int, Counter[Hashable]] = defaultdict(Counter)
    launching: set[Hashable] = set()
    launches = zip(columns.kernels.device, columns.correlations, strict=True)
    for device, correlation in launches:
        processes = callers[correlation]
        votes_for_device = votes[device]
        if len(processes) == 1:
            votes_for_device.update(processes)
        launching |= processes
    devices: dict[Hashable, set[int]] = defaultdict(set)
    if all(votes.values()):
        for device, counts in votes.items():
            process = max(counts, key=counts.__getitem__)
            devices[process].add(device)
    elif len(launching) == len(votes):
        in_order = sorted(launching, key=_in_order)
        for process, device in zip(in_order, sorted(votes), strict=True):
            devices[process].add(device)
    sorted_processes = sorted(devices, key=_in_order)
    return {process: devices[process] for process in sorted_processes}


def _in_order(process: Hashable) -> tuple[int, str]:
    number = -1
    if isinstance(process, int):
        number = process
    return number, str(process)


def part_of(
    columns: Columns,
    process: Hashable,
    devices: set[int],
) -> Columns:
    """Return the columns of one process alone; copies are not told apart, and left out."""
    is_own = [process_of(thread) == process for thread in columns.threads]
    own_ops = list(map(is_own.__getitem__, columns.ops.thread))
    own_calls = list(map(is_own.__getitem__, columns.calls.thread))
    own_kernels = list(map(devices.__contains__, columns.kernels.device))
    return replace(
        columns,
        ops=_kept(columns.ops, OpColumns(), own_ops),
        calls=_kept(columns.calls, CallColumns(), own_calls),
        kernels=_kept(columns.kernels, Kernels(), own_kernels),
        op_ids=_where(columns.op_ids, own_kernels),
        correlations=_where(columns.correlations, own_kernels),
        copies={},
    )


def _kept(
    table: Any,
    empty: Any,
    wanted: list[bool],
) -> Any:
    """Return the wanted rows of a table; columns that are not filled stay empty."""
    for name in table.__struct_fields__:
        column = getattr(table, name)
        if column:
            setattr(empty, name, _where(column, wanted))
    return empty


def _where(column: array[Any], wanted: Iterable[bool]) -> array[Any]:
    return array(column.typecode, compress(column, wanted))
