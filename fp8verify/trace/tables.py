"""What a trace becomes: typed columns, one row a kernel, and what was lost on the way."""

from __future__ import annotations

from array import array
from enum import IntEnum
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from fp8verify.terms import Collective, OpContext
from fp8verify.thresholds import MANY_UNREADABLE


class Launch(IntEnum):
    """How far a kernel could be followed back to the CPU."""

    NONE = 0
    """No launch was recorded."""
    NO_OP = 1
    """A launch was recorded, but no operator encloses it."""
    OP = 2
    """The operator that launched it is known."""
    OUTSIDE = 3
    """It was launched alone, not by a graph, outside of the operators that its thread records."""


_int8 = partial(array, "b")
_int32 = partial(array, "i")
_int64 = partial(array, "q")


class Kernels(Struct):
    """One row for each GPU kernel, in the order of the file.

    `name` indexes `Trace.names`, `op` `Trace.ops`, `step` `Trace.steps` and `collective`
    `Trace.collectives`; -1 says that there is none. Times are int64 nanoseconds. `device` and
    `stream` are -1 if not recorded, `launch` holds `Launch` values. `layer` indexes
    `Trace.layers` and is empty unless layers were requested. `launch_ns` and `thread` say when
    and on which CPU thread a kernel was launched, -1 if unknown; empty unless requested.
    `site` indexes `Trace.sites`, `config` indexes `Trace.configs`; the latter is empty where no
    source records them, and unless they were requested.
    """

    name: array[int] = field(default_factory=_int32)
    start_ns: array[int] = field(default_factory=_int64)
    duration_ns: array[int] = field(default_factory=_int64)
    device: array[int] = field(default_factory=_int64)
    stream: array[int] = field(default_factory=_int64)
    op: array[int] = field(default_factory=_int32)
    step: array[int] = field(default_factory=_int32)
    launch: array[int] = field(default_factory=_int8)
    collective: array[int] = field(default_factory=_int32)
    layer: array[int] = field(default_factory=_int32)
    launch_ns: array[int] = field(default_factory=_int64)
    thread: array[int] = field(default_factory=_int64)
    site: array[int] = field(default_factory=_int32)
    config: array[int] = field(default_factory=_int32)

    def __len__(self) -> int:
        return len(self.name)


class LaunchConfig(NamedTuple):
    """How a kernel was launched: threads of a block, bytes of its shared memory, registers.

    None of what was not recorded.
    """

    threads: int | None = None
    shared: int | None = None
    registers: int | None = None


class Site(NamedTuple):
    """Where in autograd's graph a kernel was launched; -1 for none.

    Attributes:
        call: the call of the operator, which is that of all its kernels.
        makes: the node that such calls made.
        node: the node that it ran in.
    """

    call: int
    makes: int
    node: int


class Step(Struct, frozen=True):
    """One iteration of the profiler's own count: `ProfilerStep#N` on the CPU.

    `whole` is whether all its kernels were read, as far as a damaged trace shows.
    """

    number: int
    start_ns: int
    end_ns: int
    whole: bool = True


class Health(Struct):
    """What the file held and what could not be used of it.

    `skipped_events` could not be decoded. `bad_durations` are kernels whose duration is negative
    or longer than the CPU side of the whole trace: they stay in the table with duration 0.
    `kernels_before_window` were launched before it and do not count. `kernels_in_graphs` were
    launched by a CUDA graph, many at once.
    `extra_documents` follow the trace in the same file and are not read. `records_lost` is what
    the profiler itself logged: activity records that it had to drop. `rows_are_sums` is whether an
    event is a row of a table, which may hold most of the time. `no_events` is whether
    a list of events was empty, `log_alone` whether there was a log and no trace.
    """

    events: int = 0
    skipped_events: int = 0
    truncated: bool = False
    kernels: int = 0
    kernels_without_launch: int = 0
    kernels_without_op: int = 0
    kernels_before_window: int = 0
    kernels_in_graphs: int = 0
    bad_durations: int = 0
    extra_documents: int = 0
    records_lost: bool = False
    rows_are_sums: bool = False
    no_events: bool = False
    log_alone: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every event was recorded and read, so absence is evidence."""
        lost = self.skipped_events or self.truncated or self.extra_documents
        return not (lost or self.records_lost)

    @property
    def too_damaged(self) -> bool:
        """Whether what could not be read may outweigh what could."""
        if self.rows_are_sums:
            return self.skipped_events > 0
        everything = self.events + self.skipped_events
        return self.skipped_events > MANY_UNREADABLE * everything

    def add(self, other: Health) -> None:
        """Add the health of another trace of the same rank."""
        for name in self.__struct_fields__:
            mine = getattr(self, name)
            theirs = getattr(other, name)
            if isinstance(mine, bool):
                both = mine or theirs
            else:
                both = mine + theirs
            setattr(self, name, both)


_Count = Annotated[int, Meta(ge=0, lt=1 << 31)]


class Missing(Struct, frozen=True, omit_defaults=True):
    """What a copy of a trace lacks of the original, in the entry `COPY_KEY` of its metadata.

    Attributes:
        events: that could not be read, and were left out.
        cut: whether the original ended early.
        documents: that followed it and were not read.
    """

    events: _Count = 0
    cut: bool = False
    documents: _Count = 0


def missing_of(value: Any) -> Missing:
    """Return what an entry of metadata says; one that is damaged itself says that the trace is."""
    try:
        return msgspec.convert(value, Missing)
    except msgspec.ValidationError:
        return Missing(cut=True)


# The entry of a copy's metadata by which `fp8verify annotate` says what is missing.
COPY_KEY = "fp8verify_missing"


class TraceHead(Struct):
    """What holds of a whole trace: its process, its GPU, and how well it was recorded.

    No other metadata is kept, as traces hold environment variables and host names. `process` is
    the number of the process whose operators it holds, None if that is not known. `in_flops` is
    whether a kernel's duration is its MFLOPs instead of nanoseconds. `largest_gradient` is the
    number of elements of the largest gradient that autograd gave a parameter, None if unknown.
    """

    source: str
    rank: int | None = None
    world_size: int | None = None
    process: int | None = None
    gpu: str | None = None
    compute_capability: str | None = None
    health: Health = field(default_factory=Health)
    in_flops: bool = False
    largest_gradient: int | None = None


class Trace(TraceHead):
    """The GPU side of one rank's trace, with what is known of where each kernel came from.

    `copies` maps "memcpy" and "memset" to (count, nanoseconds, bytes). `remarks` say what the
    source does not record. `others` are the other ranks of a file that joins several, if they were
    asked for. `seen` are operators and ranges of a source that does not say what each launched.
    """

    # What the file's times count from, in ns since 1970; 0 if unknown.
    base_ns: int = 0
    record_shapes: bool = False
    names: list[str] = field(default_factory=list)
    ops: list[OpContext] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    configs: list[LaunchConfig] = field(default_factory=list)
    kernels: Kernels = field(default_factory=Kernels)
    collectives: list[Collective] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    copies: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    others: list[Trace] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
