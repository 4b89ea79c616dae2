"""Turn decoded events into columns, block by block."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from fp8verify.terms import Collective
from fp8verify.text import lazy_pattern
from fp8verify.trace.columns import SEPARATOR, Columns, append_all
from fp8verify.trace.kineto import events as ev
from fp8verify.trace.kineto.events import EXACT_LIMIT, parse_micros, to_nanoseconds
from fp8verify.trace.steps import mark_profiler_steps

if TYPE_CHECKING:
    from collections.abc import Callable


_name_of, _thread_of = attrgetter("name"), attrgetter("pid", "tid")
_inputs_of = attrgetter("types", "dims", "forward_thread")
# An hour: a copy beyond it is a broken counter.
MAX_COPY_US = 3.6e9


def _add_ops(columns: Columns, group: list[Any], starts: list[int]) -> None:
    args = [op.args for op in group]
    inputs = map(SEPARATOR.join, map(_inputs_of, args))
    _add_ranges(columns, group, starts, args, list(map(columns.inputs.__getitem__, inputs)))


def _add_annotations(columns: Columns, group: list[Any], starts: list[int]) -> None:
    known = len(columns.ops.name)
    columns.annotations.extend(range(known, known + len(group)))
    _add_ranges(columns, group, starts, [op.args for op in group], [-1] * len(group))


def _add_ranges(
    columns: Columns, group: list[Any], starts: list[int], args: list[Any], inputs: list[int]
) -> None:
    ops = columns.ops
    ends = [start + round(1000 * op.dur) for start, op in zip(starts, group, strict=True)]
    append_all(ops.start, starts)
    append_all(ops.end, ends)
    append_all(ops.inputs, inputs)
    append_all(ops.op_id, [a.external_id for a in args])
    append_all(ops.name, list(map(columns.op_names.__getitem__, map(_name_of, group))))
    append_all(ops.thread, list(map(columns.threads.__getitem__, map(_thread_of, group))))
    if columns.sequences:
        append_all(ops.sequence, [getattr(a, "sequence", -1) for a in args])
    columns.note_times(starts, ends)


def _add_calls(columns: Columns, group: list[Any], starts: list[int]) -> None:
    calls = columns.calls
    append_all(calls.start, starts)
    append_all(calls.correlation, [call.args.correlation for call in group])
    append_all(calls.thread, list(map(columns.threads.__getitem__, map(_thread_of, group))))
    ends = [start + 1000 * call.dur for start, call in zip(starts, group, strict=True)]
    columns.note_times(starts, [round(max(ends))])


def _add_kernels(columns: Columns, group: list[Any], starts: list[int]) -> None:
    kernels = columns.kernels
    args = [kernel.args for kernel in group]
    append_all(kernels.start_ns, starts)
    append_all(kernels.duration_ns, _lengths_ns([kernel.dur for kernel in group]))
    append_all(columns.op_ids, list(map(_op_id, args)))
    append_all(columns.correlations, [a.correlation for a in args])
    append_all(kernels.device, [a.device for a in args])
    append_all(kernels.stream, [a.stream for a in args])
    append_all(kernels.name, list(map(columns.names.__getitem__, map(_name_of, group))))
    append_all(kernels.collective, [_collective(columns, a) if a.collective else -1 for a in args])


def _collective(columns: Columns, args: ev.KernelArgs) -> int:
    return columns.collectives[
        Collective(
            name=args.collective,
            dtype=args.dtype,
            in_elements=args.in_elements,
            out_elements=args.out_elements,
            group_size=args.group_size,
        )
    ]


def _add_copies(columns: Columns, kind: str, group: list[Any]) -> None:
    count, time, size = columns.copies.get(kind, (0, 0, 0))
    time += sum(round(1000 * copy.dur) for copy in group if 0 <= copy.dur <= MAX_COPY_US)
    columns.copies[kind] = (count + len(group), time, size + sum(copy.args.bytes for copy in group))


def _op_id(args: ev.KernelArgs) -> int:
    """Return the operator's number; Kineto before 2024 puts that of the call if it has none."""
    return -1 if args.external_id == args.correlation else args.external_id


def _lengths_ns(micros: list[float]) -> list[int]:
    """Return durations in nanoseconds, -1 for those that cannot be."""
    if min(micros) < 0 or max(micros) > ev.MAX_MICROS:
        micros = [length if 0 <= length <= ev.MAX_MICROS else -1e-3 for length in micros]
    return [round(1000 * length) for length in micros]


TIMED_ADDERS: dict[type, Callable[[Columns, list[Any], list[int]], None]] = {
    **dict.fromkeys(ev.OPS, _add_ops),
    ev.Annotation: _add_annotations,
    **dict.fromkeys(ev.CALLS, _add_calls),
    ev.GpuKernel: _add_kernels,
}
_COPIES: dict[type, str] = {ev.GpuMemcpy: "memcpy", ev.GpuMemset: "memset"}


_LARGE_FRACTION = lazy_pattern(rb'"ts"\s*:\s*"?-?\d{13,}\.\d*[1-9]')


_FIELDS = ("cat", "name", "pid", "tid", "ts", "dur", "args")
_as_json = msgspec.json.Encoder(decimal_format="number").encode


class _NeedsTextError(Exception):
    """A time stamp that a double may not hold to the nanosecond."""


class Collector:
    """The sink of a document's events, which fills the columns.

    Args:
        sequences: keep autograd's sequence numbers too, which makes decoding slower.
    """

    def __init__(self, *, sequences: bool = False) -> None:
        self.columns = Columns(sequences=sequences)
        self.events = self.skipped = 0
        self._base_ns: int | None = None
        self._exact = False
        self._decoders = ev.Decoders(ev.Micros, sequences=sequences)

    def finish(self) -> Columns:
        """Return the columns of all events."""
        columns = self.columns
        columns.base_ns = self._base_ns or 0
        mark_profiler_steps(columns)
        return columns

    # -- decoding -------------------------------------------------------------------------------

    def block(self, data: bytes | memoryview) -> bool:
        """Take a JSON list of whole events; False if it does not decode as such."""
        try:
            self._add_exactly(data, lambda: self._decoders.block.decode(data))
        except (ValueError, RecursionError):
            return False
        return True

    def _add_exactly(self, data: bytes | memoryview, decode: Callable[[], list[Any]]) -> None:
        """Add what `decode` returns; keep the text of time stamps where a double loses digits."""
        try:
            self._add(decode(), may_round=False)
        except _NeedsTextError:
            if _LARGE_FRACTION.search(data):
                self._exact = True
                self._decoders = ev.Decoders(Raw, sequences=self.columns.sequences)
            self._add(decode(), may_round=True)

    def event(self, data: bytes, scanned: Any) -> None:
        """Take one event; what no decoder accepts is counted as skipped."""
        fields = scanned if isinstance(scanned, dict) else {}
        category = fields.get("cat")
        if fields.get("ph") in ("B", "E"):
            self.skip()  # Kineto writes whole events; halves would have to be paired
        elif category is None and fields.get("ph") not in ("X", None):
            # Metadata ("M") and instant events have no category; a complete event needs one.
            self.events += 1
        elif isinstance(category, str) and not self._decoders.knows(category):
            self._decoders.learn(category)
            self.events += 1
        elif not (self.block(b"[%b]" % data) or self._add_leniently(data)):
            self.skip()

    def skip(self) -> None:
        """Count something that is not an event."""
        self.skipped += 1

    def _add_leniently(self, data: bytes) -> bool:
        """Take what msgspec refuses: NaN, raw control characters, invalid UTF-8, text numbers."""
        try:
            repaired = _read_leniently(data)
            if repaired.get("cat") != ev.KERNEL:
                repaired.setdefault("dur", 0)
            data = _as_json(repaired)
            self._add_exactly(data, lambda: [self._decoders.lax_event.decode(data)])
        except (ValueError, RecursionError, ArithmeticError):
            return False
        return True

    def _add(self, decoded: list[Any], *, may_round: bool) -> None:
        groups = defaultdict[type, list[Any]](list)
        for event in decoded:
            groups[type(event)].append(event)
        stamps = {kind: [e.ts for e in groups[kind]] for kind in TIMED_ADDERS if kind in groups}
        # All time stamps first: a bad one must refuse the block before anything is added.
        starts = {kind: self._nanoseconds(own, may_round) for kind, own in stamps.items()}
        for kind, times in starts.items():
            TIMED_ADDERS[kind](self.columns, groups[kind], times)
        for kind, name in _COPIES.items():
            if kind in groups:
                _add_copies(self.columns, name, groups[kind])
        self.events += len(decoded)

    # -- times ----------------------------------------------------------------------------------

    def _nanoseconds(self, stamps: list[Any], may_round: bool) -> list[int]:
        """Return the times since the whole microsecond of the first event.

        Raises:
            ValueError: not a time stamp.
            _NeedsTextError: the doubles lost nanoseconds.
        """
        if self._exact:
            exact = list(map(parse_micros, stamps))
            base_ns = self._base(exact[0] // 1000)
            return [ns - base_ns for ns in exact]
        if max(stamps) >= EXACT_LIMIT and not may_round:
            raise _NeedsTextError
        return to_nanoseconds(stamps, self._base(int(stamps[0])) // 1000)

    def _base(self, micros: int) -> int:
        if self._base_ns is None:
            self._base_ns = micros * 1000
        return self._base_ns


def _read_leniently(data: bytes) -> dict[str, Any]:
    """Return the fields of an event that are decoded, without those that are null or were NaN.

    Raises:
        ValueError: no event.
        RecursionError: it is nested too deep.
    """
    event = json.loads(
        data.decode("utf-8", "replace"),
        strict=False,
        parse_float=Decimal,
        parse_constant=lambda _: None,
    )
    if not isinstance(event, dict):
        raise ValueError("not an event")
    kept = {key: event[key] for key in _FIELDS if event.get(key) is not None}
    if isinstance(kept.get("args"), dict):
        args = kept["args"]
        kept["args"] = {key: args[key] for key in ev.ARGS if args.get(key) is not None}
    return kept
