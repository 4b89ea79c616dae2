"""Which leg of a linear layer each GEMM computes: fprop, dgrad, wgrad or a recomputed fprop.

For a linear layer of M tokens, K inputs and N outputs, fprop multiplies (M, K) by (K, N), dgrad
(M, N) by (N, K) and wgrad (N, M) by (M, K) or its transpose. Evidence is used in this order:
what encloses the operator (autograd runs backward under a `*Backward` node), the shapes against
those of the forward pass, the operand layout of kernels that have a choice of it (BLAS computes
a row-major linear layer as TN, NN and NT), and last the order of launch: PyTorch's derivative
formulas, torchao 0.17 and Transformer Engine 2.20 all launch dgrad before wgrad. What none of
them decides stays `backward`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fp8verify.analysis.kinds import GemmShape, gemm_shape
from fp8verify.analysis.layer_functions import GemmSite, Work, deal
from fp8verify.analysis.purpose import multiplies_square
from fp8verify.kernels import Classification
from fp8verify.kernels.operators import OPERATORS, Part, find, function_of
from fp8verify.terms import Leg, OpContext, Role
from fp8verify.text import lazy_pattern

if TYPE_CHECKING:
    from fp8verify.analysis.kinds import GemmLabel, Kinds
    from fp8verify.trace import Trace


_BACKWARD_LEGS = (Leg.DGRAD, Leg.WGRAD, Leg.RECOMPUTE)
# TN is that of a forward pass, and of dgrad where the weight lies transposed.
_LAYOUT_LEGS = {"NN": Leg.DGRAD, "NT": Leg.WGRAD}
_COMPILED = "CompiledFunction"
_LAYOUT = lazy_pattern(r"_([NT][NT])[NT]?(?:$|_)|_(nn|nt|tn)_(?:n_tile|align)", re.ASCII)
_LINEAR = frozenset(name for name, row in OPERATORS.items() if row.linear)


class Placed(NamedTuple):
    """What one launch computes."""

    leg: Leg
    shape: GemmShape | None


class _Forward(NamedTuple):
    """How often each (m, n, k) occurs in the forward pass."""

    counts: Counter[tuple[int, int, int]]

    def expected(self, shape: GemmShape, leg: Leg) -> int:
        """How many GEMMs of this shape the forward pass makes us expect for `leg`."""
        m, n, k = shape.m, shape.n, shape.k
        if leg is Leg.DGRAD:
            return self.counts[m, k, n]
        return self.counts[k, m, n] if leg is Leg.WGRAD else self.counts[m, n, k]

    def candidates(self, shape: GemmShape, *, recomputes: bool) -> list[Leg]:
        """The legs that the shape allows; wgrad's transpose only where nothing else fits."""
        legs = [leg for leg in _BACKWARD_LEGS if self.expected(shape, leg)]
        if not recomputes and Leg.RECOMPUTE in legs:
            legs.remove(Leg.RECOMPUTE)
        if not legs and self.counts[shape.k, shape.n, shape.m]:
            return [Leg.WGRAD]
        return legs


def place_gemms(sites: Sequence[GemmSite], launches: Sequence[int]) -> list[list[Placed]]:
    """Return, for each site, the leg and shape of each of its launches in order of launch.

    Args:
        sites: the kinds of GEMM launch of one rank.
        launches: one index into `sites` for each GEMM kernel, in order of launch.
    """
    functions = _forward_functions(sites)
    settled = [_from_context(site, functions) for site in sites]
    shapes = [gemm_shape(site.op) for site in sites]
    forward = _Forward(_forward_shapes(sites, settled, shapes))
    for index, site in enumerate(sites):
        if settled[index] is None:
            settled[index] = _from_shape(site, shapes[index], forward)
    alternating = _settle_by_count(sites, settled, shapes, forward)
    groups = [shape if shape in alternating else None for shape in shapes]
    dealt = deal(sites, launches)
    legs = _in_launch_order(sites, settled, groups, launches, dealt)
    placed: list[list[Placed]] = [[] for _ in sites]
    for place, (index, leg) in enumerate(zip(launches, legs, strict=True)):
        work = dealt.get(place)
        placed[index].append(Placed(leg, shapes[index] if work is None else work.shape))
    return placed


def _forward_functions(sites: Sequence[GemmSite]) -> frozenset[str]:
    """Names of custom autograd functions: X where a node XBackward encloses a GEMM."""
    nodes = {name for site in sites if site.op for name in (site.op.name, *site.op.parents)}
    return _LINEAR.union(filter(None, map(function_of, nodes)))


def _from_context(site: GemmSite, functions: frozenset[str]) -> Leg | None:
    """Decide from what encloses the operator; None where it is some leg of the backward pass."""
    op = site.op
    if op is None:
        return Leg.BACKWARD if _is_gradient(site.classification) else Leg.UNKNOWN
    if not op.backward:
        # A replayed CUDA graph of a backward pass is launched by the node, not run inside it.
        return Leg.BACKWARD if _is_gradient(site.classification) and not op.types else Leg.FPROP
    for name in (op.name, *op.parents):
        if function_of(name) is not None:
            return None
        if name in functions:
            return Leg.RECOMPUTE
    return None


def _is_gradient(classification: Classification) -> bool:
    """E5M2 holds gradients: activations and weights are E4M3 (arXiv:2209.05433, section 3)."""
    return "e5m2" in (classification.a, classification.b)


def _forward_shapes(
    sites: Sequence[GemmSite], settled: Sequence[Leg | None], shapes: Sequence[GemmShape | None]
) -> Counter[tuple[int, int, int]]:
    counts: Counter[tuple[int, int, int]] = Counter()
    for site, leg, shape in zip(sites, settled, shapes, strict=True):
        if leg is Leg.FPROP and shape is not None and site.multiplies:
            counts[shape.m, shape.n, shape.k] += site.calls
    return counts


def _from_shape(site: GemmSite, shape: GemmShape | None, forward: _Forward) -> Leg | None:
    if shape is not None:
        legs = forward.candidates(shape, recomputes=_may_recompute(site))
        if len(legs) == 1:
            return legs[0]
    return _from_layout(site)


def _may_recompute(site: GemmSite) -> bool:
    """Whether it may be a forward pass again although no forward operator encloses it.

    Only a compiled backward pass recomputes without one; E5M2 operands are gradients anyway.
    """
    nodes = () if site.op is None else map(function_of, (site.op.name, *site.op.parents))
    return not _is_gradient(site.classification) and any(name == _COMPILED for name in nodes)


def _from_layout(site: GemmSite) -> Leg | None:
    """Read the operand layout of a kernel that could have had another; FP8 on Hopper cannot."""
    if site.classification.precision.is_low:
        return None
    return layout_leg(site.kernel)


def layout_leg(kernel: str) -> Leg | None:
    """Return the leg that the layout of a BLAS kernel's operands means: NN dgrad, NT wgrad."""
    match = _LAYOUT.search(kernel)
    return None if match is None else _LAYOUT_LEGS.get((match[1] or match[2]).upper())


def _settle_by_count(
    sites: Sequence[GemmSite],
    settled: list[Leg | None],
    shapes: Sequence[GemmShape | None],
    forward: _Forward,
) -> frozenset[GemmShape]:
    """Settle shapes of which only one leg is still wanting; return those where two are, evenly."""
    taken: Counter[tuple[GemmShape, Leg]] = Counter()
    undecided: dict[GemmShape, list[int]] = defaultdict(list)
    for index, (site, leg, shape) in enumerate(zip(sites, settled, shapes, strict=True)):
        if shape is not None and leg is not None and site.multiplies:
            taken[shape, leg] += site.calls
        elif shape is not None and leg is None:
            undecided[shape].append(index)
    alternating: set[GemmShape] = set()
    for shape, members in undecided.items():
        total = sum(sites[index].calls for index in members if sites[index].multiplies)
        dgrad, wgrad = (
            forward.expected(shape, leg) - taken[shape, leg] for leg in (Leg.DGRAD, Leg.WGRAD)
        )
        if dgrad == wgrad and total == dgrad + wgrad:
            alternating.add(shape)
        elif min(dgrad, wgrad) <= 0 < total <= max(dgrad, wgrad):
            for index in members:
                settled[index] = Leg.DGRAD if dgrad > 0 else Leg.WGRAD
    return frozenset(alternating)


def _in_launch_order(
    sites: Sequence[GemmSite],
    settled: Sequence[Leg | None],
    groups: Sequence[GemmShape | None],
    launches: Sequence[int],
    dealt: Mapping[int, Work],
) -> list[Leg]:
    """Return the leg of each launch; the undecided ones of a group take turns, dgrad first."""
    totals: Counter[GemmShape | None] = Counter()
    for site, leg, group in zip(sites, settled, groups, strict=True):
        if leg is None and site.multiplies:
            totals[group] += site.calls
    turn: Counter[GemmShape | None] = Counter()
    legs = []
    for place, index in enumerate(launches):
        work = dealt.get(place)
        leg = (work.leg if work is not None else None) or settled[index]
        group = groups[index]
        if leg is None and (group is None or totals[group] % 2):
            leg = Leg.BACKWARD
        elif leg is None:
            turn[group] += sites[index].multiplies
            leg = Leg.DGRAD if turn[group] % 2 else Leg.WGRAD
        legs.append(leg)
    return legs


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
