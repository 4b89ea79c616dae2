"""Which products of a forward pass are gradients? Those of a fused loss, which has its head inside.

A fused loss computes the gradients of the head in the forward pass, a chunk of the tokens at a
time. It is a function whose node runs and launches no GEMM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from fp8verify.analysis.kinds import GRAPH, Kinds, Size
from fp8verify.analysis.placing.known import ONLY, Known, Legs
from fp8verify.analysis.placing.launches import OURS, Gemm
from fp8verify.analysis.placing.nodes import Nodes, Ran
from fp8verify.kernels.operators import function_of
from fp8verify.terms import GRADIENT_LEGS, Leg

_Gradient: TypeAlias = "tuple[Leg, Gemm]"  # its leg, and its forward product


class Numbered(NamedTuple):
    """Launches with the numbers of their calls, and the functions of the nodes that ran."""

    launches: Sequence[Gemm]
    ran: Ran


def number_fused_losses(
    launches: Sequence[Gemm],
    kinds: Kinds,
    ran: Ran,
) -> Numbered:
    """Number the calls of fused losses where autograd numbers none, and note that their nodes ran.

    Their products that follow one another are of one call.
    """
    if ran or any(gemm.makes >= 0 for gemm in launches):
        return Numbered(launches, ran)
    ran_alone = _functions(kinds, with_gemms=False)
    fused = ran_alone - _functions(kinds, with_gemms=True) - {GRAPH}
    number = OURS
    numbered = []
    ours: dict[int, frozenset[str]] = {}
    before: tuple[int, frozenset[str]] | None = None
    for gemm in launches:
        functions = fused.intersection(gemm.kind.op.around)
        if not functions or gemm.kind.op.backward:
            before = None
            numbered.append(gemm)
            continue
        here = (gemm.step, functions)
        number += here != before
        before = here
        ours[number] = functions
        numbered.append(replace(gemm, call=number, makes=number))
    return Numbered(numbered, ours)


def _functions(kinds: Kinds, *, with_gemms: bool) -> frozenset[str]:
    """Return the functions of the nodes that launched a kernel, or a GEMM."""
    found: set[str | None] = set()
    for kind in kinds.rows:
        if not kind.op.backward:
            continue
        if kind.is_gemm or not with_gemms:
            found.update(map(function_of, kind.op.around))
    return frozenset(filter(None, found))


class FusedGradients(NamedTuple):
    """The gradients of fused losses, by their positions: their legs, and their forward products."""

    legs: dict[int, Legs]
    forward: dict[int, Gemm]


def gradients_of_fused_losses(
    nodes: Nodes,
    ran: Ran,
    known: Known,
) -> FusedGradients:
    """Return products of a forward call that are gradients of others of it, by their sizes."""
    found = FusedGradients({}, {})
    for number, node in nodes.items():
        functions = ran.get(number, frozenset()) - {GRAPH}
        if functions and not node.gradients:
            _add_of_call(found, node.forward, known)
    return found


def _add_of_call(
    found: FusedGradients,
    call: Iterable[Gemm],
    known: Known,
) -> None:
    """Add the gradients among the products of a call, in order."""
    gradients: dict[Size, _Gradient] = {}
    for gemm in call:
        shape = known.shapes[gemm.position]
        if shape is None or known.leg(gemm) is not Leg.FPROP:
            continue
        own = gradients.get(known.size(gemm))
        if own is not None:
            leg, forward = own
            found.legs[gemm.position] = ONLY[leg]
            found.forward[gemm.position] = forward
            continue
        for leg in GRADIENT_LEGS:
            gradient = shape.gradient(leg)
            gradients[gradient[1:]] = (leg, gemm)
