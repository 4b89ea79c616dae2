"""Which forward GEMM each gradient belongs to, and so which layers train.

Autograd's numbers pair a gradient with the call that made its node, exactly: in pipeline orders,
and with teachers, reference models and second encoders between forward and backward pass. Within a
call of several GEMMs, and where nothing is numbered (compiled autograd, joint graphs), a gradient
takes the latest forward GEMM of its size: autograd consumes what the forward pass saved in the
opposite order.

Forward GEMMs that no gradient takes train nothing: a teacher, a reference model, a rollout, a
validation, a frozen tower. Behind the last gradient of a window that is not whole they may train.

The micro-batches are the forward launches of a step, cut into repetitions. One ends where gradients
ran in between, and where gradients took the later launch after the earlier one: one backward pass
takes what the forward pass saved in the opposite order, so these are of two. What one backward pass
takes whole, as of three views, is cut at its embeddings, losses or pipeline transfers, if these
repeat with the layers. A gradient belongs to the repetition of its forward GEMM. In
a trace without steps and legs, optimizer steps are the cuts.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from math import ceil, inf, prod
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.kinds import (
    ANY_SIZE,
    EXPERTS,
    GRAPH,
    Gemm,
    GemmShape,
    Kind,
    Kinds,
    Node,
    Size,
    grouped,
    is_of_graph,
    layer_shapes,
)
from fp8verify.analysis.legs import is_in_graph, layout_leg
from fp8verify.analysis.purpose import is_of_backward, is_update
from fp8verify.kernels.operators import function_of
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import (
    BACKWARD_LEGS,
    GRADIENT_LEGS,
    VAGUE_LEGS,
    Leg,
    OpContext,
)
from fp8verify.thresholds import HALF
from fp8verify.trace import Trace
from fp8verify.trace.tables import Launch

# Numbers from here on are ours, of nodes that a trace without autograd's numbers shows.
_OURS: Final = 1 << 40


_Taken: TypeAlias = "dict[Leg, float]"  # how many gradients took a forward GEMM
_Sides: TypeAlias = "frozenset[int]"  # outputs and inputs of a layer
_Gradient: TypeAlias = "tuple[Leg, Gemm]"  # its leg, and its forward GEMM


def _none_taken() -> _Taken:
    return defaultdict(float)


class _Waiting:
    """Forward GEMMs by size that no gradient took yet, of one call or of all."""

    def __init__(self, gemms: Iterable[Gemm] = ()) -> None:
        self._open: dict[Size, list[Gemm]] = defaultdict(list)
        self._taken: dict[Size, _Taken] = defaultdict(_none_taken)
        self._last: dict[Size, Gemm] = {}
        for gemm in gemms:
            self.add(gemm)

    def add(self, gemm: Gemm) -> None:
        for size in (gemm.size, ANY_SIZE):
            self._open[size].append(gemm)
            self._begin_anew(self._taken[size])

    def _begin_anew(self, taken: _Taken) -> None:
        """End the pass before, whose first layer has no dgrad."""
        whole = ceil(max(taken.values(), default=0))
        of_dgrad = taken[Leg.DGRAD]
        of_wgrad = taken[Leg.WGRAD]
        if of_dgrad < whole and of_dgrad <= of_wgrad:
            for leg in GRADIENT_LEGS:
                taken[leg] = whole

    def take(self, gemm: Gemm) -> Gemm | None:
        """Return the forward GEMM of a gradient; two gradients have one."""
        size = self._forward_size(gemm)
        taken = self._taken[size]
        before = ceil(max(taken.values(), default=0))
        # Of two gradients that may be either, one is dgrad and one wgrad.
        is_certain = gemm.leg is not Leg.BACKWARD and size != ANY_SIZE
        legs = (gemm.leg,) if is_certain else GRADIENT_LEGS
        part = 1 / len(legs)
        for leg in legs:
            taken[leg] += part
        after = ceil(max(taken.values()))
        if after > before:
            self._mark(size)
        return self._last.get(size)

    def recompute(self, gemm: Gemm, *, of_call: bool) -> None:
        """Mark the forward GEMM that ran first as one that trains; of a call, without sizes too."""
        if self._open[gemm.size]:
            self._mark(gemm.size)
        elif of_call:
            # Transformer Engine runs it outside of any operator that has shapes.
            self._mark(ANY_SIZE)

    def _mark(self, size: Size) -> None:
        waiting = self._open[size]
        while waiting and waiting[-1].trained:
            waiting.pop()
        if waiting:
            forward = waiting.pop()
            forward.trained = True
            self._last[size] = forward

    def _forward_size(self, gemm: Gemm) -> Size:
        shape = gemm.shape
        own = gemm.size
        if shape is None or own in (EXPERTS, ANY_SIZE):
            return own if self._open[own] else ANY_SIZE
        for size in shape.forward_sizes(gemm.leg):
            if size in self._open:
                return size
        return ANY_SIZE


class _WaitingFor:
    """The forward GEMMs that a node may be of: those of its call, or else of calls like its own.

    A node with a number is of a numbered call, where other nodes of its function are; and that of
    a compiled graph is of such a graph, if the trace shows what these ran.
    """

    def __init__(
        self,
        gemms: Iterable[Gemm],
        nodes: Mapping[int, Node],
    ) -> None:
        self._by_node: dict[int, _Waiting] = {}
        self._numbered = _Waiting()
        self._numbered_functions: set[str | None] = set()
        self._of_graphs: _Waiting | None = None
        self._all = _Waiting()
        for number, node in nodes.items():
            self._by_node[number] = _Waiting(node.forward)
        for gemm in gemms:
            if gemm.node in nodes:
                function = _innermost_function(gemm.kind)
                self._numbered_functions.add(function)

    def add(self, gemm: Gemm) -> None:
        """Add a forward GEMM."""
        self._all.add(gemm)
        if gemm.makes >= 0:
            self._numbered.add(gemm)
        if is_of_graph(gemm.kind.op):
            if self._of_graphs is None:
                self._of_graphs = _Waiting()
            self._of_graphs.add(gemm)

    def node_of(self, gemm: Gemm) -> _Waiting:
        """Return the forward GEMMs that the node which launched a GEMM may be of."""
        if gemm.node in self._by_node:
            return self._by_node[gemm.node]
        function = _innermost_function(gemm.kind)
        if gemm.node >= 0 and function in self._numbered_functions:
            return self._numbered
        if self._of_graphs is not None and is_in_graph(gemm.kind):
            return self._of_graphs
        return self._all


def _innermost_function(kind: Kind) -> str | None:
    """Return the function of the node that launched a kernel, None if none did."""
    functions = filter(None, map(function_of, kind.op.around))
    return next(functions, None)


_NO_NODE: Final = Node([], [])


def functions_of_nodes(trace: Trace, kinds: Kinds) -> dict[int, set[str]]:
    """Return the functions of autograd's nodes that launched a kernel, by their numbers."""
    functions_of_kinds = []
    for kind in kinds.rows:
        functions = map(function_of, kind.op.around)
        functions_of_kinds.append(frozenset(filter(None, functions)))
    nodes = [site.node for site in trace.sites]
    nodes_of_launches = map(nodes.__getitem__, trace.kernels.site)
    launches = set(zip(nodes_of_launches, kinds.ids, strict=True))
    names: dict[int, set[str]] = defaultdict(set)
    for node, kind_id in launches:
        if node >= 0:
            names[node] |= functions_of_kinds[kind_id]
    return names


def number_fused_losses(
    gemms: Sequence[Gemm],
    kinds: Kinds,
    ran: dict[int, set[str]],
) -> bool:
    """Number the calls of fused losses where autograd numbers none, and note that their nodes ran.

    A fused loss is a function whose node runs and launches no GEMM. Its products that follow one
    another are of one call.

    Returns:
        Whether there are any.
    """
    if ran or any(gemm.makes >= 0 for gemm in gemms):
        return False
    ran_alone = _functions(kinds, with_gemms=False)
    fused = ran_alone - _functions(kinds, with_gemms=True) - {GRAPH}
    number = _OURS
    before: tuple[int, frozenset[str]] | None = None
    for gemm in gemms:
        functions = fused.intersection(gemm.kind.op.around)
        if not functions or gemm.leg is not Leg.FPROP:
            before = None
            continue
        here = (gemm.step, functions)
        number += here != before
        before = here
        gemm.call = number
        gemm.makes = number
        ran[number] = set(functions)
    return bool(ran)


def _functions(kinds: Kinds, *, with_gemms: bool) -> frozenset[str]:
    """Return the functions of the nodes that launched a kernel, or a GEMM."""
    found: set[str | None] = set()
    for kind in kinds.rows:
        if not kind.op.backward:
            continue
        if kind.is_gemm or not with_gemms:
            found.update(map(function_of, kind.op.around))
    return frozenset(filter(None, found))


def nodes_of(gemms: Iterable[Gemm]) -> dict[int, Node]:
    """Return by their numbers the nodes whose calls are known, of launches in order."""
    nodes: dict[int, Node] = {}
    for gemm in gemms:
        if not gemm.kind.multiplies:
            continue
        if gemm.node in nodes and gemm.leg in BACKWARD_LEGS:
            nodes[gemm.node].gradients.append(gemm)
        if gemm.makes >= 0:
            node = nodes.setdefault(gemm.makes, Node([], []))
            if node.forward and node.forward[0].call != gemm.call:
                # Frozen layers have the number of the next node, which the last call made.
                node.forward.clear()
            node.forward.append(gemm)
    return nodes


def settle_by_node(gemms: Sequence[Gemm], nodes: Mapping[int, Node]) -> None:
    """Settle legs by the number of gradients of a call: dgrad and wgrad, the last layer first.

    The first layer has no dgrad, if its input takes no gradient. Where single gradients are many,
    as beside adapters, these are of frozen weights too, and stay what they may be.
    """
    _settle_layer_functions(gemms)
    known = [node for node in nodes.values() if node.gradients]
    whole = 0
    lacking_one = 0
    for node in known:
        expected = 2 * len(node.forward)
        found = len(node.gradients)
        whole += found == expected
        lacking_one += found == expected - 1
    is_first_rare = lacking_one < HALF * whole
    for node in known:
        _settle_node(node, is_first_rare=is_first_rare)
    _settle_split_k(gemms)


def _settle_node(node: Node, *, is_first_rare: bool) -> None:
    """Settle the legs of a node's gradients, if it has as many as its layers need.

    Args:
        node: the node.
        is_first_rare: whether what lacks one gradient can only be a model's first layer.
    """
    inputs = node.forward[0].kind.layer_inputs
    gradients = node.gradients
    layers = [[gemm] for gemm in node.forward]
    if inputs is not None:
        gradients = [gemm for gemm in gradients if gemm.kind.layer_inputs is inputs]
        if inputs.grouped:
            layers = [node.forward]
    work = _work_of_backward(layers)
    if len(gradients) == len(work) - 1 and is_first_rare:
        del work[-2]
    if len(gradients) != len(work) or len(layers) > 2:
        return
    for gemm, (leg, forward_shape) in zip(gradients, work, strict=True):
        if gemm.leg in VAGUE_LEGS:
            gemm.leg = leg
        if not gemm.shape and forward_shape is not None:
            gemm.shape = forward_shape.gradient(gemm.leg)


def _work_of_backward(
    layers: Sequence[Sequence[Gemm]],
) -> list[tuple[Leg, GemmShape | None]]:
    """Return the legs that layers need, the last layer first, with the shapes of their fprops."""
    work = []
    for layer in reversed(layers):
        for leg in GRADIENT_LEGS:
            for forward in layer:
                work.append((leg, forward.shape))
    return work


def _settle_split_k(gemms: Iterable[Gemm]) -> None:
    """Give the reductions of split products the leg and the shape of these."""
    last: dict[tuple[int, int], Gemm] = {}
    for gemm in gemms:
        site = (gemm.call, gemm.node)
        if gemm.kind.multiplies:
            last[site] = gemm
        elif max(site) >= 0 and site in last:
            gemm.leg = last[site].leg
            gemm.shape = last[site].shape


def _settle_layer_functions(gemms: Iterable[Gemm]) -> None:
    """Settle the shapes of the GEMMs that functions of whole layers launch, in turn."""
    kinds = {gemm.kind_id: gemm.kind for gemm in gemms}
    shapes = {number: layer_shapes(kind) for number, kind in kinds.items()}
    turn: Counter[tuple[int, OpContext]] = Counter()
    for gemm in gemms:
        of_call = shapes[gemm.kind_id]
        if not of_call or not gemm.kind.multiplies:
            continue
        site = (gemm.call, gemm.kind.op)
        index = turn[site] % len(of_call)
        gemm.shape = of_call[index]
        turn[site] += 1


def pair(
    gemms: Sequence[Gemm],
    nodes: Mapping[int, Node],
    ran: Mapping[int, Set[str]],
    *,
    whole: bool,
    in_graphs: int,
) -> None:
    """Settle `trained` and `forward`, and by these the legs that are still open.

    A node that ran trains its layer, though it launched no GEMM: fused losses compute the gradients
    of the head in the forward pass.

    Args:
        gemms: launches of layers, in order.
        nodes: the nodes that launched them, by their numbers.
        ran: the functions of all nodes that ran, by their numbers.
        whole: whether the window holds whole steps.
        in_graphs: how many kernels graphs launched.
    """
    products = [gemm for gemm in gemms if gemm.kind.multiplies]
    if not any(gemm.leg in BACKWARD_LEGS and gemm.kind.op.name for gemm in gemms):
        if not ran:
            _settle_beside_replays(products, in_graphs)
        return  # no backward pass is known: all others may train
    waiting_for = _WaitingFor(products, nodes)
    _train_what_ran(products, ran)
    for gemm in products:
        waiting = waiting_for.node_of(gemm)
        is_of_call = gemm.node in nodes
        if gemm.leg is Leg.RECOMPUTE and gemm.makes >= 0:
            waiting.recompute(gemm, of_call=is_of_call)
        elif gemm.leg in BACKWARD_LEGS:
            gemm.forward = waiting.take(gemm) or gemm.forward
            if is_of_call:
                _train_together(nodes[gemm.node].forward)
        if gemm.leg is Leg.FPROP and gemm.makes < _OURS:
            waiting_for.add(gemm)
    # Steps that are cut between forward and backward pass end with a forward pass that trains.
    if not whole or any(map(_is_of_step_before, products)):
        _train_last(products)


def _train_what_ran(
    products: Iterable[Gemm],
    ran: Mapping[int, Set[str]],
) -> None:
    """Let gradients train, and products whose call made a node that ran; others not yet."""
    for gemm in products:
        of_node = ran.get(gemm.makes, frozenset()) - {GRAPH}
        is_made = not of_node.isdisjoint(gemm.kind.op.around)
        is_forward = gemm.leg in (Leg.FPROP, Leg.UNKNOWN)
        gemm.trained = is_made or not is_forward


def _train_together(call: Sequence[Gemm]) -> None:
    """Let all forward GEMMs of a layer's call train; those of a compiled graph need not."""
    if not call or is_of_graph(call[0].kind.op):
        return
    for forward in call:
        forward.trained = True


def _is_of_step_before(gemm: Gemm) -> bool:
    """Whether a gradient's own node was made in an earlier step."""
    forward = gemm.forward
    if forward is None or forward.step >= gemm.step:
        return False
    return gemm.node == forward.makes >= 0


def _train_last(products: Sequence[Gemm]) -> None:
    """Let forward GEMMs behind the last gradient train, as its pass may be cut away."""
    last = 0
    # Where autograd numbers calls, one without a number ran under no_grad, and never trains.
    numbered = False
    for index, gemm in enumerate(products):
        if gemm.leg in BACKWARD_LEGS:
            last = index
        numbered |= 0 <= gemm.makes < _OURS
    for gemm in products[last:]:
        may_train = gemm.makes >= 0 or not numbered
        gemm.trained |= gemm.leg is Leg.FPROP and may_train


def _settle_beside_replays(products: Sequence[Gemm], in_graphs: int) -> None:
    """Let forward products with operators train nothing, where graphs replay the training.

    No node of autograd ran, so a product outside of the graphs has no gradient. The graphs hold
    gradients too: what can be nothing else, or two products for each of a forward pass.
    """
    replayed = []
    beside = []
    for gemm in products:
        if not gemm.kind.op.name:
            replayed.append(gemm)
        elif gemm.makes < 0:
            beside.append(gemm)
    has_gradients = any(gemm.leg in BACKWARD_LEGS for gemm in replayed)
    may_have_gradients = has_gradients or len(replayed) >= 2 * len(beside)
    if not may_have_gradients or in_graphs < len(replayed):
        return
    for gemm in beside:
        gemm.trained = gemm.leg is not Leg.FPROP


def settle_delayed(
    gemms: Sequence[Gemm],
    nodes: Mapping[int, Node],
) -> None:
    """Let products that may be delayed gradients be gradients, whoever launched them.

    Zero-bubble schedules compute wgrad when its node is over, others in a hook of the optimizer's,
    a part of the tokens at a time or those of all micro-batches at once. So the work tells: as much
    outside of nodes, behind the first gradient, as wgrad inside is missing; without shapes,
    as many products. They are taken in the order of the nodes.
    """
    missing: dict[int, list[Gemm]] = defaultdict(list)  # forward GEMMs
    # Those that may lack dgrad instead.
    first: dict[int, list[Gemm]] = defaultdict(list)
    outside: dict[int, list[Gemm]] = defaultdict(list)
    forward: Counter[int] = Counter()  # of nodes that ran in a step
    for gemm in gemms:
        step = gemm.step
        node = nodes.get(gemm.node, _NO_NODE)
        if node.gradients and node.gradients[0] is gemm:
            forward[step] += len(node.forward)
            if not _has_wgrad(node):
                lacks = first if _may_lack_dgrad(node) else missing
                found = len(node.gradients)
                expected = node.forward * 2
                lacks[step] += expected[found:]
            continue
        lacks_wgrad = step in missing or step in first
        if lacks_wgrad and _is_outside_nodes(gemm):
            outside[step].append(gemm)
    for step, products in outside.items():
        layers = missing[step] + first[step]
        if len(layers) <= HALF * forward[step]:
            layers = missing[step]
        _settle_delayed_in_step(
            products,
            layers,
            forward[step],
            nodes,
        )


def _has_wgrad(node: Node) -> bool:
    return any(gradient.leg is Leg.WGRAD for gradient in node.gradients)


def _is_outside_nodes(gemm: Gemm) -> bool:
    if gemm.node >= 0 or gemm.makes >= 0:
        return False
    return gemm.kind.multiplies


def _settle_delayed_in_step(
    products: Sequence[Gemm],
    layers: Sequence[Gemm],
    forward: int,
    nodes: Mapping[int, Node],
) -> None:
    """Let products of a step be wgrad of its layers that lack it.

    Args:
        products: those outside of nodes, behind the first gradient.
        layers: the forward GEMMs that lack wgrad.
        forward: how many forward GEMMs the nodes of the step have.
        nodes: all nodes, by their numbers.
    """
    sides_of_layers = set(map(_sides_of_layer, layers))
    # Of few layers it is rather frozen weights that have no wgrad.
    is_schedule = len(layers) > HALF * forward
    delayed = []
    for gemm in products:
        is_free = is_schedule or gemm.leg is not Leg.OPTIMIZER
        if is_free and _may_be_delayed(gemm, sides_of_layers):
            delayed.append(gemm)
    if all(gemm.shape for gemm in (*delayed, *layers)):
        layers_by_sides = grouped(layers, _sides_of_layer)
        delayed_by_sides = grouped(delayed, _sides_of_wgrad)
        for sides, same in delayed_by_sides.items():
            _settle_as_wgrad(
                same,
                layers_by_sides[sides],
                nodes,
                shaped=True,
            )
    elif is_schedule:
        # Fewer may be the first layers, which have no dgrad.
        _settle_as_wgrad(
            delayed,
            layers,
            nodes,
            shaped=False,
        )


def _sides_of_layer(gemm: Gemm) -> _Sides:
    """Return the outputs and inputs of the layer of a forward GEMM."""
    return frozenset(gemm.size[1:])


def _sides_of_wgrad(gemm: Gemm) -> _Sides:
    """Return the outputs and inputs of the layer that a product would be wgrad of."""
    return frozenset(gemm.size[:2])


def _may_lack_dgrad(node: Node) -> bool:
    """Whether the one gradient of a call may be wgrad by its size, as of square layers.

    Such calls may be the first layers, which have no dgrad.
    """
    if len(node.gradients) != 1 or len(node.forward) != 1:
        return False
    gradient = node.gradients[0]
    forward = node.forward[0]
    if gradient.shape is None:
        return False
    sizes = gradient.shape.forward_sizes(Leg.WGRAD)
    return forward.size in sizes


def _settle_as_wgrad(
    delayed: Sequence[Gemm],
    layers: Sequence[Gemm],
    nodes: Mapping[int, Node],
    *,
    shaped: bool,
) -> None:
    """Let products be wgrad of the layers that lack it, if they are as much work."""
    if shaped:
        work = _work(delayed)
        lacks = _work(layers)
    else:
        work = len(delayed)
        lacks = len(layers)
    if not HALF * lacks <= work <= lacks:
        return
    longer = max(len(delayed), len(layers))
    for index, gemm in enumerate(delayed):
        in_proportion = index * len(layers) // longer
        forward = layers[in_proportion]
        gemm.forward = forward
        gemm.leg = Leg.WGRAD
        gemm.node = forward.makes
        node = nodes[gemm.node]
        is_single = len(node.gradients) == len(node.forward) == 1
        if work == lacks and is_single:
            node.gradients[0].leg = Leg.DGRAD


def _work(gemms: Iterable[Gemm]) -> int:
    """Return the multiplications of GEMMs whose shapes are known."""
    return sum(prod(gemm.size) for gemm in gemms)


def _may_be_delayed(gemm: Gemm, sides: Container[_Sides]) -> bool:
    """Whether a product outside of nodes may be wgrad of a layer of some (outputs, inputs)."""
    if gemm.leg not in (Leg.FPROP, Leg.OPTIMIZER):
        return gemm.leg in VAGUE_LEGS
    shape = gemm.shape
    if shape is None:
        return True
    return frozenset((shape.m, shape.n)) in sides


class LastUpdates(NamedTuple):
    """When the last kernel of an optimizer's step started, by step, in ns.

    What a step launches behind that trains nothing, as an evaluation.
    """

    starts: Mapping[int, int]
    of_kernels: Sequence[int]

    def is_before(self, gemm: Gemm) -> bool:
        """Whether the last update of the step of a launch started before it."""
        if gemm.step < 0 or gemm.step not in self.starts:
            return False
        update = self.starts[gemm.step]
        return update < self.of_kernels[gemm.index]


def last_updates(trace: Trace, kinds: Kinds) -> LastUpdates:
    """Return the last updates of the steps of a trace."""
    columns = trace.kernels
    starts: dict[int, int] = {}
    for index in kinds.started(is_update):
        step = columns.step[index]
        starts[step] = columns.start_ns[index]
    return LastUpdates(starts, columns.start_ns)


def settle_outside(
    trace: Trace,
    gemms: Sequence[Gemm],
    nodes: Mapping[int, Node],
) -> None:
    """Let GEMMs outside of operators be forward GEMMs, where they cannot have a gradient.

    Their launches are no graph's, so autograd made no node for them; and no node lacks a gradient
    that they could be.
    """
    if not nodes:
        return
    for node in nodes.values():
        if len(node.gradients) != 2 * len(node.forward):
            return
    outside = []
    for gemm in gemms:
        if gemm.leg in BACKWARD_LEGS and gemm.node not in nodes:
            return
        if gemm.leg is Leg.UNKNOWN and not gemm.trained:
            if is_of_backward(gemm.kind) or layout_leg(gemm.kind.name):
                return
            outside.append(gemm)
    for gemm in outside:
        if trace.kernels.launch[gemm.index] == Launch.OUTSIDE:
            gemm.leg = Leg.FPROP


def settle_fused_losses(
    nodes: Mapping[int, Node],
    ran: Mapping[int, Set[str]],
) -> None:
    """Let products of a forward call be the gradients of others of it, where their sizes say so.

    Fused losses compute the gradients of the head in the forward pass, a chunk of the tokens at a
    time; the node that their call made ran, and launched no GEMM.
    """
    for number, node in nodes.items():
        functions = ran.get(number, frozenset()) - {GRAPH}
        if node.gradients or not functions:
            continue
        gradients: dict[Size, _Gradient] = {}
        for gemm in node.forward:
            if gemm.shape is None or gemm.leg is not Leg.FPROP:
                continue
            if gemm.size in gradients:
                leg, forward = gradients[gemm.size]
                gemm.leg = leg
                gemm.forward = forward
                continue
            for leg in GRADIENT_LEGS:
                shape = gemm.shape.gradient(leg)
                gradients[shape[1:]] = (leg, gemm)


# ---- micro-batches


# What runs once in a forward pass: at the ends of a model, or of its stage in a pipeline.
_ENDS = lazy_pattern(
    r"embedding|cross_entropy|nll_loss|log_softmax|sendrecv", re.IGNORECASE
)


def number_micro_batches(
    trace: Trace,
    kinds: Kinds,
    gemms: Sequence[Gemm],
) -> None:
    """Settle `micro_batch` of the launches of layers, in order."""
    starts = trace.kernels.start_ns
    _number_forward(trace, kinds, gemms)
    updates: list[int] = []
    if not trace.steps:
        updates = [starts[index] for index in kinds.started(is_update)]
    current: dict[int, int] = defaultdict(int)
    for gemm in gemms:
        if gemm.trains_forward:
            current[gemm.step] = gemm.micro_batch
        elif gemm.forward is not None:
            gemm.micro_batch = gemm.forward.micro_batch
        else:
            after_updates = 0
            if not gemm.kind.op.name:
                after_updates = bisect_right(updates, starts[gemm.index])
            gemm.micro_batch = after_updates or current[gemm.step]


def _number_forward(
    trace: Trace,
    kinds: Kinds,
    gemms: Sequence[Gemm],
) -> None:
    """Settle `micro_batch` of the forward launches that train."""
    starts = trace.kernels.start_ns
    consumed: dict[int, int] = {}
    for gemm in gemms:
        if gemm.forward is not None and gemm.node == gemm.forward.makes >= 0:
            consumed.setdefault(gemm.node, starts[gemm.index])
    ends = [starts[index] for index in kinds.started(_is_end)]
    number: Counter[int] = Counter()
    for piece in _pieces(gemms, consumed):
        step = piece[0].step
        starts_of_piece = [starts[gemm.index] for gemm in piece]
        length = _repetition(piece, starts_of_piece, ends)
        for index, gemm in enumerate(piece):
            gemm.micro_batch = number[step] + index // length
        number[step] += len(piece) // length


def _pieces(
    gemms: Sequence[Gemm],
    consumed: Mapping[int, int],
) -> Iterator[list[Gemm]]:
    """Yield the forward GEMMs of each step up to where gradients tell a cut.

    Args:
        gemms: launches of layers, in order.
        consumed: when the first gradient of each node began.
    """
    pieces: dict[int, list[Gemm]] = {}
    turned: set[int] = set()
    for gemm in gemms:
        if gemm.leg in BACKWARD_LEGS:
            turned.add(gemm.step)
        if not gemm.trains_forward:
            continue
        piece = pieces.setdefault(gemm.step, [])
        is_cut = gemm.step in turned
        if piece and not is_cut:
            own = consumed.get(gemm.makes, -inf)
            is_cut = own > consumed.get(piece[-1].makes, inf)
        if piece and is_cut:
            yield pieces.pop(gemm.step)
            piece = []
            pieces[gemm.step] = piece
        turned.discard(gemm.step)
        piece.append(gemm)
    yield from filter(None, pieces.values())


def _repetition(
    piece: Sequence[Gemm],
    starts: Sequence[int],
    ends: Sequence[int],
) -> int:
    """Return how many GEMMs a repetition has: all, if layers and ends of a model do not repeat."""
    first = bisect_left(ends, starts[0])
    last = bisect_left(ends, starts[-1])
    cuts = {bisect_left(starts, end) for end in ends[first:last]}
    cuts.add(0)
    marks = []
    for index, gemm in enumerate(piece):
        sides = gemm.size[1:]  # views of one batch may differ in their tokens
        marks.append((sides, index in cuts))
    for length in sorted(cuts - {0}):
        times, rest = divmod(len(piece), length)
        if not rest and marks == marks[:length] * times:
            return length
    return len(piece)


def _is_end(kind: Kind) -> bool:
    if kind.op.backward:
        return False
    names = kind.op.around or (kind.name[:200],)
    return any(map(_ENDS.search, names))
