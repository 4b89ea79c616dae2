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


class Autograd:
    """Nodes and the calls that made them.

    Args:
        columns: of one rank.
        parent: what encloses each operator, or -1.
        numbered: of `fp8verify.trace.contexts.Contexts`.
    """

    def __init__(
        self,
        columns: Columns,
        parent: array[int],
        numbered: array[int],
    ) -> None:
        self._ops = columns.ops
        self._parent = parent
        self._numbered = numbered
        self._forward_id = [Inputs(raw).forward_thread for raw in columns.inputs]
        of_nodes: set[int] = set()
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
        sources = list(map(self._numbered.__getitem__, op_rows))
        calls = {-1: -1}
        nodes = {-1: -1}
        node_of: dict[int, int] = {}
        for source in set(sources) - {-1}:
            call = -1
            around = source
            if not self.is_node(source):
                call = self._call_of(source)
                around = self._around(call)
            node = node_of.get(around)
            if node is None:
                node = self._node_around(around)
                node_of[around] = node
            calls[source] = call
            nodes[source] = node
        rows_of_calls = set(calls.values()) - {-1}
        rows_of_nodes = set(nodes.values()) - {-1}
        numbers = self._numbers(rows_of_calls, rows_of_nodes)
        sites: list[Site] = []
        indices: dict[int, int] = {}
        for source, call in calls.items():
            indices[source] = len(sites)
            site = Site(
                call=call,
                makes=numbers[call],
                node=numbers[nodes[source]],
            )
            sites.append(site)
        site_of_kernel = map(indices.__getitem__, sources)
        return sites, array("i", list(site_of_kernel))

    def _call_of(self, row: int) -> int:
        """Return the outermost operator with the number of an operator that is no node."""
        sequence = self._ops.sequence
        number = sequence[row]
        call = row
        outer = self._around(call)
        while outer >= 0 and sequence[outer] == number and not self.is_node(outer):
            call = outer
            outer = self._around(call)
        return call

    def _node_around(self, row: int) -> int:
        """Return the innermost node at or around an operator with a number, or -1."""
        while row >= 0 and not self.is_node(row):
            row = self._around(row)
        return row

    def is_node(self, row: int) -> bool:
        """Whether autograd runs a node there."""
        ops = self._ops
        if ops.sequence[row] < 0:
            return False
        return ops.inputs[row] in self._of_nodes

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
            number = ops.sequence[row]
            makers_of_node = makers.get(number, ())
            for thread in {ops.thread[maker] for maker in makers_of_node}:
                hits[self.forward_id(row)][thread] += 1
        threads = {}
        for forward_id, counts in hits.items():
            thread = max(counts, key=counts.__getitem__)
            most = counts[thread]
            knowing = list(counts.values()).count(most)
            if knowing == 1:
                threads[forward_id] = thread
        return threads

    def forward_id(self, row: int) -> bytes | None:
        """Return the profiler's number of the thread of a node's forward pass."""
        return self._forward_id[self._ops.inputs[row]]

    def _around(self, row: int) -> int:
        return self._numbered[self._parent[row]]

    def _numbers(self, calls: set[int], nodes: set[int]) -> dict[int, int]:
        """Return by the rows of calls and nodes a number that only those of one node share.

        Recordings that were joined use the numbers of autograd again.
        """
        ops = self._ops
        by_number: dict[int, list[int]] = defaultdict(list)
        for call in calls:
            number = ops.sequence[call]
            by_number[number].append(call)
        threads = self.forward_threads(nodes, by_number)
        alike: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        for call in calls:
            number = ops.sequence[call]
            thread = ops.thread[call]
            alike[number, thread].append(call)
        for node in nodes:
            number = ops.sequence[node]
            forward_thread = threads.get(self.forward_id(node))
            alike[number, forward_thread].append(node)
        numbers = {-1: -1}
        last = -1
        for rows in alike.values():
            last += 1
            is_after_node = False
            for row in sorted(rows, key=ops.start.__getitem__):
                if is_after_node and row in calls:
                    last += 1
                is_after_node = row in nodes
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
        # Of a layer, by that of its annotation's name.
        self._number: dict[int, int] = {}
        for label, name_id in columns.op_names.items():
            if label.startswith(LAYER_PREFIX):
                self._number[name_id] = len(self.names)
                layer = label.removeprefix(LAYER_PREFIX)
                self.names.append(clean(layer))
        closed = self._closed_annotations(columns.step_names)
        self._annotations = frozenset(closed)
        self._makers = self._forward_rows()
        rows = range(len(parent))
        nodes = filter(autograd.is_node, rows)
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
            row = self._innermost(op_row, launch)
            annotation = self._annotation(row)
            layer = -1
            if annotation >= 0:
                layer = self._number[names[annotation]]
            layers.append(layer)
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
        for row, name in enumerate(self._ops.name):
            is_annotation = self._ops.inputs[row] < 0
            if name in self._number and is_annotation:
                step = self._step_around(row, steps)
                if ends[row] <= ends[step] + _ROUNDING_NS:
                    yield row

    def _step_around(self, row: int, steps: set[int]) -> int:
        """Return the innermost step around an annotation, or the annotation itself."""
        for outer in self._outwards(row):
            if self._ops.name[outer] in steps:
                return outer
        return row

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
        forward_id = self._autograd.forward_id(row)
        thread = self._thread_of.get(forward_id)
        number = ops.sequence[row]
        before = []
        for maker in self._makers.get(number, ()):
            is_of_thread = ops.thread[maker] == thread
            if is_of_thread and ops.start[maker] < ops.start[row]:
                before.append(maker)

        def outer_first(maker: int) -> tuple[int, int]:
            return ops.start[maker], -ops.end[maker]

        before.sort(key=outer_first)
        if before and self._agree(before):
            return before[-1]
        return -1

    def _agree(self, makers: list[int]) -> bool:
        """Whether no other layer than what encloses the last operator could have made the node."""
        *others, last = makers
        names = self._ops.name
        around = {names[row] for row in self._outwards(last)}
        for other in others:
            outwards = self._outwards(other)
            annotations = filter(self._annotations.__contains__, outwards)
            inner = next(annotations, -1)
            if inner >= 0 and names[inner] not in around:
                return False
        return True
