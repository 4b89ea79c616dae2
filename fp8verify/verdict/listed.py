"""What a module list states of the calls of an execution.

It states of each module which legs run in low precision. Where the trace names the module of a call,
or the order of the calls does, that is of this call. Else it is of all calls of one size, or of all
calls without a size: so many of them may stay in high precision as the list has modules that do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fp8verify.analysis.calls import Tie
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, LEGS, Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.expectation import (
    Expected,
    Placed,
    Said,
    Witness,
    all_but,
    expected_at,
    launches_of,
    low_of,
    placed,
    said,
)
from fp8verify.verdict.ledger import (
    Entry,
    Layer,
    Ledger,
    Place,
    Program,
    legs_of,
    turned,
)
from fp8verify.verdict.order import Named, is_expert
from fp8verify.verdict.readings import Launches, high_launches
from fp8verify.verdict.statements import Statements

_GRADIENTS: Final = (*GRADIENT_LEGS, Leg.BACKWARD)


def by_list(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield what the module list states of an execution."""
    in_order = statements.in_order(program, place.rank)
    for legs, entries in _groups(program):
        layers = list(dict.fromkeys(entry.slot.layer for entry in entries))
        modules = _modules_of(layers, place, statements)
        if None in layers or not modules:
            continue
        forward: list[Entry] = []
        for layer in layers:
            forward += program.by_layer.get((layer, Leg.FPROP), ())
        # In order, the blocks of experts are known.
        is_sure = bool(in_order) and any(map(is_expert, modules))
        for stated in _of_layer(legs, entries, forward, modules, statements):
            yield _surely(stated) if is_sure else stated
    yield from _without_sizes(program, place, statements)
    yield from _of_modules_without_calls(program, place, statements)
    yield from _by_order(program, place, in_order, statements)
    yield from _by_order_of_replay(program, place, statements)


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


def by_list_of_steps(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield what the module list states of a step that calls each of its modules once.

    Layers that are called one after the other, each with its gradients, are executions of their
    own, and none of these calls all modules.
    """
    steps: dict[tuple[int, int, Layer, Leg], list[Placed]] = defaultdict(list)
    for one in placed(ledger):
        cell = one.cell
        steps[cell.rank, cell.step, cell.layer, cell.leg].append(one)
    for (rank, step, layer, leg), found in steps.items():
        modules = statements.modules_of(rank, layer)
        # Gradients may be taken for those of frozen layers.
        is_frozen = any(module.frozen for module in modules)
        forward = steps.get((rank, step, layer, Leg.FPROP), ())
        is_whole = len(found) == len(forward) == len(modules)
        cells = {one.cell for one in found}
        is_told = len(legs_of(leg)) == 1 and not statements.leaves_high(leg)
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
    entries = [one.entry for one in found]
    least = all_but(entries, len(may_be_high))
    names = _names(modules, may_be_high)
    return expected_at(Witness.MODULES, found, least, names)


def _names(
    modules: Sequence[ModuleRecord],
    but: Sequence[ModuleRecord],
) -> tuple[str, ...]:
    return tuple(module.fqn for module in modules if module not in but)


# ---- calls of one layer, or of layers of one size


def _groups(program: Program) -> Iterator[tuple[tuple[Leg, ...], list[Entry]]]:
    """Yield the entries of a layer, of calls of one sort, by leg.

    Beside gradients that may be dgrad or wgrad, those that are known are counted with these, and
    those of layers with inputs and outputs exchanged: dgrad of one has the sizes of the other.
    """
    exchanged = _exchanged(program)
    found: dict[tuple[Layer, Leg], dict[Leg, list[Entry]]]
    found = defaultdict(lambda: defaultdict(list))
    for (layer, leg), entries in program.by_layer.items():
        group = layer
        if leg in BACKWARD_LEGS:
            group = exchanged.get(layer, layer)
        for entry in entries:
            found[group, entry.slot.sort][leg].append(entry)
    for by_leg in found.values():
        for legs in _joined_legs(by_leg):
            yield legs, [entry for leg in legs for entry in by_leg[leg]]


def _exchanged(program: Program) -> dict[Layer, Layer]:
    """Return by its size the layer that has inputs and outputs exchanged, where legs are open."""
    exchanged: dict[Layer, Layer] = {}
    for layer, leg in program.by_layer:
        if leg is Leg.BACKWARD and isinstance(layer, tuple):
            other = layer[::-1]
            if (other, Leg.FPROP) in program.by_layer:
                exchanged[max(layer, other)] = min(layer, other)
    return exchanged


def _joined_legs(by_leg: Mapping[Leg, list[Entry]]) -> list[tuple[Leg, ...]]:
    """Return the legs that there are, those of gradients as one where some may be either."""
    if Leg.BACKWARD not in by_leg:
        return [(leg,) for leg in by_leg]
    others = [(leg,) for leg in by_leg if leg not in BACKWARD_LEGS]
    return [*others, tuple(leg for leg in _GRADIENTS if leg in by_leg)]


def _of_layer(
    legs: tuple[Leg, ...],
    entries: Sequence[Entry],
    forward: Sequence[Entry],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Iterator[Said]:
    """Yield how many launches of a layer, or of a size, run low at least."""
    leg = legs[-1]
    layer = entries[0].slot.layer
    by = Witness.NAMES if isinstance(layer, str) else Witness.MODULES
    may_be_high = statements.may_be_high(modules, leg)
    names = _names(modules, may_be_high)
    if layer == EXPERTS:
        least = 0.0 if may_be_high else all_but(entries, 0)
        yield said(by, entries, least, names)
        return
    if len(legs_of(leg)) == 1 and statements.leaves_high(leg):
        return
    high = high_launches(_counted(leg, entries, len(forward)), modules, statements)
    if high is None:
        least = _least_of_no_passes(leg, entries, len(forward), modules, statements)
        yield said(by, entries, least, names)
        return
    least = _all_but(entries, high.most)
    perhaps = _all_but(entries, high.least)
    yield said(by, entries, least, names, perhaps=perhaps)


def _counted(
    leg: Leg,
    entries: Sequence[Entry],
    forward: int | None,
) -> Launches:
    """Count calls of a leg, or launches of legs that cannot be told apart."""
    is_vague = len(legs_of(leg)) > 1
    return Launches(
        launches=len(_products(entries)),
        leg=leg,
        forward=forward,
        may_repeat=is_vague or leg is Leg.RECOMPUTE,
    )


def _products(entries: Iterable[Entry]) -> list[int]:
    """Return of each product how many launches it has: those of a known leg are parts of one."""
    products: list[int] = []
    for entry in entries:
        launches = entry.ran.launches
        is_vague = len(legs_of(entry.leg)) > 1
        products += [1] * launches if is_vague else [launches]
    return products


def _all_but(entries: Iterable[Entry], high: int) -> float:
    """Return how many launches run low at least, if so many products may run in high precision."""
    longest_first = sorted(_products(entries), reverse=True)
    return float(sum(longest_first[high:]))


def _least_of_no_passes(
    leg: Leg,
    entries: Sequence[Entry],
    forward: int,
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> float:
    """Return how many launches of a size run low at least, if some modules ran more often."""
    may_be = legs_of(leg)
    launches = launches_of(entries)
    is_vague = len(may_be) > 1
    if is_vague and launches > len(may_be) * forward:
        may_be = LEGS  # compiled code recomputed some
    each = len(may_be) * len(modules)
    passes = -(-(launches if is_vague else len(entries)) // each)
    low = sum(statements.low_legs(modules, one) for one in may_be)
    high = passes * (each - low)
    in_parts = max(entry.ran.launches for entry in entries) > len(may_be)
    if is_vague and in_parts:
        return all_but(entries, high)
    return _all_but(entries, high)


# ---- calls without sizes


def _without_sizes(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield how many launches without sizes run low at least: any of them may be of any module."""
    modules = statements.modules_of(place.rank, None)
    by_leg: dict[Leg, list[Entry]] = defaultdict(list)
    for entry in program.entries:
        if entry.slot.layer is None:
            by_leg[entry.leg].append(entry)
    if not modules or not by_leg:
        return
    is_whole = sum(map(len, by_leg.values())) == len(program.entries)
    has_experts = statements.has_experts(place.rank)
    if is_whole:
        yield from _of_whole_list(by_leg, modules, statements)
    for legs in _joined_legs(by_leg) if not has_experts else ():
        entries = [entry for leg in legs for entry in by_leg[leg]]
        least = _least_of_some(legs[-1], entries, modules, statements)
        yield said(Witness.MODULES, entries, float(least))
    if not has_experts:
        yield from _fewer_than_gradients(by_leg, modules, statements)
    if is_whole and not has_experts:
        yield from _beside_vague(by_leg, modules, statements)


def _of_whole_list(
    by_leg: Mapping[Leg, list[Entry]],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Iterator[Said]:
    """Yield how many launches run low at least, where they can be passes through the list."""
    forward = len(by_leg[Leg.FPROP]) if Leg.FPROP in by_leg else None
    # Which of the experts ran is open, and whether a router is among the calls. Beside launches of
    # no known leg, which may be all of the model's, those with an operator may be others.
    is_unknown = Leg.UNKNOWN in by_leg and len(by_leg) > 1
    is_sure = not is_unknown and not any(map(is_expert, modules))
    for legs in _joined_legs(by_leg):
        entries = [entry for leg in legs for entry in by_leg[leg]]
        ran = _counted(legs[-1], entries, forward)
        high = high_launches(ran, modules, statements)
        if high is not None:
            least = _all_but(entries, high.most)
            perhaps = _all_but(entries, high.least)
            yield said(
                Witness.MODULES,
                entries,
                least,
                is_sure=is_sure,
                perhaps=perhaps,
            )


def _beside_vague(
    by_leg: Mapping[Leg, Sequence[Entry]],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> Iterator[Said]:
    """Yield that no more gradients of a known leg ran in high precision than the list has.

    More of this leg may be among those that may be dgrad or wgrad.
    """
    passes, rest = divmod(len(by_leg.get(Leg.FPROP, ())), len(modules))
    if rest or Leg.BACKWARD not in by_leg:
        return
    for leg in GRADIENT_LEGS:
        entries = by_leg.get(leg, ())
        if entries and not statements.leaves_high(leg):
            high = passes * (len(modules) - statements.low_legs(modules, leg))
            yield said(Witness.MODULES, entries, _all_but(entries, high))


def _least_of_some(
    leg: Leg,
    entries: Sequence[Entry],
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> int:
    """Return how many launches run low at least, if other products may be among them."""
    legs = legs_of(leg)
    is_vague = len(legs) > 1
    count = launches_of(entries) if is_vague else len(entries)
    of_all = len(modules) * len(legs)
    if count < of_all:
        return 0
    low = statements.low_legs(modules, leg)
    if Leg.DGRAD in legs:
        low -= FIRST_LAYERS
    return max(0, low)


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
    for leg in _GRADIENTS:
        gradients += by_leg.get(leg, ())
    of_all = len(GRADIENT_LEGS) * len(modules)
    are_all_low = statements.low_legs(modules, Leg.FPROP) == len(modules)
    if not forward or len(forward) >= len(modules) or not are_all_low:
        return
    if launches_of(gradients) >= of_all - FIRST_LAYERS:
        least = float(launches_of(forward))
        yield said(Witness.MODULES, forward, least, is_sure=False)


def _of_modules_without_calls(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield that calls without a size are of modules that no call with their size can be.

    Surely so where as many calls have no size as modules have no call, else perhaps.
    """
    entries = program.by_layer.get((None, Leg.FPROP), ())
    has_sizes = any(entry.slot.layer is not None for entry in program.entries)
    if not entries or not has_sizes or statements.has_experts(place.rank):
        return
    missing = 0
    names: list[str] = []
    for layer in statements.sizes(place.rank):
        modules = statements.modules_of(place.rank, layer)
        calls = len(program.by_layer.get((layer, Leg.FPROP), ()))
        if calls > len(modules):
            return  # some ran more than once, so others may have too
        may_be_high = statements.may_be_high(modules, Leg.FPROP)
        low = _names(modules, may_be_high)
        lacking = max(0, len(low) - calls)
        missing += lacking
        if lacking:
            names += low
    launches = launches_of(entries)
    are_all = len(names) == missing
    if missing:
        least = float(min(launches, missing))
        yield said(
            Witness.MODULES,
            entries,
            least,
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
        layer = program.by_call[calls[0]][0].slot.layer
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
    high = len(legs_of(leg)) * len(modules) - low
    names = []
    for module in modules:
        if statements.low_legs([module], leg):
            names.append(module.fqn)
    if low:
        least = _all_but(entries, high)
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
    if all(program.calls[call].tie is Tie.NUMBER for call in calls):
        return True
    layer = program.by_call[calls[0]][0].slot.layer
    is_turned = (
        turned(layer) != layer and (turned(layer), Leg.FPROP) in program.by_layer
    )
    is_vague = (layer, Leg.BACKWARD) in program.by_layer
    is_frozen = any(module.frozen for module in alike)
    if is_frozen or (is_vague and is_turned):
        return False
    counts: list[int] = []
    for entries in program.by_call.values():
        slot = entries[0].slot
        if slot.layer != layer:
            continue
        gradients = [entry for entry in entries if entry.leg in BACKWARD_LEGS]
        if slot.sort is Leg.FPROP:
            counts.append(launches_of(gradients))
        elif gradients:
            return False  # some belong to no call
    most = max(counts)
    return most <= len(GRADIENT_LEGS) and sum(counts) >= most * len(counts) - 1


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
    if not entries or not all(map(_is_unknown, entries)):
        return
    begin = 0
    found = []
    for part in statements.order_of_replay(place.rank, len(entries)):
        end = begin + len(part.legs)
        here = entries[begin:end]
        begin = end
        low = []
        for module, leg in part.legs:
            if statements.is_low(module, leg):
                low.append(module.fqn)
        if low_of(here) > len(low):
            return
        least = float(len(low))
        names = tuple(dict.fromkeys(low))
        found.append(said(Witness.NAMES, here, least, names))
    yield from found


def _is_unknown(entry: Entry) -> bool:
    """Whether neither the leg nor the layer of a launch is known."""
    return entry.leg is Leg.UNKNOWN and entry.slot.layer is None
