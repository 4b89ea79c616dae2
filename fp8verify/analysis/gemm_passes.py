"""Which GEMMs train, and in which forward and backward pass of its step each one runs.

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

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from fp8verify.analysis.flops import GemmShape
from fp8verify.analysis.optimizers import multiplies_square
from fp8verify.kernels.operators import Part, find, function_of
from fp8verify.terms import Leg, OpContext, Role

if TYPE_CHECKING:
    from fp8verify.analysis.kinds import GemmLabel, Kinds
    from fp8verify.trace import Trace

_GRADIENTS: Final = (Leg.DGRAD, Leg.WGRAD)
_BACKWARD: Final = (*_GRADIENTS, Leg.BACKWARD)
# Grouped GEMMs of experts share their sizes among the experts: one population.
EXPERTS: Final = (0, 0, 0)
_ANY: Final = (-1, -1, -1)
_Size: TypeAlias = "tuple[int, int, int]"


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
        if kinds.kinds[label.kind].classification.split_k:
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
