"""What the entries of a ledger lack, by each of the witnesses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fp8verify.analysis.calls import Call, Execution, Ran, Tie
from fp8verify.terms import Leg, Precision
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.ledger import Ledger
from fp8verify.verdict.shortfalls import Shortfalls
from fp8verify.verdict.statements import legs_of
from fp8verify.verdict.witnesses import expectations

F, D, W, R, B = Leg.FPROP, Leg.DGRAD, Leg.WGRAD, Leg.RECOMPUTE, Leg.BACKWARD
UP, DOWN = (64, 16), (16, 64)
LOW, HIGH, UNKNOWN = Precision.FP8, Precision.BF16, Precision.UNKNOWN


def nothing(**said: Any) -> Any:
    """Return statements of a run of which nothing is stated, but for what a test says."""
    high_steps = said.get("high_steps", ())
    high_legs = said.get("high_legs", ())
    modules = said.get("modules", {})
    return SimpleNamespace(
        alike=said.get("alike", True),
        blocks=None,
        context=lambda _: 0,
        sizes=lambda _: [],
        is_high=lambda place: place.step in high_steps,
        leaves_high=high_legs.__contains__,
        modules_of=lambda _, layer: modules.get(layer, []),
        is_low=lambda module, leg: module.fqn != "high" and leg not in high_legs,
        low_legs=lambda listed, leg: sum(
            m.fqn != "high"
            for m in listed
            for each in legs_of(leg)
            if each not in high_legs
        ),
        has_experts=lambda _: said.get("has_experts", False),
        order_of_replay=lambda *_: said.get("replay", []),
        may_be_high=lambda listed, _: [m for m in listed if m.fqn == "high"],
        told_apart=lambda *_: 0,
        may_be_others=lambda *_: False,
        in_order=lambda *_: said.get("in_order", []),
        counts=said.get("counts", []),
        pinned=lambda _: 0,
        left_out=lambda _: said.get("heads"),
    )


class Module:
    frozen = False

    def __init__(self, fqn: str) -> None:
        self.fqn = fqn


def call(
    legs: dict[Leg, Precision], size: tuple[int, int] | None = UP, tie: Tie = Tie.NUMBER
) -> Call:
    """Return a call with a launch of each leg, of as much work."""
    ran = []
    for leg, precision in legs.items():
        low = int(precision.is_low)
        unknown = int(precision is UNKNOWN)
        ran.append((leg, Ran(1, low, unknown, 8.0, precision)))
    return Call(None, size, tuple(ran), tie)


def whole(
    precision: Precision, size: tuple[int, int] | None = UP, **legs: Precision
) -> Call:
    """Return a call whose legs ran in one precision, but for some."""
    ran = {leg: legs.get(leg.value, precision) for leg in (F, D, W)}
    return call(ran, size)


def lacking(*ranks: list[list[Call]], statements: Any = None) -> Shortfalls:
    """Return what steps lack; each has one micro-batch."""
    executions = [
        [Execution(step, 0, tuple(calls), ()) for step, calls in enumerate(steps)]
        for steps in ranks
    ]
    return Shortfalls(Ledger(executions), statements or nothing())


def where(found: Shortfalls) -> set[tuple[int, int, Leg]]:
    return {(cell.rank, cell.step, cell.leg) for cell in found.lacks}


@pytest.mark.parametrize("leg", [F, D, W])
def test_the_legs_of_a_call_agree(leg: Leg) -> None:
    calls = [whole(LOW), whole(LOW, **{leg.value: HIGH}), whole(HIGH)]
    found = lacking([calls])
    assert where(found) == {(0, 0, leg)}
    assert [set(lack.by) for lack in found.lacks.values()] == [{Witness.CALL}]


def test_a_leg_that_the_recipe_keeps_high_lacks_nothing() -> None:
    calls = [whole(LOW, wgrad=HIGH)]
    assert not lacking([calls], statements=nothing(high_legs={W})).lacks


def test_a_layer_that_is_high_in_all_legs_lacks_nothing_where_nothing_states_it() -> (
    None
):
    assert not lacking([[whole(LOW), whole(HIGH), whole(LOW)]]).lacks


def test_the_same_slot_of_another_execution_is_expected() -> None:
    sound = [whole(LOW), whole(LOW), whole(HIGH, DOWN)]
    missed = [whole(LOW), whole(HIGH), whole(HIGH, DOWN)]
    assert where(lacking([sound, missed, sound])) == {(0, 1, leg) for leg in (F, D, W)}
    assert where(lacking([sound], [missed])) == {(1, 0, leg) for leg in (F, D, W)}


def test_stages_of_a_pipeline_are_only_doubted() -> None:
    stages = [[whole(LOW, None)]], [[whole(HIGH, None)]]
    found = lacking(*stages, statements=nothing(alike=False))
    assert {cell.rank for cell in found.lacks} == set()
    assert {cell.rank for cell in found.may_lack} == {1}


def test_a_step_that_the_log_keeps_high_is_no_peer_and_lacks_nothing() -> None:
    steps = [[whole(HIGH)], [whole(LOW)]]
    assert where(lacking(steps))
    assert not lacking(steps, statements=nothing(high_steps={0})).lacks


def test_calls_are_compared_where_as_many_ran() -> None:
    """An image's projector has the size of a layer, and runs where a batch has images."""
    with_image = [whole(HIGH), whole(LOW), whole(LOW)]
    without = [whole(LOW), whole(LOW)]
    assert not lacking([with_image, without, with_image, without]).lacks


def test_of_executions_that_made_other_calls_half_is_expected() -> None:
    usual = [whole(LOW), whole(LOW), whole(LOW)]
    assert not lacking([usual, [whole(LOW), whole(HIGH)]]).lacks
    assert where(lacking([usual, [whole(HIGH), whole(HIGH)]])) == {
        (0, 1, leg) for leg in (F, D, W)
    }


@pytest.mark.parametrize("size", [UP, None])
def test_gradients_that_the_order_gives_to_other_calls_are_compared_together(
    size: tuple[int, int] | None,
) -> None:
    """One dgrad in BF16 has a known leg, so that the rest is paired otherwise."""

    def made(*gradients: tuple[Leg, int, int]) -> Call:
        forward = (F, Ran(1, 1, 0, 8.0, LOW))
        legs = [
            (leg, Ran(launches, low, 0, 8.0 * launches, LOW))
            for leg, launches, low in gradients
        ]
        return Call(None, size, (forward, *legs), Tie.GRAPH)

    sound = [made((B, 2, 2)), made((B, 2, 2))]
    missed = [made((B, 3, 3)), made((D, 1, 0))]
    found = lacking([sound, missed, sound])
    assert {cell.step for cell in found.lacks} == {1}
    assert Witness.EXECUTIONS in set.union(
        *(set(one.by) for one in found.lacks.values())
    )


def test_the_module_that_the_order_names_lacks_and_no_other_of_its_size() -> None:
    first, second = Module("first"), Module("second")
    statements = nothing(
        modules={UP: [first, second]}, in_order=[([0], [first]), ([1], [second])]
    )
    found = lacking([[whole(LOW), whole(HIGH)]], statements=statements)
    assert {lack.names for lack in found.lacks.values()} == {("second",)}


@pytest.mark.parametrize(
    ("high", "modules", "lacks"),
    [(1, ["low", "low", "low"], 1), (1, ["low", "low", "high"], 0),
     (2, ["low", "low", "high"], 1), (3, ["high", "high", "high"], 0)],
)  # fmt: skip
def test_a_list_is_counted_exactly(high: int, modules: list[str], lacks: int) -> None:
    listed = {UP: [Module(name) for name in modules]}
    calls = [whole(HIGH)] * high + [whole(LOW)] * (3 - high)
    found = lacking([calls], statements=nothing(modules=listed))
    assert {lack.launches for lack in found.lacks.values()} == ({lacks} - {0})
    assert all(lack.is_stated for lack in found.lacks.values())


@pytest.mark.parametrize(("high", "lacks"), [(0, 0), (1, 1)])
def test_a_list_is_exact_without_sizes_though_the_first_layer_lacks_dgrad(
    high: int, lacks: int
) -> None:
    listed = {None: [Module(name) for name in ("low", "low", "low")]}
    first = call({F: LOW, W: LOW}, None)
    calls = [first, whole(LOW, None), whole(LOW, None, dgrad=HIGH if high else LOW)]
    found = lacking([calls], statements=nothing(modules=listed))
    stated = [lack for lack in found.lacks.values() if lack.is_stated]
    assert [lack.launches for lack in stated] == [1] * lacks


def test_single_experts_without_sizes_are_not_counted() -> None:
    """Routers that no module is may have run beside some of the experts."""
    listed = {None: [Module("experts.0.up"), Module("experts.1.up")]}
    statements = nothing(modules=listed, has_experts=True)
    assert not lacking(
        [[whole(LOW, None), whole(HIGH, None)]], statements=statements
    ).lacks


def test_the_order_of_a_replay_names_what_lacks() -> None:
    one, two = Module("one"), Module("two")
    parts = [[(one, F)], [(two, F)], [(two, D), (two, W)], [(one, W)]]
    statements = nothing(
        modules={None: [one, two]}, replay=[SimpleNamespace(legs=p) for p in parts]
    )
    ran = [LOW, LOW, LOW, HIGH, LOW]
    calls = [call({Leg.UNKNOWN: p}, None, Tie.NOTHING) for p in ran]
    (lack,) = lacking([calls], statements=statements).lacks.values()
    assert (lack.launches, lack.names) == (1, ("two",))


def test_layers_that_did_not_run_lack_nothing() -> None:
    """Under LayerDrop, one of two calls may be of the module that stays high."""
    listed = {UP: [Module(name) for name in ("low", "low", "low", "high")]}
    calls = [whole(HIGH), whole(LOW)]
    assert not lacking([calls], statements=nothing(modules=listed)).lacks


@pytest.mark.parametrize(("converted", "lacks"), [(2, 0), (3, 1)])
def test_a_count_in_the_log_is_exact(converted: int, lacks: int) -> None:
    calls = [whole(LOW), whole(LOW), whole(HIGH), whole(HIGH, DOWN)]
    claim = SimpleNamespace(converted=converted, total=4)
    found = lacking([calls], statements=nothing(counts=[claim]))
    assert [lack.launches for lack in found.lacks.values()] == [1.0] * 3 * lacks


@pytest.mark.parametrize(
    ("converted", "beside", "lacks", "doubted"),
    [
        (4, LOW, 3, 3),  # each call is of a converted layer
        # The call beyond may be of another layer, in place of a converted one that never ran.
        (3, HIGH, 0, 3),
        (2, HIGH, 0, 0),
        (5, LOW, 0, 0),  # of other ranks, or layers that never ran
    ],
)
def test_a_count_of_converted_layers_alone_states_all_that_it_reaches(
    converted: int, beside: Precision, lacks: int, doubted: int
) -> None:
    calls = [whole(LOW), whole(LOW), whole(HIGH), whole(beside, DOWN)]
    claim = SimpleNamespace(converted=converted, total=None)
    found = lacking([calls], statements=nothing(counts=[claim]))
    assert (len(found.lacks), len(found.may_lack)) == (lacks, doubted)


@pytest.mark.parametrize(
    ("size", "tie", "is_sure"),
    [(None, Tie.GRAPH, False), (UP, Tie.GRAPH, True), (None, Tie.NUMBER, True)],
)
def test_a_count_accuses_no_leg_of_which_the_order_alone_gives_a_call_several_launches(
    size: tuple[int, int] | None, tie: Tie, is_sure: bool
) -> None:
    """Of two dgrads of one call, one may be the wgrad of another."""
    one_high = ((F, Ran(1, 0, 0, 8.0, HIGH)), (D, Ran(2, 0, 0, 16.0, HIGH)))
    calls = [call({F: LOW}, size, tie), Call(None, size, one_high, tie)]
    claim = SimpleNamespace(converted=2, total=2)
    (expectation,) = (
        one
        for one in expectations(
            Ledger([[Execution(0, 0, tuple(calls), ())]]), nothing(counts=[claim])
        )
        if one.by is Witness.COUNT and D in {cell.leg for cell in one.cells}
    )
    assert (expectation.may_lack, expectation.is_sure) == (2.0, is_sure)


def test_a_log_that_leaves_out_the_head_alone_states_the_rest() -> None:
    head = whole(HIGH, (99, 16))
    sound = [whole(LOW), whole(LOW), head]
    missed = [whole(LOW), whole(HIGH), head]
    assert not lacking([sound], statements=nothing(heads=1)).lacks
    assert where(lacking([missed], statements=nothing(heads=1)))
    assert not lacking([missed]).lacks


def test_launches_of_unknown_precision_are_a_doubt() -> None:
    found = lacking([[whole(LOW)], [whole(UNKNOWN)]])
    assert not found.lacks
    assert {cell.step for cell in found.may_lack} == {1}


def test_without_numbers_no_more_gradients_are_high_than_forward_products() -> None:
    tied = [
        call({F: LOW, D: LOW, W: HIGH}, tie=Tie.SIZE),
        call({F: HIGH}, tie=Tie.SIZE),
    ]
    assert not lacking([tied]).lacks
    tied.append(call({F: LOW, D: LOW, W: HIGH}, tie=Tie.SIZE))
    assert where(lacking([tied])) == {(0, 0, W)}


@pytest.mark.parametrize(
    ("before", "doubted"), [(0, {(0, 0, D)}), (FIRST_LAYERS, set())]
)
def test_the_dgrad_that_lacks_is_that_of_the_first_layer_in_high_precision(
    before: int, doubted: set[tuple[int, int, Leg]]
) -> None:
    """Where it may be another's, one more of the others may be in high precision."""
    first = call({F: HIGH, W: HIGH}, tie=Tie.SIZE)
    low, high = [call(dict.fromkeys((F, D, W), of), tie=Tie.SIZE) for of in (LOW, HIGH)]
    calls = [*[low] * before, first, high, low]
    assert not lacking([[*calls, low]]).may_lack
    found = lacking([[*calls, call({F: LOW, D: HIGH, W: LOW}, tie=Tie.SIZE)]])
    assert not found.lacks
    assert {(cell.rank, cell.step, cell.leg) for cell in found.may_lack} == doubted


@pytest.mark.parametrize(("dgrad", "doubted"), [(LOW, set()), (HIGH, {D})])
def test_the_first_layer_gives_no_other_one_a_dgrad_in_high_precision(
    dgrad: Precision, doubted: set[Leg]
) -> None:
    """It has none itself: so one of the others, in FP8, would take its place."""
    first = call({F: HIGH, W: HIGH}, None, Tie.GRAPH)
    high = call(dict.fromkeys((F, D, W), HIGH), None, Tie.GRAPH)
    low = call({F: LOW, D: dgrad, B: LOW}, None, Tie.GRAPH)
    vague = call({F: LOW, B: LOW}, None, Tie.GRAPH)
    found = lacking([[first, high, low, vague]])
    assert not found.lacks
    assert {cell.leg for cell in found.may_lack} == doubted


@pytest.mark.parametrize(("wgrad", "doubted"), [(LOW, set()), (HIGH, {W})])
def test_known_gradients_agree_with_all_products_of_which_they_may_be(
    wgrad: Precision, doubted: set[Leg]
) -> None:
    """Beside recomputed products, of layers with inputs and outputs exchanged."""
    calls = [call(dict.fromkeys((F, W, B), HIGH), UP, Tie.GRAPH)]
    vague = (B, Ran(2, 2, 0, 16.0, LOW))
    for leg in (LOW, wgrad):
        known = call({F: LOW, W: leg}, DOWN, Tie.GRAPH)
        calls.append(known._replace(legs=(*known.legs, vague)))
    found = lacking([calls])
    assert not found.lacks
    assert {cell.leg for cell in found.may_lack} == doubted


@pytest.mark.parametrize(("wgrad", "doubted"), [(LOW, set()), (HIGH, {W})])
def test_gradients_without_sizes_are_a_doubt_though_a_first_layer_has_no_dgrad(
    wgrad: Precision, doubted: set[Leg]
) -> None:
    """So fewer gradients ran than two for each forward product, and these may be of others."""
    calls = [call({F: LOW, W: wgrad}, None, Tie.SIZE)]
    calls += [call({F: LOW, B: LOW, W: wgrad}, None, Tie.SIZE)] * 2
    found = lacking([calls])
    assert not found.lacks
    assert {cell.leg for cell in found.may_lack} == doubted


def test_a_recomputed_pass_agrees_with_the_first_one() -> None:
    first = [call({F: LOW}), call({F: LOW})]
    again = [call({R: HIGH}), call({R: LOW})]
    assert where(lacking([[*first, *again]])) == {(0, 0, R)}


@pytest.mark.parametrize(("size", "are_sure"), [(None, False), (UP, True)])
def test_as_many_products_computed_again_are_the_same_ones_if_they_have_the_size(
    size: tuple[int, int] | None, are_sure: bool
) -> None:
    """Else a frozen layer that trains nothing is computed again, and a head is not."""
    calls = [call({F: LOW}, size), call({F: HIGH}, size)]
    again = [call({R: LOW}, size), call({R: LOW}, size)]
    found = lacking([[*calls, *again]])
    assert bool(found.lacks) is are_sure
    assert {cell.leg for cell in found.may_lack} == {F}


def test_work_and_not_launches_says_how_much_is_lacking() -> None:
    small = Call(None, DOWN, ((F, Ran(1, 0, 0, 1.0, HIGH)),), Tie.NUMBER)
    large = Call(None, UP, ((F, Ran(1, 1, 0, 999.0, LOW)),), Tie.NUMBER)
    sound = small._replace(legs=((F, Ran(1, 1, 0, 1.0, LOW)),))
    found = lacking([[large, small], [large, sound]])
    assert where(found) == {(0, 0, F)}
    assert found.counting() == {}  # next to nothing, and nothing states it


@pytest.mark.parametrize(
    ("tie", "products"),
    [(Tie.NUMBER, [3]), (Tie.GRAPH, [1, 1, 1]), (Tie.SIZE, [1, 1, 1])],
)
def test_launches_are_parts_of_one_product_where_a_number_says_so(
    tie: Tie, products: list[int]
) -> None:
    """The order alone also gives a call what is recomputed, and gradients of other layers."""
    chunks = Call(None, UP, ((D, Ran(3, 3, 0, 24.0, LOW)),), tie)
    ledger = Ledger([[Execution(0, 0, (chunks,), ())]])
    (entry,) = ledger.programs[0].entries
    assert entry.products == products
