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
from collections.abc import Iterator, Sequence

from fp8verify.analysis.calls import Tie
from fp8verify.analysis.kinds import grouped
from fp8verify.terms import LEGS, Leg
from fp8verify.verdict.expectation import (
    Expected,
    Said,
    Witness,
    all_but,
    equal_steps,
    launches_of,
    leg_of,
    said,
)
from fp8verify.verdict.ledger import Entry, Ledger, Place, Program
from fp8verify.verdict.legs_agree import by_call, by_loose_calls, by_missing_gradients
from fp8verify.verdict.listed import by_list, by_list_of_steps
from fp8verify.verdict.peers import Peers, by_others
from fp8verify.verdict.statements import Statements


def expectations(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    """Yield what all witnesses expect of a ledger, but for what is excused."""
    for one in _of_all_witnesses(ledger, statements):
        if not one.is_excused(statements):
            yield one


def _of_all_witnesses(ledger: Ledger, statements: Statements) -> Iterator[Expected]:
    peers = Peers(ledger, statements)
    for program in ledger.programs:
        # Executions of ranks with equal lists, that are compared alike, are judged as one.
        by_context: dict[object, list[Place]] = defaultdict(list)
        for place in program.places:
            context = statements.context(place.rank)
            scope = peers.scope(place.rank)
            by_context[context, scope].append(place)
        for alike in by_context.values():
            place = alike[0]
            found = [
                *by_list(program, place, statements),
                *_by_log(program, place, statements),
                *peers.of(program, place),
                *by_call(program, place, statements),
                *by_missing_gradients(program, statements),
            ]
            for place in alike:
                for stated in found:
                    yield stated.at(place)
    steps = list(equal_steps(ledger, statements))
    yield from by_list_of_steps(steps, statements)
    yield from by_loose_calls(steps, statements)
    yield from by_others(ledger, statements)


# ---- the log


def _by_log(
    program: Program,
    place: Place,
    statements: Statements,
) -> Iterator[Said]:
    """Yield what the log states of blocks and counts, without a module list."""
    by_leg = grouped(program.entries, leg_of)
    forward = len(program.forward_calls)
    modules = statements.modules_of(place.rank, None)
    is_frozen = any(module.frozen for module in modules)
    for leg in LEGS:
        # Frozen weights have no wgrad: other layers' gradients are taken for theirs.
        is_sure = leg is Leg.FPROP or not is_frozen
        yield from _by_counts(
            by_leg[leg],
            forward,
            statements,
            is_sure=is_sure,
        )
    for entries in program.by_layer.values():
        if any(entry.is_low for entry in entries):
            free = _outside_of_pins(entries, statements)
            least = float(launches_of(free))
            yield said(Witness.LOG, free, least)
    left_out = statements.left_out(place.rank)
    if left_out is not None:
        for leg in LEGS:
            yield from _all_but_left_out(by_leg[leg], left_out)


def _by_counts(
    entries: Sequence[Entry],
    forward: int,
    statements: Statements,
    *,
    is_sure: bool,
) -> Iterator[Said]:
    """Yield how many launches of a leg run low, as the log counts the layers."""
    for claim in statements.counts:
        converted = claim.converted or 0
        total = claim.total or forward
        if total < converted:
            continue  # of other ranks, or layers that never ran
        # Of how many layers is not known: what ran beyond them may stand for one that never ran.
        is_exact = claim.total is not None or forward == converted
        # In an execution each layer ran once, unless all ran equally often.
        passes = 1 if forward % total else forward // total
        # Gradients that are not there may be those of converted layers.
        left_out = passes * (total - converted)
        # What ran beyond the layers of the log is of others.
        high = max(left_out, forward - passes * converted)
        least = all_but(entries, high)
        are_told = not any(map(_may_be_of_other_legs, entries))
        yield said(
            Witness.COUNT,
            entries,
            least,
            is_sure=is_sure and is_exact and are_told and forward >= total,
        )


def _may_be_of_other_legs(entry: Entry) -> bool:
    """Whether the order alone gives several launches to a leg: one may be of the other gradient."""
    has_order_alone = entry.slot.layer is None and entry.tie is not Tie.NUMBER
    return has_order_alone and entry.ran.launches > 1


def _all_but_left_out(entries: Sequence[Entry], left_out: int) -> Iterator[Said]:
    """Yield that all layers but so many run in low precision, if others of their size do."""
    low = [entry for entry in entries if entry.is_low]
    low_layers = {entry.slot.layer for entry in low}
    mixed = [entry for entry in entries if entry.slot.layer in low_layers]
    wholly_high = len(entries) - len(mixed)
    may_be_high = max(0, left_out - wholly_high)
    least = all_but(mixed, may_be_high)
    yield said(Witness.LOG, mixed, least)


def _outside_of_pins(entries: Sequence[Entry], statements: Statements) -> list[Entry]:
    """Return the entries of blocks that the log does not keep in high precision."""
    blocks = statements.blocks
    if blocks is None:
        return []
    return [entry for entry in entries if blocks.has_free(entry.slot)]
