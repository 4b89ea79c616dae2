"""What a module list states of calls without sizes, by hand-built executions."""

from __future__ import annotations

from typing import Any

import pytest

from fp8verify.analysis.calls import Call, Tie
from fp8verify.terms import Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.expectation import Expected
from fp8verify.verdict.ledger import Layer, Place
from fp8verify.verdict.listed import by_list
from tests.unit.test_ledger import DOWN, HIGH, LOW, UP, Module, call, nothing, whole
from tests.unit.test_peers import ledger_of

F, D, W = Leg.FPROP, Leg.DGRAD, Leg.WGRAD
FIRST = Place(0, 0, 0)


def stated(
    leg: Leg, calls: list[Call], modules: dict[Layer, list[Module]], **said: Any
) -> list[tuple[float, tuple[str, ...], bool]]:
    """Return what a list states of a leg of calls without sizes: how many, which, how surely."""
    statements = nothing(modules=modules, **said)
    statements.sizes = lambda _: [layer for layer in modules if layer is not None]
    program = ledger_of([calls]).program_of[FIRST]
    found: list[Expected] = []
    for one in by_list(program, FIRST, statements):
        if one.where == ((None, leg),) and one.expected.least:
            found.append(one.expected)
    return [(one.least, one.names, one.is_sure) for one in found]


def without_size(leg: Leg, count: int) -> list[Call]:
    return [call({leg: HIGH}, None)] * count


def listed(*names: str) -> list[Module]:
    return [Module(name) for name in names]


# A call of another size, of which the list has no module: so that other products are among these.
OTHER = whole(LOW, (8, 8))


@pytest.mark.parametrize(("calls", "least"), [(2, []), (3, [3.0]), (4, [3.0])])
def test_as_many_calls_as_modules_have_all_of_them(
    calls: int, least: list[float]
) -> None:
    modules: dict[Layer, list[Module]] = {None: listed("a", "b", "c")}
    found = stated(F, [OTHER, *without_size(F, calls)], modules)
    assert [one[0] for one in found] == least


def test_the_first_layers_may_have_no_dgrad() -> None:
    names = [f"blocks.{number}" for number in range(FIRST_LAYERS + 2)]
    modules: dict[Layer, list[Module]] = {None: listed(*names)}
    found = stated(D, [OTHER, *without_size(D, len(names))], modules)
    assert [one[0] for one in found] == [2.0]
    found = stated(W, [OTHER, *without_size(W, len(names))], modules)
    assert [one[0] for one in found] == [len(names)]


@pytest.mark.parametrize(
    ("forward", "gradients", "last", "told"),
    [
        (5, 12 - FIRST_LAYERS, "down", [(5.0, (), False)]),
        (5, 11 - FIRST_LAYERS, "down", []),
        (5, 12 - FIRST_LAYERS, "high", []),
        (0, 12 - FIRST_LAYERS, "down", []),
    ],
)
def test_fewer_products_than_modules_beside_all_gradients_are_doubted(
    forward: int, gradients: int, last: str, told: list[tuple[float, Any, bool]]
) -> None:
    modules: dict[Layer, list[Module]] = {None: listed("a", "b", "c", "d", "e", last)}
    calls = [*without_size(F, forward), *without_size(W, gradients)]
    assert stated(F, [OTHER, *calls], modules) == told


TWO_AND_ONE: dict[Layer, list[Module]] = {
    None: listed("up.0", "up.1", "down"),
    UP: listed("up.0", "up.1"),
    DOWN: listed("down"),
}


@pytest.mark.parametrize(
    ("ups", "downs", "without", "told"),
    [
        (2, 0, 1, [(1.0, ("down",), True)]),
        (2, 0, 2, [(1.0, ("down",), False)]),
        (1, 1, 1, [(1.0, (), True)]),  # of two modules one, and nobody knows which
        (0, 0, 2, [(2.0, ("up.0", "up.1", "down"), False)]),
        (3, 0, 1, []),  # some ran more than once
        (2, 1, 1, []),
    ],
)
def test_calls_without_a_size_are_of_modules_that_no_call_can_be(
    ups: int, downs: int, without: int, told: list[tuple[float, Any, bool]]
) -> None:
    calls = [call({F: LOW}, UP)] * ups + [call({F: LOW}, DOWN)] * downs
    calls = [OTHER, *calls, *without_size(F, without)]
    assert stated(F, calls, TWO_AND_ONE) == told


ALL, NO_DGRAD = (F, D, W), (F, W)


@pytest.mark.parametrize(
    ("tie", "calls", "are_told"),
    [
        (Tie.SIZE, [ALL, ALL, ALL], True),
        (Tie.SIZE, [NO_DGRAD, ALL, ALL], True),  # the first layer of a model
        (Tie.SIZE, [NO_DGRAD, NO_DGRAD, ALL], False),
        (Tie.NUMBER, [NO_DGRAD, NO_DGRAD, ALL], True),
    ],
)
def test_gradients_in_the_order_of_the_list_are_told_where_all_have_as_many(
    tie: Tie, calls: list[tuple[Leg, ...]], are_told: bool
) -> None:
    """Else recomputed products may have been taken for some of them."""
    modules = listed("blocks.0.up", "blocks.1.up", "blocks.2.up")
    ran = [call(dict.fromkeys(legs, HIGH), UP, tie) for legs in calls]
    statements = nothing(in_order=[((0, 1, 2), modules)])
    program = ledger_of([ran]).program_of[FIRST]
    told = {leg for one in by_list(program, FIRST, statements) for _, leg in one.where}
    assert told == (set(ALL) if are_told else {F})
