"""From rows of a table, as other profilers keep them, to columns; a bad row costs only itself.

Ranges have the names that torch gives them under `emit_nvtx` and nsys' --pytorch:
`torch::profiler::impl::getNvtxStr` (torch 2.11) writes the operator, then where known
", seq = N", ", op_id = N", ", sizes = [[…], …]" and ", input_op_ids = […]".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from operator import sub
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean
from fp8verify.trace.build import fill
from fp8verify.trace.columns import SEPARATOR, Columns, Inputs, append_all
from fp8verify.trace.contexts import BACKWARD
from fp8verify.trace.steps import mark_steps
from fp8verify.trace.tables import Trace

_TAIL = lazy_pattern(r", (?:seq|op_id|sizes|input_op_ids) = ")
_SEQUENCE = lazy_pattern(r", seq = (\d{1,18})")
_SIZES = lazy_pattern(r", sizes = (\[.*?\])(?:, input_op_ids = |$)", re.DOTALL)
_NAMESPACED = lazy_pattern(r"\w+::\w")
# What `record_function` marks: Kineto keeps these apart as annotations, NVTX does not.
_ANNOTATION = lazy_pattern(
    r"ProfilerStep#|Optimizer\.|## Call |nccl:|gloo:|FSDP::|DistributedDataParallel\.|fp8verify:"
    r"|\[pl\]"
)
_MAX_SIZES = 1 << 14
COPY = lazy_pattern(r"\[?(?:CUDA )?mem(cpy|set)", re.IGNORECASE)


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
    name = text
    tail = _TAIL.search(text)
    if tail is not None:
        name = text[: tail.start()]
    has_namespace = _NAMESPACED.match(name) is not None
    is_operator = tail is not None or has_namespace
    if _ANNOTATION.match(name) or not is_operator:
        return RangeName(name)
    rest = text[len(name) :]
    sizes = _SIZES.search(rest)
    dims = ""
    if sizes is not None and len(sizes[1]) < _MAX_SIZES:
        dims = sizes[1]
    forward_thread = b""
    sequence = -1
    number = _SEQUENCE.match(rest)
    if number is not None:
        sequence = int(number[1])
        if BACKWARD.search(name) is not None:
            forward_thread = b"1"
    inputs = (b"", dims.encode("utf-8", "replace"), forward_thread)
    return RangeName(name, SEPARATOR.join(inputs), sequence)


# Three such times still add up in int64.
_Time = Annotated[int, Meta(ge=-(1 << 61), le=1 << 61)]
_Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Id = _Int64 | None

Row: TypeAlias = "Iterable[Any]"
# Name, start, end, device, stream and correlation id; copies are told by their names.
_Kernel = tuple[str, _Time, _Time, _Id, _Id, _Id]
# Correlation id, start, end and thread.
_Call = tuple[_Int64, _Time, _Time, Any]
# Text, start, end and thread; ranges of one thread nest. Those that belong to no thread (None) may
# mark steps.
_Range = tuple[str, _Time, _Time, Any]
# Start, end and bytes.
_Copy = tuple[_Time, _Time, _Id]
_BLOCK = 4096

_NO_OPERATORS = (
    "no operators: precision is read from kernel names, GEMMs of an optimizer or of attention "
    "count as the layers', legs and FLOPs are unknown"
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
        self.events = 0
        self.skipped = 0

    def kernels(self, rows: Iterable[Row]) -> None:
        """Take rows of name, start, end, device, stream and correlation id."""
        columns = self.columns
        kernels = self.columns.kernels
        for block in self._sound(rows, _Kernel):
            names, starts, ends, *numbers = zip(*block, strict=True)
            append_all(kernels.name, columns.names.numbers(names))
            append_all(kernels.start_ns, starts)
            append_all(kernels.duration_ns, map(sub, ends, starts))
            ids = (kernels.device, kernels.stream, columns.correlations)
            for column, values in zip(ids, numbers, strict=True):
                append_all(column, map(_number_or_none, values))
            for column in (kernels.collective, columns.op_ids):
                append_all(column, repeat(-1, len(block)))

    def launches(self, rows: Iterable[Row]) -> None:
        """Take rows as `kernels` does, some of which are copies by their names."""
        copies: dict[str, list[Row]] = defaultdict(list)
        kernels = []
        for row in rows:
            name, start, end, *_ = row
            copy = COPY.match(name)
            if copy is None:
                kernels.append(row)
            else:
                kind = f"mem{copy[1].lower()}"
                copies[kind].append((start, end, 0))
        self.kernels(kernels)
        for kind, spans in copies.items():
            self.copies(kind, spans)

    def calls(self, rows: Iterable[Row]) -> None:
        """Take rows of correlation id, start, end and thread."""
        columns = self.columns
        calls = self.columns.calls
        for block in self._sound(rows, _Call):
            correlations, starts, ends, threads = zip(*block, strict=True)
            append_all(calls.correlation, correlations)
            append_all(calls.start, starts)
            append_all(calls.thread, columns.threads.numbers(threads))
            columns.note_ends(ends)

    def ranges(self, rows: Iterable[Row]) -> None:
        """Take rows of text, start, end and thread; ranges of one thread nest.

        Those that belong to no thread (None) may mark steps.
        """
        columns = self.columns
        ops = self.columns.ops
        for block in self._sound(rows, _Range):
            texts, starts, ends, threads = zip(*block, strict=True)
            names, inputs, sequences = zip(*map(parse_range, texts), strict=True)
            append_all(ops.start, starts)
            append_all(ops.end, ends)
            numbers_of_inputs = []
            for recorded in inputs:
                number = -1
                if recorded is not None:
                    number = columns.inputs[recorded]
                numbers_of_inputs.append(number)
            append_all(ops.name, columns.op_names.numbers(names))
            append_all(ops.inputs, numbers_of_inputs)
            append_all(ops.sequence, sequences)
            append_all(ops.op_id, repeat(-1, len(block)))
            append_all(ops.thread, columns.threads.numbers(threads))
            columns.note_ends(ends)

    def copies(self, kind: str, rows: Iterable[Row]) -> None:
        """Take rows of start, end and bytes of "memcpy" or "memset"."""
        for block in self._sound(rows, _Copy):
            time_ns = 0
            size = 0
            for start, end, size_of_copy in block:
                time_ns += max(0, end - start)
                if size_of_copy is not None:
                    size += max(0, size_of_copy)
            self.columns.add_copies(kind, len(block), time_ns, size)

    def _sound(self, rows: Iterable[Row], kind: Any) -> Iterator[list[Any]]:
        """Yield blocks of rows, without those that are not of this kind."""
        waiting = iter(rows)
        while block := list(islice(waiting, _BLOCK)):
            sound = _converted(block, kind)
            if not sound:
                for row in block:
                    sound += _converted([row], kind)
            self.events += len(sound)
            self.skipped += len(block) - len(sound)
            if sound:
                yield sound

    def fill(
        self,
        trace: Trace,
        tool: str,
        *,
        layers: bool,
    ) -> None:
        """Fill a trace with all rows, and say what the tool that recorded them cannot say."""
        columns = self.columns
        steps = mark_steps(columns)
        trace.remarks = []
        if columns.kernels.name:
            limits = _limits_of(columns, tool, steps)
            trace.remarks.append(limits)
        fill(trace, columns, layers=layers)
        trace.health.events = self.events
        trace.health.skipped_events += self.skipped


def _number_or_none(value: int | None) -> int:
    """Return a number, -1 for none."""
    if value is None:
        return -1
    return value


def _converted(block: list[Row], kind: Any) -> list[Any]:
    try:
        return msgspec.convert(block, list[kind])
    except msgspec.ValidationError:
        return []


def _limits_of(
    columns: Columns,
    tool: str,
    steps: str | None,
) -> str:
    """Say what the columns lack, and what was taken for the steps.

    Args:
        columns: of one process, with their steps.
        tool: what recorded them.
        steps: what the ranges are called that count as steps, None for torch.profiler's own.
    """
    has_operators = max(columns.ops.inputs, default=-1) >= 0
    has_shapes = any(Inputs(recorded).dims for recorded in columns.inputs)
    facts = []
    if not has_operators:
        facts.append(_NO_OPERATORS)
    elif has_shapes:
        facts.append(_NO_TYPES)
    else:
        facts.append("operators without shapes: FLOPs are unknown")
    if not columns.steps:
        facts.append("no steps: the verdict covers the trace as a whole")
    text = f"the {tool} trace has {', and '.join(facts)}"
    if steps is None:
        return text
    name = clean(steps[:60])
    return f"{text}; its steps are the ranges called “{name}”"
