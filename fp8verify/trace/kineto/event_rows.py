"""Append decoded events to the columns."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from fp8verify.terms import Collective
from fp8verify.trace.columns import Columns, Interner, append_all
from fp8verify.trace.kineto import events as ev
from fp8verify.trace.kineto.inputs import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_name_of, _thread_of = attrgetter("name"), attrgetter("pid", "tid")
_inputs_of = attrgetter("types", "dims", "forward_thread")
# An hour: a copy beyond it is a broken counter.
MAX_COPY_US = 3.6e9


class Rows(NamedTuple):
    """Where events go; `sequences` is whether autograd's sequence numbers do, too."""

    columns: Columns
    inputs: Interner
    sequences: bool


def add_events(
    rows: Rows, groups: Mapping[type, list[Any]], starts: Mapping[type, list[int]]
) -> None:
    """Append events by type; `starts` are the times of all types that have one."""
    for kind, times in starts.items():
        TIMED_ADDERS[kind](rows, groups[kind], times)
    for kind, name in _COPIES.items():
        if kind in groups:
            _add_copies(rows, name, groups[kind])


def _add_ops(rows: Rows, group: list[Any], starts: list[int]) -> None:
    args = [op.args for op in group]
    inputs = map(SEPARATOR.join, map(_inputs_of, args))
    _add_ranges(rows, group, starts, args, list(map(rows.inputs.__getitem__, inputs)))


def _add_annotations(rows: Rows, group: list[Any], starts: list[int]) -> None:
    known = len(rows.columns.ops.name)
    rows.columns.annotations.extend(range(known, known + len(group)))
    _add_ranges(rows, group, starts, [op.args for op in group], [-1] * len(group))


def _add_ranges(
    rows: Rows, group: list[Any], starts: list[int], args: list[Any], inputs: list[int]
) -> None:
    columns, ops = rows.columns, rows.columns.ops
    ends = [start + round(1000 * op.dur) for start, op in zip(starts, group, strict=True)]
    append_all(ops.start, starts)
    append_all(ops.end, ends)
    append_all(ops.inputs, inputs)
    append_all(ops.op_id, [a.external_id for a in args])
    append_all(ops.name, list(map(columns.op_names.__getitem__, map(_name_of, group))))
    append_all(ops.thread, list(map(columns.threads.__getitem__, map(_thread_of, group))))
    if rows.sequences:
        append_all(ops.sequence, [getattr(a, "sequence", -1) for a in args])
    columns.note_times(starts, ends)


def _add_calls(rows: Rows, group: list[Any], starts: list[int]) -> None:
    columns, calls = rows.columns, rows.columns.calls
    append_all(calls.start, starts)
    append_all(calls.correlation, [call.args.correlation for call in group])
    append_all(calls.thread, list(map(columns.threads.__getitem__, map(_thread_of, group))))
    ends = [start + 1000 * call.dur for start, call in zip(starts, group, strict=True)]
    columns.note_times(starts, [round(max(ends))])


def _add_kernels(rows: Rows, group: list[Any], starts: list[int]) -> None:
    columns, kernels = rows.columns, rows.columns.kernels
    args = [kernel.args for kernel in group]
    append_all(kernels.start, starts)
    append_all(kernels.duration, _lengths_ns([kernel.dur for kernel in group]))
    append_all(kernels.op_id, list(map(_op_id, args)))
    append_all(kernels.correlation, [a.correlation for a in args])
    append_all(kernels.device, [a.device for a in args])
    append_all(kernels.stream, [a.stream for a in args])
    append_all(kernels.name, list(map(columns.names.__getitem__, map(_name_of, group))))
    append_all(kernels.collective, [_collective(rows, a) if a.collective else -1 for a in args])


def _collective(rows: Rows, args: ev.KernelArgs) -> int:
    return rows.columns.collectives[
        Collective(
            name=args.collective,
            dtype=args.dtype,
            in_elements=args.in_elements,
            out_elements=args.out_elements,
            group_size=args.group_size,
        )
    ]


def _add_copies(rows: Rows, kind: str, group: list[Any]) -> None:
    count, time, size = rows.columns.copies.get(kind, (0, 0, 0))
    time += sum(round(1000 * copy.dur) for copy in group if 0 <= copy.dur <= MAX_COPY_US)
    rows.columns.copies[kind] = (
        count + len(group),
        time,
        size + sum(copy.args.bytes for copy in group),
    )


def _op_id(args: ev.KernelArgs) -> int:
    """Return the operator's number; Kineto before 2024 puts that of the call if it has none."""
    return -1 if args.external_id == args.correlation else args.external_id


def _lengths_ns(micros: list[float]) -> list[int]:
    """Return durations in nanoseconds, -1 for those that cannot be."""
    if min(micros) < 0 or max(micros) > ev.MAX_MICROS:
        micros = [length if 0 <= length <= ev.MAX_MICROS else -1e-3 for length in micros]
    return [round(1000 * length) for length in micros]


TIMED_ADDERS: dict[type, Callable[[Rows, list[Any], list[int]], None]] = {
    **dict.fromkeys(ev.OPS, _add_ops),
    ev.Annotation: _add_annotations,
    **dict.fromkeys(ev.CALLS, _add_calls),
    ev.GpuKernel: _add_kernels,
}
_COPIES: dict[type, str] = {ev.GpuMemcpy: "memcpy", ev.GpuMemset: "memset"}
