"""What a module list states of calls, by hand-built executions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fp8verify.analysis.calls import Call, Execution, Ran, Tie
from fp8verify.terms import Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.expectation import Expected, Said, Witness, equal_steps
from fp8verify.verdict.ledger import Layer, Ledger, Place
from fp8verify.verdict.listed import by_list, by_list_of_steps
from tests.unit.test_ledger import DOWN, HIGH, LOW, UP, Module, call, nothing, whole
from tests.unit.test_peers import ledger_of

F, D, W, B, U = Leg.FPROP, Leg.DGRAD, Leg.WGRAD, Leg.BACKWARD, Leg.UNKNOWN
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
        (6, 12 - FIRST_LAYERS, "down", [(6.0, (), True)]),  # as many: no doubt
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


def test_where_no_call_has_a_size_none_is_missing() -> None:
    assert stated(F, without_size(F, 2), TWO_AND_ONE) == []


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


@pytest.mark.parametrize(
    ("beside", "are_told"),
    [
        ([], True),  # no call has the sizes exchanged
        ([call({F: LOW}, DOWN)], False),  # its dgrad may be among these gradients
    ],
)
def test_gradients_of_open_legs_are_in_order_unless_a_layer_has_the_sizes_exchanged(
    beside: list[Call], are_told: bool
) -> None:
    modules = listed("blocks.0.up", "blocks.1.up")
    statements = nothing(in_order=[((0, 1), modules)])
    calls = [either_gradient(UP, 2), either_gradient(UP, 2), *beside]
    assert told_legs(everything(calls, statements)) == ({F, B} if are_told else {F})


def test_gradients_of_known_legs_are_in_order_beside_a_layer_with_the_sizes_exchanged() -> (
    None
):
    statements = nothing(in_order=[((0, 1), listed("blocks.0.up", "blocks.1.up"))])
    ran = call(dict.fromkeys(ALL, HIGH), UP, Tie.SIZE)
    found = everything([ran, ran, call({F: LOW}, DOWN)], statements)
    assert told_legs(found) == set(ALL)


def test_gradients_of_a_square_layer_are_in_order() -> None:
    statements = nothing(in_order=[((0, 1), listed("blocks.0.up", "blocks.1.up"))])
    square = either_gradient((16, 16), 2)
    assert told_legs(everything([square, square], statements)) == {F, B}


def everything(calls: list[Call], statements: Any) -> list[Said]:
    """Return all that a list states of an execution."""
    return list(by_list(ledger_of([calls]).program_of[FIRST], FIRST, statements))


def told_legs(found: list[Said]) -> set[Leg]:
    return {leg for one in found for _, leg in one.where}


def either_gradient(layer: Layer, launches: int) -> Call:
    """Return a call in high precision with launches of which each may be dgrad or wgrad."""
    gradients = Ran(launches, 0, 0, 8.0 * launches, HIGH)
    return Call(None, layer, ((F, Ran(1, 0, 0, 8.0, HIGH)), (B, gradients)), Tie.SIZE)


# ---- calls with sizes


def test_of_a_leg_that_the_recipe_keeps_high_a_list_states_nothing() -> None:
    statements = nothing(modules={UP: listed("up")}, high_legs={W})
    assert told_legs(everything([whole(HIGH)], statements)) == {F, D}


def test_of_gradients_that_may_be_of_a_high_leg_the_others_are_stated() -> None:
    statements = nothing(modules={UP: listed("up")}, high_legs={W, B})
    found = everything([either_gradient(UP, 2)], statements)
    assert [one.expected.least for one in found if one.where == ((UP, B),)] == [1.0]


def test_recomputed_products_may_be_among_gradients_of_open_legs() -> None:
    """One of five: two gradients of the high module, and that product if it is of no block."""
    statements = nothing(modules={UP: listed("blocks.0.up", "high")})
    found = everything([either_gradient(UP, 2), either_gradient(UP, 3)], statements)
    (stated_of,) = (one.expected for one in found if one.where == ((UP, B),))
    assert (stated_of.least, stated_of.perhaps) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("names", "are_ordered", "perhaps"),
    [
        (("blocks.0.up", "high"), True, 3.0),
        (("experts.0.up", "high"), False, 3.0),
        (("experts.0.up", "high"), True, 0.0),
    ],
)
def test_only_experts_in_the_order_of_the_list_are_read_without_doubt(
    names: tuple[str, ...], are_ordered: bool, perhaps: float
) -> None:
    modules = listed(*names)
    order = [((0, 1), modules)] if are_ordered else []
    statements = nothing(modules={UP: modules}, in_order=order)
    found = everything([either_gradient(UP, 2), either_gradient(UP, 3)], statements)
    of_sizes = [one.expected for one in found if one.expected.by is Witness.MODULES]
    assert [one.perhaps for one in of_sizes if one.launches == 5] == [perhaps]


@pytest.mark.parametrize(
    ("calls", "of_gradients"),
    [
        ([whole(HIGH), whole(HIGH, DOWN)], {((UP, D),), ((DOWN, D),), ((UP, W),), ((DOWN, W),)}),
        ([either_gradient(UP, 2), either_gradient(DOWN, 2)], {((UP, B), (DOWN, B))}),
    ],
)  # fmt: skip
def test_layers_with_sizes_exchanged_are_counted_together_where_legs_are_open(
    calls: list[Call], of_gradients: set[Any]
) -> None:
    statements = nothing(modules={UP: listed("up"), DOWN: listed("down")})
    found = {one.where for one in everything(calls, statements)}
    assert found == {((UP, F),), ((DOWN, F),)} | of_gradients


# ---- calls without sizes that may be all of the model's


def test_more_gradients_of_a_known_leg_than_calls_are_no_pass() -> None:
    calls = [call({F: HIGH, W: HIGH}, None), call({W: HIGH}, None)]
    assert stated(W, calls, {None: listed("up")}) == [(1.0, (), True)]


@pytest.mark.parametrize(("forward", "is_sure"), [(0, True), (1, False)])
def test_launches_of_no_known_leg_are_surely_a_pass_where_they_are_all(
    forward: int, is_sure: bool
) -> None:
    calls = [*without_size(F, forward), *without_size(U, 3)]
    found = stated(U, calls, {None: listed("up")})
    assert [sure for least, _, sure in found if least == 3.0] == [is_sure]


def test_gradients_of_a_known_leg_lack_no_more_than_the_list_has_beside_open_ones() -> (
    None
):
    both = [call({F: LOW, D: HIGH}, None)] * 2
    calls = [*both, call({B: HIGH}, None)]
    assert stated(D, calls, {None: listed("up", "high")}) == [(1.0, (), True)]


@pytest.mark.parametrize(
    ("leg", "size", "are_told"), [(U, None, True), (U, UP, False), (F, None, False)]
)
def test_only_launches_of_no_leg_and_no_size_are_a_replay_in_order(
    leg: Leg, size: Layer, are_told: bool
) -> None:
    (module,) = listed("up")
    parts = [SimpleNamespace(legs=[(module, F)])]
    found = everything([call({leg: HIGH}, size)], nothing(replay=parts))
    assert [one.expected.names for one in found] == [("up",)] * are_told


@pytest.mark.parametrize(("low", "are_told"), [(0, True), (1, True), (2, False)])
def test_a_replay_with_more_in_low_precision_than_the_list_has_is_in_no_order(
    low: int, are_told: bool
) -> None:
    up, high = listed("up", "high")
    part = SimpleNamespace(legs=[(up, F), (high, F)])
    calls = [call({U: LOW}, None)] * low + [call({U: HIGH}, None)] * (2 - low)
    found = everything(calls, nothing(replay=[part]))
    assert [one.expected.least for one in found] == [1.0] * are_told


# ---- steps whose executions call one module each


def of_steps(*executions: list[Call], **said: Any) -> dict[Leg, tuple[float, Any]]:
    """Return what a list states of a step whose micro-batches are given, by leg."""
    step = [Execution(0, n, tuple(calls), ()) for n, calls in enumerate(executions)]
    statements = nothing(**said)
    steps = equal_steps(Ledger([step]), statements)
    found = by_list_of_steps(steps, statements)
    return {one.cells[0].leg: (one.least, one.names) for one in found}


LOW_AND_HIGH: dict[Layer, list[Module]] = {UP: listed("up", "high")}
ONE_OF_TWO = (1.0, ("up",))


def test_of_a_step_that_calls_each_module_once_all_legs_are_stated() -> None:
    found = of_steps([whole(HIGH)], [whole(HIGH)], modules=LOW_AND_HIGH)
    assert found == dict.fromkeys(ALL, ONE_OF_TWO)


@pytest.mark.parametrize(
    "modules", [{UP: listed("up")}, {UP: listed("up", "down", "high")}]
)
def test_of_a_step_that_calls_more_or_fewer_than_the_list_nothing_is_stated(
    modules: dict[Layer, list[Module]],
) -> None:
    assert of_steps([whole(HIGH)], [whole(HIGH)], modules=modules) == {}


def test_of_a_step_with_calls_that_lack_a_gradient_the_others_are_stated() -> None:
    no_wgrad = call({F: HIGH, D: HIGH})
    found = of_steps([whole(HIGH)], [no_wgrad], modules=LOW_AND_HIGH)
    assert found == {F: ONE_OF_TWO, D: ONE_OF_TWO}


def test_of_a_step_nothing_is_stated_of_a_leg_that_is_kept_high_or_open() -> None:
    executions = [whole(HIGH)], [whole(HIGH)]
    found = of_steps(*executions, modules=LOW_AND_HIGH, high_legs={W})
    assert set(found) == {F, D}
    open_legs = [either_gradient(UP, 2)], [either_gradient(UP, 2)]
    assert set(of_steps(*open_legs, modules=LOW_AND_HIGH)) == {F}


def test_of_an_execution_that_calls_all_modules_its_step_states_nothing() -> None:
    assert of_steps([whole(HIGH), whole(HIGH)], modules=LOW_AND_HIGH) == {}
