"""Kinds of kernel, one name under one operator, parsed once; and the shape of a GEMM.

The FLOPs of a GEMM follow from the operand shapes that its operator recorded.
"""

from __future__ import annotations

from array import array
from collections import Counter
from functools import cached_property
from itertools import repeat
from math import prod
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fp8verify.kernels import Classification, classify, decode
from fp8verify.kernels.operators import Counts, LayerInputs, Product, find, function_of
from fp8verify.terms import KernelName, Leg, OpContext, Precision, Role, Shape
from fp8verify.trace import Trace
from fp8verify.trace.columns import Interner


class GemmShape(NamedTuple):
    """A (batched) product of (m, k) by (k, n): `flops` counts a multiply-add as two."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """2·batch·m·n·k."""
        return 2 * self.batch * self.m * self.n * self.k


def gemm_shape(op: OpContext | None) -> GemmShape | None:
    """Return the shape of the GEMM that `op` computes, or None if the record does not say."""
    product = find(op.name).product if op else None
    if op is None or product is None or len(op.dims) <= max(product.a, product.b):
        return None
    a, b = op.dims[product.a], op.dims[product.b]
    if product.counts is Counts.PLAIN:
        return _plain(a, b, product)
    if product.counts is Counts.VECTOR:
        fits = a and len(b) == 1 and a[-1] == b[0]
        return GemmShape(1, prod(a[:-1]), 1, b[0]) if fits else None
    if product.counts is Counts.GROUPED:
        return _grouped(a, b, product)
    return _template(op.dims, product) if product.counts is Counts.TEMPLATE else None


def _plain(a: Shape, b: Shape, product: Product) -> GemmShape | None:
    """Multiply the last two dimensions; leading ones of A are rows, or a batch where B has it."""
    if len(a) < 2 or len(b) < 2:
        return None
    k, n = (b[-1], b[-2]) if product.b_is_nk else (b[-2], b[-1])
    if a[-1] != k:
        return None
    rows, k = prod(a[:-1]), k * product.packed
    if len(b) == 2:
        return GemmShape(1, rows, n, k)
    batch = prod(b[:-2])
    return GemmShape(batch, rows // batch, n, k) if batch and rows % batch == 0 else None


def _grouped(a: Shape, b: Shape, product: Product) -> GemmShape | None:
    """Grouped products: the groups share M, N or K among them, so a 2-D side counts once."""
    if len(a) == 3 and len(b) == 3:
        return _plain(a, b, product)
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    return GemmShape(1, a[-2], b[-1], a[-1])


def _template(dims: tuple[Shape, ...], product: Product) -> GemmShape | None:
    """Only the first two inputs can be A and B, and no other matrix may stand before them."""
    matrices = [d for d in dims if len(d) == 2 and min(d) > 1]
    if len(matrices) < 2 or dims[:2] != tuple(matrices[:2]):
        return None
    return _plain(matrices[0], matrices[1], product)


def layer_shapes(kind: Kind) -> list[GemmShape | None]:
    """Return the shapes of the GEMMs that a call of a function of whole layers launches, in order.

    Its input and weights are recorded. Experts have a launch each, unless one kernel is of all; how
    many tokens each had is not recorded, so the mean counts. Empty for any other function.
    """
    op, inputs = kind.op, kind.layer_inputs
    if op is None or inputs is None:
        return []
    dims, places = op.dims, inputs.weights
    width = dims[inputs.input][-1] if len(dims) > inputs.input and dims[inputs.input] else 0
    if inputs.grouped:  # after arguments that vary: the first matrix that the input fits
        rest = range(inputs.input + 1, len(dims))
        places = tuple(n for n in rest if len(dims[n]) == 2 and dims[n][1] == width)[:1] or places
    each = 1
    if inputs.grouped and len(dims) > places[0] and decode(kind.name).role is not Role.GROUPED_GEMM:
        each = dims[places[0] :].count(dims[places[0]])
    unknown: list[GemmShape | None] = [None for _ in range(len(places) * each)]
    if len(dims) <= max(inputs.input, *places) or len(dims[inputs.input]) < 2:
        return unknown
    rows, left = divmod(prod(dims[inputs.input][:-1]), each)
    shapes: list[GemmShape | None] = []
    for weight in map(dims.__getitem__, places):
        # A gated activation halves what the first layer puts out.
        if left or len(weight) != 2 or weight[1] not in (width, width / 2):
            return unknown
        width = weight[0]
        shapes += [GemmShape(1, rows, *weight)] * each
    return shapes


def gradient(shape: GemmShape | None, leg: Leg) -> GemmShape | None:
    """Return the product of a gradient: (m, n) by (n, k) for dgrad, (n, m) by (m, k) for wgrad."""
    if shape is None:
        return None
    if leg is Leg.DGRAD:
        return shape._replace(n=shape.k, k=shape.n)
    return shape._replace(m=shape.n, n=shape.k, k=shape.m)


def layer_sizes(leg: Leg, shape: Shape) -> tuple[tuple[int, int], ...]:
    """Return (outputs, inputs) that the layer of a GEMM of a leg may have.

    wgrad gives the weight's size or its transpose. `shape` is (batch, m, n, k).
    """
    batch, m, n, k = shape
    if batch != 1:
        return ()
    if leg in (Leg.FPROP, Leg.RECOMPUTE):
        return ((n, k),)
    of_dgrad, of_wgrad = ((k, n),), ((m, n), (n, m))
    return of_dgrad if leg is Leg.DGRAD else of_wgrad if leg is Leg.WGRAD else of_dgrad + of_wgrad


class Kind(NamedTuple):
    """Kernels of one name under one operator context, and what they are."""

    name: str
    op: OpContext | None
    classification: Classification

    @property
    def around(self) -> tuple[str, ...]:
        """The operator that launched it and all that encloses that; empty if not known."""
        return () if self.op is None else self.op.around

    @property
    def layer_inputs(self) -> LayerInputs | None:
        """Where the function of whole layers that launched it, or its node, takes its inputs."""
        name = "" if self.op is None else self.op.name
        return find(function_of(name) or name).layer_inputs

    @property
    def multiplies(self) -> bool:
        """Whether a GEMM is a product itself, and not the reduction of a split one."""
        return not self.classification.split_k


# Grouped GEMMs of experts share their sizes among the experts: one population.
EXPERTS: Final = (0, 0, 0)
ANY_SIZE: Final = (-1, -1, -1)


class Gemm(Struct):
    """One launch of a GEMM kernel, and what it computes.

    Attributes:
        place: its place among the kernels.
        step: its step, -1 for none.
        kind_id: the place of its kind in `Kinds.rows`.
        kind: that kind.
        shape: None if the record does not say it.
        leg: which of its layer's GEMMs it is.
        call: that of the operator that launched it, -1 if autograd numbers none.
        makes: the node of autograd that its call made, or -1.
        node: the node that it ran in, or -1.
        trained: whether a backward pass belongs to it.
        forward: the forward GEMM that it is a gradient of, or recomputes.
        micro_batch: its number within the step.
    """

    place: int
    step: int
    kind_id: int
    kind: Kind
    shape: GemmShape | None
    call: int
    makes: int
    node: int
    leg: Leg = Leg.UNKNOWN
    trained: bool = True
    forward: Gemm | None = None
    micro_batch: int = 0

    @property
    def size(self) -> tuple[int, int, int]:
        """Key of its layer: (m, n, k), `EXPERTS`, or `ANY_SIZE` if not known."""
        if self.kind.classification.role is Role.GROUPED_GEMM:
            return EXPERTS
        return ANY_SIZE if self.shape is None else self.shape[1:]


class Kinds:
    """The kinds of kernel of a trace; each distinct name is parsed once.

    `ids` has for each kernel, in the order of the file, the index of its kind in `rows`.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._decoded: list[KernelName] = [decode(name) for name in trace.names]
        self._ids = Interner()
        keys = zip(trace.kernels.name, trace.kernels.op, repeat(None))
        self.ids = array("q", map(self._ids.__getitem__, keys))
        self.rows = [self._make(*key) for key in self._ids]

    def roles(self) -> list[Role]:
        """Return the role of each kernel, in the order of the file."""
        roles = [kind.classification.role for kind in self.rows]
        return list(map(roles.__getitem__, self.ids))

    @cached_property
    def mean_ns(self) -> list[float]:
        """How long the launches of each kind took, which were in the trace when it was read."""
        times = [0] * len(self.rows)
        for number, time_ns in zip(self.ids, self._trace.kernels.duration_ns, strict=True):
            times[number] += time_ns
        calls = Counter(self.ids)
        return [time_ns / calls[number] for number, time_ns in enumerate(times)]

    def id_of(self, name: int, op: int, inherited: Precision | None = None) -> int:
        """Return the place of a kind; `inherited` is the precision of the GEMM it belongs to."""
        key = (name, op, inherited)
        number = self._ids[key]
        if number == len(self.rows):
            self.rows.append(self._make(*key))
        return number

    def _make(self, name: int, op: int, inherited: Precision | None) -> Kind:
        context = self._trace.ops[op] if op >= 0 else None
        found = classify(self._decoded[name], context)
        if inherited is not None:
            why = "part of the GEMM launched just before it"
            found = replace(found, precision=inherited, reason=why)
        return Kind(self._trace.names[name], context, found)
