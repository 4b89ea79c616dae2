"""Which pass each GEMM of a linear layer computes: fprop, dgrad, wgrad or a recomputed fprop.

For a linear layer of M tokens, K inputs and N outputs, fprop multiplies (M, K) by (K, N), dgrad
(M, N) by (N, K) and wgrad (N, M) by (M, K) or its transpose. Evidence is used in this order:
what encloses the operator (autograd runs backward under a `*Backward` node), the shapes against
those of the forward pass, the operand layout of kernels that have a choice of it (BLAS computes
a row-major linear layer as TN, NN and NT), and last the order of launch: PyTorch's derivative
formulas, torchao 0.17 and Transformer Engine 2.20 all launch dgrad before wgrad. What none of
them decides stays `backward`.

Autograd consumes what the forward pass saved in the opposite order. So GEMMs are read in the order
of launch with a stack for each layer size: a GEMM of the backward pass takes the latest forward
GEMM of its layer. Forward GEMMs that no backward pass takes train nothing: a teacher, a reference
model, a rollout, a validation, a frozen tower. A forward GEMM after a backward one begins the next
pass of its step: the next micro-batch.

GEMMs of a backward pass may run outside autograd's nodes: zero-bubble schedules delay wgrad, and
compiled autograd and joint graphs have no nodes at all. There the shapes decide: for a forward GEMM
of (tokens, k) by (k, n), wgrad contracts over the tokens, (n, tokens) by (tokens, k).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.kinds import GemmLabel, GemmShape, Kind, Kinds, gemm_shape
from fp8verify.analysis.layer_functions import deal
from fp8verify.analysis.purpose import has_gradient, multiplies_square
from fp8verify.kernels.operators import OPERATORS, Part, find, function_of
from fp8verify.terms import Leg, OpContext, Role
from fp8verify.text import lazy_pattern
from fp8verify.trace import Trace

_BACKWARD_LEGS = (Leg.DGRAD, Leg.WGRAD, Leg.RECOMPUTE)
# TN is that of a forward pass, and of dgrad where the weight is stored transposed.
_LAYOUT_LEGS = {"NN": Leg.DGRAD, "NT": Leg.WGRAD}
_COMPILED = "CompiledFunction"
_LAYOUT = lazy_pattern(r"_([NT][NT])[NT]?(?:$|_)|_(nn|nt|tn)_(?:n_tile|align)", re.ASCII)
_LINEAR = frozenset(name for name, row in OPERATORS.items() if row.linear)
_GRADIENTS: Final = (Leg.DGRAD, Leg.WGRAD)
_BACKWARD: Final = (*_GRADIENTS, Leg.BACKWARD)
# Grouped GEMMs of experts share their sizes among the experts: one population.
EXPERTS: Final = (0, 0, 0)
_ANY: Final = (-1, -1, -1)
_Size: TypeAlias = "tuple[int, int, int]"


class Placed(NamedTuple):
    """What one launch computes."""

    leg: Leg
    shape: GemmShape | None


def place_gemms(kinds: Sequence[Kind], launches: Sequence[int]) -> list[Placed]:
    """Return the pass and the shape of each launch.

    Args:
        kinds: those of one trace.
        launches: the place in `kinds` of each GEMM kernel, in order of launch.
    """
    calls = Counter(launches)
    functions = _forward_functions(kinds[number].op for number in calls)
    shapes = {number: gemm_shape(kinds[number].op) for number in calls}
    settled = {number: _from_context(kinds[number], functions) for number in calls}
    forward: Counter[_Size] = Counter()
    for number, count in calls.items():
        shape = shapes[number]
        if settled[number] is Leg.FPROP and shape is not None and kinds[number].multiplies:
            forward[shape.m, shape.n, shape.k] += count
    for number, leg in settled.items():
        if leg is None:
            settled[number] = _from_shape(kinds[number], shapes[number], forward)
    products = Counter({n: count for n, count in calls.items() if kinds[n].multiplies})
    alternating = _settle_by_count(products, settled, shapes, forward)
    undecided: Counter[GemmShape | None] = Counter()
    groups = {n: shape if shape in alternating else None for n, shape in shapes.items()}
    for number, leg in settled.items():
        if leg is None:
            undecided[groups[number]] += products[number]
    works, turn, placed = deal(kinds, launches), Counter[GemmShape | None](), []
    for place, number in enumerate(launches):
        work, group = works.get(place), groups[number]
        leg = (work.leg if work is not None else None) or settled[number]
        if leg is None and (group is None or undecided[group] % 2):
            leg = Leg.BACKWARD
        elif leg is None:  # the undecided ones of a group take turns, dgrad first
            turn[group] += kinds[number].multiplies
            leg = Leg.DGRAD if turn[group] % 2 else Leg.WGRAD
        placed.append(Placed(leg, shapes[number] if work is None else work.shape))
    return placed


def _expected(forward: Counter[_Size], shape: GemmShape, leg: Leg) -> int:
    """Return how many GEMMs of this shape the forward pass makes us expect for a pass."""
    m, n, k = shape.m, shape.n, shape.k
    if leg is Leg.DGRAD:
        return forward[m, k, n]
    return forward[k, m, n] if leg is Leg.WGRAD else forward[m, n, k]


def _forward_functions(ops: Iterable[OpContext | None]) -> frozenset[str]:
    """Names of custom autograd functions: X where a node XBackward encloses a GEMM."""
    nodes = {name for op in ops if op for name in (op.name, *op.parents)}
    return _LINEAR.union(filter(None, map(function_of, nodes)))


def _from_context(kind: Kind, functions: frozenset[str]) -> Leg | None:
    """Decide from what encloses the operator; None where it is some pass of the backward pass."""
    op = kind.op
    if op is None:
        return Leg.BACKWARD if has_gradient(kind) else Leg.UNKNOWN
    if not op.backward:
        # A replayed CUDA graph of a backward pass is launched by the node, not run inside it.
        return Leg.BACKWARD if has_gradient(kind) and not op.types else Leg.FPROP
    for name in (op.name, *op.parents):
        if function_of(name) is not None:
            return None
        if name in functions:
            return Leg.RECOMPUTE
    return None


def _from_shape(kind: Kind, shape: GemmShape | None, forward: Counter[_Size]) -> Leg | None:
    """Decide by the shapes of the forward pass, else by the layout of the operands.

    wgrad is transposed only where nothing else fits. Only a compiled backward pass recomputes
    without an operator of the forward pass around it; E5M2 operands are gradients anyway. FP8 on
    Hopper has no choice of layout.
    """
    if shape is not None:
        nodes = () if kind.op is None else map(function_of, (kind.op.name, *kind.op.parents))
        recomputes = _COMPILED in nodes and not has_gradient(kind)
        legs = [leg for leg in _BACKWARD_LEGS if _expected(forward, shape, leg)]
        if not recomputes and Leg.RECOMPUTE in legs:
            legs.remove(Leg.RECOMPUTE)
        if len(legs) == 1:
            return legs[0]
        if not legs and forward[shape.k, shape.n, shape.m]:
            return Leg.WGRAD
    return None if kind.classification.precision.is_low else layout_leg(kind.name)


def layout_leg(kernel: str) -> Leg | None:
    """Return the pass that the layout of a BLAS kernel's operands means: NN dgrad, NT wgrad."""
    match = _LAYOUT.search(kernel)
    return None if match is None else _LAYOUT_LEGS.get((match[1] or match[2]).upper())


def _settle_by_count(
    products: Counter[int],
    settled: dict[int, Leg | None],
    shapes: Mapping[int, GemmShape | None],
    forward: Counter[_Size],
) -> frozenset[GemmShape]:
    """Settle shapes of which only one pass is still wanting; return those where two are, evenly."""
    taken: Counter[tuple[GemmShape, Leg]] = Counter()
    undecided: dict[GemmShape, list[int]] = defaultdict(list)
    for number, leg in settled.items():
        shape = shapes[number]
        if shape is not None and leg is not None:
            taken[shape, leg] += products[number]
        elif shape is not None:
            undecided[shape].append(number)
    alternating: set[GemmShape] = set()
    for shape, members in undecided.items():
        total = sum(products[number] for number in members)
        dgrad, wgrad = (_expected(forward, shape, leg) - taken[shape, leg] for leg in _GRADIENTS)
        if dgrad == wgrad and total == dgrad + wgrad:
            alternating.add(shape)
        elif min(dgrad, wgrad) <= 0 < total <= max(dgrad, wgrad):
            for number in members:
                settled[number] = Leg.DGRAD if dgrad > 0 else Leg.WGRAD
    return frozenset(alternating)


def place_in_passes(trace: Trace, kinds: Kinds, labels: Sequence[GemmLabel]) -> list[GemmLabel]:
    """Return the labels with their final pass (fprop, dgrad, wgrad), `number` and `trained`.

    Args:
        trace: the kernels.
        kinds: theirs.
        labels: the GEMMs in the order of launch.
    """
    surely_forward = _surely_forward(trace, kinds)
    labels = _by_shape(labels, surely_forward)
    trained = _trained(kinds, labels)
    sizes = {_size(kinds, label) for label, trains in zip(labels, trained, strict=True) if trains}
    steps = trace.kernels.step
    placed: list[GemmLabel] = []
    turned: dict[int, bool] = {}
    number: Counter[int] = Counter()
    chain: list[int] = []  # places in `placed` of products that may be an optimizer's
    for label, trains in zip(labels, trained, strict=True):
        step = steps[label.place]
        if label.leg in _BACKWARD:
            turned[step] = True
        elif label.leg is Leg.FPROP and trains and turned.get(step):
            number[step] += 1
            turned[step] = False
        after_backward = not trains and turned.get(step) and label.kind not in surely_forward
        if after_backward and _size(kinds, label) not in sizes and _multiplies_square(kinds, label):
            chain.append(len(placed))
        placed.append(label._replace(trained=trains, number=number[step]))
    in_chain = set(chain)
    for place in chain:
        if not in_chain.isdisjoint((place - 1, place + 1)):
            placed[place] = placed[place]._replace(leg=Leg.OPTIMIZER)
    return placed


def _surely_forward(trace: Trace, kinds: Kinds) -> frozenset[int]:
    """Return the kinds under a function of the forward pass, by the numbers of `kinds`."""
    nodes = {name for op in trace.ops for name in (op.name, *op.parents)}
    functions = frozenset(filter(None, map(function_of, nodes)))
    return frozenset(
        number
        for number, kind in enumerate(kinds.kinds)
        if kind.op is not None and not kind.op.backward and _runs_forward(kind.op, functions)
    )


def _runs_forward(op: OpContext, functions: frozenset[str]) -> bool:
    around = (op.name, *op.parents)
    if not functions.isdisjoint(around):
        return True
    rows = map(find, around)
    return any(row.linear or row.layer or row.part is Part.LAYER for row in rows)


def _by_shape(labels: Sequence[GemmLabel], surely_forward: frozenset[int]) -> list[GemmLabel]:
    """Give GEMMs outside of autograd's nodes the pass that their shapes prove."""
    sure = Counter(
        (label.shape.m, label.shape.n, label.shape.k)
        for label in labels
        if label.shape and label.leg is Leg.FPROP and label.kind in surely_forward
    )
    tokens = {m for m, _, _ in sure}
    outside = Counter(
        _wgrad_of(label.shape, sure)
        for label in labels
        if label.shape and label.leg is Leg.FPROP and label.kind not in surely_forward
    )
    dgrad: Counter[_Size] = Counter()
    wgrad: Counter[_Size] = Counter()
    found: list[GemmLabel] = []
    in_backward = False
    for place, label in enumerate(labels):
        leg, shape = label.leg, label.shape
        if shape is None or shape.batch != 1:
            found.append(label)
            continue
        size, of_dgrad = (shape.m, shape.n, shape.k), (shape.m, shape.k, shape.n)
        if leg is Leg.FPROP and label.kind not in surely_forward:
            following = labels[place + 1] if place + 1 < len(labels) else None
            is_dgrad = dgrad[of_dgrad] > 0
            # As many outputs as tokens make wgrad and a forward GEMM alike.
            is_alike = shape.k in (shape.m, shape.n) and shape.m in tokens
            if wgrad[_wgrad_of(shape, wgrad)] > 0 and (
                not is_alike or (in_backward and not is_dgrad)
            ):
                leg = Leg.WGRAD
            elif is_dgrad and (in_backward or _is_wgrad_of(following, shape, surely_forward)):
                leg = Leg.DGRAD
        elif leg is Leg.BACKWARD and sure[of_dgrad] and outside[of_dgrad] >= sure[of_dgrad]:
            leg = Leg.DGRAD  # wgrad of these layers runs outside
        if leg is Leg.FPROP:
            dgrad[size] += 1
            wgrad[size] += 1
            tokens.add(shape.m)
        elif leg is Leg.DGRAD:
            dgrad[of_dgrad] -= 1
        elif leg is Leg.WGRAD:
            wgrad[_wgrad_of(shape, wgrad)] -= 1
        in_backward = leg is not Leg.FPROP
        found.append(label if leg is label.leg else label._replace(leg=leg))
    return found


def _wgrad_of(shape: GemmShape, open_: Counter[_Size]) -> _Size:
    """Return (m, n, k) of the forward GEMM whose weight's gradient has this shape."""
    size = shape.k, shape.m, shape.n
    return size if open_[size] > 0 else (shape.k, shape.n, shape.m)


def _is_wgrad_of(label: GemmLabel | None, dgrad: GemmShape, sure: frozenset[int]) -> bool:
    """Whether the next GEMM is wgrad of the layer whose dgrad has this shape."""
    outside = label is not None and label.leg is Leg.FPROP and label.kind not in sure
    if label is None or label.shape is None or not outside:
        return False
    tokens, outputs, inputs = dgrad.m, dgrad.k, dgrad.n
    sides = {label.shape.m, label.shape.n}
    return label.shape.k == tokens and tokens not in sides and sides == {outputs, inputs}


def _trained(kinds: Kinds, labels: Sequence[GemmLabel]) -> list[bool]:
    """Say of each GEMM whether it trains, or may: all do where no backward pass is known."""
    if not any(label.leg in _BACKWARD and kinds.kinds[label.kind].op for label in labels):
        return [True] * len(labels)
    trained = [label.leg not in (Leg.FPROP, Leg.UNKNOWN) for label in labels]
    waiting: dict[_Size, list[int]] = defaultdict(list)
    taken: dict[_Size, Counter[Leg]] = defaultdict(Counter)
    for place, label in enumerate(labels):
        if not kinds.kinds[label.kind].multiplies:
            trained[place] = True
        elif label.leg is Leg.FPROP:
            waiting[_size(kinds, label)].append(place)
            waiting[_ANY].append(place)
        elif label.leg in _BACKWARD:
            size = _layer_size(kinds, label, waiting)
            before = _half(taken[size])
            # Of two gradients that may be either, one is dgrad and one wgrad.
            legs = (label.leg,) if label.leg is not Leg.BACKWARD and size != _ANY else _GRADIENTS
            for leg in legs:
                taken[size][leg] += 2 // len(legs)
            if _half(taken[size]) > before:
                _take_latest(waiting[size], trained)
    return trained


def _half(taken: Counter[Leg]) -> int:
    """Return how many forward GEMMs the gradients belong to, which count two each."""
    return -(-max(taken.values(), default=0) // 2)


def _size(kinds: Kinds, label: GemmLabel) -> _Size:
    if kinds.kinds[label.kind].classification.role is Role.GROUPED_GEMM:
        return EXPERTS
    shape = label.shape
    return _ANY if shape is None else (shape.m, shape.n, shape.k)


def _layer_size(kinds: Kinds, label: GemmLabel, waiting: dict[_Size, list[int]]) -> _Size:
    """Return the size of the waiting forward GEMM that a gradient belongs to."""
    size, shape = _size(kinds, label), label.shape
    if size in (EXPERTS, _ANY) or shape is None:
        return size if waiting[size] else _ANY
    sizes = []
    if label.leg is not Leg.DGRAD:
        sizes += [(shape.k, shape.m, shape.n), (shape.k, shape.n, shape.m)]
    if label.leg is not Leg.WGRAD:
        sizes.append((shape.m, shape.k, shape.n))
    return next((size for size in sizes if size in waiting), _ANY)


def _take_latest(waiting: list[int], trained: list[bool]) -> None:
    while waiting:
        place = waiting.pop()
        if not trained[place]:
            trained[place] = True
            return


def _multiplies_square(kinds: Kinds, label: GemmLabel) -> bool:
    """Whether it is a product of X by its transpose, or of what that gives."""
    kind = kinds.kinds[label.kind]
    high = not kind.classification.precision.is_low
    return label.leg is Leg.FPROP and kind.op is not None and high and multiplies_square(kind.op)
