"""Where may each launch of a GEMM belong? One pure function, `place`, of a trace and its kinds.

Each stage takes tables and returns tables; none changes what another one found. What a stage needs
alone decides when it runs:

1. launches: what each is, and its number in autograd's graph (`launches`, `fused_losses`)
2. its owner: a layer, attention or the optimizer (`owners`)
3. the legs that operators, sizes, layout and counts allow (`legs`)
4. the calls and the nodes that they made (`nodes`)
5. gradients that a schedule delays (`delayed`), and legs by the number of gradients of a call
6. gradients outside of nodes, by their sizes (`outside`)
7. the forward product of each gradient, and so, who trains (`training`)
8. its micro-batch (`micro_batches`)
9. gradients in the forward pass of a fused loss (`fused_losses`)
10. its call (`calls`)

A leg is a set. Evidence that agrees narrows it in any order. Where it contradicts, this is the
order of its authority:

1. a fused loss: its gradients run under the operators of a forward pass
2. delayed work: it is whose wgrad is missing, whoever launched it, an optimizer's hook too
3. the operators
4. the sizes, in a backward pass
5. the layout of operands: a weight may be stored transposed, and has no other size for that
6. the counts
7. the number of gradients of a call
8. the sizes, outside of nodes: only what may be anything there asks them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fp8verify.analysis.kinds import GemmShape, Kinds
from fp8verify.analysis.placing.calls import InCall, calls_of
from fp8verify.analysis.placing.delayed import delayed_gradients, last_updates
from fp8verify.analysis.placing.fused_losses import (
    gradients_of_fused_losses,
    number_fused_losses,
)
from fp8verify.analysis.placing.known import LEG_OF, NO_LEG, Known, Legs
from fp8verify.analysis.placing.launches import Gemm, launches_of
from fp8verify.analysis.placing.legs import legs_of_launches
from fp8verify.analysis.placing.micro_batches import micro_batches_of
from fp8verify.analysis.placing.nodes import (
    functions_of_nodes,
    legs_by_nodes,
    nodes_of,
)
from fp8verify.analysis.placing.outside import legs_by_sizes, legs_in_log
from fp8verify.analysis.placing.owners import Owner, owners_of
from fp8verify.analysis.placing.training import (
    Pairs,
    forward_outside_operators,
    pairs_of,
    trained_in_cut_steps,
)
from fp8verify.terms import Leg
from fp8verify.trace import Trace


class Placed(Struct, frozen=True, eq=False):
    """Where a launch of a GEMM belongs.

    Attributes:
        gemm: the launch.
        owner: ATTENTION or OPTIMIZER; None is a layer.
        legs: those of its layer's that it may be.
        shape: that which is recorded, or which its call tells; None if not known.
        node: the node of autograd that launched it, or for which it was delayed; -1 for none.
        forward: the forward product that it is a gradient of.
        trained: whether a backward pass belongs to it.
        micro_batch: its number within the step.
        call: that of its layer, None of what is no product of a layer that trains.
    """

    gemm: Gemm
    owner: Owner
    legs: Legs
    shape: GemmShape | None
    node: int
    forward: Gemm | None
    trained: bool
    micro_batch: int
    call: InCall | None

    @property
    def leg(self) -> Leg:
        """As what it counts: one leg, BACKWARD, UNKNOWN, or its owner."""
        return self.owner or LEG_OF[self.legs]

    @property
    def of_layer(self) -> bool:
        """Whether it is a product of a layer, not of attention or the optimizer."""
        return self.owner is None


def place(trace: Trace, kinds: Kinds) -> list[Placed]:
    """Return where each launch of a GEMM belongs, in the order in which they started.

    Args:
        trace: the window.
        kinds: what its kernels are.
    """
    launches, ran = number_fused_losses(
        launches_of(trace, kinds),
        kinds,
        functions_of_nodes(trace, kinds),
    )
    owners = owners_of(trace, kinds, launches)
    of_layers = _of_layers(launches, owners)
    by_operators = legs_of_launches(of_layers, trace.ops)
    known = Known(
        legs=[by_operators.get(gemm.position, NO_LEG) for gemm in launches],
        shapes=[gemm.shape for gemm in launches],
        nodes=[gemm.node for gemm in launches],
    )
    products = _products(of_layers)
    nodes = nodes_of(products, known)

    updates = last_updates(trace, kinds)
    before_updates = updates.before_them(_products(launches))
    delayed = delayed_gradients(before_updates, owners, known, nodes)
    known = delayed.applied(known)
    owners = delayed.owners(owners)
    products = _products(_of_layers(launches, owners))

    known = legs_by_nodes(nodes, known)
    known = legs_by_sizes(updates.before_them(products), known, nodes)
    if trace.in_flops:
        known = legs_in_log(products, known)

    pairs = pairs_of(trace, products, known, nodes, ran)
    pairs = pairs._replace(forward={**delayed.forward, **pairs.forward})
    micro_batches = micro_batches_of(trace, kinds, products, known, pairs)
    fused = gradients_of_fused_losses(nodes, ran, known)
    sure = forward_outside_operators(trace, products, known, nodes, pairs.trained)
    known = known.narrowed(sure).overruled(fused.legs)
    pairs = Pairs(
        trained=trained_in_cut_steps(products, known, pairs.trained, trace.steps),
        forward={**pairs.forward, **fused.forward},
    )
    training = [gemm for gemm in products if pairs.trained[gemm.position]]
    calls = calls_of(training, known, pairs.forward)
    placed = []
    for gemm in launches:
        position = gemm.product
        of_launch = Placed(
            gemm=gemm,
            owner=owners[position],
            legs=known.legs[position],
            shape=known.shapes[position],
            node=known.nodes[position],
            forward=pairs.forward.get(position),
            trained=pairs.trained[position],
            micro_batch=micro_batches.get(position, 0),
            call=calls.get(gemm.position),
        )
        placed.append(of_launch)
    return placed


def _of_layers(launches: Iterable[Gemm], owners: Sequence[Owner]) -> list[Gemm]:
    return [gemm for gemm in launches if owners[gemm.position] is None]


def _products(launches: Iterable[Gemm]) -> list[Gemm]:
    return [gemm for gemm in launches if gemm.multiplies]
