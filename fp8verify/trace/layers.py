"""Which named layer each operator ran for, by annotations and by autograd's sequence numbers.

`fp8verify run --layers` opens an annotation around the forward pass of each linear module. The
backward pass runs elsewhere, mostly on a thread of autograd's own. An operator that autograd
records carries the number that the next node will get (`at::sequence_number::peek`, torch 2.13):
the last operator to carry a number on its thread is the one that made the node. The node runs
under the same number, and names the thread of the forward pass by a number of the profiler's own.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fp8verify.text import clean
from fp8verify.trace.columns import Columns, Inputs
from fp8verify.trace.contexts import LAYER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Traces in whole microseconds may let an inner range end after its outer one.
_ROUNDING_NS = 1000


class NamedOps:
    """The layer of every operator; one that could belong to two layers has none.

    Attributes:
        names: of the layers, in the order of their first annotation.
    """

    def __init__(self, columns: Columns, parent: array[int]) -> None:
        self._ops, self._parent = columns.ops, parent
        self._sequence = columns.ops.sequence or array("q", [-1]) * len(parent)
        self._forward_id = [Inputs(raw).forward_thread for raw in columns.inputs]
        labels = [name for name in columns.op_names if name.startswith(LAYER_PREFIX)]
        self.names = [clean(label.removeprefix(LAYER_PREFIX)) for label in labels]
        self._number = {columns.op_names[label]: place for place, label in enumerate(labels)}
        self._annotations = frozenset(self._closed_annotations(columns.step_names))
        self._makers = self._forward_rows()
        self._thread_of = self._forward_threads()

    def of_launches(self, op_rows: array[int], inner: Iterable[int | None]) -> array[int]:
        """Return the layer of each kernel, an index into `names`, or -1.

        Args:
            op_rows: the kernels' operators.
            inner: what encloses their launches; this may be an annotation inside the operator.
        """
        pairs = zip(op_rows, inner, strict=True)
        return array("i", (self.of(self._innermost(row, launch)) for row, launch in pairs))

    def of(self, row: int) -> int:
        """Return the layer of an operator, an index into `names`, or -1."""
        annotation = self._annotation(row)
        return self._number[self._ops.name[annotation]] if annotation >= 0 else -1

    def _innermost(self, row: int, launch: int | None) -> int:
        """Return where to look from: the launch's place, if it is inside of the operator."""
        if launch is None or launch == row:
            return row
        return launch if row < 0 or row in self._outwards(launch) else row

    def _annotation(self, row: int) -> int:
        """Return the innermost annotation that an operator ran under, or its forward pass did.

        Every jump to the forward pass goes back in time, so that this ends.
        """
        while row >= 0:
            if row in self._annotations:
                return row
            row = self._maker(row) if self._is_node(row) else self._parent[row]
        return -1

    def _closed_annotations(self, steps: set[int]) -> Iterator[int]:
        """Yield the rows of annotations; one that was left open outlasts its step.

        Other ranges prove nothing: a step that an optimizer's hook begins outlasts the optimizer's.
        """
        ends, names = self._ops.end, self._ops.name
        for row, name in enumerate(names):
            if name in self._number and self._ops.inputs[row] < 0:
                step = next((r for r in self._outwards(row) if names[r] in steps), row)
                if ends[row] <= ends[step] + _ROUNDING_NS:
                    yield row

    def _is_node(self, row: int) -> bool:
        inputs = self._ops.inputs[row]
        return inputs >= 0 and self._sequence[row] >= 0 and self._forward_id[inputs] is not None

    def _outwards(self, row: int) -> Iterator[int]:
        while row >= 0:
            yield row
            row = self._parent[row]

    # -- from a node of the backward pass to the operator that made it ---------------------------

    def _forward_rows(self) -> dict[int, list[int]]:
        """Return the operators of the forward pass by sequence number."""
        found: dict[int, list[int]] = defaultdict(list)
        inputs = self._ops.inputs
        for row, number in enumerate(self._sequence):
            if number >= 0 and inputs[row] >= 0 and self._forward_id[inputs[row]] is None:
                found[number].append(row)
        return found

    def _forward_threads(self) -> dict[Hashable, int]:
        """Return the thread that each of the profiler's own numbers of one means.

        Threads count their sequence numbers independently, so that numbers may occur on several;
        the forward pass ran on the thread that knows the most of its nodes' numbers.
        """
        hits: dict[Hashable, Counter[int]] = defaultdict(Counter)
        ops = self._ops
        for row in filter(self._is_node, range(len(self._sequence))):
            forward = self._forward_id[ops.inputs[row]]
            makers = self._makers.get(self._sequence[row], ())
            if forward is not None:
                hits[forward].update({ops.thread[maker] for maker in makers})
        ranked = {forward: found.most_common(2) for forward, found in hits.items() if found}
        return {
            forward: best[0][0]
            for forward, best in ranked.items()
            if len(best) == 1 or best[0][1] > best[1][1]
        }

    def _maker(self, row: int) -> int:
        """Return the operator that made a node, -1 if that is not known or not certain."""
        ops = self._ops
        thread = self._thread_of.get(self._forward_id[ops.inputs[row]])
        before = ops.start[row]
        makers = [
            maker
            for maker in self._makers.get(self._sequence[row], ())
            if ops.thread[maker] == thread and ops.start[maker] < before
        ]
        if not makers:
            return -1
        makers.sort(key=lambda maker: (ops.start[maker], -ops.end[maker]))
        return makers[-1] if self._agree(makers) else -1

    def _agree(self, makers: list[int]) -> bool:
        """Whether no other layer than what encloses the last operator could have made the node."""
        *others, last = makers
        around = {self._ops.name[row] for row in self._outwards(last)}
        inner = (
            next(filter(self._annotations.__contains__, self._outwards(other)), -1)
            for other in others
        )
        return all(row < 0 or self._ops.name[row] in around for row in inner)
