"""What is each launch of a GEMM? Its kernel, its kind, its sizes, and where autograd numbers it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fp8verify.analysis.kinds import (
    ANY_SIZE,
    EXPERTS,
    GemmShape,
    Kind,
    Kinds,
    Size,
    gemm_shape,
    is_in_graph,
    is_of_graph,
    layer_shapes,
)
from fp8verify.terms import OpContext, Precision, Role
from fp8verify.trace import Trace
from fp8verify.trace.columns import Interner
from fp8verify.trace.tables import Site

# Numbers from here on are ours, of nodes that a trace without autograd's numbers shows.
OURS: Final = 1 << 40


class Gemm(Struct, frozen=True, eq=False):
    """One launch of a GEMM kernel: what is recorded of it, which nothing changes.

    Attributes:
        position: its place among the GEMMs of the trace, by which tables know it.
        index: that of its kernel among all kernels.
        step: its step, -1 for none.
        kind_id: the number of its kind.
        kind: that kind.
        shape: None if the record does not say it.
        call: that of the operator that launched it, -1 if autograd numbers none.
        makes: the node of autograd that its call made, or -1.
        node: the node that it ran in, or -1.
        of_graph: whether a graph of torch.compile ran it.
        in_graph: whether the node of such a graph did.
        multiplies: whether it is a product, and not the reduction of a split one.
        product: the position of the product that it is of. A reduction adds up the parts of the
            last one on its stream, of the same operator; otherwise it is its own.
    """

    position: int
    index: int
    step: int
    kind_id: int
    kind: Kind
    shape: GemmShape | None
    call: int
    makes: int
    node: int
    of_graph: bool
    in_graph: bool
    multiplies: bool
    product: int

    @property
    def is_numbered(self) -> bool:
        """Whether autograd itself numbers a node that its call made."""
        return 0 <= self.makes < OURS

    @property
    def size(self) -> Size:
        """The key of its layer, as it is recorded."""
        return self.size_with(self.shape)

    def size_with(self, shape: GemmShape | None) -> Size:
        """Return the key of its layer: (m, n, k), `EXPERTS`, or `ANY_SIZE` if not known."""
        if self.kind.role is Role.GROUPED_GEMM:
            return EXPERTS
        if shape is None:
            return ANY_SIZE
        return shape[1:]


def launches_of(trace: Trace, kinds: Kinds) -> list[Gemm]:
    """Return the launches of GEMMs, in the order in which they started.

    Reductions of unknown type have the precision of the GEMM before, so these are of kinds with
    numbers of their own, behind those of `kinds`.
    """
    columns = trace.kernels
    before: dict[int, Gemm] = {}  # the last product of each stream
    shapes = _Shapes(kinds.rows)
    facts = list(map(_facts_of, kinds.rows))
    inherited = Interner()
    launches = []
    for position, index in enumerate(kinds.started(_is_gemm)):
        number = kinds.ids[index]
        kind = kinds.rows[number]
        site = trace.sites[columns.site[index]]
        shape = shapes.next_of(number, site)
        stream = columns.stream[index]
        of_graph, in_graph, multiplies = facts[number]
        product = position
        if not multiplies and stream in before:
            last = before[stream]
            if last.kind.op == kind.op:
                product = last.position
            if kind.precision is Precision.UNKNOWN:
                precision = last.kind.precision
                number = len(kinds.rows) + inherited[number, precision]
                kind = _as_part(kind, precision)
        gemm = Gemm(
            position=position,
            index=index,
            step=columns.step[index],
            kind_id=number,
            kind=kind,
            shape=shape,
            call=site.call,
            makes=site.makes,
            node=site.node,
            of_graph=of_graph,
            in_graph=in_graph,
            multiplies=multiplies,
            product=product,
        )
        launches.append(gemm)
        if multiplies:
            before[stream] = gemm
    return launches


class _Facts(NamedTuple):
    """Facts of all launches of a kind: fields of `Gemm`."""

    of_graph: bool
    in_graph: bool
    multiplies: bool


def _facts_of(kind: Kind) -> _Facts:
    return _Facts(
        of_graph=is_of_graph(kind.op),
        in_graph=is_in_graph(kind.op),
        multiplies=kind.multiplies,
    )


def _is_gemm(kind: Kind) -> bool:
    return kind.is_gemm


def _as_part(kind: Kind, precision: Precision) -> Kind:
    """Return the kind of what adds up the parts of a GEMM of a precision."""
    found = replace(
        kind.classification,
        precision=precision,
        reason="part of the GEMM launched just before it",
    )
    return kind._replace(classification=found)


class _Shapes:
    """The shapes of launches; the GEMMs that a function of whole layers launches take turns."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds: list[Kind] = []
        self._own: list[GemmShape | None] = []
        self._of_layers: list[Sequence[GemmShape]] = []
        self._turn: Counter[tuple[int, OpContext]] = Counter()
        for kind in kinds:
            self._kinds.append(kind)
            self._own.append(gemm_shape(kind.op) if kind.is_gemm else None)
            self._of_layers.append(layer_shapes(kind) if kind.multiplies else ())

    def next_of(self, number: int, site: Site) -> GemmShape | None:
        """Return the shape of the next launch of a kind."""
        of_layers = self._of_layers[number]
        if not of_layers:
            return self._own[number]
        key = (site.call, self._kinds[number].op)
        turn = self._turn[key]
        self._turn[key] += 1
        return of_layers[turn % len(of_layers)]
