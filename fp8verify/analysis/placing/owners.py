"""Whose product is a GEMM: a layer's, attention's or the optimizer's?

A trace has no module names, so the enclosing operators and the order of the kernels decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from fp8verify.analysis.kinds import Kinds
from fp8verify.analysis.placing.attention import (
    attention_by_operators,
    attention_without_operators,
)
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.analysis.purpose import optimizer_products
from fp8verify.terms import Leg
from fp8verify.trace import Trace

# ATTENTION or OPTIMIZER; None is a layer.
Owner: TypeAlias = "Leg | None"


def owners_of(
    trace: Trace,
    kinds: Kinds,
    launches: Sequence[Gemm],
) -> list[Owner]:
    """Return the owners of launches, by their positions.

    A product whose call made a node that has gradients is a layer's, as inside a closure.
    """
    of_launches = {gemm.kind_id: gemm.kind for gemm in launches}
    of_optimizer = optimizer_products(trace.ops, kinds.rows, of_launches)
    others = {}
    for number, kind in of_launches.items():
        if number not in of_optimizer:
            others[number] = kind
    of_attention = attention_by_operators(trace, kinds, others)
    replayed = attention_without_operators(trace, kinds)
    call_of_node: dict[int, int] = {}
    ran: set[int] = set()
    for gemm in launches:
        call_of_node[gemm.makes] = gemm.call
        ran.add(gemm.node)
    ran.discard(-1)
    owners: list[Owner] = []
    for gemm in launches:
        has_gradients = gemm.makes in ran and gemm.call == call_of_node[gemm.makes]
        owner = None
        if gemm.index in replayed or gemm.kind_id in of_attention:
            owner = Leg.ATTENTION
        elif gemm.kind_id in of_optimizer and not has_gradients:
            owner = Leg.OPTIMIZER
        owners.append(owner)
    return owners
