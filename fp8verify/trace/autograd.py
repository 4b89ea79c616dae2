"""Which call of the forward pass made the autograd node that a kernel ran in.

An operator that autograd records carries the number that the next node will get
(`at::sequence_number::peek`, torch 2.13). The node runs under the same number, and names the thread
of the forward pass by a number of the profiler's own. Threads count independently.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

from fp8verify.trace.columns import Inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fp8verify.trace.columns import Columns


class Autograd:
    """Nodes and the calls that made them.

    Args:
        columns: of one rank.
        parent: what encloses each operator, or -1.
        numbered: for each operator the innermost one at or around it with a number, or -1.
    """

    def __init__(self, columns: Columns, parent: array[int], numbered: array[int]) -> None:
        self._ops, self._parent, self._numbered = columns.ops, parent, numbered
        self._forward_id = [Inputs(raw).forward_thread for raw in columns.inputs]

    def pair(self, sources: Sequence[int]) -> tuple[array[int], array[int], array[int]]:
        """Return for each kernel its call, the node that this makes, and the node that it is in.

        A call is the row of the outermost operator with its number; -1 is for none. Of the calls
        that have the number of one node, which one made it is open: frozen layers make none.

        Args:
            sources: for each kernel the innermost operator with a number around it, or -1.
        """
        found = {-1: (-1, -1)}
        for source in set(sources) - {-1}:
            call = -1 if self.is_node(source) else self._outermost(source)
            node = source if call < 0 else self._around(call)
            while node >= 0 and not self.is_node(node):
                node = self._around(node)
            found[source] = call, node
        made = self._numbers(found.values())
        rows = {source: (call, made[call], made[node]) for source, (call, node) in found.items()}
        columns = zip(*map(rows.__getitem__, sources), strict=True) if sources else ((), (), ())
        calls, makes, nodes = (array("i", column) for column in columns)
        return calls, makes, nodes

    def is_node(self, row: int) -> bool:
        """Whether autograd runs a node there."""
        inputs = self._ops.inputs[row]
        known = inputs >= 0 and self._ops.sequence[row] >= 0
        return known and self._forward_id[inputs] is not None

    def forward_threads(
        self, nodes: Iterable[int], makers: Mapping[int, Sequence[int]]
    ) -> dict[Hashable, int]:
        """Return the thread that each of the profiler's own numbers of one means.

        The forward pass ran on the thread that knows the most of its nodes' numbers.

        Args:
            nodes: rows.
            makers: rows of the forward pass by sequence number.
        """
        hits: dict[Hashable, Counter[int]] = defaultdict(Counter)
        ops = self._ops
        for row in nodes:
            known = makers.get(ops.sequence[row], ())
            hits[self.forward_id(row)].update({ops.thread[maker] for maker in known})
        ranked = {forward: found.most_common(2) for forward, found in hits.items() if found}
        return {
            forward: best[0][0]
            for forward, best in ranked.items()
            if len(best) == 1 or best[0][1] > best[1][1]
        }

    def forward_id(self, row: int) -> bytes | None:
        """Return the profiler's number of the thread of a node's forward pass."""
        return self._forward_id[self._ops.inputs[row]]

    def _around(self, row: int) -> int:
        outer = self._parent[row]
        return self._numbered[outer] if outer >= 0 else -1

    def _outermost(self, row: int) -> int:
        """Return the outermost operator around a row that has its number, of the same kind."""
        number, kind, outer = self._ops.sequence[row], self.is_node(row), self._around(row)
        while outer >= 0 and self._ops.sequence[outer] == number and self.is_node(outer) is kind:
            row, outer = outer, self._around(outer)
        return row

    def _numbers(self, found: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Return by the rows of calls and nodes a number that only those of one node share.

        Recordings that were joined use the numbers of autograd again.
        """
        ops, calls, nodes = self._ops, set[int](), set[int]()
        for call, node in found:
            calls.add(call)
            nodes.add(node)
        by_number: dict[int, list[int]] = defaultdict(list)
        for call in calls - {-1}:
            by_number[ops.sequence[call]].append(call)
        threads = self.forward_threads(nodes - {-1}, by_number)
        alike: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        for call in calls - {-1}:
            alike[ops.sequence[call], ops.thread[call]].append(call)
        for node in nodes - {-1}:
            alike[ops.sequence[node], threads.get(self.forward_id(node))].append(node)
        numbers, last = {-1: -1}, -1
        for rows in alike.values():
            last, after_node = last + 1, False
            for row in sorted(rows, key=ops.start.__getitem__):
                last += after_node and row in calls
                after_node = row in nodes
                numbers[row] = last
        return numbers
