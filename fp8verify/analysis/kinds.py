"""Kinds of kernel: one name under one operator context, parsed once."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.analysis.flops import GemmShape
from fp8verify.kernels import Classification, classify, decode
from fp8verify.terms import KernelName, Leg, OpContext, Precision, Role
from fp8verify.trace import Trace
from fp8verify.trace.columns import Interner


class Kind(NamedTuple):
    """Kernels of one name under one operator context, and what they are."""

    name: str
    op: OpContext | None
    classification: Classification


class GemmLabel(NamedTuple):
    """One GEMM kernel: its place among the kernels, that of its kind in `Kinds.kinds`, its leg.

    `shape` is None where the record does not say it. `number` is that of the forward and backward
    pass within the step, `trained` whether a backward pass belongs to it.
    """

    place: int
    kind: int
    leg: Leg
    shape: GemmShape | None
    trained: bool = True
    number: int = 0


class Kinds:
    """The kinds of kernel of a trace; each distinct name is parsed once.

    `numbers` holds for each kernel, in the order of the file, the place of its kind in `kinds`.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._decoded: list[KernelName] = [decode(name) for name in trace.names]
        self._numbers = Interner()
        keys = zip(trace.kernels.name, trace.kernels.op, repeat(None))
        self.numbers = array("q", map(self._numbers.__getitem__, keys))
        self.kinds = [self._make(*key) for key in self._numbers]

    def roles(self) -> list[Role]:
        """Return the role of each kernel, in the order of the file."""
        roles = [kind.classification.role for kind in self.kinds]
        return list(map(roles.__getitem__, self.numbers))

    def number(self, name: int, op: int, inherited: Precision | None = None) -> int:
        """Return the place of a kind; `inherited` is the precision of the GEMM it belongs to."""
        key = (name, op, inherited)
        number = self._numbers[key]
        if number == len(self.kinds):
            self.kinds.append(self._make(*key))
        return number

    def _make(self, name: int, op: int, inherited: Precision | None) -> Kind:
        context = self._trace.ops[op] if op >= 0 else None
        found = classify(self._decoded[name], context)
        if inherited is not None:
            found = replace(
                found, precision=inherited, reason="part of the GEMM launched just before it"
            )
        return Kind(self._trace.names[name], context, found)
