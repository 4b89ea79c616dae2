"""What executions of the same calls say of each other, by hand-built ledgers."""

from __future__ import annotations

from typing import Any

import pytest

from fp8verify.analysis.calls import Call, Execution, Ran, Tie
from fp8verify.terms import Leg
from fp8verify.verdict.expectation import Expected
from fp8verify.verdict.ledger import Ledger, Place
from fp8verify.verdict.peers import Peers, by_others
from tests.unit.test_ledger import (
    DOWN,
    HIGH,
    LOW,
    UNKNOWN,
    UP,
    call,
    lacking,
    nothing,
    whole,
)

F, D, W, B = Leg.FPROP, Leg.DGRAD, Leg.WGRAD, Leg.BACKWARD


def ledger_of(*ranks: list[list[Call]]) -> Ledger:
    """Return the ledger of ranks whose steps have one micro-batch each."""
    return Ledger(
        [
            [Execution(step, 0, tuple(calls), ()) for step, calls in enumerate(steps)]
            for steps in ranks
        ]
    )


def said_of(ledger: Ledger, rank: int, step: int, **said: Any) -> list[Expected]:
    """Return what the others say of one execution."""
    statements = nothing(**said)
    statements.pinned = lambda _: said.get("pinned", 0)
    place = Place(rank, step, 0)
    peers = Peers(ledger, statements)
    return [one.expected for one in peers.of(ledger.program_of[place], place)]


def counts(found: list[Expected]) -> list[tuple[float, float, bool]]:
    """Return how many launches are expected in FP8, how many were, and whether surely."""
    return [(one.least, one.low, one.is_sure) for one in found]


def vague(low: int) -> Call:
    """Return a call of which either gradient may be dgrad; so many of them ran in FP8."""
    gradients = Ran(2, low, 0, 16.0, LOW if low == 2 else HIGH)
    return Call(None, UP, ((F, Ran(1, 1, 0, 8.0, LOW)), (B, gradients)), Tie.NUMBER)


def told_apart(low: int) -> Call:
    """Return the same call where each gradient is known."""
    return call({F: LOW, D: LOW, W: LOW if low == 2 else HIGH})


def test_ranks_that_run_alike_are_compared_once_and_surely() -> None:
    ledger = ledger_of([[whole(LOW)]], [[whole(LOW, wgrad=HIGH)]])
    assert counts(said_of(ledger, 1, 0)) == [(1, 0, True)]
    assert said_of(ledger, 0, 0) == []


def test_what_others_ran_is_expected_whatever_leg_the_recipe_keeps() -> None:
    """Of two gradients that may be either it keeps one, in each execution."""
    statements = nothing(high_legs={W, B})
    found = lacking([[vague(1)], [vague(0)], [vague(1)]], statements=statements)
    assert {(cell.step, cell.leg) for cell in found.lacks} == {(1, B)}


def test_ranks_that_may_be_other_stages_are_compared_in_doubt() -> None:
    ledger = ledger_of([[whole(LOW)]], [[whole(LOW, wgrad=HIGH)]])
    assert counts(said_of(ledger, 1, 0, alike=False)) == [(1, 0, False)]


def test_steps_of_a_rank_are_compared_surely_whatever_the_others_are() -> None:
    ledger = ledger_of([[whole(LOW)], [whole(LOW, wgrad=HIGH)]])
    found = said_of(ledger, 0, 1, alike=False)
    assert counts(found) == [(1, 0, False), (1, 0, True)]


@pytest.mark.parametrize(("pinned", "told"), [(0, 2), (1, 2), (2, 0)])
def test_as_many_calls_as_the_log_keeps_high_may_be_those(
    pinned: int, told: int
) -> None:
    short = [whole(LOW, wgrad=HIGH), whole(LOW, wgrad=HIGH), whole(LOW)]
    ledger = ledger_of([[whole(LOW)] * 3, short])
    assert len(said_of(ledger, 0, 1, pinned=pinned)) == told


def test_gradients_are_compared_as_one_where_their_legs_are_not_known() -> None:
    ledger = ledger_of([[told_apart(2)], [vague(1)]])
    assert counts(said_of(ledger, 0, 1)) == [(2, 1, True)]
    ledger = ledger_of([[vague(2)], [told_apart(1)]])
    assert counts(said_of(ledger, 0, 1)) == [(2, 1, True)]


def test_what_a_leg_lacks_is_not_said_again_of_its_call() -> None:
    ledger = ledger_of([[vague(2)], [vague(1)]])
    assert counts(said_of(ledger, 0, 1)) == [(2, 1, True)]


@pytest.mark.parametrize(("pinned", "told"), [(0, 2), (1, 2), (2, 0)])
def test_as_many_gradients_as_the_log_keeps_high_may_be_those(
    pinned: int, told: int
) -> None:
    ledger = ledger_of([[told_apart(2)] * 2, [vague(1)] * 2])
    assert len(said_of(ledger, 0, 1, pinned=pinned)) == told


def test_a_layer_that_alone_is_called_in_other_numbers_is_of_experts() -> None:
    """Its slots are those of other modules; of the layer beside it they are not."""
    dealt = [[whole(LOW)] * count + [whole(LOW, DOWN)] for count in (2, 2, 1)]
    short = [whole(LOW, wgrad=HIGH), whole(LOW), whole(LOW, DOWN, wgrad=HIGH)]
    ledger = ledger_of([*dealt, short])
    assert counts(said_of(ledger, 0, 3)) == [(1, 0, False), (1, 0, True)]


def test_where_all_layers_are_called_in_other_numbers_none_is_sure() -> None:
    """Without sizes all layers are one, and calls experts that take turns, by chance equally many."""
    short = [whole(LOW), whole(LOW, wgrad=HIGH)]
    steps = [*[[whole(LOW)] * 2] * 3, short, [whole(LOW)]]
    assert counts(said_of(ledger_of(steps), 0, 3)) == [(1, 0, False)]


@pytest.mark.parametrize(
    ("size", "tie", "told"),
    [
        (None, Tie.NUMBER, 1),
        (None, Tie.SIZE, 0),
        (UP, Tie.NUMBER, 1),
        (UP, Tie.SIZE, 0),
    ],
)
def test_gradients_of_which_the_order_alone_tells_the_call_are_one_sum(
    size: tuple[int, int] | None, tie: Tie, told: int
) -> None:
    one_each = call({F: LOW, D: LOW, W: HIGH}, size, tie)
    both = vague(2)._replace(size=size, tie=tie)
    neither = vague(0)._replace(size=size, tie=tie)
    ledger = ledger_of([[one_each] * 2, [both, neither]])
    assert len(said_of(ledger, 0, 0)) == told


def half_of(*steps: list[Call]) -> list[tuple[int, Leg, float, bool]]:
    """Return what executions that made other calls say: of which step and leg, how many."""
    return [
        (one.cells[0].step, one.cells[0].leg, one.least, one.is_sure)
        for one in by_others(ledger_of(list(steps)), nothing())
    ]


def test_half_of_the_usual_share_is_expected_of_a_layer() -> None:
    found = half_of([call({F: LOW})] * 4, [call({F: HIGH})] * 2)
    assert found == [(1, F, 1.0, True)]


def test_a_share_of_just_a_half_is_usual() -> None:
    usual = [call({F: LOW}), call({F: HIGH})]
    found = half_of(usual, [call({F: HIGH})])
    assert (1, F, 0.25, True) in found


def test_launches_whose_precision_is_not_known_say_nothing_of_others() -> None:
    assert half_of([call({F: UNKNOWN})], [call({F: HIGH})] * 2) == []
