"""The events that matter, as msgspec structs distinguished by their `cat`, and their columns.

Everything that no struct names is skipped by the decoder, in C. Fields are in Kineto's order: the
decoder looks for a key first where the last one was found. A duration must be there: it separates
a whole event from one of two halves.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import repeat
from operator import attrgetter, or_
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, field

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.columns import MAX_SIZE, SEPARATOR, Columns, append_all
from fp8verify.trace.steps import mark_profiler_steps

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# Differences and sums of three such numbers of microseconds still fit int64 nanoseconds; 3e15 is
# the year 2065 in the absolute stamps of older traces. The bound also refuses infinities.
MAX_MICROS = 3e15
Micros = Annotated[float, Meta(ge=-MAX_MICROS, le=MAX_MICROS)]
Length = Annotated[float, Meta(ge=0, le=MAX_MICROS)]
Size = Annotated[int, Meta(ge=-MAX_SIZE, le=MAX_SIZE)]
Id = int | str

NOTHING = Raw(b"")


class OpArgs(Struct, gc=False):
    """The `args` of a CPU operator; shapes and types stay undecoded until a kernel needs them."""

    external_id: Int64 = field(name="External id", default=-1)
    sequence: Int64 = field(name="Sequence number", default=-1)
    forward_thread: Raw = field(name="Fwd thread id", default=NOTHING)
    types: Raw = field(name="Input type", default=NOTHING)
    dims: Raw = field(name="Input Dims", default=NOTHING)


class LaunchArgs(Struct, gc=False):
    """The `args` of a runtime or driver call."""

    correlation: Int64 = -1


class KernelArgs(Struct, gc=False):
    """The `args` of a kernel; NCCL's kernels carry their collective.

    How it was launched stays undecoded until its compiled code is looked for.
    """

    external_id: Int64 = field(name="External id", default=-1)
    correlation: Int64 = -1
    device: Int64 = -1
    stream: Int64 = -1
    registers: Raw = field(name="registers per thread", default=NOTHING)
    shared: Raw = field(name="shared memory", default=NOTHING)
    block: Raw = NOTHING
    collective: str = field(name="Collective name", default="")
    dtype: str = ""
    in_elements: Size = field(name="In msg nelems", default=0)
    out_elements: Size = field(name="Out msg nelems", default=0)
    group_size: Size = field(name="Group size", default=0)


class CopyArgs(Struct, gc=False):
    """The `args` of a copy or fill on the GPU."""

    bytes: int = 0


class CpuOp(
    Struct,
    tag_field="cat",
    tag="cpu_op",
    gc=False,
    kw_only=True,
):
    """An operator, or (subclass) a range that the user or a framework named."""

    name: str
    pid: Id = 0
    tid: Id = 0
    ts: Micros
    dur: Length
    args: OpArgs = field(default_factory=OpArgs)


class OldCpuOp(CpuOp, tag="Operator", gc=False):
    """`CpuOp` as torch 1.8 to 1.11 called its category."""


class Annotation(CpuOp, tag="user_annotation", gc=False):
    """A `record_function` range on the CPU, `ProfilerStep#N` among them."""


class RuntimeCall(
    Struct,
    tag_field="cat",
    tag="cuda_runtime",
    gc=False,
    kw_only=True,
):
    """A call into the CUDA or HIP runtime."""

    pid: Id = 0
    tid: Id = 0
    ts: Micros
    dur: Length
    args: LaunchArgs = field(default_factory=LaunchArgs)


class DriverCall(RuntimeCall, tag="cuda_driver", gc=False):
    """A call into the CUDA driver: cuBLAS and Triton launch this way."""


class OldCall(RuntimeCall, tag="Runtime", gc=False):
    """A call of either kind in a trace of torch 1.8 to 1.11."""


class GpuKernel(Struct, tag_field="cat", tag="kernel", gc=False):
    """A kernel that ran on the GPU."""

    name: str
    ts: Micros
    dur: float
    args: KernelArgs = field(default_factory=KernelArgs)


class OldKernel(GpuKernel, tag="Kernel", gc=False):
    """A kernel in a trace of torch 1.8 to 1.11."""


class GpuMemcpy(Struct, tag_field="cat", tag="gpu_memcpy", gc=False):
    """A copy that the GPU made."""

    dur: float
    args: CopyArgs = field(default_factory=CopyArgs)


class GpuMemset(GpuMemcpy, tag="gpu_memset", gc=False):
    """A fill that the GPU made."""


class OldMemcpy(GpuMemcpy, tag="Memcpy", gc=False):
    """A copy in a trace of torch 1.8 to 1.11."""


class OldMemset(GpuMemcpy, tag="Memset", gc=False):
    """A fill in a trace of torch 1.8 to 1.11."""


_collective_of = attrgetter(
    "collective", "dtype", "in_elements", "out_elements", "group_size"
)
_LONG_DAMAGE = 1 << 16
_LONGEST_NUMBER = 400
# An hour: a copy beyond it is a broken counter.
MAX_COPY_US = 3.6e9


def _add_ranges(
    columns: Columns,
    group: list[Any],
    starts: list[int],
) -> None:
    # A comprehension reads a field in a quarter of the time of `attrgetter`.
    ops = columns.ops
    names = [op.name for op in group]
    threads = [(op.pid, op.tid) for op in group]
    args = [op.args for op in group]
    inputs: Iterable[int]
    if isinstance(group[0], Annotation):
        inputs = repeat(-1, len(group))
    else:
        recorded = [
            SEPARATOR.join((arg.types, arg.dims, arg.forward_thread)) for arg in args
        ]
        inputs = columns.inputs.numbers(recorded)
    # What can fail comes first: columns of different lengths would give rows to one another.
    ends = [
        start + round(1000 * op.dur) for start, op in zip(starts, group, strict=True)
    ]
    append_all(ops.start, starts)
    append_all(ops.end, ends)
    append_all(ops.inputs, inputs)
    append_all(ops.op_id, [arg.external_id for arg in args])
    append_all(ops.name, columns.op_names.numbers(names))
    append_all(ops.thread, columns.threads.numbers(threads))
    append_all(ops.sequence, [arg.sequence for arg in args])
    columns.note_ends(ends)


def _add_calls(
    columns: Columns,
    group: list[Any],
    starts: list[int],
) -> None:
    calls = columns.calls
    ends = [start + 1000 * call.dur for start, call in zip(starts, group, strict=True)]
    append_all(calls.start, starts)
    append_all(calls.correlation, [call.args.correlation for call in group])
    threads = [(call.pid, call.tid) for call in group]
    append_all(calls.thread, columns.threads.numbers(threads))
    columns.note_ends(ends)


def _add_kernels(
    columns: Columns,
    group: list[Any],
    starts: list[int],
) -> None:
    kernels = columns.kernels
    names = [kernel.name for kernel in group]
    args = [kernel.args for kernel in group]
    lengths_ns = _lengths_ns([kernel.dur for kernel in group])
    # Kineto before 2024 puts the number of the call if a kernel has no operator.
    operator_ids = [
        -1 if arg.external_id == arg.correlation else arg.external_id for arg in args
    ]
    append_all(kernels.start_ns, starts)
    append_all(kernels.duration_ns, lengths_ns)
    append_all(columns.op_ids, operator_ids)
    append_all(columns.correlations, [arg.correlation for arg in args])
    append_all(kernels.device, [arg.device for arg in args])
    append_all(kernels.stream, [arg.stream for arg in args])
    append_all(kernels.name, columns.names.numbers(names))
    append_all(kernels.collective, _collectives(columns, args))


def _add_configs(columns: Columns, group: list[Any]) -> None:
    args = [kernel.args for kernel in group]
    configs = [SEPARATOR.join((arg.block, arg.shared, arg.registers)) for arg in args]
    append_all(columns.kernels.config, columns.configs.numbers(configs))


def _collectives(columns: Columns, args: list[KernelArgs]) -> Iterable[int]:
    """Return the numbers of collectives, -1 for other kernels, as most are."""
    if not any(arg.collective for arg in args):
        return repeat(-1, len(args))
    known = columns.collectives
    return [known[_collective_of(arg)] if arg.collective else -1 for arg in args]


def _lengths_ns(micros: list[float]) -> list[int]:
    """Return durations in nanoseconds, -1 for those that cannot be."""
    are_possible = min(micros) >= 0 and max(micros) <= MAX_MICROS
    if are_possible:  # as nearly always: looking at each one takes longer
        return [round(1000 * length) for length in micros]
    lengths_ns = []
    for length in micros:
        length_ns = -1
        if 0 <= length <= MAX_MICROS:
            length_ns = round(1000 * length)
        lengths_ns.append(length_ns)
    return lengths_ns


_KERNELS = (GpuKernel, OldKernel)
_TIMED: dict[Any, Callable[[Columns, list[Any], list[int]], None]] = {
    **dict.fromkeys((CpuOp, OldCpuOp, Annotation), _add_ranges),
    **dict.fromkeys((RuntimeCall, DriverCall, OldCall), _add_calls),
    **dict.fromkeys(_KERNELS, _add_kernels),
}
_COPIES: dict[Any, str] = {
    **dict.fromkeys((GpuMemcpy, OldMemcpy), "memcpy"),
    **dict.fromkeys((GpuMemset, OldMemset), "memset"),
}

# Kineto's other activity types (ActivityType.cpp) and flow categories; unknown ones are learnt.
_IGNORED = (
    "ac2g",
    "fwdbwd",
    "Trace",
    "gpu_user_annotation",
    "python_function",
    "cpu_instant_event",
    "overhead",
    "cuda_sync",
    "async",
)
_MAX_CATEGORIES = 100


_Decoder = msgspec.json.Decoder


class Decoders:
    """The decoder of a list of events and of one event.

    Attributes:
        kinds: of events by their category.
    """

    def __init__(self) -> None:
        self.kinds: dict[Any, Any] = {}
        for kind in (*_TIMED, *_COPIES):
            tag = kind.__struct_config__.tag
            self.kinds[tag] = kind
        self.ignore(*_IGNORED)

    def ignore(self, *categories: str) -> None:
        """Ignore events of some categories from now on, without a detour for each."""
        for category in categories:
            self.kinds[category] = msgspec.defstruct(
                "Ignored",
                [],
                tag_field="cat",
                tag=category,
                gc=False,
            )
        event: Any = reduce(or_, self.kinds.values())
        self.block: _Decoder[list[Any]] = _Decoder(list[event])
        self.lax_event: _Decoder[Any] = _Decoder(event, strict=False)


class Collector:
    """The sink of a document's events, which fills the columns.

    Args:
        configs: keep how each kernel was launched.
    """

    def __init__(self, *, configs: bool = False) -> None:
        self.columns = Columns()
        self._keeps_configs = configs
        self.events = 0
        self.skipped = 0
        self._base_us: int | None = None
        self._decoders = Decoders()

    def finish(self) -> Columns:
        """Return the columns of all events."""
        columns = self.columns
        columns.base_ns = 1000 * (self._base_us or 0)
        mark_profiler_steps(columns)
        return columns

    # -- decoding -------------------------------------------------------------------------------

    def block(self, data: bytes) -> bool:
        """Take a JSON list of whole events; False if it does not decode as such."""
        try:
            events = self._decoders.block.decode(data)
            self._add(events)
        except (ValueError, RecursionError):
            return False
        return True

    def event(self, data: bytes, scanned: dict[str, Any]) -> None:
        """Take one event; what no decoder accepts is counted as skipped."""
        category = scanned.get("cat")
        phase = scanned.get("ph")
        kinds = self._decoders.kinds
        if phase in ("B", "E"):
            self.skip()  # Kineto writes whole events; halves would have to be paired
        elif category is None and phase not in ("X", None):
            # Metadata ("M") and instant events have no category; a complete event needs one.
            self.events += 1
        elif isinstance(category, str) and category not in kinds:
            # A lone surrogate cannot be a tag.
            if category.isprintable() and len(kinds) < _MAX_CATEGORIES:
                self._decoders.ignore(category)
            self.events += 1
        else:
            is_taken = self.block(b"[%b]" % data) or self._add_leniently(data)
            if not is_taken:
                self.skip()

    def skip(self) -> None:
        """Count something that is not an event."""
        self.skipped += 1

    def _add_leniently(self, data: bytes) -> bool:
        """Take what msgspec refuses: NaN, raw control characters, invalid UTF-8, text numbers."""
        if len(data) > _LONG_DAMAGE:
            # Damage that begins and ends inside of text looks like one event.
            return False
        try:
            repaired = _read_leniently(data)
            category = str(repaired.get("cat"))
            kind = self._decoders.kinds.get(category)
            if kind not in _KERNELS:
                repaired.setdefault("dur", 0)
            text = json.dumps(repaired, ensure_ascii=False)
            sound = text.encode("utf-8", "replace")
            event = self._decoders.lax_event.decode(sound)
            self._add([event])
        except (ValueError, OverflowError, RecursionError):
            return False
        return True

    def _add(self, decoded: list[Any]) -> None:
        groups: dict[type, list[Any]] = defaultdict(list)
        for event in decoded:
            groups[type(event)].append(event)
        for kind, add in _TIMED.items():
            group = groups.get(kind)
            if group is not None:
                starts = self._nanoseconds(group)
                add(self.columns, group, starts)
        if self._keeps_configs:
            for kind in _KERNELS:
                if kind in groups:
                    _add_configs(self.columns, groups[kind])
        for kind, name in _COPIES.items():
            group = groups.get(kind)
            if group is not None:
                _add_copies(self.columns, name, group)
        self.events += len(decoded)

    def _nanoseconds(self, group: list[Any]) -> list[int]:
        """Return when events began, since the whole microsecond of the first event of all.

        A double holds the nanosecond of the stamps that Kineto writes today, which are relative,
        and a quarter of a microsecond of the absolute ones of older traces.
        """
        if self._base_us is None:
            self._base_us = int(group[0].ts)
        base = float(self._base_us)  # exact, and quicker to subtract than an int
        return [round((event.ts - base) * 1000) for event in group]


def _add_copies(
    columns: Columns,
    name: str,
    copies: Sequence[GpuMemcpy],
) -> None:
    """Add "memcpy" or "memset" of the GPU."""
    time_ns = 0
    size = 0
    for copy in copies:
        if 0 <= copy.dur <= MAX_COPY_US:
            time_ns += round(1000 * copy.dur)
        size_of_copy = max(0, copy.args.bytes)
        size += min(size_of_copy, MAX_SIZE)
    columns.add_copies(name, len(copies), time_ns, size)


def _read_leniently(data: bytes) -> dict[str, Any]:
    """Return the fields of an event without those that are null or were NaN.

    Raises:
        ValueError: it is damaged.
        RecursionError: it is nested too deep.
    """
    text = data.decode("utf-8", "replace")
    event: dict[str, Any] = json.loads(
        text,
        strict=False,
        parse_constant=lambda _: None,
    )
    args = event.get("args")
    if isinstance(args, dict):
        event["args"] = _without_null(args)
    return _without_null(event)


# As C++ and Python print them, which `float` and msgspec would read.
_NO_NUMBER = lazy_pattern(
    r"\s*[-+]?(?:nan(?:\([^)]*\))?|inf(?:inity)?)\s*", re.IGNORECASE
)


def _without_null(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in fields.items():
        if not _is_null(name, value):
            kept[name] = value
    return kept


def _is_null(name: str, value: Any) -> bool:
    if name in ("ts", "dur") and isinstance(value, str):
        number = value[:_LONGEST_NUMBER]
        return _NO_NUMBER.fullmatch(number) is not None
    return value is None
