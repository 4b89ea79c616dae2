"""Build the `OpContext` of the operators that launched kernels, each distinct one once."""

from __future__ import annotations

import re
from array import array

from fp8verify.terms import OpContext
from fp8verify.text import clean
from fp8verify.trace.columns import Columns, Inputs

MAX_PARENTS = 16
LAYER_PREFIX = "fp8verify:"

# Names that hold a hash or a running number, which would make every call a context of its own.
_VOLATILE = (
    (re.compile(r"^(## Call \w+) \w+ ##$"), r"\1 ##"),
    (
        re.compile(r"^(Torch-Compiled Region: [!\d/_]{1,40}|Torch-Compiled Region).*$", re.DOTALL),
        r"\1",
    ),
)
# A node of autograd's backward pass; a range of the user's proves nothing by its name.
# A region of compiled autograd's has its number behind an exclamation mark (torch's CompileId).
BACKWARD = re.compile(
    r"^autograd::engine::evaluate_function:|^Torch-Compiled Region: !|Backward\d*$"
)

_UNKNOWN = -2


class Contexts:
    """Interns the contexts of operators by walking their parents.

    A link is (name, link of what encloses it, backward), with numbers for the first two, so that
    equal call paths share one number however often they ran.

    Attributes:
        numbered: for each operator that was asked for, or encloses one, the innermost one at or
            around it with a number of autograd's, or -1.
    """

    def __init__(self, columns: Columns, parent: array[int]) -> None:
        self.ops: list[OpContext] = []
        self._ops = columns.ops
        self._parent = parent
        self._names = list(columns.op_names)
        self._step_names = columns.step_names
        self._inputs = list(map(Inputs, columns.inputs))
        self._stable: dict[int, str | None] = {}
        self._links: list[tuple[str, int, bool]] = []
        self._link_numbers: dict[tuple[str, int, bool], int] = {}
        self._link_memo: dict[tuple[int, int, int], int] = {}
        self._link_of_row = array("i", [_UNKNOWN]) * len(parent)
        self.numbered = array("i", [-1]) * len(parent)
        self._numbers: dict[tuple[int, int], int] = {}
        self._known: dict[OpContext, int] = {}

    def of(self, row: int) -> int:
        """Return the index into `ops` of the context of operator `row`."""
        key = (self._link_of(row), self._ops.inputs[row])
        number = self._numbers.get(key)
        if number is None:
            # Inputs that differ only in the thread of the forward pass make equal contexts.
            context = self._build(*key)
            number = self._numbers[key] = self._known.setdefault(context, len(self.ops))
            if number == len(self.ops):
                self.ops.append(context)
        return number

    def _link_of(self, row: int) -> int:
        links, parent = self._link_of_row, self._parent
        path = []
        while row >= 0 and links[row] == _UNKNOWN:
            path.append(row)
            row = parent[row]
        link, numbered = (links[row], self.numbered[row]) if row >= 0 else (-1, -1)
        names, inputs, memo = self._ops.name, self._ops.inputs, self._link_memo
        while path:
            inner = path.pop()
            if self._ops.sequence[inner] >= 0:
                numbered = inner
            self.numbered[inner] = numbered
            key = (names[inner], inputs[inner], link)
            found = memo.get(key)
            if found is None:
                found = memo[key] = self._link(*key)
            link = links[inner] = found
        return link

    def _link(self, name_number: int, inputs: int, outer: int) -> int:
        if inputs < 0 and self._names[name_number].startswith(LAYER_PREFIX):
            return outer  # `fp8verify.trace.layers` knows the layer; all layers share a context
        name = self._stable_name(name_number)
        if name is None:
            # A step that is begun by an optimizer's hook is inside Optimizer.step and outlasts it.
            return -1
        backward = (
            (inputs >= 0 and self._inputs[inputs].forward_thread is not None)
            or (outer >= 0 and self._links[outer][2])
            or (inputs >= 0 and BACKWARD.search(name) is not None)
        )
        key = (name, outer, backward)
        link = self._link_numbers.get(key)
        if link is None:
            link = self._link_numbers[key] = len(self._links)
            self._links.append(key)
        return link

    def _stable_name(self, number: int) -> str | None:
        """Return the name to show, None for a step, which is not a parent."""
        if number not in self._stable:
            name = self._names[number]
            for pattern, replacement in _VOLATILE:
                name = pattern.sub(replacement, name)
            self._stable[number] = None if number in self._step_names else clean(name)
        return self._stable[number]

    def _build(self, link: int, inputs: int) -> OpContext:
        name, outer, backward = self._links[link]
        recorded = self._inputs[inputs]
        parents: list[str] = []
        while outer >= 0 and len(parents) < MAX_PARENTS:
            parents.append(self._links[outer][0])
            outer = self._links[outer][1]
        return OpContext(
            name=name,
            types=recorded.types,
            dims=recorded.dims,
            parents=tuple(parents),
            backward=backward,
        )
