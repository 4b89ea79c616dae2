"""Which call of the forward pass made the autograd node that a kernel ran in, and of which layer.

An operator that autograd records carries the number that the next node will get
(`at::sequence_number::peek`, torch 2.13). The node runs under the same number, and names the thread
of the forward pass by a number of the profiler's own. Threads count independently.

`fp8verify run --layers` opens an annotation around the forward pass of each linear module. The
backward pass runs elsewhere, mostly on a thread of autograd's own: of the operators with the number
of its node, the last one on its thread made the node.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from fp8verify.text import clean
from fp8verify.trace.columns import Columns, Inputs
from fp8verify.trace.contexts import LAYER_PREFIX
from fp8verify.trace.tables import Site

# Of a row around which no number was looked for.
_NOT_ASKED = -2


class Autograd:
    """Nodes and the calls that made them.

    Args:
        columns: of one rank.
        parent: what encloses each operator, or -1.
    """

    def __init__(self, columns: Columns, parent: array[int]) -> None:
        self._ops = columns.ops
        self._parent = parent
        self._found = array("i", [_NOT_ASKED]) * len(columns.ops.sequence)
        self._forward_id = [Inputs(raw).forward_thread for raw in columns.inputs]
        of_nodes = set()
        for number, forward_id in enumerate(self._forward_id):
            if forward_id is not None:
                of_nodes.add(number)
        self._of_nodes = frozenset(of_nodes)

    def sites(self, op_rows: Sequence[int]) -> tuple[list[Site], array[int]]:
        """Return the sites in the graph, and for each kernel the index of its own.

        A call is the row of the outermost operator with its number; -1 is for none. Of the calls
        that have the number of one node, which one made it is open: frozen layers make none.

        Args:
            op_rows: for each kernel the row of its operator, or -1.
        """
        sources = list(map(self._numbered, op_rows))
        calls = {-1: -1}
        nodes = {-1: -1}
        sequence = self._ops.sequence
        around = self._around
        is_node = self.is_node
        for source in set(sources) - {-1}:
            call = -1
            node = source
            if not is_node(source):
                # Then the outermost operator with its number is the call.
                number = sequence[source]
                call = source
                node = around(source)
                while node >= 0 and sequence[node] == number and not is_node(node):
                    call = node
                    node = around(node)
            while node >= 0 and not is_node(node):
                node = around(node)
            calls[source] = call
            nodes[source] = node
        numbers = self._numbers(set(calls.values()) - {-1}, set(nodes.values()) - {-1})
        sites: list[Site] = []
        indices: dict[int, int] = {}
        for source, call in calls.items():
            indices[source] = len(sites)
            sites.append(
                Site(
                    call=call,
                    makes=numbers[call],
                    node=numbers[nodes[source]],
                )
            )
        return sites, array("i", list(map(indices.__getitem__, sources)))

    def is_node(self, row: int) -> bool:
        """Whether autograd runs a node there."""
        return self._ops.inputs[row] in self._of_nodes and self._ops.sequence[row] >= 0

    def forward_threads(
        self,
        nodes: Iterable[int],
        makers: Mapping[int, Sequence[int]],
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
            makers_of_node = makers.get(ops.sequence[row], ())
            for thread in {ops.thread[maker] for maker in makers_of_node}:
                hits[self.forward_id(row)][thread] += 1
        threads = {}
        for forward_id, counts in hits.items():
            (thread, most), *others = counts.most_common(2)
            if not others or most > others[0][1]:
                threads[forward_id] = thread
        return threads

    def forward_id(self, row: int) -> bytes | None:
        """Return the profiler's number of the thread of a node's forward pass."""
        return self._forward_id[self._ops.inputs[row]]

    def _numbered(self, row: int) -> int:
        """Return the innermost operator at or around a row that has a number, or -1.

        Each row is walked once: ranges may lie thousands deep.
        """
        sequence = self._ops.sequence
        parent = self._parent
        found = self._found
        walked = []
        while row >= 0 and sequence[row] < 0:
            if found[row] != _NOT_ASKED:
                row = found[row]
                break
            walked.append(row)
            row = parent[row]
        for inner in walked:
            found[inner] = row
        return row

    def _around(self, row: int) -> int:
        return self._numbered(self._parent[row])

    def _numbers(self, calls: set[int], nodes: set[int]) -> dict[int, int]:
        """Return by the rows of calls and nodes a number that only those of one node share.

        Recordings that were joined use the numbers of autograd again.
        """
        ops = self._ops
        by_number: dict[int, list[int]] = defaultdict(list)
        for call in calls:
            by_number[ops.sequence[call]].append(call)
        threads = self.forward_threads(nodes, by_number)
        alike: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        for call in calls:
            alike[ops.sequence[call], ops.thread[call]].append(call)
        for node in nodes:
            forward_thread = threads.get(self.forward_id(node))
            alike[ops.sequence[node], forward_thread].append(node)
        numbers = {-1: -1}
        last = -1
        for rows in alike.values():
            last += 1
            after_node = False
            for row in sorted(rows, key=ops.start.__getitem__):
                if after_node and row in calls:
                    last += 1
                after_node = row in nodes
                numbers[row] = last
        return numbers


# Traces in whole microseconds may let an inner range end after its outer one.
_ROUNDING_NS = 1000


class NamedOps:
    """The layer of every operator; one that could belong to two layers has none.

    Attributes:
        names: of the layers, in the order of their first annotation.
    """

    def __init__(
        self,
        columns: Columns,
        parent: array[int],
        autograd: Autograd,
    ) -> None:
        self._ops = columns.ops
        self._parent = parent
        self._autograd = autograd
        self.names: list[str] = []
        self._number: dict[
            int, int
        ] = {}  # of a layer, by that of its annotation's name
        for label, name_id in columns.op_names.items():
            if label.startswith(LAYER_PREFIX):
                self._number[name_id] = len(self.names)
                self.names.append(clean(label.removeprefix(LAYER_PREFIX)))
        self._annotations = frozenset(self._closed_annotations(columns.step_names))
        self._makers = self._forward_rows()
        nodes = filter(autograd.is_node, range(len(parent)))
        self._thread_of = autograd.forward_threads(nodes, self._makers)

    def of_launches(
        self,
        op_rows: array[int],
        inner: Iterable[int | None],
    ) -> array[int]:
        """Return the layer of each kernel, an index into `names`, or -1.

        Args:
            op_rows: the kernels' operators.
            inner: what encloses their launches; this may be an annotation inside the operator.
        """
        layers = array("i")
        names = self._ops.name
        for op_row, launch in zip(op_rows, inner, strict=True):
            annotation = self._annotation(self._innermost(op_row, launch))
            layers.append(self._number[names[annotation]] if annotation >= 0 else -1)
        return layers

    def _innermost(self, row: int, launch: int | None) -> int:
        """Return where to look from: what encloses the launch, if it is inside of the operator."""
        if launch is None:
            return row
        if row < 0 or row in self._outwards(launch):
            return launch
        return row

    def _annotation(self, row: int) -> int:
        """Return the innermost annotation that an operator ran under, or its forward pass did.

        Every jump to the forward pass goes back in time, so this ends.
        """
        while row >= 0:
            if row in self._annotations:
                return row
            if self._autograd.is_node(row):
                row = self._maker(row)
            else:
                row = self._parent[row]
        return -1

    def _closed_annotations(self, steps: set[int]) -> Iterator[int]:
        """Yield the rows of annotations; one that was left open outlasts its step.

        Other ranges prove nothing: a step that an optimizer's hook begins outlasts the optimizer's.
        """
        ends = self._ops.end
        names = self._ops.name
        for row, name in enumerate(names):
            if name not in self._number or self._ops.inputs[row] >= 0:
                continue
            steps_around = (
                outer for outer in self._outwards(row) if names[outer] in steps
            )
            step = next(steps_around, row)
            if ends[row] <= ends[step] + _ROUNDING_NS:
                yield row

    def _outwards(self, row: int) -> Iterator[int]:
        while row >= 0:
            yield row
            row = self._parent[row]

    # -- from a node of the backward pass to the operator that made it ---------------------------

    def _forward_rows(self) -> dict[int, list[int]]:
        """Return the operators of the forward pass by sequence number."""
        rows: dict[int, list[int]] = defaultdict(list)
        for row, number in enumerate(self._ops.sequence):
            is_operator = number >= 0 and self._ops.inputs[row] >= 0
            if is_operator and not self._autograd.is_node(row):
                rows[number].append(row)
        return rows

    def _maker(self, row: int) -> int:
        """Return the operator that made a node, -1 if that is not known or not certain."""
        ops = self._ops
        thread = self._thread_of.get(self._autograd.forward_id(row))
        before = []
        for maker in self._makers.get(ops.sequence[row], ()):
            if ops.thread[maker] == thread and ops.start[maker] < ops.start[row]:
                before.append(maker)
        before.sort(key=lambda maker: (ops.start[maker], -ops.end[maker]))
        if before and self._agree(before):
            return before[-1]
        return -1

    def _agree(self, makers: list[int]) -> bool:
        """Whether no other layer than what encloses the last operator could have made the node."""
        *others, last = makers
        around = {self._ops.name[row] for row in self._outwards(last)}
        for other in others:
            annotations = filter(self._annotations.__contains__, self._outwards(other))
            inner = next(annotations, -1)
            if inner >= 0 and self._ops.name[inner] not in around:
                return False
        return True
