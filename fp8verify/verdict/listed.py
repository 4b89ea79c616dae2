"""What a module list states of the calls of an execution.

It states of each module which legs run in low precision. Where the trace names the module of a call,
or the order of the calls does, that is of this call. Else it is of all calls of one size, or of all
calls without a size: so many of them may stay in high precision as the list has modules that do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse
from typing import TypeAlias

from fp8verify.analysis.calls import Tie
from fp8verify.analysis.kinds import grouped
from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg
from fp8verify.verdict.expectation import (
    EqualSteps,
    Expected,
    Placed,
    Said,
    Witness,
    all_but,
    entries_of,
    expected_at,
    launches_of,
    leg_of,
    low_of,
    products_of,
    said,
)
from fp8verify.verdict.ledger import (
    Entry,
    Layer,
    Place,
    Program,
    first_layers,
    legs_of,
    turned,
)
from fp8verify.verdict.order import Named, has_experts
from fp8verify.verdict.readings import High, Launches, high_launches
from fp8verify.verdict.statements import Statements

# Launches of one leg, or of gradients that may be dgrad or wgrad.
_OfLeg: TypeAlias = "tuple[Leg, list[Entry]]"


def by_list(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield what the module list states of an execution."""
    in_order = statements.in_order(program, place.rank)
    for leg, entries in _groups(program):
        of_entries = [entry.slot.layer for entry in entries]
        layers = list(dict.fromkeys(of_entries))
        modules = _modules_of(layers, place, statements)
        is_sized = None not in layers
        if modules and is_sized and not _is_left_high(leg, statements):
            forward = 0
            for layer in layers:
                products = program.of(layer, Leg.FPROP)
                forward += len(products)
            stated = _of_layer(leg, entries, forward, modules, statements)
            # In order, the blocks of experts are known.
            is_sure = bool(in_order) and has_experts(modules)
            yield _surely(stated) if is_sure else stated
    yield from _without_sizes(program, place, statements)
    yield from _of_modules_without_calls(program, place, statements)
    yield from _by_order(program, place, in_order, statements)
    yield from _by_order_of_replay(program, place, statements)


def _is_left_high(leg: Leg, statements: Statements) -> bool:
    """Whether the recipe keeps all launches that have a leg in high precision."""
    is_vague = len(legs_of(leg)) > 1
    return statements.leaves_high(leg) and not is_vague


def _modules_of(
    layers: Iterable[Layer],
    place: Place,
    statements: Statements,
) -> list[ModuleRecord]:
    """Return the modules that any of some layers may be, in the order of the list."""
    found: list[ModuleRecord] = []
    for layer in layers:
        found += statements.modules_of(place.rank, layer)
    every = statements.modules_of(place.rank, None)
    places: dict[int, int] = {}
    for number, module in enumerate(every):
        places[id(module)] = number

    def place_in_list(module: ModuleRecord) -> int:
        return places.get(id(module), 0)

    return sorted(found, key=place_in_list)


def _surely(stated: Said) -> Said:
    """Return what is surely stated."""
    expected = stated.expected._replace(perhaps=0.0)
    return stated._replace(expected=expected)


def by_list_of_steps(
    steps: Iterable[EqualSteps],
    statements: Statements,
) -> Iterator[Expected]:
    """Yield what the module list states of a step that calls each of its modules once.

    Layers that are called one after the other, each with its gradients, are executions of their
    own, and none of these calls all modules.
    """
    for equal in steps:
        stated = _of_first_step(equal, statements)
        yield from equal.all_say(stated)


def _of_first_step(
    equal: EqualSteps,
    statements: Statements,
) -> Iterator[Expected]:
    """Yield what is stated of the first of some equal steps."""
    by_layer: dict[tuple[Layer, Leg], list[Placed]] = defaultdict(list)
    for one in equal.entries:
        by_layer[one.cell.layer, one.cell.leg].append(one)
    for (layer, leg), found in by_layer.items():
        modules = statements.modules_of(equal.rank, layer)
        # Gradients may be taken for those of frozen layers.
        is_frozen = any(module.frozen for module in modules)
        forward = by_layer.get((layer, Leg.FPROP), ())
        is_whole = len(found) == len(forward) == len(modules)
        cells = {one.cell for one in found}
        is_vague = len(legs_of(leg)) > 1
        is_told = not is_vague and not statements.leaves_high(leg)
        if len(cells) > 1 and is_whole and is_told and not is_frozen:
            yield _of_step(leg, found, modules, statements)


def _of_step(
    leg: Leg,
    found: Sequence[Placed],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Expected:
    """Return what is stated of a leg of a step that calls each of some modules once."""
    may_be_high = statements.may_be_high(modules, leg)
    entries = entries_of(found)
    least = all_but(entries, len(may_be_high))
    names = _names(modules, may_be_high)
    return expected_at(Witness.MODULES, found, least, names)


def _names(
    modules: Sequence[ModuleRecord],
    but: Sequence[ModuleRecord],
) -> tuple[str, ...]:
    return tuple(module.fqn for module in modules if module not in but)


# ---- calls of one layer, or of layers of one size


def _groups(program: Program) -> Iterator[_OfLeg]:
    """Yield the entries of a layer, of calls of one sort, by leg.

    Beside gradients that may be dgrad or wgrad, those that are known are counted with these, and
    those of layers with inputs and outputs exchanged: dgrad of one has the sizes of the other.
    """
    exchanged = _exchanged(program)
    found: dict[tuple[Layer, Leg], dict[Leg, list[Entry]]]
    found = defaultdict(lambda: defaultdict(list))
    for (layer, leg), entries in program.by_layer.items():
        group = exchanged.get((layer, leg), layer)
        for entry in entries:
            found[group, entry.slot.sort][leg].append(entry)
    for by_leg in found.values():
        yield from _joined(by_leg)


def _exchanged(program: Program) -> dict[tuple[Layer, Leg], Layer]:
    """Return for gradients the first of layers with inputs and outputs exchanged, if legs are open."""
    exchanged: dict[tuple[Layer, Leg], Layer] = {}
    for layer, leg in program.by_layer:
        if leg is Leg.BACKWARD:
            for either in BACKWARD_LEGS:
                first = exchanged.setdefault((layer, either), layer)
                exchanged[turned(layer), either] = first
    return exchanged


def _joined(by_leg: Mapping[Leg, list[Entry]]) -> Iterable[_OfLeg]:
    """Return the launches of each leg, all gradients as one where some may be either."""
    if Leg.BACKWARD not in by_leg:
        return by_leg.items()
    gradients: list[Entry] = []
    for leg in BACKWARD_LEGS:
        gradients += by_leg.get(leg, ())
    known = {leg: by_leg[leg] for leg in by_leg if leg not in BACKWARD_LEGS}
    known[Leg.BACKWARD] = gradients
    return known.items()


def _of_layer(
    leg: Leg,
    entries: Sequence[Entry],
    forward: int,
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Said:
    """Return how many launches of a layer, or of a size, run low at least."""
    layer = entries[0].slot.layer
    by = Witness.NAMES if isinstance(layer, str) else Witness.MODULES
    may_be_high = statements.may_be_high(modules, leg)
    ran = _counted(leg, entries, forward)
    in_passes = high_launches(ran, modules, statements)
    high = in_passes or _high_of_no_passes(ran, modules, statements)
    return said(
        by,
        entries,
        all_but(entries, high.most),
        _names(modules, may_be_high),
        perhaps=all_but(entries, high.least),
    )


def _counted(
    leg: Leg,
    entries: Sequence[Entry],
    forward: int | None,
) -> Launches:
    """Count calls of a leg, or launches of legs that cannot be told apart."""
    is_vague = len(legs_of(leg)) > 1
    return Launches(
        launches=len(products_of(entries)),
        leg=leg,
        forward=forward,
        may_repeat=is_vague or leg is Leg.RECOMPUTE,
    )


def _high_of_no_passes(
    ran: Launches,
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> High:
    """Return how many launches may run in high precision, if some modules ran more often."""
    legs = legs_of(ran.leg)
    each = len(legs) * len(modules)
    low = statements.low_legs(modules, ran.leg)
    passes = math.ceil(ran.launches / each)
    high = passes * (each - low)
    return High(high, high)


# ---- calls without sizes


def _without_sizes(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield how many launches without sizes run low at least: any of them may be of any module."""
    modules = statements.modules_of(place.rank, None)
    entries = program.entries
    unsized = [entry for entry in entries if entry.slot.layer is None]
    by_leg = grouped(unsized, leg_of)
    if not modules:
        return
    if len(unsized) == len(entries):
        yield from _of_whole_list(by_leg, modules, statements)
        yield from _beside_vague(by_leg, modules, statements)
    if statements.has_experts(place.rank):
        return
    for leg, of_leg in _joined(by_leg):
        least = _least_of_some(leg, of_leg, modules, statements)
        yield said(Witness.MODULES, of_leg, float(least))
    yield from _fewer_than_gradients(by_leg, modules, statements)


def _of_whole_list(
    by_leg: Mapping[Leg, list[Entry]],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Iterator[Said]:
    """Yield how many launches run low at least, where they can be passes through the list."""
    products = by_leg.get(Leg.FPROP, ())
    forward = len(products)
    # Which of the experts ran is open, and whether a router is among the calls. Beside launches of
    # no known leg, which may be all of the model's, those with an operator may be others.
    is_unknown = Leg.UNKNOWN in by_leg and len(by_leg) > 1
    is_sure = not is_unknown and not has_experts(modules)
    for leg, entries in _joined(by_leg):
        ran = _counted(leg, entries, forward or None)
        high = high_launches(ran, modules, statements)
        if high is not None:
            yield said(
                Witness.MODULES,
                entries,
                all_but(entries, high.most),
                is_sure=is_sure,
                perhaps=all_but(entries, high.least),
            )


def _beside_vague(
    by_leg: Mapping[Leg, Sequence[Entry]],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Iterator[Said]:
    """Yield that no more gradients of a known leg ran in high precision than the list has.

    More of this leg may be among those that may be dgrad or wgrad.
    """
    forward = by_leg.get(Leg.FPROP, ())
    passes, rest = divmod(len(forward), len(modules))
    if rest or has_experts(modules) or Leg.BACKWARD not in by_leg:
        return
    for leg in filterfalse(statements.leaves_high, GRADIENT_LEGS):
        entries = by_leg.get(leg, ())
        low = statements.low_legs(modules, leg)
        high = passes * (len(modules) - low)
        least = all_but(entries, high)
        yield said(Witness.MODULES, entries, least)


def _least_of_some(
    leg: Leg,
    entries: Sequence[Entry],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> int:
    """Return how many launches run low at least, if other products may be among them."""
    legs = legs_of(leg)
    of_all = len(modules) * len(legs)
    if len(products_of(entries)) < of_all:
        return 0
    low = statements.low_legs(modules, leg)
    return max(0, low - first_layers(legs))


def _fewer_than_gradients(
    by_leg: Mapping[Leg, Sequence[Entry]],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Iterator[Said]:
    """Yield that forward products perhaps run low, where more modules have gradients than they are.

    The other products of the forward pass were not recognized, so these may be any module's.
    """
    forward = by_leg.get(Leg.FPROP, ())
    gradients: list[Entry] = []
    for leg in BACKWARD_LEGS:
        gradients += by_leg.get(leg, ())
    of_all = len(GRADIENT_LEGS) * len(modules)
    fewest = of_all - first_layers(GRADIENT_LEGS)
    have_gradients = launches_of(gradients) >= fewest
    low = statements.low_legs(modules, Leg.FPROP)
    are_all_low = low == len(modules)
    if have_gradients and are_all_low and len(forward) < len(modules):
        least = float(launches_of(forward))
        yield said(Witness.MODULES, forward, least, is_sure=False)


def _of_modules_without_calls(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield that calls without a size are of modules that no call with their size can be.

    Surely so where as many calls have no size as modules have no call, else perhaps. Not where some
    modules ran more than once, so that others may have too.
    """
    entries = program.of(None, Leg.FPROP)
    missing = 0
    names: list[str] = []
    ran_again = False
    for layer in statements.sizes(place.rank):
        modules = statements.modules_of(place.rank, layer)
        products = program.of(layer, Leg.FPROP)
        calls = len(products)
        may_be_high = statements.may_be_high(modules, Leg.FPROP)
        low = _names(modules, may_be_high)
        ran_again |= calls > len(modules)
        if calls < len(low):
            missing += len(low) - calls
            names += low
    layers = {entry.slot.layer for entry in program.entries}
    has_sizes = bool(layers - {None})
    is_open = ran_again or not has_sizes or statements.has_experts(place.rank)
    if missing and not is_open:
        launches = launches_of(entries)
        are_all = len(names) == missing
        yield said(
            Witness.MODULES,
            entries,
            float(min(launches, missing)),
            names if are_all else (),
            is_sure=launches == missing,
        )


# ---- calls whose modules are known by their order


def _by_order(
    program: Program,
    place: Place,
    in_order: Iterable[Named],
    statements: Statements,
) -> Iterator[Said]:
    """Yield what the list states of calls that are in its order, unless the trace names these."""
    for calls, modules in in_order:
        by_leg: dict[Leg, list[Entry]] = defaultdict(list)
        for call in calls:
            for entry in program.by_call[call]:
                if not isinstance(entry.slot.layer, str):
                    by_leg[entry.leg].append(entry)
        first = program.by_call[calls[0]]
        layer = first[0].slot.layer
        alike = statements.modules_of(place.rank, layer)
        are_paired = _are_paired(program, calls, alike)
        for leg, entries in by_leg.items():
            if leg in BACKWARD_LEGS and not are_paired:
                continue
            yield from _of_named(leg, entries, modules, statements)


def _of_named(
    leg: Leg,
    entries: Sequence[Entry],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Iterator[Said]:
    """Yield how many launches of neighbors of one size run low at least."""
    low = statements.low_legs(modules, leg)
    legs = legs_of(leg)
    high = len(legs) * len(modules) - low
    names = [one.fqn for one in modules if statements.low_legs([one], leg)]
    if low:
        least = all_but(entries, high)
        yield said(Witness.NAMES, entries, least, names)


def _are_paired(
    program: Program,
    calls: Sequence[int],
    alike: Iterable[ModuleRecord],
) -> bool:
    """Whether the gradients of calls are known to be theirs: by number, or as all have as many.

    Else recomputed products, which have the sizes of gradients where a layer is square, may have
    been taken for some of them. The first layer of a model has no dgrad, and frozen ones no wgrad.

    Args:
        program: of the calls.
        calls: their places, of one layer.
        alike: the modules that the calls may be of.
    """
    ties = {program.calls[call].tie for call in calls}
    is_numbered = ties == {Tie.NUMBER}
    first = program.by_call[calls[0]]
    layer = first[0].slot.layer
    other = turned(layer)
    of_other = program.of(other, Leg.FPROP)
    is_turned = other != layer and bool(of_other)
    is_vague = bool(program.of(layer, Leg.BACKWARD))
    is_frozen = any(module.frozen for module in alike)
    is_open = is_frozen or (is_vague and is_turned)
    forward = program.of(layer, Leg.FPROP)
    launches = {entry.call: 0 for entry in forward}
    for leg in BACKWARD_LEGS:
        for entry in program.of(layer, leg):
            before = launches.get(entry.call, 0)
            launches[entry.call] = before + entry.ran.launches
    belong_to_calls = len(launches) == len(forward)
    counts = launches.values()
    most = max(counts)
    have_all = sum(counts) >= most * len(counts) - 1
    are_as_many = belong_to_calls and have_all and most <= len(GRADIENT_LEGS)
    return is_numbered or (are_as_many and not is_open)


def _by_order_of_replay(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield what the list states of a replay whose launches are a forward and a backward pass.

    They are in the order of the list and in the opposite one, if none runs low that the list keeps
    in high precision.
    """
    entries = program.entries
    if not all(map(_is_unknown, entries)):
        return
    begin = 0
    found = []
    parts = statements.order_of_replay(place.rank, len(entries))
    for part in parts:
        end = begin + len(part.legs)
        here = entries[begin:end]
        begin = end
        low = [of.fqn for of, leg in part.legs if statements.is_low(of, leg)]
        if low_of(here) > len(low):
            return
        least = float(len(low))
        names = tuple(dict.fromkeys(low))
        stated = said(Witness.NAMES, here, least, names)
        found.append(stated)
    yield from found


def _is_unknown(entry: Entry) -> bool:
    """Whether neither the leg nor the layer of a launch is known."""
    has_size = entry.slot.layer is not None
    return entry.leg is Leg.UNKNOWN and not has_size
