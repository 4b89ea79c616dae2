"""Follow each kernel back to its launch, its operator and its step."""

from __future__ import annotations

from array import array
from collections import defaultdict
from itertools import chain, compress, count, pairwise
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.trace.columns import Columns, Stretch
from fp8verify.trace.contexts import Contexts
from fp8verify.trace.enclosing import Nesting, nest, split
from fp8verify.trace.layers import NamedOps
from fp8verify.trace.steps import steps_of_kernels
from fp8verify.trace.tables import Launch
from fp8verify.trace.team import Team

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fp8verify.terms import OpContext


class Correlation(NamedTuple):
    """The columns that correlation adds to the kernels, and what they index.

    Attributes:
        start_ns: the starts of the kernels, no more relative.
        starts: the least and the greatest start in the columns.
        durations: the least and the greatest duration.
    """

    start_ns: array[int]
    starts: tuple[int, int]
    durations: tuple[int, int]
    op: array[int]
    launch: array[int]
    step: array[int]
    ops: list[OpContext]
    layer: array[int]
    layers: list[str]


def correlate(columns: Columns, *, layers: bool = False, workers: int = 1) -> Correlation:
    """Follow every kernel back, whatever the order of the events in the file was.

    An operator is found by the `op_id` of the kernel; if that names none, by the launch with the
    kernel's correlation id and the innermost operator that encloses it on its thread. The step is
    the one in which the launch happened, on any thread.

    Args:
        columns: what a reader took out of the trace.
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
        workers: how many processes may do it; layers take one.
    """
    count = 1 if layers else min(workers, _MOST_PARTS)
    kernels = [*pairwise(split(len(columns.kernels.name), count))]
    numbers = Numbers(columns) if count > 1 else None
    with Team(columns, count) as team:
        found = team.map(_find_rows, _Search(numbers, layers), kernels)
        threads = {thread for part in found for thread in part.threads}
        if layers:
            threads.update(columns.ops.thread)
        nesting = nest(columns, threads, _instants(columns, found), team, count)
        followed = team.map(_follow, nesting, found)
    parent, enclosing = nesting
    ops, contexts = _joined(followed)
    named = NamedOps(columns, parent) if layers else None
    (single, *_), (rows, *_) = followed, found
    return Correlation(
        start_ns=_concatenated([part.times.start_ns for part in followed]),
        starts=_extremes(chain.from_iterable(part.times.starts for part in followed)),
        durations=_extremes(chain.from_iterable(part.times.durations for part in followed)),
        op=ops,
        launch=_concatenated([part.launch for part in followed]),
        step=_concatenated([part.step for part in followed]),
        ops=contexts,
        layer=named.of_launches(single.op_rows, map(enclosing.get, rows.launch_rows))
        if named
        else array("i"),
        layers=named.names if named else [],
    )


# Of more parts, forking the processes costs as much as it saves.
_MOST_PARTS = 12


class _Search(NamedTuple):
    """How to find rows: by which numbers, and whether all launches have to be nested."""

    numbers: Numbers | None
    nests_all: bool


class _Rows(NamedTuple):
    """What some kernels name: the rows of their operators and calls, -1 for none.

    `threads` are those of the operators, `unplaced` the calls that have to be nested, `part` the
    rows of the kernels.
    """

    part: slice
    op_rows: array[int]
    launch_rows: array[int]
    threads: set[int]
    unplaced: set[int]


class _Times(NamedTuple):
    """When some kernels ran; the extremes are (least, greatest), or () without kernels."""

    start_ns: array[int]
    starts: tuple[int, ...]
    durations: tuple[int, ...]


class _Followed(NamedTuple):
    """The columns of some kernels; `op` numbers `contexts`."""

    times: _Times
    op: array[int]
    launch: array[int]
    step: array[int]
    contexts: list[OpContext]
    op_rows: array[int]


def _launch(op_row: int, launch_row: int) -> int:
    return _OP if op_row >= 0 else _NO_OP if launch_row >= 0 else _NONE


# Plain integers: looking up a member of an enumeration costs more than the rest of the row.
_NONE, _NO_OP, _OP = map(int, Launch)


class Numbers:
    """The least and the greatest number in each stretch of a column, which may spare a look."""

    def __init__(self, columns: Columns) -> None:
        self.op_ids = list(_stretches(columns.ops.op_id, columns.op_ids))
        self.correlations = list(_stretches(columns.calls.correlation, columns.correlations))


_STRETCH = 1 << 14


def _stretches(column: array[int], known: Iterable[Stretch]) -> Iterator[Stretch]:
    """Yield those that are known, and others in between."""
    done = 0
    for stretch in (*known, Stretch(len(column), len(column), 0, -1)):
        for first in range(done, stretch.first, _STRETCH):
            part = column[first : min(first + _STRETCH, stretch.first)]
            yield Stretch(first, first + len(part), min(part), max(part))
        yield stretch
        done = stretch.stop


def _rows_with(
    wanted: Mapping[int, int], column: array[int], stretches: Iterable[Stretch] | None
) -> Iterator[int]:
    """Yield the rows of a column that hold one of the numbers."""
    if stretches is None:
        yield from compress(count(), map(wanted.__contains__, column))
        return
    lowest, highest = min(wanted, default=0), max(wanted, default=-1)
    for first, stop, least, most in stretches:
        if least <= highest and most >= lowest:
            yield from compress(count(first), map(wanted.__contains__, column[first:stop]))


def _find_rows(columns: Columns, search: _Search, kernels: tuple[int, int]) -> _Rows:
    part = slice(*kernels)
    op_rows = _rows_by_op_id(columns, columns.kernels.op_id[part], search.numbers)
    launch_rows = _launch_rows(columns, columns.kernels.correlation[part], search.numbers)
    pairs = zip(op_rows, launch_rows, strict=True)
    return _Rows(
        part,
        op_rows,
        launch_rows,
        {columns.ops.thread[row] for row in op_rows if row >= 0},
        {launch for op, launch in pairs if launch >= 0 and (op < 0 or search.nests_all)},
    )


def _rows_by_op_id(columns: Columns, ids: array[int], numbers: Numbers | None) -> array[int]:
    """Return for each `op_id` of a kernel the row of the last operator with it, or -1."""
    ops, found = columns.ops, dict.fromkeys(ids, -1)
    found.pop(-1, None)
    for row in _rows_with(found, ops.op_id, numbers.op_ids if numbers else None):
        if ops.inputs[row] >= 0 and ops.name[row] not in columns.step_names:
            found[ops.op_id[row]] = row
    found[-1] = -1
    return array("i", map(found.__getitem__, ids))


def _launch_rows(columns: Columns, ids: array[int], numbers: Numbers | None) -> array[int]:
    """Return for each correlation id of a kernel the row of the first call with it, or -1."""
    correlations, found = columns.calls.correlation, dict.fromkeys(ids, -1)
    found.pop(-1, None)
    for row in _rows_with(found, correlations, numbers.correlations if numbers else None):
        if found[correlations[row]] < 0:
            found[correlations[row]] = row
    found[-1] = -1
    return array("i", map(found.__getitem__, ids))


def _instants(columns: Columns, found: Iterable[_Rows]) -> dict[int, list[int]]:
    """Return the rows of the launches to be nested, by thread and in the order of time."""
    calls = columns.calls
    instants: dict[int, list[int]] = defaultdict(list)
    unplaced = set().union(*(part.unplaced for part in found))
    for launch in sorted(unplaced, key=lambda row: (calls.start[row], row)):
        instants[calls.thread[launch]].append(launch)
    return instants


def _follow(columns: Columns, nesting: Nesting, found: _Rows) -> _Followed:
    op_rows = _with_launches(columns, nesting, found)
    contexts = Contexts(columns, nesting.parent)
    return _Followed(
        times=_times(columns, found.part),
        op=array("i", (contexts.of(row) if row >= 0 else -1 for row in op_rows)),
        launch=array("b", map(_launch, op_rows, found.launch_rows)),
        step=steps_of_kernels(columns, op_rows, found.launch_rows),
        contexts=contexts.ops,
        op_rows=op_rows,
    )


def _times(columns: Columns, part: slice) -> _Times:
    starts, durations = columns.kernels.start[part], columns.kernels.duration[part]
    start_ns = array("q", map(columns.base_ns.__add__, starts))
    if not starts:
        return _Times(start_ns, (), ())
    return _Times(start_ns, (min(starts), max(starts)), (min(durations), max(durations)))


def _with_launches(columns: Columns, nesting: Nesting, found: _Rows) -> array[int]:
    """Give kernels without an operator the innermost one around their launch."""
    op_rows, ops = found.op_rows[:], columns.ops
    for kernel, launch in enumerate(found.launch_rows):
        if op_rows[kernel] >= 0 or launch < 0:
            continue
        row = nesting.enclosing[launch]
        while row >= 0 and (ops.inputs[row] < 0 or ops.name[row] in columns.step_names):
            row = nesting.parent[row]
        op_rows[kernel] = row
    return op_rows


def _extremes(numbers: Iterable[int]) -> tuple[int, int]:
    """Return the least and the greatest; of none, (0, 0)."""
    found = list(numbers) or [0]
    return min(found), max(found)


def _concatenated(parts: Sequence[array[int]]) -> array[int]:
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    return whole


def _joined(parts: Sequence[_Followed]) -> tuple[array[int], list[OpContext]]:
    """Number the contexts of all parts in the order of their first use."""
    if len(parts) == 1:
        return parts[0].op, parts[0].contexts
    known: dict[OpContext, int] = {}
    column = array("i")
    for part in parts:
        numbers = [known.setdefault(context, len(known)) for context in part.contexts]
        if numbers == [*range(len(numbers))]:
            column += part.op
        else:
            column.extend(map([*numbers, -1].__getitem__, part.op))
    return column, list(known)
