"""Kinds of kernel, one name under one operator, parsed once; and the shape of a GEMM.

The FLOPs of a GEMM follow from the operand shapes that its operator recorded.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property, lru_cache
from itertools import compress, repeat
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from fp8verify.analysis.code_word import NO_WORDS, Words, with_code
from fp8verify.kernels import Classification, classify, decode
from fp8verify.kernels.operators import (
    Counts,
    LayerInputs,
    Product,
    find,
    function_of,
)
from fp8verify.terms import (
    NO_OP,
    Leg,
    OpContext,
    Precision,
    Role,
    Shape,
)
from fp8verify.trace import Trace
from fp8verify.trace.columns import Interner

_Row = TypeVar("_Row")
_Key = TypeVar("_Key", bound=Hashable)


def grouped(
    rows: Iterable[_Row],
    key: Callable[[_Row], _Key],
) -> defaultdict[_Key, list[_Row]]:
    """Return rows by a key of theirs, in the order in which the keys come first; none of others."""
    groups: defaultdict[_Key, list[_Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


# (m, n, k) of a product; the batch is none of the layer's.
Size: TypeAlias = "tuple[int, int, int]"


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

    def gradient(self, leg: Leg) -> GemmShape:
        """Return dgrad's product, (m, n) by (n, k), or wgrad's, (n, m) by (m, k)."""
        batch, m, n, k = self
        if leg is Leg.DGRAD:
            return GemmShape(batch, m, k, n)
        return GemmShape(batch, n, k, m)

    def forward_sizes(self, leg: Leg) -> tuple[Size, ...]:
        """Return (m, n, k) that the forward product of a leg's product may have.

        wgrad gives the weight's size or its transpose.
        """
        return _forward_sizes(self, leg)

    def layer_sizes(self, leg: Leg) -> tuple[tuple[int, int], ...]:
        """Return (outputs, inputs) that the layer of a leg's product may have."""
        return _layer_sizes(self, leg)


@lru_cache(1 << 12)  # thousands of launches have a few shapes
def _forward_sizes(shape: GemmShape, leg: Leg) -> tuple[Size, ...]:
    m = shape.m
    n = shape.n
    k = shape.k
    if leg in (Leg.FPROP, Leg.RECOMPUTE):
        return ((m, n, k),)
    of_dgrad = (m, k, n)
    of_wgrad = (k, m, n)
    of_wgrad_transposed = (k, n, m)
    if leg is Leg.DGRAD:
        return (of_dgrad,)
    if leg is Leg.WGRAD:
        return (of_wgrad, of_wgrad_transposed)
    return (of_dgrad, of_wgrad, of_wgrad_transposed)


@lru_cache(1 << 12)  # thousands of launches have a few shapes
def _layer_sizes(shape: GemmShape, leg: Leg) -> tuple[tuple[int, int], ...]:
    if shape.batch != 1:
        return ()
    sizes = _forward_sizes(shape, leg)
    return tuple((n, k) for _, n, k in sizes)


def gemm_shape(op: OpContext) -> GemmShape | None:
    """Return the shape of the GEMM that `op` computes, or None if the record does not say."""
    product = find(op.name).product
    if product is None:
        return None
    last_operand = max(product.a, product.b)
    if last_operand >= len(op.dims):
        return None
    a = op.dims[product.a]
    b = op.dims[product.b]
    counts = product.counts
    if counts is Counts.VECTOR:
        return _matrix_by_vector(a, b)
    if counts is Counts.NEVER or len(a) < 2 or len(b) < 2:
        return None
    if counts is Counts.GROUPED and not len(a) == len(b) == 3:
        return _of_groups(a, b)
    if counts is Counts.TEMPLATE and _first_matrices(op) != [a, b]:
        return None  # no other matrix may stand before A and B
    return _plain(a, b, product)


def _first_matrices(op: OpContext) -> list[Shape]:
    """Return the sizes of an operator's first two matrices."""
    matrices: list[Shape] = []
    for dims in op.dims:
        if len(dims) == 2 and min(dims) > 1:
            matrices.append(dims)
    return matrices[:2]


def _of_groups(a: Shape, b: Shape) -> GemmShape | None:
    """Multiply in groups, which share M, N or K among them, so a 2-D side counts once."""
    k = a[-1]
    if b[-2] != k:
        return None
    return GemmShape(
        batch=1,
        m=a[-2],
        n=b[-1],
        k=k,
    )


def _matrix_by_vector(a: Shape, b: Shape) -> GemmShape | None:
    if not a or len(b) != 1:
        return None
    *rows, k = a
    if b[0] != k:
        return None
    return GemmShape(
        batch=1,
        m=prod(rows),
        n=1,
        k=k,
    )


def _plain(
    a: Shape,
    b: Shape,
    product: Product,
) -> GemmShape | None:
    """Multiply the last two dimensions; leading ones of A are rows, or a batch where B has it."""
    if product.b_is_nk:
        n, k = b[-2:]
    else:
        k, n = b[-2:]
    if a[-1] != k:
        return None
    rows = prod(a[:-1])
    batch = prod(b[:-2])
    if not batch or rows % batch:
        return None
    return GemmShape(
        batch=batch,
        m=rows // batch,
        n=n,
        k=k * product.packed,
    )


def layer_shapes(kind: Kind) -> list[GemmShape]:
    """Return the shapes of the GEMMs that a call of a function of whole layers launches, in order.

    Its input and weights are recorded. Experts have a launch each, unless one kernel is of all; how
    many tokens each had is not recorded, so the mean counts. Empty where they are not known.
    """
    dims = kind.op.dims
    inputs = kind.layer_inputs
    if inputs is None or inputs.input >= len(dims):
        return []
    input_dims = dims[inputs.input]
    if len(input_dims) < 2:
        return []
    *rows, width = input_dims
    tokens = prod(rows)
    experts = 1
    weights = [dims[index] for index in inputs.weights if index < len(dims)]
    if inputs.grouped:
        # After arguments that vary: the first matrix that the input fits.
        after = dims[inputs.input + 1 :]
        fitting: list[Shape] = []
        for sides in after:
            if len(sides) == 2 and sides[1] == width:
                fitting.append(sides)
        weights = fitting[:1] or weights
        is_one_kernel = decode(kind.name).role is Role.GROUPED_GEMM
        if weights and not is_one_kernel:
            experts = after.count(weights[0])
    if len(weights) < len(inputs.weights):
        return []
    if tokens % experts:
        return []
    shapes = []
    for shape in _one_after_another(weights, tokens // experts, width):
        shapes += [shape] * experts
    return shapes


def _one_after_another(
    weights: Iterable[Shape],
    tokens: int,
    width: int,
) -> list[GemmShape]:
    """Return the products of weights, each of what the one before puts out; empty if none fit.

    Args:
        weights: (outputs, inputs) of each.
        tokens: the rows of what the first takes.
        width: the columns of it.
    """
    shapes = []
    for weight in weights:
        if len(weight) != 2:
            return []
        outputs, inputs = weight
        # A gated activation halves what the first layer puts out.
        if inputs not in (width, width / 2):
            return []
        shape = GemmShape(
            batch=1,
            m=tokens,
            n=outputs,
            k=inputs,
        )
        shapes.append(shape)
        width = outputs
    return shapes


# The autograd function of a compiled graph: torch/_functorch/_aot_autograd/runtime_wrappers.py.
GRAPH: Final = "CompiledFunction"


def is_of_graph(op: OpContext) -> bool:
    """Whether a graph of torch.compile ran an operator: one function, of many layers."""
    return any(name.startswith(GRAPH) for name in op.around)


def is_in_graph(op: OpContext) -> bool:
    """Whether the node of such a graph ran an operator."""
    return GRAPH in map(function_of, op.around)


class Kind(NamedTuple):
    """Kernels of one name under one operator context, and what they are."""

    name: str
    op: OpContext
    classification: Classification

    @property
    def layer_inputs(self) -> LayerInputs | None:
        """Where the function of whole layers that launched it, or its node, takes its inputs."""
        name = self.op.name
        function = function_of(name) or name
        return find(function).layer_inputs

    @property
    def role(self) -> Role:
        """What it does."""
        return self.classification.role

    @property
    def precision(self) -> Precision:
        """The precision class of its operands."""
        return self.classification.precision

    @property
    def is_low(self) -> bool:
        """Whether its operands are in low precision."""
        return self.classification.precision.is_low

    @property
    def is_gemm(self) -> bool:
        """Whether its time is GEMM time."""
        return self.role.is_gemm

    @property
    def multiplies(self) -> bool:
        """Whether it is a GEMM, and not the reduction of a split one."""
        return self.is_gemm and not self.classification.split_k

    @property
    def is_nameless(self) -> bool:
        """Whether neither its name nor its operator shows what it is."""
        found = self.classification
        return found.role is Role.OTHER and found.source == "none"

    @property
    def is_undecided(self) -> bool:
        """Whether it may be a product: a GEMM of unknown precision, or unrecognized."""
        if self.is_nameless:
            return True
        agrees = self.classification.conflict is None
        return self.multiplies and self.precision is Precision.UNKNOWN and agrees

    def changed(self, why: str, **changes: Any) -> Kind:
        """Return the kind with another classification, and why."""
        found = self.classification
        reason = f"{found.reason}; {why}"
        changed = replace(
            found,
            reason=reason,
            **changes,
        )
        return self._replace(classification=changed)


# Grouped GEMMs of experts share their sizes among the experts: one population.
EXPERTS: Final = (0, 0, 0)
ANY_SIZE: Final = (-1, -1, -1)


class KindTotal(NamedTuple):
    """All launches of a kind that is not a GEMM, and what a GEMM has in addition.

    Attributes:
        kernels: launches, as of a `GemmRow`.
        amount: the work of all launches, in ns or in MFLOPs, as of a `GemmRow`.
    """

    kind: Kind
    kernels: int
    amount: int
    leg: Leg | None = None
    shape: GemmShape | None = None
    flops: int | None = None


class Kinds:
    """The kinds of kernel of a trace; each distinct name is parsed once.

    `ids` has for each kernel, in the order of the file, the index of its kind in `rows`.
    `without_code` has what kernels would be without their compiled code, by that index.
    """

    def __init__(self, trace: Trace, words: Words = NO_WORDS) -> None:
        self._kernels = trace.kernels
        self.without_code: dict[int, Classification] = {}
        decoded = [decode(name) for name in trace.names]
        keys = Interner()
        words_of_kernels = words.ids or repeat(-1)
        launches = zip(  # noqa: B905
            trace.kernels.name, trace.kernels.op, words_of_kernels
        )
        self.ids = array("q", map(keys.__getitem__, launches))
        self.rows: list[Kind] = []
        for number, (name, op_index, word) in enumerate(keys):
            op = trace.ops[op_index] if op_index >= 0 else None
            found = classify(decoded[name], op)
            if word >= 0:
                self.without_code[number] = found
                found = with_code(found, words.words[word])
            kind = Kind(
                name=trace.names[name],
                op=op or NO_OP,
                classification=found,
            )
            self.rows.append(kind)

    def started(self, wanted: Callable[[Kind], bool]) -> list[int]:
        """Return the indices of the kernels of some kinds, in the order in which they started."""
        chosen = list(map(wanted, self.rows))
        is_wanted = map(chosen.__getitem__, self._ids_by_start)
        return list(compress(self._by_start, is_wanted))

    @cached_property
    def _by_start(self) -> array[int]:
        """The indices of all kernels, in the order in which they started."""
        start_of = self._kernels.start_ns.__getitem__
        indices = range(len(self.ids))
        return array("q", sorted(indices, key=start_of))

    @cached_property
    def _ids_by_start(self) -> array[int]:
        return array("q", map(self.ids.__getitem__, self._by_start))

    @cached_property
    def totals(self) -> list[tuple[int, int]]:
        """Of each kind of the trace its launches, and the ns that they took."""
        times = [0] * len(self.rows)
        durations = self._kernels.duration_ns
        for number, time_ns in zip(self.ids, durations, strict=True):
            times[number] += time_ns
        calls = Counter(self.ids)
        return [(calls[number], time_ns) for number, time_ns in enumerate(times)]

    def mean_ns(self, number: int) -> float:
        """Return how long the launches of a kind took."""
        calls, time_ns = self.totals[number]
        return time_ns / calls

    def others(self) -> list[KindTotal]:
        """Sum the kernels that are no GEMMs by kind."""
        others = []
        for number, total in enumerate(self.totals):
            kind = self.rows[number]
            if kind.is_gemm:
                continue
            calls, time_ns = total
            others.append(KindTotal(kind, calls, time_ns))
        return others
