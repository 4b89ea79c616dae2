"""The ranks in one file: traces that were joined for a viewer, each process with its own GPU.

Numbers of operators and of launches may be those of several ranks at once, so the columns are
taken apart before anything is joined by them.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from itertools import compress
from typing import Any, NamedTuple

from msgspec.structs import replace

from fp8verify.trace.columns import CallColumns, Columns, OpColumns
from fp8verify.trace.tables import Kernels

# A process launched the kernels of a device if it has this many times the launches of any other.
_CLEARLY = 2


class Process(NamedTuple):
    """A process of a file, and the devices that ran its kernels."""

    number: Hashable
    devices: frozenset[int]


def processes_of(columns: Columns) -> list[Process]:
    """Return the processes of a file that launched kernels on devices of their own, if several.

    Where the ids of launches collide, devices belong to the processes in order.
    """
    if len({_process(thread) for thread in columns.threads}) < 2:
        return []
    callers: defaultdict[int, set[Hashable]] = defaultdict(set)
    owners = list(map(_process, columns.threads))
    for correlation, thread in zip(columns.calls.correlation, columns.calls.thread, strict=True):
        callers[correlation].add(owners[thread])
    votes: defaultdict[int, Counter[Hashable]] = defaultdict(Counter)
    for device, correlation in zip(columns.kernels.device, columns.correlations, strict=True):
        votes[device].update(callers[correlation])
    launching = {process for counted in votes.values() for process in counted}
    found: defaultdict[Hashable, set[int]] = defaultdict(set)
    for device, counted in votes.items():
        (best, most), (_, second) = [*counted.most_common(2), (None, 0), (None, 0)][:2]
        if most < _CLEARLY * second:
            if len(launching) != len(votes):
                return []
            pairs = zip(sorted(launching, key=_in_order), sorted(votes), strict=True)
            return [Process(process, frozenset({device})) for process, device in pairs]
        found[best].add(device)
    ordered = sorted(found, key=_in_order)
    several = [Process(process, frozenset(found[process])) for process in ordered]
    return several if len(several) > 1 else []


def _process(thread: Any) -> Hashable:
    return thread[0] if isinstance(thread, tuple) else None


def _in_order(process: Hashable) -> tuple[int, str]:
    return (process if isinstance(process, int) else -1), str(process)


def part_of(columns: Columns, process: Process) -> Columns:
    """Return the columns of one process alone; copies are not told apart, and left out."""
    own = [_process(thread) == process.number for thread in columns.threads]
    ops = [own[thread] for thread in columns.ops.thread]
    calls = [own[thread] for thread in columns.calls.thread]
    kernels = [device in process.devices for device in columns.kernels.device]
    places = {row: place for place, row in enumerate(compress(range(len(ops)), ops))}
    return replace(
        columns,
        ops=_kept(columns.ops, OpColumns(), ops),
        calls=_kept(columns.calls, CallColumns(), calls),
        kernels=_kept(columns.kernels, Kernels(), kernels),
        op_ids=_where(columns.op_ids, kernels),
        correlations=_where(columns.correlations, kernels),
        annotations=array("i", (places[row] for row in columns.annotations if row in places)),
        copies={},
    )


def _kept(table: Any, empty: Any, wanted: list[bool]) -> Any:
    """Return the wanted rows of a table; columns that are not filled stay empty."""
    for name in table.__struct_fields__:
        column = getattr(table, name)
        if column:
            setattr(empty, name, _where(column, wanted))
    return empty


def _where(column: array[Any], wanted: Iterable[bool]) -> array[Any]:
    return array(column.typecode, compress(column, wanted))
