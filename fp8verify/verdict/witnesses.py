"""What is expected of the entries of a ledger, and by which witness.

Each witness says of some launches of one leg how many run in low precision at least, or nothing.
What one says is an inequality, and exact: a list of which one module of nine may stay in high
precision lets one call in nine do so, not a ninth of the work. So statements join: each holds by
itself. In order of authority:

- a phase of the log, or the recipe, which excuse whatever else is expected;
- names: the module of a call is known, by the trace or by its place in the order;
- the module list: of the modules of one size, or of all;
- the log: the blocks or layers that it leaves out, where it is complete about them, and its counts;
- the same slot in other executions;
- the other legs of the same call;
- the same layer in executions that made other calls of it, of which half is expected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.calls import Tie
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, LEGS, Leg
from fp8verify.thresholds import HALF
from fp8verify.verdict.expectation import (
    Expected,
    Said,
    Witness,
    all_but,
    launches_of,
    said,
)
from fp8verify.verdict.ledger import (
    Cell,
    Entry,
    Layer,
    Ledger,
    Place,
    Program,
    add_up,
)
from fp8verify.verdict.listed import by_list, by_list_of_steps
from fp8verify.verdict.statements import Statements


def expectations(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield what all witnesses expect of a ledger."""
    peers = _Peers(ledger, statements)
    cache: dict[object, list[Said]] = {}
    for program in ledger.programs:
        for place in program.places:
            if statements.is_high(place):
                continue
            context = (
                id(program),
                statements.context(place.rank),
                peers.scope(place.rank),
            )
            if context not in cache:
                cache[context] = [
                    *by_list(program, place, statements),
                    *_by_log(program, place, statements),
                    *peers.of(program, place),
                    *_by_call(program, place, statements),
                    *_by_missing_gradients(program, statements),
                ]
            for stated in cache[context]:
                yield stated.at(place)
    yield from by_list_of_steps(ledger, statements)
    yield from _by_loose_calls(ledger, statements)
    yield from _by_others(ledger, statements)


# ---- the log


def _by_log(program: Program, place: Place, statements: Statements) -> Iterator[Said]:
    """Yield what the log states of blocks and counts, without a module list."""
    by_leg = {leg: [e for e in program.entries if e.leg is leg] for leg in LEGS}
    calls = len(by_leg[Leg.FPROP])
    for claim in statements.counts:
        converted = claim.converted or 0
        total = claim.total or 1
        # In an execution each layer ran once, unless all ran equally often.
        passes = 1 if calls % total else calls // total
        for leg, entries in by_leg.items():
            # Gradients that are not there may be those of converted layers.
            least = float(converted * passes - (calls - len(entries)))
            if calls >= total and entries and not statements.leaves_high(leg):
                yield said(Witness.COUNT, entries, least)
    for (_, leg), entries in program.by_layer.items():
        if statements.leaves_high(leg) or not any(e.is_low for e in entries):
            continue
        free = _outside_of_pins(entries, statements)
        if free:
            yield said(Witness.LOG, free, all_but(free, 0))
    left_out = statements.left_out(place.rank)
    for leg in LEGS if left_out is not None else ():
        if not statements.leaves_high(leg):
            yield from _all_but_left_out(program, leg, left_out or 0)


def _all_but_left_out(program: Program, leg: Leg, left_out: int) -> Iterator[Said]:
    """Yield that all layers but so many run in low precision, if others of their size do."""
    layers = [found for (_, of), found in program.by_layer.items() if of is leg]
    mixed = [e for found in layers if any(e.is_low for e in found) for e in found]
    wholly_high = sum(map(len, layers)) - len(mixed)
    yield said(Witness.LOG, mixed, all_but(mixed, max(0, left_out - wholly_high)))


def _outside_of_pins(entries: Sequence[Entry], statements: Statements) -> list[Entry]:
    """Return the entries of blocks that the log does not keep in high precision.

    The calls of a layer repeat with the blocks; without sizes those behind the last block do not.
    """
    blocks = statements.blocks
    slot = entries[0].slot
    if blocks is None or slot.of < blocks.total:
        return []
    each, rest = divmod(slot.of, blocks.total)
    if rest and slot.layer is not None:
        return []
    return [
        entry
        for entry in entries
        if entry.slot.sort is Leg.FPROP
        and entry.slot.number < each * blocks.total
        and entry.slot.number // each not in blocks.pinned
    ]


# ---- other executions


class _Peers:
    """What ran in low precision at the most in the same slot of other executions.

    Stages of a pipeline may be of other layers: between ranks, that is a doubt.
    """

    def __init__(self, ledger: Ledger, statements: Statements) -> None:
        self._statements = statements
        self._most: dict[tuple[object, ...], int] = defaultdict(int)
        for program in ledger.programs:
            places = [p for p in program.places if not statements.is_high(p)]
            scopes = {place.rank for place in places}
            for scope in (*scopes, _ALL) if scopes else ():
                for entry in program.entries:
                    key = scope, entry.slot, entry.leg, entry.ran.launches
                    self._most[key] = max(self._most[key], entry.ran.low)
                for gradients in _gradients(program):
                    whole = scope, gradients[0].slot, None, launches_of(gradients)
                    low = sum(entry.ran.low for entry in gradients)
                    self._most[whole] = max(self._most[whole], low)

    def scope(self, rank: int) -> int:
        """Return what ranks have in common that are compared alike."""
        return _ALL if self._statements.alike else rank

    def of(self, program: Program, place: Place) -> Iterator[Said]:
        """Yield that a program runs as much in low precision as others did in the same slot."""
        surely = self.scope(place.rank)
        yield from self._compared(program, place, surely, is_sure=True)
        if surely != _ALL:
            yield from self._compared(program, place, _ALL, is_sure=False)

    def _compared(
        self,
        program: Program,
        place: Place,
        scope: int,
        *,
        is_sure: bool,
    ) -> Iterator[Said]:
        for (layer, leg), entries in program.by_layer.items():
            of = entries[0].slot.of
            if self._statements.leaves_high(leg) or self._statements.may_be_others(
                place.rank,
                layer,
                leg,
                of,
            ):
                continue
            least = {
                entry: self._most[scope, entry.slot, leg, entry.ran.launches]
                for entry in entries
            }
            short = [entry for entry in entries if least[entry] > entry.ran.low]
            # A chunk of a pipeline's stage may be the blocks that the log keeps.
            if len(short) <= self._statements.pinned(place.rank):
                continue
            for entry in short:
                most = float(least[entry])
                yield said(Witness.EXECUTIONS, [entry], most, is_sure=is_sure)
        yield from self._compared_as_one(program, place, scope, is_sure=is_sure)

    def _compared_as_one(
        self,
        program: Program,
        place: Place,
        scope: int,
        *,
        is_sure: bool,
    ) -> Iterator[Said]:
        """Compare the gradients of calls, where it is not known which of them is dgrad."""
        short: dict[Layer, list[Said]] = defaultdict(list)
        for gradients in _gradients(program):
            slot = gradients[0].slot
            legs = [entry.leg for entry in gradients]
            if any(map(self._statements.leaves_high, legs)) or any(
                self._statements.may_be_others(place.rank, slot.layer, leg, slot.of)
                for leg in legs
            ):
                continue
            most = self._most[scope, slot, None, launches_of(gradients)]
            lacks = most - sum(entry.ran.low for entry in gradients)
            by_leg = sum(self._lacks(entry, scope) for entry in gradients)
            if lacks > by_leg:
                by = Witness.EXECUTIONS
                lacking = said(by, gradients, float(most - by_leg), is_sure=is_sure)
                short[slot.layer].append(lacking)
        for of_layer in short.values():
            if len(of_layer) > self._statements.pinned(place.rank):
                yield from of_layer

    def _lacks(self, entry: Entry, scope: int) -> int:
        """Return how many launches of an entry ran in low precision in other executions alone."""
        most = self._most[scope, entry.slot, entry.leg, entry.ran.launches]
        return max(0, most - entry.ran.low)


def _gradients(program: Program) -> Iterator[list[Entry]]:
    """Yield the gradients of each call that has any."""
    for entries in program.by_call.values():
        found = [entry for entry in entries if entry.leg in BACKWARD_LEGS]
        if found:
            yield found


# The scope of all ranks together.
_ALL: Final = -1


# ---- the legs of a call


def _by_call(program: Program, place: Place, statements: Statements) -> Iterator[Said]:
    """Yield that the legs of a call agree, but of as many calls as a list tells their legs apart."""
    short: dict[tuple[Layer, Leg], list[Entry]] = defaultdict(list)
    for entries in program.by_call.values():
        if entries[0].tie is Tie.NUMBER and any(entry.is_low for entry in entries):
            for entry in entries:
                if not entry.is_low and not statements.leaves_high(entry.leg):
                    short[entry.slot.layer, entry.leg].append(entry)
    for (layer, leg), entries in short.items():
        modules = statements.modules_of(place.rank, layer)
        apart = sum(statements.tells_apart(module, leg) for module in modules)
        passes = -(-entries[0].slot.of // len(modules)) if modules else 0
        if len(entries) > apart * passes:
            for entry in entries:
                yield said(Witness.CALL, [entry], float(entry.ran.launches))


def _by_missing_gradients(program: Program, statements: Statements) -> Iterator[Said]:
    """Yield that launches of no known leg are the gradients that layers in low precision lack."""
    unknown = [entry for entry in program.entries if entry.leg is Leg.UNKNOWN]
    gradients = [e for e in program.entries if e.leg in BACKWARD_LEGS]
    forward = [e for e in program.entries if e.leg is Leg.FPROP]
    low = sum(entry.ran.low for entry in forward)
    missing = 2 * low - sum(entry.ran.launches for entry in gradients)
    if unknown and missing > 0 and not any(map(statements.leaves_high, GRADIENT_LEGS)):
        launches = sum(entry.ran.launches for entry in unknown)
        yield said(Witness.CALL, unknown, float(min(launches, missing)), is_sure=False)


def _by_loose_calls(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield that no more gradients of a size ran in high precision than forward products did.

    Which call of a size a gradient belongs to is not certain without numbers, nor to which
    micro-batch: so the step decides. Calls that have their gradients by number are compared call by
    call.
    """
    steps: dict[tuple[int, int, Layer], _ByLeg]
    steps = defaultdict(lambda: defaultdict(list))
    for place, program in ledger.program_of.items():
        if statements.is_high(place):
            continue
        for entry in program.entries:
            one = _Of(Cell(*place, entry.slot.layer, entry.leg), entry)
            steps[place.rank, place.step, entry.slot.layer][entry.leg].append(one)
    for rank, layer, by_leg in _comparable(steps):
        if Leg.UNKNOWN in by_leg or Leg.FPROP not in by_leg:
            continue
        is_vague = Leg.BACKWARD in by_leg and not statements.leaves_high(Leg.BACKWARD)
        groups = [BACKWARD_LEGS] if is_vague else [(leg,) for leg in GRADIENT_LEGS]
        for legs in (*groups, (Leg.RECOMPUTE,)):
            found = [one for leg in legs for one in by_leg.get(leg, ()) if one.is_loose]
            modules = statements.modules_of(rank, layer)
            apart = any(statements.tells_apart(m, leg) for m in modules for leg in legs)
            if found and not apart and not any(map(statements.leaves_high, legs)):
                forward = [one for one in by_leg[Leg.FPROP] if one.lacks(legs)]
                yield from _agree(layer, legs, forward, found)


class _Of(NamedTuple):
    """An entry and its cell."""

    cell: Cell
    entry: Entry

    @property
    def is_loose(self) -> bool:
        """Whether it is not compared with the forward product of its own call."""
        return self.entry.tie is not Tie.NUMBER or self.entry.slot.sort is not Leg.FPROP

    def lacks(self, legs: tuple[Leg, ...]) -> bool:
        """Whether the call of a forward product may have any of these legs, and has none."""
        return self.entry.tie is not Tie.NUMBER or self.entry.beside.isdisjoint(legs)


_Found: TypeAlias = "list[_Of]"
_ByLeg: TypeAlias = "dict[Leg, _Found]"


def _comparable(
    steps: Mapping[tuple[int, int, Layer], _ByLeg],
) -> Iterator[tuple[int, Layer, _ByLeg]]:
    """Yield what ran of each layer in each step; of all together where some have no size.

    What has no size may be what layers lack. Where none lacks a gradient, it is something else.
    """
    joined: dict[tuple[int, int], _ByLeg] = {}
    for (rank, step, layer), by_leg in steps.items():
        if layer is None and (
            Leg.FPROP in by_leg or _lacks_gradients(steps, rank, step)
        ):
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


def _lacks_gradients(
    steps: Mapping[tuple[int, int, Layer], _ByLeg],
    rank: int,
    step: int,
) -> bool:
    """Whether a layer with a size has fewer gradients in a step than forward products."""
    for (of_rank, of_step, layer), by_leg in steps.items():
        if (of_rank, of_step) != (rank, step) or layer is None:
            continue
        forward = _count(by_leg.get(Leg.FPROP, []))[0]
        if any(_count(by_leg.get(leg, []))[0] < forward for leg in GRADIENT_LEGS):
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
    all_ran = _count(found)[0] == each * _count(forward)[0]
    ties = {one.entry.tie for one in (*found, *forward)}
    if layer is not None or all_ran or legs == (Leg.RECOMPUTE,):
        yield _no_more_high(found, forward, each, is_sure=Tie.DELAYED not in ties)
    if all_ran:
        # A frozen teacher's product may be taken for that of a dgrad, which has no wgrad.
        is_sure = max(ties) <= Tie.GRAPH or Leg.WGRAD in legs
        yield _no_more_high(forward, found, 1, is_sure=is_sure)


def _count(found: _Found) -> tuple[float, float, float]:
    """Return launches, those in low and those of unknown precision."""
    ran = [one.entry.ran for one in found]
    launches = sum(one.launches for one in ran)
    low = sum(one.low for one in ran)
    return launches, low, sum(one.unknown for one in ran)


def _no_more_high(
    found: _Found,
    others: _Found,
    each: int,
    *,
    is_sure: bool,
) -> Expected:
    """Expect no more launches in high precision than others had, of each of which some belong."""
    launches, low, unknown = _count(found)
    of_others, low_others, _ = _count(others)
    # Where more ran than the others have, the rest belongs to what is not seen. Compiled code may
    # have recomputed some.
    most = each + 1 if 1 < each < launches / (of_others or 1) else each
    least = min(launches - most * (of_others - low_others), each * low_others)
    cells = tuple(dict.fromkeys(one.cell for one in found))
    figures = launches, low, unknown, least
    return Expected(Witness.CALL, cells, *figures, is_sure=is_sure)


# ---- executions that made other calls


def _by_others(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield half of the usual share of a layer, where executions made other calls of it."""
    layers: dict[tuple[Layer, Leg], list[Cell]] = defaultdict(list)
    for cell in ledger.cells:
        if not statements.is_high(cell.place) and not statements.leaves_high(cell.leg):
            layers[cell.layer, cell.leg].append(cell)
    for cells in layers.values():
        whole = add_up(ledger.cells[cell] for cell in cells)
        for cell in cells:
            ran = ledger.cells[cell]
            of = round(ran.launches)
            if statements.may_be_others(cell.rank, cell.layer, cell.leg, of):
                continue
            if whole.low and not whole.high and ran.unknown:
                # All that is known of the layer ran in low precision.
                figures = ran.launches, ran.low, ran.unknown, ran.launches
                yield Expected(Witness.OTHERS, (cell,), *figures, is_sure=False)
            known = whole.launches - whole.unknown - (ran.launches - ran.unknown)
            share = (whole.low - ran.low) / known if known > 0 else 0.0
            if share < HALF:
                continue
            pinned = statements.pinned(cell.rank)
            least = HALF * share * max(0.0, ran.launches - pinned)
            figures = ran.launches, ran.low, ran.unknown, least
            # Without sizes, other launches may be of other layers.
            is_sure = cell.layer is not None
            yield Expected(Witness.OTHERS, (cell,), *figures, is_sure=is_sure)
