"""From rows of a table, as other profilers keep them, to columns; a bad row costs only itself.

Ranges have the names that torch gives them under `emit_nvtx` and nsys' --pytorch:
`torch::profiler::impl::getNvtxStr` (torch 2.11) writes the operator, then where known
", seq = N", ", op_id = N", ", sizes = [[…], …]" and ", input_op_ids = […]".
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import sub
from struct import error as struct_error
from typing import TYPE_CHECKING, Any, NamedTuple

from fp8verify.text import clean
from fp8verify.trace.build import fill
from fp8verify.trace.columns import SEPARATOR, Columns, Inputs
from fp8verify.trace.contexts import BACKWARD
from fp8verify.trace.steps import mark_steps

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns
    from fp8verify.trace.tables import Trace


_TAIL = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_SEQUENCE = re.compile(r", seq = (\d{1,18})")
_SIZES = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids = |$)", re.DOTALL)
_NAMESPACED = re.compile(r"\w+::\w")
# What `record_function` marks: Kineto keeps these apart as annotations, NVTX does not.
_ANNOTATION = re.compile(
    r"ProfilerStep#|Optimizer\.|## Call |nccl:|gloo:|FSDP::|DistributedDataParallel\.|fp8verify:"
    r"|\[pl\]"
)
_MAX_SIZES = 1 << 14
COPY = re.compile(r"\[?(?:CUDA )?mem(cpy|set)", re.IGNORECASE)


class RangeName(NamedTuple):
    """What the text of a range says.

    `inputs` is the JSON of an operator's `Inputs`, None for an annotation; `sequence` is -1 if
    there is none. The number of the forward pass's thread is not in the text: 1 is for all.
    """

    name: str
    inputs: bytes | None = None
    sequence: int = -1


def parse_range(text: str) -> RangeName:
    """Take the text of a range apart."""
    tail = _TAIL.search(text)
    name = text[: tail.start()] if tail else text
    is_backward = BACKWARD.search(name) is not None
    if _ANNOTATION.match(name) or not (tail or _NAMESPACED.match(name)):
        return RangeName(name)
    rest = text[len(name) :]
    number, sizes = _SEQUENCE.match(rest), _SIZES.search(rest)
    dims = sizes[1] if sizes and len(sizes[1]) < _MAX_SIZES else ""
    parts = (b"", dims.encode("utf-8", "replace"), b"1" if number and is_backward else b"")
    return RangeName(name, SEPARATOR.join(parts), int(number[1]) if number else -1)


Row = Sequence[Any]
_Add = Callable[[Sequence[Row]], None]

_BLOCK = 4096
# Three such times still add up in int64.
_MAX_NS = 1 << 61


_NO_OPERATORS = (
    "no operators: precision is read from kernel names, GEMMs of an optimizer or of attention "
    "count as the layers', GEMM passes and FLOPs are unknown"
)
_NO_TYPES = (
    "operators with the shapes of their inputs, but not with their types: precision is read from "
    "kernel names alone"
)


class RowCollector:
    """Fills the columns of one process.

    Attributes:
        events: the rows that were taken.
        skipped: the rows that contain no number where there must be one.
    """

    def __init__(self) -> None:
        self.columns = Columns()
        self.events = self.skipped = 0

    def kernels(self, rows: Iterable[Row]) -> None:
        """Take rows of name, start, end, device, stream and correlation id."""
        self._take(rows, self._add_kernels)

    def launches(self, rows: Iterable[Row]) -> None:
        """Take rows as `kernels` does, some of which are copies by their names."""
        copies: dict[str, list[int]] = defaultdict(list)

        def kernels() -> Iterator[Row]:
            for row in rows:
                if copy := COPY.match(row[0]):
                    copies[f"mem{copy[1].lower()}"].append(row[2] - row[1])
                else:
                    yield row

        self.kernels(kernels())
        for kind, times in copies.items():
            self.copies(kind, (len(times), sum(times), 0))

    def calls(self, rows: Iterable[Row]) -> None:
        """Take rows of correlation id, start, end and thread."""
        self._take(rows, self._add_calls)

    def ranges(self, rows: Iterable[Row]) -> None:
        """Take rows of text, start, end and thread; ranges of one thread nest.

        Those that belong to no thread (None) may mark steps.
        """
        self._take(rows, self._add_ranges)

    def copies(self, kind: str, sums: tuple[int, int, int]) -> None:
        """Take the number, nanoseconds and bytes of "memcpy" or "memset"."""
        if sums[0]:
            self.columns.copies[kind] = sums
            self.events += sums[0]

    def fill(self, trace: Trace, tool: str, *, layers: bool) -> None:
        """Fill a trace with all rows, and say what the tool that recorded them cannot say."""
        columns = self.columns
        steps = mark_steps(columns)
        trace.remarks = [_limits_of(columns, tool, steps)] if columns.kernels.name else []
        fill(trace, columns, layers=layers)
        trace.health.events, trace.health.skipped_events = self.events, self.skipped

    def _take(self, rows: Iterable[Row], add: _Add) -> None:
        waiting = iter(rows)
        while block := list(islice(waiting, _BLOCK)):
            if not self._try(add, block):
                self.skipped += sum(not self._try(add, [row]) for row in block)

    def _try(self, add: _Add, block: Sequence[Row]) -> bool:
        try:
            add(block)
        except (TypeError, ValueError, OverflowError, struct_error):
            return False
        self.events += len(block)
        return True

    def _add_kernels(self, block: Sequence[Row]) -> None:
        names, starts, ends, devices, streams, correlations = zip(*block, strict=True)
        columns, kernels = self.columns, self.columns.kernels
        _extend(
            (kernels.start_ns, _times(starts)),
            (kernels.duration_ns, _times(list(map(sub, ends, starts)))),
            (kernels.device, _numbers(devices)),
            (kernels.stream, _numbers(streams)),
            (columns.correlations, _numbers(correlations)),
            (kernels.name, array("i", map(columns.names.__getitem__, map(_text, names)))),
            (columns.op_ids, array("q", [-1]) * len(block)),
            (kernels.collective, array("i", [-1]) * len(block)),
        )

    def _add_calls(self, block: Sequence[Row]) -> None:
        correlations, starts, ends, threads = zip(*block, strict=True)
        columns, calls = self.columns, self.columns.calls
        start, end = _times(starts), _times(ends)
        _extend(
            (calls.correlation, _numbers(correlations)),
            (calls.start, start),
            (calls.thread, array("i", map(columns.threads.__getitem__, threads))),
        )
        columns.note_times(start, end)

    def _add_ranges(self, block: Sequence[Row]) -> None:
        texts, starts, ends, threads = zip(*block, strict=True)
        columns, ops = self.columns, self.columns.ops
        start, end = _times(starts), _times(ends)
        names = list(map(parse_range, map(_text, texts)))
        inputs = [-1 if name.inputs is None else columns.inputs[name.inputs] for name in names]
        known = len(ops.name)
        _extend(
            (ops.start, start),
            (ops.end, end),
            (ops.name, array("i", [columns.op_names[name.name] for name in names])),
            (ops.inputs, array("i", inputs)),
            (ops.sequence, array("q", [name.sequence for name in names])),
            (ops.op_id, array("q", [-1]) * len(block)),
            (ops.thread, array("i", map(columns.threads.__getitem__, threads))),
        )
        columns.annotations.extend(known + at for at, number in enumerate(inputs) if number < 0)
        columns.note_times(start, end)


def _extend(*values: tuple[array[int], array[int]]) -> None:
    """Append to columns; whatever may fail is done before, so they stay of one length."""
    for column, more in values:
        column.extend(more)


def totals(rows: Iterable[Row]) -> tuple[int, int, int]:
    """Return the number of rows of start, end and (if known) size, their time and their sizes."""
    count = time_ns = size = 0
    for start, end, *sizes in rows:
        count += 1
        if isinstance(start, int) and isinstance(end, int):
            time_ns += max(0, end - start)
        size += sum(amount for amount in sizes if isinstance(amount, int) and amount > 0)
    return count, time_ns, size


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name that is not text")
    return value


def _times(values: Sequence[int]) -> array[int]:
    """Return nanoseconds as a column.

    Raises:
        TypeError: not whole numbers.
        ValueError: beyond what can be a time.
    """
    column = array("q", values)
    if max(column) > _MAX_NS or min(column) < -_MAX_NS:
        raise ValueError("no time")
    return column


def _numbers(values: Sequence[Any]) -> array[int]:
    """Return ids as a column, -1 for what is not recorded."""
    return array("q", [-1 if value is None else value for value in values])


def _limits_of(columns: Columns, tool: str, steps: str | None) -> str:
    """Say what the columns lack, and what was taken for the steps.

    Args:
        columns: of one process, with their steps.
        tool: what recorded them.
        steps: what the ranges are called that count as steps, None for torch.profiler's own.
    """
    ops = columns.ops
    has_operators = len(columns.annotations) < len(ops.name)
    facts = []
    if not has_operators:
        facts.append(_NO_OPERATORS)
    elif not any(Inputs(raw).dims for raw in columns.inputs):
        facts.append("operators without shapes: FLOPs are unknown")
    else:
        facts.append(_NO_TYPES)
    if not columns.steps:
        facts.append("no steps: the verdict covers the trace as a whole")
    text = f"the {tool} trace has {', and '.join(facts)}"
    return (
        text if steps is None else f"{text}; its steps are the ranges called “{clean(steps[:60])}”"
    )
