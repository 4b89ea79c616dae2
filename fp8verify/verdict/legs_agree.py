"""What the other legs of a call say: its gradients run low where its forward product did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.calls import Tie
from fp8verify.analysis.kinds import grouped
from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.expectation import (
    EqualSteps,
    Expected,
    Placed,
    Said,
    Witness,
    entries_of,
    expected_at,
    launches_of,
    leg_of,
    low_of,
    said,
)
from fp8verify.verdict.ledger import Entry, Layer, Place, Program, turned
from fp8verify.verdict.statements import Statements


def by_call(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield that the legs of a call agree, but of as many calls as a list tells their legs apart."""
    numbered = [entry for entry in program.entries if entry.tie is Tie.NUMBER]
    low_calls = {entry.call for entry in numbered if entry.is_low}
    for (layer, leg), entries in program.by_layer.items():
        of_low = [entry for entry in entries if entry.call in low_calls]
        short = [entry for entry in of_low if not entry.is_low]
        modules = statements.modules_of(place.rank, layer)
        apart = statements.told_apart(modules, leg)
        calls = entries[0].slot.of
        each = max(1, len(modules))
        passes = math.ceil(calls / each)
        if len(short) > apart * passes:
            for entry in short:
                launches = float(entry.ran.launches)
                yield said(Witness.CALL, [entry], launches)


def by_missing_gradients(
    program: Program,
    statements: Statements,
) -> Iterator[Said]:
    """Yield that launches of no known leg are the gradients that layers in low precision lack.

    Not where the recipe keeps some of these in high precision.
    """
    by_leg = grouped(program.entries, leg_of)
    unknown = by_leg[Leg.UNKNOWN]
    products = by_leg[Leg.FPROP]
    expected = len(GRADIENT_LEGS) * low_of(products)
    gradients = 0
    for leg in BACKWARD_LEGS:
        gradients += launches_of(by_leg[leg])
    missing = expected - gradients
    if missing > 0 and not statements.leaves_high(Leg.BACKWARD):
        least = float(min(launches_of(unknown), missing))
        yield said(Witness.CALL, unknown, least, is_sure=False)


# ---- calls without numbers


_Found: TypeAlias = "list[Placed]"
_ByLeg: TypeAlias = "dict[Leg, _Found]"


class _Legs(NamedTuple):
    """Legs that are compared with the forward product, and how many of them a call has."""

    legs: tuple[Leg, ...]
    each: int


def _is_loose(entry: Entry) -> bool:
    """Whether an entry is not compared with the forward product of its own call."""
    is_numbered = entry.tie is Tie.NUMBER
    return not is_numbered or entry.slot.sort is not Leg.FPROP


def _may_lack(entry: Entry, legs: tuple[Leg, ...]) -> bool:
    """Whether the call of a forward product may have any of these legs, and has none."""
    is_numbered = entry.tie is Tie.NUMBER
    return not is_numbered or entry.beside.isdisjoint(legs)


def by_loose_calls(
    steps: Sequence[EqualSteps],
    statements: Statements,
) -> Iterator[Expected]:
    """Yield that no more gradients of a size ran in high precision than forward products did.

    Which call of a size a gradient belongs to is not certain without numbers, nor to which
    micro-batch: so the step decides. Calls that have their gradients by number are compared call by
    call.
    """
    layers = {one.cell.layer for equal in steps for one in equal.entries}
    for equal in steps:
        stated = _of_first_step(equal, layers, statements)
        yield from equal.all_say(stated)


def _of_first_step(
    equal: EqualSteps,
    layers: Set[Layer],
    statements: Statements,
) -> Iterator[Expected]:
    """Yield what the layers of the first of some equal steps say.

    Args:
        equal: the steps.
        layers: all layers that ran.
        statements: what is stated of the run.
    """
    for layer, by_leg, either in _comparable(equal.entries):
        if Leg.UNKNOWN in by_leg or Leg.FPROP not in by_leg:
            continue
        # The gradients may be those of layers with inputs and outputs exchanged.
        other = turned(layer)
        has_turned = other != layer and other in layers
        is_vague = Leg.BACKWARD in by_leg
        for expected in _of_layer(equal.rank, layer, by_leg, statements):
            is_sure = expected.is_sure and not (is_vague and has_turned)
            yield expected._replace(is_sure=is_sure)
        if is_vague:
            yield from _beside_vague(either)


def _no_legs() -> _ByLeg:
    return defaultdict(list)


class _OfLayer(NamedTuple):
    """What ran of a layer in a step; `either` has its like with sides exchanged too."""

    layer: Layer
    by_leg: _ByLeg
    either: _ByLeg


def _comparable(entries: Iterable[Placed]) -> Iterator[_OfLayer]:
    """Yield what ran of each layer in a step, and all together where some have no size.

    Gradients without a size may be those that layers lack. Where forward products have none, those
    of no layer are known.
    """
    layers: dict[Layer, _ByLeg] = defaultdict(_no_legs)
    together = _no_legs()
    for one in entries:
        layers[one.cell.layer][one.cell.leg].append(one)
        together[one.cell.leg].append(one)
    unsized = layers.get(None, {})
    for layer, by_leg in layers.items():
        either = _no_legs()
        for like in dict.fromkeys((layer, turned(layer))):
            of_like = layers.get(like, {})
            for leg, found in of_like.items():
                either[leg] += found
        if layer is None:
            yield _OfLayer(None, together, together)
        elif Leg.FPROP not in unsized:
            yield _OfLayer(layer, by_leg, either)


def _of_layer(
    rank: int,
    layer: Layer,
    by_leg: _ByLeg,
    statements: Statements,
) -> Iterator[Expected]:
    """Yield that the legs of a layer agree in a step, where nothing tells them apart."""
    modules = statements.modules_of(rank, layer)
    # Frozen weights have no wgrad: other layers' gradients are taken for theirs.
    is_frozen = any(module.frozen for module in modules)
    for compared in _compared_legs(by_leg, modules, statements):
        found = []
        for leg in compared.legs:
            of_leg = by_leg.get(leg, ())
            found += [one for one in of_leg if _is_loose(one.entry)]
        legs = compared.legs
        products = by_leg[Leg.FPROP]
        forward = [one for one in products if _may_lack(one.entry, legs)]
        for one in _agree(layer, compared, forward, found):
            is_sure = one.is_sure and not is_frozen
            yield one._replace(is_sure=is_sure)
        yield from _but_first_layers(layer, legs, forward, found)


def _but_first_layers(
    layer: Layer,
    legs: tuple[Leg, ...],
    forward: _Found,
    found: _Found,
) -> Iterator[Expected]:
    """Yield that dgrads perhaps agree with the products of all but the first layers, which have none.

    Other layers may have none, as those of a second model whose input takes no gradient.
    """
    others = [one for one in forward if not _is_of_first_layer(one.entry)]
    products = entries_of(others)
    entries = entries_of(found)
    have_one_each = launches_of(entries) == launches_of(products)
    are_fewer = len(others) < len(forward)
    are_of_dgrad = layer is not None and legs == (Leg.DGRAD,)
    if are_of_dgrad and are_fewer and have_one_each:
        least = _least_of(entries, products, 1)
        yield expected_at(Witness.CALL, found, least, is_sure=False)


def _is_of_first_layer(entry: Entry) -> bool:
    """Whether a product is one of the first of a model, and has no dgrad."""
    is_first = entry.call < FIRST_LAYERS
    return is_first and entry.beside.isdisjoint((Leg.DGRAD, Leg.BACKWARD))


def _beside_vague(by_leg: _ByLeg) -> Iterator[Expected]:
    """Yield that perhaps no more gradients of a known leg ran high than forward products did.

    More of this leg may be among those that may be dgrad or wgrad. A whole leg in high precision is
    rather the recipe's. The first layers have no dgrad.
    """
    every = entries_of(by_leg[Leg.FPROP])
    for leg in GRADIENT_LEGS:
        has_all = leg is Leg.WGRAD
        products = [one for one in every if has_all or not _is_of_first_layer(one)]
        forward = launches_of(products)
        high_forward = forward - low_of(products)
        found = by_leg.get(leg, [])
        entries = entries_of(found)
        launches = launches_of(entries)
        high = launches - low_of(entries)
        if high < forward:
            least = float(launches - high_forward)
            yield expected_at(Witness.CALL, found, least, is_sure=False)


def _compared_legs(
    by_leg: _ByLeg,
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> list[_Legs]:
    """Return the legs that are compared with the forward product, those together that are vague.

    None of them that the recipe keeps in high precision, nor a module's own configuration.
    """
    keeps_vague = statements.leaves_high(Leg.BACKWARD)
    gradients = [_Legs((leg,), 1) for leg in GRADIENT_LEGS]
    if Leg.BACKWARD in by_leg and not keeps_vague:
        together = _Legs(BACKWARD_LEGS, len(GRADIENT_LEGS))
        gradients = [together]
    recompute = _Legs((Leg.RECOMPUTE,), 1)
    kept = set()
    for leg in (*BACKWARD_LEGS, Leg.RECOMPUTE):
        are_apart = statements.told_apart(modules, leg) > 0
        if are_apart or statements.leaves_high(leg):
            kept.add(leg)
    compared = [*gradients, recompute]
    return [one for one in compared if kept.isdisjoint(one.legs)]


def _agree(
    layer: Layer,
    compared: _Legs,
    forward: _Found,
    found: _Found,
) -> Iterator[Expected]:
    """Yield that legs and the forward products that they belong to agree."""
    legs, each = compared
    products = entries_of(forward)
    entries = entries_of(found)
    all_ran = launches_of(entries) == each * launches_of(products)
    every = [*entries, *products]
    ties = {entry.tie for entry in every}
    is_recompute = legs == (Leg.RECOMPUTE,)
    has_size = layer is not None
    loosest = max(ties, default=Tie.NUMBER)
    is_numbered = loosest <= Tie.GRAPH
    least = _least_of(entries, products, each)
    # Beside gradients that are not there, some may be of products that were not recognized.
    are_theirs = has_size or all_ran or is_recompute
    # By the order alone, two gradients of frozen layers may be taken for those of one.
    are_low = low_of(products) == launches_of(products)
    is_told = has_size or is_numbered or are_low
    is_sure = are_theirs and is_told and Tie.DELAYED not in ties
    yield expected_at(Witness.CALL, found, least, is_sure=is_sure)
    have_products = launches_of(entries) <= each * launches_of(products)
    if have_products:
        # The rest has none of these legs, as a head beside blocks that are recomputed.
        products_of_low = math.ceil(low_of(entries) / each)
        least = min(_least_of(products, entries, 1), products_of_low)
        # A frozen teacher's product may be taken for that of a dgrad, which has no wgrad. And as
        # many products may be computed again as others run once.
        is_told = all_ran and (has_size or not is_recompute)
        is_sure = is_told and (is_numbered or Leg.WGRAD in legs)
        yield expected_at(Witness.CALL, forward, least, is_sure=is_sure)


def _least_of(
    entries: Sequence[Entry],
    others: Sequence[Entry],
    each: int,
) -> int:
    """Return how many launches run low at least, if no more ran high than others had.

    Args:
        entries: the launches.
        others: what they belong to, so many to each of these.
        each: how many.
    """
    low = low_of(others)
    high = launches_of(others) - low
    rest = launches_of(entries) - each * high
    # Where more ran than the others have, the rest belongs to what is not seen, or was recomputed.
    return min(rest, each * low)
