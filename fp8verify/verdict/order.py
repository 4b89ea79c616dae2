"""Which module a call is of, where the order of the calls is that of the module list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import GRADIENT_LEGS, LEGS, Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.ledger import Program

# The sizes that modules have, in the order of the list: some have several.
Listed: TypeAlias = "Sequence[tuple[tuple[int, int], ModuleRecord]]"
# Calls that follow one another, by their places, and the modules of one size that they are.
Named: TypeAlias = "tuple[list[int], list[ModuleRecord]]"
_IsLow: TypeAlias = "Callable[[ModuleRecord, Leg], bool]"


class Part(NamedTuple):
    """Launches of a replay that follow one another, each of a module and a leg of it."""

    legs: tuple[tuple[ModuleRecord, Leg], ...]


def in_order_of_sizes(program: Program, listed: Listed) -> list[Named]:
    """Return the modules of calls, if these have the sizes of the list in its order."""
    calls = program.forward_calls
    sizes = [program.calls[call].size for call in calls]
    if sizes != [size for size, _ in listed]:
        return []
    return _named(calls, listed)


def in_order_without_sizes(
    program: Program,
    listed: Listed,
    is_low: _IsLow,
) -> list[Named]:
    """Return the modules of calls without sizes, if there are as many as the list has.

    The order is not that of the list if a call runs low that the list keeps in high precision.
    """
    calls = program.forward_calls
    has_sizes = any(program.calls[call].size is not None for call in calls)
    if has_sizes or len(calls) % len(listed):
        return []
    passes = len(calls) // len(listed)
    found = _named(calls, [*listed] * passes)
    for places, modules in found:
        stated = sum(is_low(module, Leg.FPROP) for module in modules)
        if _low_calls(program, places) > stated:
            return []
    return found


def _named(calls: Sequence[int], listed: Listed) -> list[Named]:
    """Join neighbors of one size, which cannot be told apart."""
    found = []
    pairs = zip(calls, listed, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[1][0]):
        places = []
        modules = []
        for place, (_, module) in group:
            places.append(place)
            modules.append(module)
        found.append((places, modules))
    return found


def _low_calls(program: Program, places: Iterable[int]) -> int:
    """Return how many of some calls ran their forward product in low precision."""
    low = 0
    for place in places:
        for entry in program.by_call[place]:
            low += entry.leg is Leg.FPROP and entry.is_low
    return low


def order_of_replay(listed: Listed, launches: int) -> list[Part]:
    """Return what launches of a replay are, if they are passes through the list and back.

    The first modules may lack dgrad. Neighbors of one size are one part, and so are their
    gradients.
    """
    each = len(LEGS) * len(listed)
    passes = -(-launches // each)
    without_dgrad, rest = divmod(passes * each - launches, passes)
    if rest or without_dgrad > min(FIRST_LAYERS, len(listed)):
        return []
    forward: list[Part] = []
    backward: list[Part] = []
    for _, group in groupby(enumerate(listed), key=lambda pair: pair[1][0]):
        fprop = []
        gradients = []
        for number, (_, module) in group:
            fprop.append((module, Leg.FPROP))
            for leg in GRADIENT_LEGS:
                if leg is Leg.WGRAD or number >= without_dgrad:
                    gradients.append((module, leg))
        forward.append(Part(tuple(fprop)))
        backward.append(Part(tuple(gradients)))
    return [*forward, *reversed(backward)] * passes
