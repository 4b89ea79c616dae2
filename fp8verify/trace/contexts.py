"""Which operators enclose a launch, thread by thread, and the `OpContext` of each, built once."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress, count, groupby, islice
from operator import eq

from fp8verify.patterns import lazy_pattern
from fp8verify.terms import OpContext
from fp8verify.text import clean
from fp8verify.trace.columns import Columns, Inputs, Interner

MAX_PARENTS = 16
LAYER_PREFIX = "fp8verify:"

# Names that hold a hash or a running number, which would make every call a context of its own.
_VOLATILE = lazy_pattern(
    r"^(## Call \w+) \w+( ##)$|^(Torch-Compiled Region(?:: [!\d/_]{1,40})?).*$",
    re.DOTALL,
)
# A node of autograd's backward pass; a range of the user's proves nothing by its name.
# A region of compiled autograd's has its number behind an exclamation mark (torch's CompileId).
BACKWARD = lazy_pattern(
    r"^autograd::engine::evaluate_function:|^Torch-Compiled Region: !|Backward\d*$"
)

_UNKNOWN = -2


class Contexts:
    """Interns the contexts of operators by walking their parents.

    A link is (name, link of what encloses it, backward), with numbers for the first two, so
    equal call paths share one number however often they ran.

    Attributes:
        numbered: for each operator whose context was asked for, and for those around it, the
            innermost one at or around it that has one of autograd's numbers, or -1; there is one
            row more, so that row -1, which is no operator, has none.
    """

    def __init__(self, columns: Columns, parent: array[int]) -> None:
        self._ops = columns.ops
        self._parent = parent
        self._names = list(columns.op_names)
        self._step_names = columns.step_names
        self._inputs = list(map(Inputs, columns.inputs))
        self._links: list[tuple[str, int, bool]] = []
        self._link_numbers = Interner()
        self._link_memo: dict[tuple[int, int, int], int] = {}
        self._link_of_row = array("i", [_UNKNOWN]) * len(parent)
        self.numbered = array("i", [-1]) * (len(parent) + 1)
        self._numbers: dict[tuple[int, int], int] = {}
        self._contexts = Interner()

    @property
    def ops(self) -> list[OpContext]:
        """The contexts, each once: inputs may differ in the thread of the forward pass alone."""
        return list(self._contexts)

    def of_all(self, rows: Sequence[int]) -> array[int]:
        """Return the index into `ops` of the context of each operator; -1 of row -1."""
        self._follow(rows)
        links = self._link_of_row
        inputs = self._ops.inputs
        numbers = self._numbers
        contexts = array("i")
        for row in rows:
            if row < 0:
                contexts.append(-1)
                continue
            key = (links[row], inputs[row])
            number = numbers.get(key)
            if number is None:
                number = self._contexts[self._build(*key)]
                numbers[key] = number
            contexts.append(number)
        return contexts

    def _follow(self, rows: Iterable[int]) -> None:
        """Find the links of operators, and of what encloses them."""
        parent = self._parent
        links = self._link_of_row
        numbered = self.numbered
        sequence = self._ops.sequence
        names = self._ops.name
        inputs = self._ops.inputs
        memo = self._link_memo
        for start in rows:
            path = []
            row = start
            while row >= 0 and links[row] == _UNKNOWN:
                path.append(row)
                row = parent[row]
            link = -1
            if row >= 0:
                link = links[row]
            innermost = numbered[row]
            for inner in reversed(path):
                key = (names[inner], inputs[inner], link)
                known = memo.get(key)
                if known is None:
                    known = self._link(*key)
                    memo[key] = known
                link = known
                links[inner] = link
                if sequence[inner] >= 0:
                    innermost = inner
                numbered[inner] = innermost

    def _link(
        self,
        name_number: int,
        inputs: int,
        outer: int,
    ) -> int:
        name = self._names[name_number]
        if inputs < 0 and name.startswith(LAYER_PREFIX):
            return outer  # `fp8verify.trace.autograd` knows the layer; all layers share a context
        if name_number in self._step_names:
            # A step that is begun by an optimizer's hook is inside Optimizer.step and outlasts it.
            return -1
        name = clean(_VOLATILE.sub(r"\1\2\3", name))
        backward = self._is_backward(name, inputs, outer)
        key = (name, outer, backward)
        link = self._link_numbers[key]
        if link == len(self._links):
            self._links.append(key)
        return link

    def _is_backward(
        self,
        name: str,
        inputs: int,
        outer: int,
    ) -> bool:
        """Whether an operator runs in a backward pass, or is inside one that does."""
        if outer >= 0:
            _, _, is_outer_backward = self._links[outer]
            if is_outer_backward:
                return True
        if inputs < 0:
            return False
        if self._inputs[inputs].forward_thread is not None:
            return True
        return BACKWARD.search(name) is not None

    def _build(self, link: int, inputs: int) -> OpContext:
        name, outer, backward = self._links[link]
        given = self._inputs[inputs]
        parents: list[str] = []
        while outer >= 0 and len(parents) < MAX_PARENTS:
            outer_name, outer, _ = self._links[outer]
            parents.append(outer_name)
        return OpContext(
            name=name,
            types=given.types,
            dims=given.dims,
            parents=tuple(parents),
            backward=backward,
        )


def nest(
    columns: Columns,
    threads: Iterable[int],
    launches: Iterable[int],
) -> tuple[array[int], dict[int, int]]:
    """Nest the ranges of some threads.

    Args:
        columns: what was read.
        threads: their numbers; those of the launches are added.
        launches: rows of calls.

    Returns:
        The row that encloses each row of `ops`, and each of the launches by its row; or -1.
    """
    ops = columns.ops
    calls = columns.calls
    instants: dict[int, list[int]] = defaultdict(list)
    for launch in sorted(launches, key=lambda row: (calls.start[row], row)):
        thread = calls.thread[launch]
        instants[thread].append(launch)
    members = {thread: array("i") for thread in {*threads, *instants}}
    # Profilers write the operators of a thread one after another.
    runs = groupby(range(len(ops.thread)), ops.thread.__getitem__)
    for thread, rows_of_thread in runs:
        if thread in members:
            members[thread].extend(rows_of_thread)
    parent = array("i", [-1]) * len(ops.name)
    enclosing: dict[int, int] = {}
    for thread, rows in members.items():
        launches_of_thread = instants[thread]
        times = [calls.start[launch] for launch in launches_of_thread]
        ordered = start_order(rows, ops.start, ops.end, ops.inputs)
        around = link_parents(ordered, ops.start, ops.end, parent, times)
        enclosing.update(zip(launches_of_thread, around, strict=True))
    return parent, enclosing


def start_order(
    rows: array[int],
    start: array[int],
    end: array[int],
    inputs: array[int],
) -> array[int]:
    """Return one thread's `rows` by start, an enclosing range before what it encloses.

    Of ranges that are equal, annotations (`inputs` < 0) enclose operators.
    """
    ordered = array("i", sorted(rows, key=start.__getitem__))
    times = map(start.__getitem__, ordered)
    following = map(start.__getitem__, islice(ordered, 1, None))
    is_tied = map(eq, times, following)
    done = 0
    for index in compress(count(1), is_tied):
        if index < done:
            continue
        time = start[ordered[index]]
        done = bisect_right(ordered, time, index, key=start.__getitem__)
        tied = ordered[index - 1 : done]
        in_order = sorted(tied, key=lambda row: (-end[row], inputs[row] >= 0))
        ordered[index - 1 : done] = array("i", in_order)
    return ordered


def link_parents(
    rows: Sequence[int],
    start: array[int],
    end: array[int],
    parent: array[int],
    instants: Sequence[int],
) -> list[int]:
    """Set `parent` of each of one thread's `rows`, and find what encloses each of `instants`.

    A range is inside another that it overlaps and that began before it: whole-microsecond traces
    round an inner range to end after its outer one, and ranges of one thread never truly overlap
    otherwise. Back-to-back ranges that share an end point are neighbors, except that one of no
    length belongs to the earlier.

    Args:
        rows: in `start_order`.
        start: of all ranges.
        end: of all ranges.
        parent: of all ranges; filled in for `rows`, -1 for outermost ones.
        instants: times in ascending order.

    Returns:
        For each instant the innermost enclosing row, or -1.
    """
    # The innermost open range, and when it ends; `parent` leads from it to those around it, whose
    # ends are kept. If none is open, -1 is a range without end.
    inner = -1
    until = _FOREVER
    ends: list[int] = []
    around: list[int] = []
    waiting = iter((*instants, _FOREVER))
    instant = next(waiting)
    begins = map(start.__getitem__, rows)
    finishes = map(end.__getitem__, rows)
    for row, begin, finish in zip(rows, begins, finishes, strict=True):
        while instant < begin:
            while until < instant:
                inner = parent[inner]
                until = ends.pop()
            around.append(inner)
            instant = next(waiting)
        # Most ranges are inside the open one: one comparison says so.
        while until <= begin and (until < begin or begin < finish):
            inner = parent[inner]
            until = ends.pop()
        parent[row] = inner
        ends.append(until)
        inner = row
        until = finish
    while instant < _FOREVER:
        while until < instant:
            inner = parent[inner]
            until = ends.pop()
        around.append(inner)
        instant = next(waiting)
    return around


_FOREVER = 1 << 64  # a whole number: comparing it with a float takes longer
