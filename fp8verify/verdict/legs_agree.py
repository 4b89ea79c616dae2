"""What the other legs of a call say: its gradients run low where its forward product did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from fp8verify.analysis.calls import Tie
from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg
from fp8verify.verdict.expectation import (
    Expected,
    Placed,
    Said,
    Witness,
    expected_at,
    launches_of,
    low_of,
    placed,
    said,
)
from fp8verify.verdict.ledger import Entry, Layer, Ledger, Place, Program, turned
from fp8verify.verdict.statements import Statements


def by_call(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield that the legs of a call agree, but of as many calls as a list tells their legs apart."""
    short: dict[tuple[Layer, Leg], list[Entry]] = defaultdict(list)
    for entries in program.by_call.values():
        is_numbered = entries[0].tie is Tie.NUMBER
        has_low = any(entry.is_low for entry in entries)
        if not is_numbered or not has_low:
            continue
        for entry in entries:
            if entry.is_low or statements.leaves_high(entry.leg):
                continue
            short[entry.slot.layer, entry.leg].append(entry)
    for (layer, leg), entries in short.items():
        modules = statements.modules_of(place.rank, layer)
        calls = entries[0].slot.of
        passes = math.ceil(calls / len(modules)) if modules else 0
        apart = 0
        for module in modules:
            apart += statements.tells_apart(module, leg)
        if len(entries) <= apart * passes:
            continue
        for entry in entries:
            launches = float(entry.ran.launches)
            yield said(Witness.CALL, [entry], launches)


def by_missing_gradients(
    program: Program,
    statements: Statements,
) -> Iterator[Said]:
    """Yield that launches of no known leg are the gradients that layers in low precision lack."""
    if any(map(statements.leaves_high, GRADIENT_LEGS)):
        return
    low = 0
    gradients = 0
    unknown = []
    for entry in program.entries:
        if entry.leg is Leg.UNKNOWN:
            unknown.append(entry)
        elif entry.leg is Leg.FPROP:
            low += entry.ran.low
        elif entry.leg in BACKWARD_LEGS:
            gradients += entry.ran.launches
    missing = 2 * low - gradients
    if unknown and missing > 0:
        least = float(min(launches_of(unknown), missing))
        yield said(Witness.CALL, unknown, least, is_sure=False)


# ---- calls without numbers


_Found: TypeAlias = "list[Placed]"
_ByLeg: TypeAlias = "dict[Leg, _Found]"
_Steps: TypeAlias = "Mapping[tuple[int, int, Layer], _ByLeg]"


def _is_loose(entry: Entry) -> bool:
    """Whether an entry is not compared with the forward product of its own call."""
    return entry.tie is not Tie.NUMBER or entry.slot.sort is not Leg.FPROP


def _may_lack(entry: Entry, legs: tuple[Leg, ...]) -> bool:
    """Whether the call of a forward product may have any of these legs, and has none."""
    return entry.tie is not Tie.NUMBER or entry.beside.isdisjoint(legs)


def by_loose_calls(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield that no more gradients of a size ran in high precision than forward products did.

    Which call of a size a gradient belongs to is not certain without numbers, nor to which
    micro-batch: so the step decides. Calls that have their gradients by number are compared call by
    call.
    """
    steps: dict[tuple[int, int, Layer], _ByLeg]
    steps = defaultdict(lambda: defaultdict(list))
    for one in placed(ledger, statements):
        cell = one.cell
        steps[cell.rank, cell.step, cell.layer][cell.leg].append(one)
    sizes = set()
    for (_, _, layer), by_leg in steps.items():
        if Leg.FPROP in by_leg:
            sizes.add(layer)
    for rank, layer, by_leg in _comparable(steps):
        if Leg.UNKNOWN in by_leg or Leg.FPROP not in by_leg:
            continue
        # The gradients may be those of layers with inputs and outputs exchanged.
        other = turned(layer)
        has_turned = other != layer and other in sizes
        is_vague = Leg.BACKWARD in by_leg
        for expected in _of_step(rank, layer, by_leg, statements):
            is_sure = expected.is_sure and not (is_vague and has_turned)
            yield expected._replace(is_sure=is_sure)
        if is_vague and layer is None:
            yield from _beside_vague(by_leg, statements)


def _of_step(
    rank: int,
    layer: Layer,
    by_leg: _ByLeg,
    statements: Statements,
) -> Iterator[Expected]:
    """Yield that the legs of a layer agree in a step, where nothing tells them apart."""
    modules = statements.modules_of(rank, layer)
    # Frozen weights have no wgrad: other layers' gradients are taken for theirs.
    is_frozen = any(module.frozen for module in modules)
    for legs in _groups_of_legs(by_leg, statements):
        if any(map(statements.leaves_high, legs)):
            continue
        if _are_told_apart(modules, legs, statements):
            continue
        found = []
        for leg in legs:
            of_leg = by_leg.get(leg, ())
            found += [one for one in of_leg if _is_loose(one.entry)]
        if not found:
            continue
        products = by_leg[Leg.FPROP]
        forward = [one for one in products if _may_lack(one.entry, legs)]
        for one in _agree(layer, legs, forward, found):
            is_sure = one.is_sure and not is_frozen
            yield one._replace(is_sure=is_sure)


def _beside_vague(by_leg: _ByLeg, statements: Statements) -> Iterator[Expected]:
    """Yield that perhaps no more gradients of a known leg ran high than forward products did.

    More of this leg may be among those that may be dgrad or wgrad. A whole leg in high precision is
    rather the recipe's.
    """
    forward = [one.entry for one in by_leg[Leg.FPROP]]
    for leg in GRADIENT_LEGS:
        found = by_leg.get(leg, [])
        entries = [one.entry for one in found]
        high = launches_of(entries) - low_of(entries)
        if statements.leaves_high(leg) or high >= launches_of(forward):
            continue
        high_forward = launches_of(forward) - low_of(forward)
        least = float(launches_of(entries) - high_forward)
        yield expected_at(Witness.CALL, found, least, is_sure=False)


def _groups_of_legs(
    by_leg: _ByLeg,
    statements: Statements,
) -> list[tuple[Leg, ...]]:
    """Return the legs that are compared with the forward product, those together that are vague."""
    keeps_vague = statements.leaves_high(Leg.BACKWARD)
    if Leg.BACKWARD in by_leg and not keeps_vague:
        return [BACKWARD_LEGS, (Leg.RECOMPUTE,)]
    single = [(leg,) for leg in GRADIENT_LEGS]
    return [*single, (Leg.RECOMPUTE,)]


def _are_told_apart(
    modules: Iterable[ModuleRecord],
    legs: tuple[Leg, ...],
    statements: Statements,
) -> bool:
    """Whether a module's own configuration runs one of the legs otherwise than the others."""
    for module in modules:
        for leg in legs:
            if statements.tells_apart(module, leg):
                return True
    return False


def _comparable(steps: _Steps) -> Iterator[tuple[int, Layer, _ByLeg]]:
    """Yield what ran of each layer in each step; of all together where some have no size.

    What has no size may be what layers lack. Where none lacks a gradient, it is something else.
    """
    joined: dict[tuple[int, int], _ByLeg] = {}
    for (rank, step, layer), by_leg in steps.items():
        if layer is not None:
            continue
        if Leg.FPROP in by_leg or _lacks_gradients(steps, rank, step):
            joined[rank, step] = defaultdict(list)
    for (rank, step, layer), by_leg in steps.items():
        whole = joined.get((rank, step))
        if whole is None:
            yield rank, layer, by_leg
            continue
        for leg, found in by_leg.items():
            whole[leg].extend(found)
    for (rank, _), whole in joined.items():
        yield rank, None, whole


def _lacks_gradients(steps: _Steps, rank: int, step: int) -> bool:
    """Whether a layer with a size has fewer gradients in a step than forward products."""
    for (of_rank, of_step, layer), by_leg in steps.items():
        if (of_rank, of_step) != (rank, step) or layer is None:
            continue
        products = by_leg.get(Leg.FPROP, [])
        forward = _launches(products)
        for leg in GRADIENT_LEGS:
            gradients = by_leg.get(leg, [])
            if _launches(gradients) < forward:
                return True
    return False


def _agree(
    layer: Layer,
    legs: tuple[Leg, ...],
    forward: _Found,
    found: _Found,
) -> Iterator[Expected]:
    """Yield that legs and the forward products that they belong to agree."""
    each = 2 if legs == BACKWARD_LEGS else 1
    expected = each * _launches(forward)
    all_ran = _launches(found) == expected
    ties = {one.entry.tie for one in (*found, *forward)}
    is_recompute = legs == (Leg.RECOMPUTE,)
    has_size = layer is not None
    if has_size or all_ran or is_recompute:
        is_sure = Tie.DELAYED not in ties
        yield _no_more_high(found, forward, each, is_sure=is_sure)
    if all_ran:
        # A frozen teacher's product may be taken for that of a dgrad, which has no wgrad.
        is_sure = max(ties) <= Tie.GRAPH or Leg.WGRAD in legs
        yield _no_more_high(forward, found, 1, is_sure=is_sure)


def _launches(found: _Found) -> int:
    return launches_of(one.entry for one in found)


def _no_more_high(
    found: _Found,
    others: _Found,
    each: int,
    *,
    is_sure: bool,
) -> Expected:
    """Expect no more launches in high precision than others had, of each of which some belong."""
    launches = _launches(found)
    of_others = _launches(others)
    low_of_others = low_of(one.entry for one in others)
    # Compiled code may have recomputed some of the products.
    has_recomputed = each > 1 and launches > each * of_others
    most = each + 1 if has_recomputed else each
    high = most * (of_others - low_of_others)
    # Where more ran than the others have, the rest belongs to what is not seen.
    least = min(launches - high, each * low_of_others)
    return expected_at(Witness.CALL, found, least, is_sure=is_sure)
