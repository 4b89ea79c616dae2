"""Which legs may a launch be? A set, which evidence narrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.kinds import GemmShape, Size
from fp8verify.analysis.placing.launches import Gemm
from fp8verify.terms import GRADIENT_LEGS, Leg

Legs: TypeAlias = "frozenset[Leg]"
# What evidence says, by the positions of the launches of which it says anything.
Evidence: TypeAlias = "Mapping[int, Legs]"

NO_LEG: Final[Legs] = frozenset()
FORWARD: Final = frozenset({Leg.FPROP})
GRADIENTS: Final = frozenset(GRADIENT_LEGS)
RECOMPUTED: Final = frozenset({Leg.RECOMPUTE})
# Outside of autograd's nodes: a forward product, or a gradient that a schedule delays or that
# a compiler runs without nodes.
OUTSIDE: Final = FORWARD | GRADIENTS
IN_BACKWARD: Final = GRADIENTS | RECOMPUTED
ANY: Final = FORWARD | IN_BACKWARD
ONLY: Final = {leg: frozenset({leg}) for leg in ANY}


def narrowed(legs: Legs, *evidence: Legs) -> Legs:
    """Return the legs that all evidence allows.

    Evidence that agrees narrows in any order. What contradicts what stands before it says nothing,
    so stronger evidence comes first.
    """
    for allowed in evidence:
        legs = legs & allowed or legs
    return legs


def _leg_of(legs: Legs) -> Leg:
    if len(legs) == 1:
        (leg,) = legs
        return leg
    if legs <= IN_BACKWARD:
        return Leg.BACKWARD
    if legs <= OUTSIDE:
        return Leg.FPROP  # unless something shows that it is a gradient
    return Leg.UNKNOWN


def _legs_of_sets() -> dict[Legs, Leg]:
    found = {}
    for size in range(1, len(ANY) + 1):
        for legs in combinations(ANY, size):
            chosen = frozenset(legs)
            found[chosen] = _leg_of(chosen)
    return found


# As what each set counts.
LEG_OF: Final[Mapping[Legs, Leg]] = _legs_of_sets()


class Known(NamedTuple):
    """What is known of the launches, each by its position.

    Attributes:
        legs: those that they may be; none of what is no layer's.
        shapes: None if not known.
        nodes: of which node they are, or -1: the one that launched them, or for which they were
            delayed.
    """

    legs: Sequence[Legs]
    shapes: Sequence[GemmShape | None]
    nodes: Sequence[int]

    def leg(self, gemm: Gemm) -> Leg:
        """As what a launch of a layer counts."""
        return LEG_OF[self.legs[gemm.position]]

    def size(self, gemm: Gemm) -> Size:
        """Return the key of the layer of a launch: (m, n, k), `EXPERTS`, or `ANY_SIZE`."""
        shape = self.shapes[gemm.position]
        return gemm.size_with(shape)

    def node(self, gemm: Gemm) -> int:
        """Return the node of which a launch is, or -1."""
        return self.nodes[gemm.position]

    def narrowed(self, evidence: Evidence) -> Known:
        """Return what is known if weaker evidence is heard too."""
        legs = list(self.legs)
        for position, allowed in evidence.items():
            legs[position] = narrowed(legs[position], allowed)
        return self._replace(legs=legs)

    def overruled(self, evidence: Evidence) -> Known:
        """Return what is known if stronger evidence is heard too."""
        legs = list(self.legs)
        for position, allowed in evidence.items():
            legs[position] = narrowed(allowed, legs[position])
        return self._replace(legs=legs)
