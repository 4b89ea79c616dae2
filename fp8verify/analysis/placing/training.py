"""Which forward product does each gradient belong to, and so, which products train?

Autograd's numbers pair a gradient with the call that made its node, exactly: in pipeline orders,
and with teachers, reference models and second encoders between forward and backward pass. Within a
call of several GEMMs, and where nothing is numbered (compiled autograd, joint graphs), a gradient
takes the latest forward product of its size: autograd consumes what the forward pass saved in the
opposite order.

Forward products that no gradient takes train nothing: a teacher, a reference model, a rollout, a
validation, a frozen tower. Behind the last gradient of a window that is not whole they may train.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import (
    ANY_SIZE,
    EXPERTS,
    GRAPH,
    GemmShape,
    Size,
)
from fp8verify.analysis.placing.known import FORWARD, Evidence, Known
from fp8verify.analysis.placing.launches import OURS, Gemm
from fp8verify.analysis.placing.legs import layout_leg
from fp8verify.analysis.placing.nodes import Nodes, Ran
from fp8verify.analysis.purpose import is_of_backward
from fp8verify.kernels.operators import function_of
from fp8verify.model.steps import are_whole
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg
from fp8verify.trace import Step, Trace
from fp8verify.trace.tables import Launch

_Taken: TypeAlias = "dict[Leg, float]"  # how many gradients took a forward product
_Alike: TypeAlias = "tuple[int, GemmShape | None]"  # a kind and a shape


class Pairs(NamedTuple):
    """Who trains.

    Attributes:
        trained: whether each launch does, by its position.
        forward: the forward product that a gradient belongs to, by the position of the gradient.
    """

    trained: Sequence[bool]
    forward: Mapping[int, Gemm]


def pairs_of(
    trace: Trace,
    products: Sequence[Gemm],
    known: Known,
    nodes: Nodes,
    ran: Ran,
) -> Pairs:
    """Return which products of layers, in order, train, and which gradients are theirs.

    A node that ran trains its layer, though it launched no GEMM: fused losses compute the gradients
    of the head in the forward pass.

    Args:
        trace: the window.
        products: the products of its layers.
        known: what is known of them.
        nodes: the nodes of autograd that launched them.
        ran: the functions of all nodes that ran.
    """
    trained = [True] * len(known.legs)
    if not _is_backward_known(products, known):
        # All may train, but for what runs beside the graphs that do.
        if not ran:
            in_graphs = trace.health.kernels_in_graphs
            for gemm in _beside_replays(products, known, in_graphs):
                leg = known.leg(gemm)
                trained[gemm.position] = leg is not Leg.FPROP
        return Pairs(trained, {})
    waiting = _WaitingFor(products, known, nodes)
    forward = waiting.pair(products)
    trains = waiting.taken | _of_nodes(nodes)
    # Steps that are cut between forward and backward pass end with a forward pass that trains.
    if not trace.steps or _any_of_step_before(products, known, forward):
        trains |= _behind_last_gradient(products, known)
    for gemm in products:
        is_forward = known.leg(gemm) in (Leg.FPROP, Leg.UNKNOWN)
        is_idle = is_forward and gemm.position not in trains
        trained[gemm.position] = not is_idle or _made_what_ran(gemm, ran)
    return Pairs(trained, forward)


def _is_backward_known(products: Iterable[Gemm], known: Known) -> bool:
    named = (gemm for gemm in products if gemm.kind.op.name)
    return any(known.leg(gemm) in BACKWARD_LEGS for gemm in named)


def _made_what_ran(gemm: Gemm, ran: Ran) -> bool:
    """Whether the call of a product made a node of its own that ran."""
    functions = ran.get(gemm.makes, frozenset())
    of_node = functions - {GRAPH}
    return not of_node.isdisjoint(gemm.kind.op.around)


def _of_nodes(nodes: Nodes) -> set[int]:
    """Return the positions of the products of layers' calls whose nodes ran.

    Those of a compiled graph need not all train.
    """
    found: set[int] = set()
    for node in nodes.values():
        if node.gradients and not node.is_of_graph:
            found.update(gemm.position for gemm in node.forward)
    return found


def _any_of_step_before(
    products: Iterable[Gemm],
    known: Known,
    forward_of: Mapping[int, Gemm],
) -> bool:
    """Whether any gradient's own node was made in an earlier step."""
    for gemm in products:
        forward = forward_of.get(gemm.position)
        if forward is None or forward.step >= gemm.step:
            continue
        if known.node(gemm) == forward.makes >= 0:
            return True
    return False


def _behind_last_gradient(products: Sequence[Gemm], known: Known) -> set[int]:
    """Return the positions of forward products whose backward pass may be cut away."""
    last = 0
    # Where autograd numbers calls, one without a number ran under no_grad, and never trains.
    any_numbered = False
    for place, gemm in enumerate(products):
        if known.leg(gemm) in BACKWARD_LEGS:
            last = place
        any_numbered |= gemm.is_numbered
    found = set()
    for gemm in products[last:]:
        may_train = gemm.makes >= 0 or not any_numbered
        if may_train and known.leg(gemm) is Leg.FPROP:
            found.add(gemm.position)
    return found


class _Waiting:
    """Forward products by size that no gradient took yet, of one call or of all."""

    def __init__(
        self,
        known: Known,
        gone: set[int],
        gemms: Iterable[Gemm] = (),
    ) -> None:
        self._known = known
        self._gone = gone
        self._open: dict[Size, list[Gemm]] = defaultdict(list)
        self._taken: dict[Size, _Taken] = defaultdict(_none_taken)
        self._last: dict[Size, Gemm] = {}
        for gemm in gemms:
            self.add(gemm)

    def add(self, gemm: Gemm) -> None:
        """Let a forward product wait."""
        for size in (self._known.size(gemm), ANY_SIZE):
            self._open[size].append(gemm)
            taken = self._taken[size]
            if taken:
                self._begin_anew(taken)

    def _begin_anew(self, taken: _Taken) -> None:
        """End the pass before, whose first layer has no dgrad."""
        whole = ceil(max(taken.values()))
        of_dgrad = taken[Leg.DGRAD]
        of_wgrad = taken[Leg.WGRAD]
        if of_dgrad < whole and of_dgrad <= of_wgrad:
            for leg in GRADIENT_LEGS:
                taken[leg] = whole

    def take(self, gemm: Gemm, leg: Leg) -> Gemm | None:
        """Return the forward product of a gradient; two gradients have one."""
        size = self._forward_size(gemm, leg)
        taken = self._taken[size]
        before = ceil(max(taken.values(), default=0))
        # Of two gradients that may be either, one is dgrad and one wgrad.
        is_certain = leg is not Leg.BACKWARD and size != ANY_SIZE
        legs = (leg,) if is_certain else GRADIENT_LEGS
        part = 1 / len(legs)
        for taken_leg in legs:
            taken[taken_leg] += part
        after = ceil(max(taken.values()))
        if after > before:
            self._mark(size)
        return self._last.get(size)

    def recompute(self, gemm: Gemm, *, of_call: bool) -> None:
        """Mark the product that ran first as one that trains; of a call, without sizes too."""
        size = self._known.size(gemm)
        if self._open[size]:
            self._mark(size)
        elif of_call:
            # Transformer Engine runs it outside of any operator that has shapes.
            self._mark(ANY_SIZE)

    def _mark(self, size: Size) -> None:
        waiting = self._open[size]
        while waiting and waiting[-1].position in self._gone:
            waiting.pop()
        if waiting:
            forward = waiting.pop()
            self._gone.add(forward.position)
            self._last[size] = forward

    def _forward_size(self, gemm: Gemm, leg: Leg) -> Size:
        shape = self._known.shapes[gemm.position]
        own = gemm.size_with(shape)
        if shape is None or own in (EXPERTS, ANY_SIZE):
            return own if self._open[own] else ANY_SIZE
        for size in shape.forward_sizes(leg):
            if size in self._open:
                return size
        return ANY_SIZE


def _none_taken() -> _Taken:
    return defaultdict(float)


class _WaitingFor:
    """The forward products that a node may be of: those of its call, or else of calls like its own.

    A node with a number is of a numbered call, where other nodes of its function are; and that of
    a compiled graph is of such a graph, if the trace shows what these ran.

    Attributes:
        taken: the positions of the forward products that gradients took, or that ran again.
    """

    def __init__(
        self,
        products: Iterable[Gemm],
        known: Known,
        nodes: Nodes,
    ) -> None:
        self.taken: set[int] = set()
        self._known = known
        self._by_node: dict[int, _Waiting] = {}
        self._numbered = _Waiting(known, self.taken)
        self._numbered_functions: set[str | None] = set()
        self._of_graphs = _Waiting(known, self.taken)
        self._has_graphs = False
        self._all = _Waiting(known, self.taken)
        self._function_of: dict[int, str | None] = {}
        self._all_have_nodes = True
        for number, node in nodes.items():
            self._by_node[number] = _Waiting(known, self.taken, node.forward)
        for gemm in products:
            if known.node(gemm) in nodes:
                function = self._function(gemm)
                self._numbered_functions.add(function)
            elif known.leg(gemm) is not Leg.FPROP:
                self._all_have_nodes = False

    def pair(self, products: Iterable[Gemm]) -> dict[int, Gemm]:
        """Return the forward products of gradients, by the positions of these."""
        found = {}
        for gemm in products:
            leg = self._known.leg(gemm)
            if leg is Leg.FPROP:
                if gemm.makes < OURS:
                    self.add(gemm)
                continue
            node = self._known.node(gemm)
            waiting = self.node_of(gemm, node)
            if leg is Leg.RECOMPUTE and gemm.makes >= 0:
                waiting.recompute(gemm, of_call=node in self._by_node)
            elif leg in BACKWARD_LEGS:
                forward = waiting.take(gemm, leg)
                if forward is not None:
                    found[gemm.position] = forward
        return found

    def add(self, gemm: Gemm) -> None:
        """Add a forward product, if not all gradients are of known nodes."""
        if self._all_have_nodes:
            return
        self._all.add(gemm)
        if gemm.makes >= 0:
            self._numbered.add(gemm)
        if gemm.of_graph:
            self._has_graphs = True
            self._of_graphs.add(gemm)

    def node_of(self, gemm: Gemm, node: int) -> _Waiting:
        """Return the forward products that the node which launched a GEMM may be of."""
        if node in self._by_node:
            return self._by_node[node]
        if node >= 0 and self._function(gemm) in self._numbered_functions:
            return self._numbered
        if self._has_graphs and gemm.in_graph:
            return self._of_graphs
        return self._all

    def _function(self, gemm: Gemm) -> str | None:
        """Return the function of the node that launched a GEMM, None if none did."""
        number = gemm.kind_id
        if number not in self._function_of:
            functions = map(function_of, gemm.kind.op.around)
            self._function_of[number] = next(filter(None, functions), None)
        return self._function_of[number]


def _beside_replays(
    products: Iterable[Gemm],
    known: Known,
    in_graphs: int,
) -> list[Gemm]:
    """Return products with operators beside graphs that replay the training, which train nothing.

    No node of autograd ran, so a product outside of the graphs has no gradient. The graphs hold
    gradients too: what can be nothing else, as by the layout of wgrad, or two products for each of
    a forward pass.
    """
    replayed = []
    beside = []
    for gemm in products:
        if not gemm.kind.op.name:
            replayed.append(gemm)
        elif gemm.makes < 0:
            beside.append(gemm)
    has_gradients = False
    for gemm in replayed:
        has_layout = layout_leg(gemm.kind.name) is Leg.WGRAD
        has_gradients |= has_layout or known.leg(gemm) in BACKWARD_LEGS
    may_have_gradients = has_gradients or len(replayed) >= 2 * len(beside)
    if not may_have_gradients or in_graphs < len(replayed):
        return []
    return beside


def forward_outside_operators(
    trace: Trace,
    products: Iterable[Gemm],
    known: Known,
    nodes: Nodes,
    trained: Sequence[bool],
) -> Evidence:
    """Return products outside of operators that can be nothing but forward products.

    Their launches are no graph's, so autograd made no node for them; and no node lacks a gradient
    that they could be.
    """
    is_whole = all(node.is_whole for node in nodes.values())
    if not nodes or not is_whole:
        return {}
    outside = []
    for gemm in products:
        leg = known.leg(gemm)
        is_of_node = known.node(gemm) in nodes
        if leg in BACKWARD_LEGS and not is_of_node:
            return {}
        if leg is Leg.UNKNOWN and not trained[gemm.position]:
            if is_of_backward(gemm.kind) or layout_leg(gemm.kind.name):
                return {}
            outside.append(gemm)
    launch = trace.kernels.launch
    found = {}
    for gemm in outside:
        if launch[gemm.index] == Launch.OUTSIDE:
            found[gemm.position] = FORWARD
    return found


def trained_in_cut_steps(
    products: Iterable[Gemm],
    known: Known,
    trained: Sequence[bool],
    steps: Sequence[Step],
) -> Sequence[bool]:
    """Let products of steps whose backward pass may be cut away train as their like in whole ones."""
    if are_whole(steps):
        return trained
    in_whole: dict[_Alike, bool] = defaultdict(bool)
    in_cut_steps = []
    for gemm in products:
        if gemm.step < 0:
            continue
        alike = (gemm.kind_id, known.shapes[gemm.position])
        if steps[gemm.step].whole:
            in_whole[alike] |= trained[gemm.position]
        else:
            in_cut_steps.append((gemm, alike))
    settled = list(trained)
    for gemm, alike in in_cut_steps:
        settled[gemm.position] = in_whole.get(alike, True)
    return settled
