"""Which named layer each operator ran for, by annotations and by autograd's sequence numbers.

`fp8verify run --layers` opens an annotation around the forward pass of each linear module. The
backward pass runs elsewhere, mostly on a thread of autograd's own: of the operators with the number
of its node (`fp8verify.trace.autograd`), the last one on its thread made the node.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

from fp8verify.text import clean
from fp8verify.trace.autograd import Autograd
from fp8verify.trace.columns import Columns
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

    def __init__(self, columns: Columns, parent: array[int], autograd: Autograd) -> None:
        self._ops, self._parent, self._autograd = columns.ops, parent, autograd
        labels = [name for name in columns.op_names if name.startswith(LAYER_PREFIX)]
        self.names = [clean(label.removeprefix(LAYER_PREFIX)) for label in labels]
        self._number = {columns.op_names[label]: place for place, label in enumerate(labels)}
        self._annotations = frozenset(self._closed_annotations(columns.step_names))
        self._makers = self._forward_rows()
        nodes = filter(autograd.is_node, range(len(parent)))
        self._thread_of = autograd.forward_threads(nodes, self._makers)

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

        Every jump to the forward pass goes back in time, so this ends.
        """
        while row >= 0:
            if row in self._annotations:
                return row
            row = self._maker(row) if self._autograd.is_node(row) else self._parent[row]
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

    def _outwards(self, row: int) -> Iterator[int]:
        while row >= 0:
            yield row
            row = self._parent[row]

    # -- from a node of the backward pass to the operator that made it ---------------------------

    def _forward_rows(self) -> dict[int, list[int]]:
        """Return the operators of the forward pass by sequence number."""
        found: dict[int, list[int]] = defaultdict(list)
        for row, number in enumerate(self._ops.sequence):
            if number >= 0 and self._ops.inputs[row] >= 0 and not self._autograd.is_node(row):
                found[number].append(row)
        return found

    def _maker(self, row: int) -> int:
        """Return the operator that made a node, -1 if that is not known or not certain."""
        ops = self._ops
        thread = self._thread_of.get(self._autograd.forward_id(row))
        before = ops.start[row]
        makers = [
            maker
            for maker in self._makers.get(ops.sequence[row], ())
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
